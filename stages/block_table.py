"""The blocks of a worker's arena: who has each of them, and when it may be used again.

Theory of operation
    A payload lies in one block. Its stream acquires the block before anything is written to it, and the block then
    goes free → writing → ready → leased → free: leased once its name was sent to the one reader, free again when that
    has acknowledged. What is withdrawn before it was sent is freed at once or, amid the write, when that has ended. A
    lease past its deadline makes the block *orphaned*: it is reported, and stays the reader's all the same.

Rules
* Every block is in exactly one state; only a free one is given out. `_TRANSITIONS` is the whole machine.
* A block is named by its `DataRef`. The generation in it rises at each use, so a name is never used twice.
* A block has one reader. It is freed once: by that reader's acknowledgement, by the end of its link, or by withdrawal.
* What becomes of a block is entered in the process's event log: ACQUIRED once, FREED once, and LEASED in between where
  it was sent. Whoever calls has told the log the moment.
* A session owns at most `session_blocks_max` blocks, so one that is not read cannot take the arena from the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from stages.contracts import DataRef
from stages.event_log import NO_TRAIL, EventKind, EventLog, Trail

BLOCK_BYTES = 1 << 20  # pages are only there once written, so a large block costs what lies in it
BLOCKS = 64
BLOCKS_MAX = 4_096  # 4 GiB of addresses, which even a small host can promise
# One response has a block in transit and one being written, at each of its edges; a session, a few responses.
SESSION_BLOCKS_MAX = 8
LEASE_MS_MAX = 2_000  # a reader copies within a millisecond, unless it is stopped

K = TypeVar("K")


class ArenaError(RuntimeError):
    """A block was used out of turn: a bug on this side of the link."""


class FanOutError(ArenaError):
    """A second reader was to be given the same block: fan-out is two edges, each with a block of its own."""


class BlockState(Enum):
    __hash__ = object.__hash__  # members are looked up at each move of a block; Enum's own is a call of Python

    FREE = auto()
    WRITING = auto()
    DOOMED = auto()  # withdrawn amid the write
    READY = auto()
    LEASED = auto()
    ORPHANED = auto()


class BlockEvent(Enum):
    __hash__ = object.__hash__

    ACQUIRE = auto()
    WRITTEN = auto()
    WITHDRAW = auto()
    LEASE = auto()
    EXPIRE = auto()
    GIVE_BACK = auto()


_TRANSITIONS = {
    (BlockState.FREE, BlockEvent.ACQUIRE): BlockState.WRITING,
    (BlockState.WRITING, BlockEvent.WRITTEN): BlockState.READY,
    (BlockState.WRITING, BlockEvent.WITHDRAW): BlockState.DOOMED,
    (BlockState.DOOMED, BlockEvent.WRITTEN): BlockState.FREE,
    (BlockState.READY, BlockEvent.LEASE): BlockState.LEASED,
    (BlockState.READY, BlockEvent.WITHDRAW): BlockState.FREE,
    (BlockState.LEASED, BlockEvent.EXPIRE): BlockState.ORPHANED,
    (BlockState.LEASED, BlockEvent.GIVE_BACK): BlockState.FREE,
    (BlockState.ORPHANED, BlockEvent.GIVE_BACK): BlockState.FREE,
}


class Owner(NamedTuple):
    """Whose payload it is: the stream `key` of `session`, both by their whole names."""

    session: str
    key: str


NOBODY = Owner("", "")


@dataclass(frozen=True, slots=True)
class TableSize:
    """`block_bytes` a multiple of 8; the rest as in the constants above."""

    blocks: int = BLOCKS
    block_bytes: int = BLOCK_BYTES
    session_blocks_max: int = SESSION_BLOCKS_MAX
    lease_ns_max: int = LEASE_MS_MAX * 1_000_000


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Blocks by state, and what has happened so far. `refused` counts tries; a waiting stream makes several."""

    free: int
    writing: int
    leased: int
    orphaned: int
    used_peak: int
    refused: int
    orphaned_ever: int
    stale_releases: int
    lease_age_ns_max: int
    session_bytes: dict[str, int]


