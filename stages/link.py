"""Length-prefixed frames over a stream socket: the shell of every link.

Theory of operation
    The side that connects sends `Hello`, the other `Welcome`; with that the link has a role. Who produces payload on it
    (the side that connects on a data link, the worker on a media link) offers its arena there, if the link stays on
    this host. What is sent goes through the process's `Exchange`; what comes is handed on whole: a payload that lies in
    the peer's arena is copied out before, and its block and its bytes of the window are given back after.

    Credit comes back in many small frames at once, as when the pacer lets the frames of a dozen calls go. `Grant`s are
    therefore kept until the loop's turn is over, or until anything else is sent, and then written together.

Rules
* A readable socket is the only wake-up; nothing polls.
* All but `Grant` is with the kernel when `send` returns, and everything before it too.
* Who connects says `Hello` soon, or is let go (`stages.lobby`). Up to then a link reads little: `HELLO_BYTES_MAX`.
* A frame is at most `FRAME_BYTES_MAX`. What waits in the write buffer is at most `BACKLOG_BYTES_MAX`: the window bounds
  payload far below it, so a fuller buffer means a peer that no longer reads, and the link is given up.
* What a peer may not send is refused: `LinkRefused` says why, both sides log it, and the link ends.
* A payload that has become stale is dropped and counted, and its credit given back; nobody sees another's bytes.
* Addresses are `unix:/path`, or `tcp:host:port` (`tcp:[::1]:7000`) between hosts. TCP knows no peers: it is for a
  private network. There, payloads travel in the frame.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import structlog

from stages.arena import ArenaView
from stages.block_table import BLOCK_BYTES, ArenaError
from stages.contracts import DataRef
from stages.credit import CreditError
from stages.exchange import Exchange
from stages.link_window import FRAME_BYTES_MAX, HEADER_BYTES, Intake
from stages.lobby import Lobby
from stages.messages import (
    LINK_VERSION,
    TYPE_CHARACTERS_MAX,
    ArenaOffer,
    Feed,
    Frame,
    FrameError,
    Grant,
    Hello,
    LinkRefused,
    LinkRole,
    PayloadFrame,
    Published,
    Release,
    Taken,
    Welcome,
    decode,
    greeting_of,
    with_payload,
)

BACKLOG_BYTES_MAX = 4 << 20
KEPT_PIECES_MAX = 256  # headers and frames that may wait a moment: about 10 KiB
CONNECT_RETRY_MS_MIN = 20
CONNECT_RETRY_MS_MAX = 200  # a worker that comes back is used again at once
REFUSED_RETRY_MS = 2_000  # what was refused is refused again until somebody has acted
HELLO_BYTES_MAX = 4 << 10  # names and numbers; a quarter of it is the longest name of a peer
CLOSE_MS_MAX = 5_000  # for a peer that does not read what was sent before the close
FRAME_FIELDS_BYTES_MAX = 1 << 10  # of a payload frame: ids and numbers beside the payload

# A host that has died says nothing: it is found out after about 10 s, as long as a worker takes to start.
KEEPALIVE_IDLE_S = 4
KEEPALIVE_PROBE_S = 2
KEEPALIVE_PROBES = 3
UNACKNOWLEDGED_MS_MAX = 10_000

_HEADER = struct.Struct(">I")
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_log = structlog.get_logger("stages.link")


class LinkError(RuntimeError):
    """The link is gone or was never there: the peer must act, or be replaced."""


class Link(asyncio.BufferedProtocol):
    """One end of a link. `on_frame` and `on_lost` are called on the loop, `on_lost` exactly once and last of all.

    Once closed on this side it takes no further frame, not even one that came before with others. `exchange` is shared
    by the links of a process that has an arena.
    """

    def __init__(
        self,
        on_frame: Callable[[Link, Frame], None],
        on_lost: Callable[[Link], None],
        exchange: Exchange | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._exchange = exchange or Exchange()
        self.number = self._exchange.enrol(self._write, self._write_soon)
        self._buffer = bytearray(HEADER_BYTES + HELLO_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._role: LinkRole | None = None
        self._reception: _Reception | None = None
        self._greeted = False
        self._intake = Intake()
        self._arena: ArenaView | None = None
        self._lost = False
        self._refused = False
        self._stale = 0
        self._kept: list[bytes] = []  # headers and frames
        self._writing: asyncio.Handle | None = None

    # ---- state -----------------------------------------------------------------------------------

    @property
    def backlog_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def is_up(self) -> bool:
        """False before the link is made, and as soon as either side has begun to close it."""
        return self._transport is not None and not self._lost and not self._transport.is_closing()

    @property
    def stale_dropped(self) -> int:
        """Frames whose payload was gone."""
        return self._stale

    @property
    def retry_ms(self) -> int:
        """How long to wait, once the link is lost, before it is made again."""
        return REFUSED_RETRY_MS if self._refused else CONNECT_RETRY_MS_MIN

    @property
    def _is_local(self) -> bool:
        return self._socket is not None and self._socket.family == socket.AF_UNIX

    # ---- transport -------------------------------------------------------------------------------

    def accepted_by(self, reception: _Reception) -> None:
        """The link is to come in at a listener, and will have to greet."""
        self._reception = reception

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None and not self._is_local:
            _watch_tcp(self._socket)
        if self._reception is not None:
            self._reception.entered(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what fits is read
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            self._take_frames()
        except FrameError as error:
            self.refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not change what is done
        if not self._lost:
            self._lost = True
            if self._reception is not None:
                self._reception.left(self)
            self._on_lost(self)
            self._exchange.link_lost(self.number)
            if self._arena is not None:
                self._arena.close()
            # Who kept the link may know it for longer, in a cycle even; what it read into is of no more use.
            self._buffer, self._view, self._filled = bytearray(), memoryview(b""), 0

    # ---- what comes ------------------------------------------------------------------------------

    def _know_role(self, role: LinkRole) -> None:
        """From now on frames of any size may come."""
        self._role = role
        narrow = self._view
        self._buffer = bytearray(HEADER_BYTES + FRAME_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._view[: self._filled] = narrow[: self._filled]

    def _take_frames(self) -> None:
        start = 0
        while self._filled - start >= HEADER_BYTES and self.is_up:
            (size,) = _HEADER.unpack_from(self._buffer, start)
            size_max = HELLO_BYTES_MAX if self._role is None else FRAME_BYTES_MAX
            if size > size_max:
                raise FrameError(f"a frame of {size} bytes exceeds {size_max}")
            body, end = start + HEADER_BYTES, start + HEADER_BYTES + size
            if end > self._filled:
                break
            start = end
            self._take_frame(self._view[body:end])
        rest = self._filled - start if self.is_up else 0
        if start and rest:
            self._view[:rest] = self._view[start : self._filled]
        self._filled = rest

    def _take_frame(self, encoded: memoryview) -> None:
        if not self._greeted:
            _check_version(encoded)
        frame = decode(encoded)
        self._check_greeting(frame)
        match frame:
            case Hello(role=role, arena=offer):
                self._know_role(role)
                if self._reception is not None:
                    self._reception.greeted(self)
                self._map(offer)
                self._on_frame(self, frame)
            case Welcome(arena=offer):
                self._map(offer)
                self._on_frame(self, frame)
            case LinkRefused(version, reason):
                _log.error("link_refused_by_peer", role=self._role, reason=reason, peer_version=version)
                self._refused = True
                self.close()
            case Taken(frame_bytes):
                self._give_back(frame_bytes)
            case Release(ref):
                self._exchange.released(self.number, ref)
            case Feed() | Published():
                self._take_payload(frame, HEADER_BYTES + len(encoded))
            case _:
                self._on_frame(self, frame)

    def _check_greeting(self, frame: Frame) -> None:
        """The first frame greets, and no other one does."""
        wanted = Hello if self._role is None else Welcome
        greets = isinstance(frame, Hello | Welcome)
        if self._greeted and greets:
            raise FrameError(f"a {type(frame).__name__} came after the greeting")
        if not self._greeted and not isinstance(frame, wanted | LinkRefused):
            raise FrameError(f"the link begins with a {type(frame).__name__}, not with {wanted.__name__}")
        self._greeted = True

    def _give_back(self, frame_bytes: int) -> None:
        try:
            self._exchange.taken(self.number, frame_bytes)
        except CreditError as error:
            raise FrameError(f"bytes of the window that were not in flight: {error}") from error

    # ---- payload that comes ----------------------------------------------------------------------

    def _take_payload(self, frame: PayloadFrame, frame_bytes: int) -> None:
        if self._role == "control":
            raise FrameError(f"a {type(frame).__name__} came over a control link, which carries no payload")
        self._intake.came(frame_bytes)
        whole = frame if frame.body is None else self._fetched(frame, frame.body)
        if whole is not None:
            self._on_frame(self, whole)
        if frame.body is not None:
            self.send(Release(frame.body))
        given_back = self._intake.dealt_with(frame_bytes)
        if given_back:
            self.send(Taken(given_back))

    def _fetched(self, frame: PayloadFrame, ref: DataRef) -> PayloadFrame | None:
        """`frame` with its payload, or None where that is gone."""
        if self._arena is None:
            raise FrameError("a payload lies in an arena that was not offered")
        payload = self._arena.read(ref)
        if payload is not None:
            return with_payload(frame, payload, None)
        self._stale += 1
        _log.warning("payload_stale", worker=ref.worker, incarnation=ref.incarnation, block=ref.block)
        if isinstance(frame, Feed) and frame.units:
            self.send(Grant(frame.tag, frame.units))
        return None

    def _map(self, offer: ArenaOffer | None) -> None:
        if offer is None:
            return
        if self._socket is None or not self._is_local:
            raise FrameError("an arena is offered from another host")
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        try:
            self._arena = ArenaView(offer, _PEER_CREDENTIALS.unpack(credentials)[0])
        except ArenaError as error:
            raise FrameError(str(error)) from error

    # ---- what goes -------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Send `frame`, or keep it until there is room. A link that is down swallows it: its loss is or will be told.

        Raises `SendError` for what this link can never carry.
        """
        if not self.is_up:
            return
        self._exchange.send(self.number, self._offering(frame) if isinstance(frame, Hello | Welcome) else frame)

    def _offering(self, greeting: Hello | Welcome) -> Hello | Welcome:
        """This side's greeting, with its arena where the peer is to read it. With that, the link can carry payload."""
        if isinstance(greeting, Hello):
            self._know_role(greeting.role)
        assert self._role is not None, "Hello comes before Welcome"
        produces = self._role == ("data" if isinstance(greeting, Hello) else "media")
        offer = self._exchange.offer if produces and self._is_local else None
        self._exchange.link_up(self.number, self._role, lends=offer is not None)
        return msgspec.structs.replace(greeting, arena=offer)

    def _write(self, encoded: bytes) -> None:
        self._kept += _HEADER.pack(len(encoded)), encoded
        self._write_kept()

    def _write_soon(self, encoded: bytes) -> None:
        self._kept += _HEADER.pack(len(encoded)), encoded
        if len(self._kept) >= KEPT_PIECES_MAX:
            self._write_kept()
        elif self._writing is None:
            self._writing = asyncio.get_running_loop().call_soon(self._write_kept)

    def _write_kept(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        kept, self._kept = self._kept, []
        if self._transport is None or not kept or not self.is_up:
            return
        self._transport.write(b"".join(kept))
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES_MAX:
            _log.error("link_backlog", bytes=self._transport.get_write_buffer_size())
            self.abort()

    # ---- the end ---------------------------------------------------------------------------------

    def refuse(self, reason: str) -> None:
        """Say what is wrong with what the peer did, to it and to our own operator, and close."""
        _log.error("link_refused", role=self._role, reason=reason)
        self._refused = True
        self.send(LinkRefused(LINK_VERSION, reason))
        self.close()

    def close(self) -> None:
        """Close once what was sent has been written, or the peer has not read it for too long."""
        if self._transport is not None and not self._lost:
            self._write_kept()
            self._transport.close()
            if self.backlog_bytes:
                asyncio.get_running_loop().call_later(CLOSE_MS_MAX / 1000, self.abort)

    def abort(self) -> None:
        """Close at once; what was not written is lost."""
        if self._transport is not None and not self._lost:
            self._transport.abort()


def _check_version(encoded: memoryview) -> None:
    greeting = greeting_of(encoded)
    if greeting is None or greeting.type == LinkRefused.__name__ or greeting.version == LINK_VERSION:
        return
    older = min(greeting.version, LINK_VERSION)
    raise FrameError(
        f"the peer's {greeting.type[:TYPE_CHARACTERS_MAX]} speaks version {greeting.version} of the links, "
        f"this side {LINK_VERSION}: update the installation that speaks version {older}"
    )


def _watch_tcp(end: socket.socket) -> None:
    """Find out that the peer's host is gone. asyncio has set TCP_NODELAY."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)


# ---- addresses ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int


def parse_address(address: str) -> UnixAddress | TcpAddress:
    """What `unix:/path` or `tcp:host:port` means; raises `LinkError` for anything else."""
    scheme, _, place = address.partition(":")
    host, _, port = place.rpartition(":")
    if scheme == "unix" and place:
        return UnixAddress(Path(place))
    if scheme == "tcp" and host and port.isascii() and port.isdigit() and int(port) < 1 << 16:
        return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))
    raise LinkError(f"address {address!r} is not of the form unix:/path or tcp:host:port")


def payload_bytes_max(address: str) -> int:
    """The largest payload that can cross a link to `address`. Raises `LinkError`."""
    local = isinstance(parse_address(address), UnixAddress)
    return BLOCK_BYTES if local else FRAME_BYTES_MAX - FRAME_FIELDS_BYTES_MAX


LinkFactory = Callable[[], Link]


class _Reception:
    """The links that one listener has accepted: carries out what `stages.lobby` decides."""

    def __init__(self) -> None:
        self._lobby: Lobby[Link] = Lobby()
        self._timer: asyncio.TimerHandle | None = None

    def entered(self, link: Link) -> None:
        dismissed = self._lobby.entered(link, time.monotonic_ns())
        if dismissed is not None:
            goes, reason = dismissed
            goes.refuse(reason)
        self._watch()

    def greeted(self, link: Link) -> None:
        self._lobby.greeted(link)
        self._watch()

    def left(self, link: Link) -> None:
        self._lobby.left(link)
        self._watch()

    def _watch(self) -> None:
        due_ns = self._lobby.next_due_ns
        if due_ns is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif due_ns is not None and self._timer is None:
            delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        for link, reason in self._lobby.overdue(time.monotonic_ns()):
            link.refuse(reason)
        self._watch()


async def listen(address: str, factory: LinkFactory) -> asyncio.Server:
    """Accept links at `address`; a Unix socket is for this user only, and a stale one is replaced.

    Raises `LinkError` where that cannot be.
    """
    loop = asyncio.get_running_loop()
    reception = _Reception()

    def accepted() -> Link:
        link = factory()
        link.accepted_by(reception)
        return link

    try:
        match parse_address(address):
            case TcpAddress(host, port):
                return await loop.create_server(accepted, host, port)
            case UnixAddress(path):
                path.unlink(missing_ok=True)
                server = await loop.create_unix_server(accepted, str(path))
                path.chmod(0o600)
                return server
    except OSError as error:
        raise LinkError(f"nobody can listen at {address!r}: {error}") from error


def remove_socket(address: str) -> None:
    """Remove what `listen` left in the file system."""
    place = parse_address(address)
    if isinstance(place, UnixAddress):
        place.path.unlink(missing_ok=True)


async def connect(address: str, factory: LinkFactory) -> Link:
    """Connect to `address`, trying again with growing pauses until somebody listens there.

    Raises `LinkError` where nobody ever can. Of a TCP address that is never sure: hosts and their names come later.
    """
    place = parse_address(address)
    pause_ms = CONNECT_RETRY_MS_MIN
    while True:
        try:
            return await _connect_once(place, factory)
        except OSError as error:
            if isinstance(place, UnixAddress) and not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise LinkError(f"nobody can be reached at {address!r}: {error}") from error
            if isinstance(place, TcpAddress) and pause_ms == CONNECT_RETRY_MS_MIN:
                _log.warning("link_waits", address=address, error=str(error))
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, CONNECT_RETRY_MS_MAX)


async def _connect_once(place: UnixAddress | TcpAddress, factory: LinkFactory) -> Link:
    loop = asyncio.get_running_loop()
    if isinstance(place, UnixAddress):
        _, link = await loop.create_unix_connection(factory, str(place.path))
    else:
        _, link = await loop.create_connection(factory, place.host, place.port)
    return link
