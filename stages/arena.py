"""The memory of an arena: one sealed file without a name, which its worker writes and its readers only read.

Theory of operation
    The worker makes the file once (`memfd_create`) and offers it in the greeting of each link whose peer reads from it.
    The reader opens it through `/proc/<pid>/fd/<n>`, `pid` being what the kernel says of the socket's peer, and maps it
    once for the life of the link. A file without a name needs no cleaning up, whoever is killed: the kernel drops it
    with the last mapping. It takes nothing of `/dev/shm`, which containers keep small.

    Passing the descriptor by SCM_RIGHTS would need a socket beside asyncio's, which drops what comes with the bytes,
    and a handshake of its own there. Opening it through /proc needs what local links have anyway: one user.

Rules
* The file starts with a nonce and one word for each block: the generation that is being written, or lies there.
* The writer sets the word before it touches the payload, and a block is only named once all of it was written. So it
  is enough that the reader looks at the word after it has copied: one that was stopped, and given up meanwhile, gets
  nothing rather than what lies there now.
* Sealed: it cannot shrink, by which a reader would die of SIGBUS. Readers map it read-only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets

from stages.block_table import ArenaError, BlockTable
from stages.contracts import DataRef
from stages.messages import ArenaOffer, FrameError

NONCE_BYTES = 16
WORD_STRIDE_BYTES = 64  # one cache line for each word
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _word(block: int) -> int:
    """Where the generation of `block` stands, in words of 8 bytes."""
    return (block + 1) * WORD_STRIDE_BYTES // 8


def _first_byte(blocks: int) -> int:
    """Where block 0 begins: behind the words, on a page of its own."""
    return -(-(blocks + 1) * WORD_STRIDE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


class Arena:
    """The writer's side of the blocks of `table`. Raises `ArenaError` where the host does not give as much."""

    def __init__(self, table: BlockTable) -> None:
        size = table.size
        self.table = table
        self._first = _first_byte(size.blocks)
        self._fd = os.memfd_create(f"arena-{table.worker}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, self._first + size.blocks * size.block_bytes)
            self._map = mmap.mmap(self._fd, 0)
        except OSError as error:
            os.close(self._fd)
            message = f"the host gives no {size.blocks} blocks of {size.block_bytes} bytes ({error.strerror})"
            raise ArenaError(f"{message}: lower arena_blocks") from error
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: self._first].cast("Q")
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._bytes[:NONCE_BYTES] = nonce
        self.offer = ArenaOffer(table.worker, table.incarnation, self._fd, nonce, size.blocks, size.block_bytes)

    def write(self, ref: DataRef, payload: bytes) -> None:
        """Copy `payload`, of `ref.length` bytes, to the block."""
        self._words[_word(ref.block)] = ref.generation
        start = self._first + ref.block * self.table.size.block_bytes
        self._bytes[start : start + ref.length] = payload

    def close(self) -> None:
        """Let go of the memory. Readers keep what they have mapped."""
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self._fd)


class ArenaView:
    """The reader's side: the arena that process `pid` offers. Raises `ArenaError` where it cannot be read."""

    def __init__(self, offer: ArenaOffer, pid: int) -> None:
        self._offer = offer
        self._first = _first_byte(offer.blocks)
        size = self._first + offer.blocks * offer.block_bytes
        try:
            fd = os.open(f"/proc/{pid}/fd/{offer.fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise ArenaError(f"the arena of {offer.worker}, process {pid}, cannot be mapped: {error}") from error
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: self._first].cast("Q")
        if self._bytes[:NONCE_BYTES] != offer.nonce:
            self.close()
            raise ArenaError(f"descriptor {offer.fd} of process {pid} is not the arena of {offer.worker}")

    def read(self, ref: DataRef) -> bytes | None:
        """A copy of what lies there; None where it is stale. Raises `FrameError` for what this arena cannot hold."""
        offer = self._offer
        if not (0 <= ref.block < offer.blocks and 0 <= ref.length <= offer.block_bytes):
            raise FrameError(f"block {ref.block} with {ref.length} bytes is outside the arena of {offer.worker}")
        if (ref.worker, ref.incarnation) != (offer.worker, offer.incarnation):
            return None
        start = self._first + ref.block * offer.block_bytes
        payload = self._copy(start, start + ref.length)
        return payload if self._words[_word(ref.block)] == ref.generation else None

    def _copy(self, start: int, end: int) -> bytes:
        return bytes(self._bytes[start:end])

    def close(self) -> None:
        self._words.release()
        self._bytes.release()
        self._map.close()