@dataclass(slots=True)
class _Block:
    """The last name that the block was given out by, and what of it counts while it is not free."""

    ref: DataRef
    state: BlockState = BlockState.FREE
    owner: Owner = NOBODY
    trail: Trail = NO_TRAIL
    reader: int = 0
    leased_ns: int = 0


class BlockTable:
    """Blocks 0 to `size.blocks - 1` of the arena of life `incarnation` of `worker`. Times are monotonic ns.

    `events`: the log of the process; without one, nothing is recorded.
    """

    def __init__(
        self, worker: str, incarnation: int, size: TableSize | None = None, events: EventLog | None = None
    ) -> None:
        self.size = size or TableSize()
        self.events = events or EventLog(0)
        self.worker = worker
        self.incarnation = incarnation
        self._blocks = [_Block(DataRef(worker, incarnation, index, 0, 0)) for index in range(self.size.blocks)]
        # The last one freed is used first: its pages are there, and warm.
        self._free = list(reversed(range(self.size.blocks)))
        self._owned: dict[Owner, int] = {}
        self._session_blocks: dict[str, int] = {}
        self._leased: dict[int, None] = {}  # the oldest lease first
        self._used_peak = 0
        self._refused = 0
        self._orphaned_ever = 0
        self._stale_releases = 0

    # ---- the producer's side --------------------------------------------------------------------

    def acquire(self, owner: Owner, length: int) -> DataRef | None:
        """A block for `length` bytes, to be written now. None where none is free or the session has its share."""
        if length > self.size.block_bytes:
            raise ArenaError(f"{length} bytes never fit a block of {self.size.block_bytes}")
        if not self._free or self._session_blocks.get(owner.session, 0) >= self.size.session_blocks_max:
            self._refused += 1
            return None
        index = self._free.pop()
        block = self._blocks[index]
        block.ref = DataRef(self.worker, self.incarnation, index, block.ref.generation + 1, length)
        if block.owner != owner:  # the block that a stream gives back is mostly the one that it is given next
            block.owner, block.trail = owner, self.events.of(owner.session, owner.key)
        block.state = _after(block, BlockEvent.ACQUIRE)
        _note(block, EventKind.ACQUIRED)
        self._owned[owner] = self._owned.get(owner, 0) + 1
        self._session_blocks[owner.session] = self._session_blocks.get(owner.session, 0) + 1
        self._used_peak = max(self._used_peak, self.size.blocks - len(self._free))
        return block.ref

    def written(self, ref: DataRef) -> bool:
        """The payload is there. False where it was withdrawn meanwhile; the block is then free."""
        block = self._named(ref)
        self._move(block, BlockEvent.WRITTEN, "withdrawn")
        return block.state is BlockState.READY

    def lease(self, ref: DataRef, reader: int, now_ns: int) -> None:
        """The name is being sent to `reader`, a link. Raises `FanOutError` where it was sent to one before."""
        block = self._named(ref)
        if block.state in (BlockState.LEASED, BlockState.ORPHANED):
            raise FanOutError(f"block {ref.block} is with reader {block.reader} and cannot go to {reader} too")
        self._move(block, BlockEvent.LEASE)
        block.reader, block.leased_ns = reader, now_ns
        self._leased[ref.block] = None
        _note(block, EventKind.LEASED)

    def withdraw(self, ref: DataRef) -> None:
        """The payload will not be sent. Raises `ArenaError` for one that was."""
        self._move(self._named(ref), BlockEvent.WITHDRAW, "withdrawn")

    # ---- the reader's side ----------------------------------------------------------------------

    def release(self, ref: DataRef, reader: int) -> bool:
        """`reader` is done with the block. False, and counted, where it does not hold it (any more)."""
        block = self._blocks[ref.block] if 0 <= ref.block < len(self._blocks) else None
        if block is None or block.ref != ref or block.reader != reader or ref.block not in self._leased:
            self._stale_releases += 1
            return False
        self._move(block, BlockEvent.GIVE_BACK, "acknowledged")
        return True

    def reader_lost(self, reader: int) -> set[Owner]:
        """The link numbered `reader` is gone, and with it every lease of its. Gives whose payloads it had not read."""
        held = [self._blocks[index] for index in self._leased if self._blocks[index].reader == reader]
        for block in held:
            self._move(block, BlockEvent.GIVE_BACK, "link_lost")
        return {block.owner for block in held}

    def expire(self, now_ns: int) -> list[DataRef]:
        """Blocks that have become orphaned by now."""
        late = [
            block
            for block in map(self._blocks.__getitem__, self._leased)
            if block.state is BlockState.LEASED and now_ns - block.leased_ns >= self.size.lease_ns_max
        ]
        for block in late:
            self._move(block, BlockEvent.EXPIRE)
            _note(block, EventKind.LEASE_EXPIRED)
        self._orphaned_ever += len(late)
        return [block.ref for block in late]

    def next_expiry_ns(self) -> int | None:
        """When `expire` is to be called next."""
        for index in self._leased:
            if self._blocks[index].state is BlockState.LEASED:
                return self._blocks[index].leased_ns + self.size.lease_ns_max
        return None

    # ---- what is where --------------------------------------------------------------------------

    def holds(self, owner: Owner) -> bool:
        """Some block is being written for `owner`, or waits for its reader."""
        return owner in self._owned

    def used_by(self, session: str, key: str = "") -> int:
        """Blocks that are not free and were acquired for stream `key` of `session`, or for any of its streams."""
        return sum(
            block.owner.session == session and key in ("", block.owner.key)
            for block in self._blocks
            if block.state is not BlockState.FREE
        )

    def statistics(self, now_ns: int) -> TableStatistics:
        states = Counter(block.state for block in self._blocks)
        leased_ns = (self._blocks[index].leased_ns for index in self._leased)
        session_bytes: Counter[str] = Counter()
        for block in self._blocks:
            if block.state is not BlockState.FREE:
                session_bytes[block.owner.session] += block.ref.length
        return TableStatistics(
            states[BlockState.FREE],
            states[BlockState.WRITING] + states[BlockState.DOOMED] + states[BlockState.READY],
            states[BlockState.LEASED],
            states[BlockState.ORPHANED],
            self._used_peak,
            self._refused,
            self._orphaned_ever,
            self._stale_releases,
            now_ns - next(leased_ns, now_ns),
            dict(session_bytes),
        )

    # ---- moving ---------------------------------------------------------------------------------

    def _named(self, ref: DataRef) -> _Block:
        block = self._blocks[ref.block]
        if block.ref != ref:
            raise ArenaError(f"block {ref.block} is at generation {block.ref.generation}, not {ref.generation}")
        return block

    def _move(self, block: _Block, event: BlockEvent, cause: str = "") -> None:
        block.state = _after(block, event)
        if block.state is BlockState.FREE:
            _note(block, EventKind.FREED, cause)
            self._leased.pop(block.ref.block, None)
            self._free.append(block.ref.block)
            _strike(self._owned, block.owner)
            _strike(self._session_blocks, block.owner.session)


def _note(block: _Block, kind: EventKind, cause: str = "") -> None:
    block.trail.add(kind, block.ref.length, state=f"block_{block.ref.block}", cause=cause)


def _strike(counts: dict[K, int], whose: K) -> None:
    counts[whose] -= 1
    if not counts[whose]:
        del counts[whose]


def _after(block: _Block, event: BlockEvent) -> BlockState:
    state = _TRANSITIONS.get((block.state, event))
    if state is None:
        raise ArenaError(f"block {block.ref.block} is {block.state.name}: no {event.name} now")
    return state
