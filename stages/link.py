"""Length-prefixed frames over a stream socket: the shell of every link.

Rules
* A readable socket is the only wake-up; nothing polls.
* A frame is at most `FRAME_BYTES_MAX`. What waits in the write buffer is at most `BACKLOG_BYTES_MAX`: credit bounds
  payload far below it, so a fuller buffer means a peer that no longer reads, and the link is given up.
* Addresses are `unix:/path`; the form leaves room for `tcp:host:port`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import structlog

from stages.messages import Frame, FrameError, decode, encode

FRAME_BYTES_MAX = 1 << 18  # a prompt of a full context is about 64 KiB; everything else is far smaller
BACKLOG_BYTES_MAX = 4 << 20
CONNECT_RETRY_MS_MIN = 20
CONNECT_RETRY_MS_MAX = 200  # a worker that comes back is used again at once

_HEADER = struct.Struct(">I")
_log = structlog.get_logger("stages.link")


class LinkError(RuntimeError):
    """The link is gone or was never there: the peer must act, or be replaced."""


class Link(asyncio.Protocol):
    """One end of a link. `on_frame` and `on_lost` are called on the loop, `on_lost` exactly once and last of all.

    Once closed on this side it takes no further frame, not even one that came before with others.
    """

    def __init__(self, on_frame: Callable[[Link, Frame], None], on_lost: Callable[[Link], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._lost = False

    @property
    def backlog_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def is_up(self) -> bool:
        """False before the link is made, and as soon as either side has begun to close it."""
        return self._transport is not None and not self._lost and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self._take_frames()
        except FrameError as error:
            _log.error("link_protocol_error", error=str(error))
            self.close()

    def _take_frames(self) -> None:
        start, end = 0, len(self._buffer)
        while end - start >= _HEADER.size and self.is_up:
            (size,) = _HEADER.unpack_from(self._buffer, start)
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes exceeds {FRAME_BYTES_MAX}")
            body = start + _HEADER.size
            if end - body < size:
                break
            start = body + size
            self._on_frame(self, decode(bytes(self._buffer[body:start])))
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not change what is done
        self._lose()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost(self)

    def send(self, frame: Frame) -> None:
        """Hand `frame` to the socket. A link that is down swallows it: its loss has been or will be told."""
        if self._transport is None or not self.is_up:
            return
        payload = encode(frame)
        self._transport.write(_HEADER.pack(len(payload)) + payload)
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES_MAX:
            _log.error("link_backlog", bytes=self._transport.get_write_buffer_size())
            self.abort()

    def close(self) -> None:
        """Close once what was sent has been written."""
        if self._transport is not None and not self._lost:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not written is lost."""
        if self._transport is not None and not self._lost:
            self._transport.abort()


LinkFactory = Callable[[], Link]


def unix_path(address: str) -> Path:
    """The path in a `unix:` address; raises `LinkError` for another kind."""
    scheme, _, path = address.partition(":")
    if scheme != "unix" or not path:
        raise LinkError(f"address {address!r} is not of the form unix:/path")
    return Path(path)


async def listen(address: str, factory: LinkFactory) -> asyncio.Server:
    """Accept links at `address`, which only this user may use; a stale socket file is replaced.

    Raises `LinkError` where that cannot be.
    """
    path = unix_path(address)
    try:
        path.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(factory, str(path))
        path.chmod(0o600)
    except OSError as error:
        raise LinkError(f"nobody can listen at {address!r}: {error}") from error
    return server


async def connect(address: str, factory: LinkFactory) -> Link:
    """Connect to `address`, trying again with growing pauses until somebody listens there.

    Raises `LinkError` where nobody ever can.
    """
    pause_ms = CONNECT_RETRY_MS_MIN
    while True:
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(factory, str(unix_path(address)))
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, CONNECT_RETRY_MS_MAX)
        except OSError as error:
            raise LinkError(f"nobody can be reached at {address!r}: {error}") from error
        else:
            return link
