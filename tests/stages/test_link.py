"""Links over real sockets, and their framing byte by byte."""

from __future__ import annotations

import asyncio
import socket
import stat
import struct
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from stages.block_table import BLOCK_BYTES
from stages.contracts import AudioIn, Latents, Tag
from stages.link import (
    BACKLOG_BYTES_MAX,
    CONNECT_RETRY_MS_MIN,
    FRAME_FIELDS_BYTES_MAX,
    REFUSED_RETRY_MS,
    Link,
    LinkError,
    TcpAddress,
    UnixAddress,
    connect,
    listen,
    parse_address,
    payload_bytes_max,
    remove_socket,
)
from stages.link_window import FRAME_BYTES_MAX, GIVE_BACK_BYTES, LINK_WINDOW_BYTES
from stages.messages import (
    LINK_VERSION,
    Cancel,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    LinkRefused,
    Taken,
    Welcome,
    decode,
    encode,
)
from stages.outgoing import ControlPayloadError, FrameTooLargeError
from tests.stages.link_bench import WAIT_S_MAX, End, FakeTransport, Listener, play

TAG = Tag("s", 1, 1, "r")
HELLO = Hello(LINK_VERSION, "media", "gw")
WELCOME = Welcome(LINK_VERSION, "talker", 1, "rev", ())
FRAMES: tuple[Frame, ...] = (
    HELLO,
    EndEpoch("s", 4),
    Feed(TAG, AudioIn(0, bytes(640)), 320),
    Grant(TAG, 1),
)


def wire(*frames: Frame) -> bytes:
    payloads = [encode(frame) for frame in frames]
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def unwired(stream: bytes | bytearray) -> list[Frame]:
    """The frames in `stream`, which ends with one."""
    frames = []
    while stream:
        (size,) = struct.unpack_from(">I", stream)
        frames.append(decode(bytes(stream[4 : 4 + size])))
        stream = stream[4 + size :]
    return frames


class Wired:
    """A link on a transport without a socket."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.losses = 0
        self.transport = FakeTransport()
        self.link = Link(self._on_frame, self._on_lost)
        self.link.connection_made(self.transport)

    def come(self, data: bytes) -> None:
        """`data` comes, in as many pieces as the link has room for."""
        while data:
            buffer = self.link.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.link.buffer_updated(size)
            data = data[size:]

    @property
    def sent(self) -> list[Frame]:
        return unwired(self.transport.written)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame, CloseSession):
            link.close()

    def _on_lost(self, link: Link) -> None:
        self.losses += 1


# ---- framing ------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.sampled_from(FRAMES[1:]), max_size=6), st.data())
def test_frames_come_whole_however_the_bytes_are_split(later: list[Frame], data: st.DataObject) -> None:
    frames = [HELLO, *later]
    wired, stream = Wired(), wire(*frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        wired.come(stream[start:end])
    assert wired.frames == frames
    assert not wired.transport.closed_by


def test_a_frame_comes_with_its_last_byte() -> None:
    wired, stream = Wired(), wire(FRAMES[0], FRAMES[1])
    arrivals = []
    for byte in stream:
        wired.come(bytes([byte]))
        arrivals.append(len(wired.frames))
    first = len(wire(FRAMES[0]))
    assert [arrivals.index(1), arrivals.index(2)] == [first - 1, len(stream) - 1]


def test_what_is_sent_is_what_the_other_end_takes() -> None:
    async def scenario() -> None:
        sender, taker = Wired(), Wired()
        for frame in FRAMES:
            sender.link.send(frame)
        await asyncio.sleep(0)
        taker.come(bytes(sender.transport.written))
        assert taker.frames == list(FRAMES)

    play(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        b"\xff" * 8,
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["oversized", "noise", "no frame", "empty", "another protocol"],
)
def test_garbage_ends_the_link_after_the_frames_before_it(garbage: bytes) -> None:
    wired = Wired()
    wired.come(wire(FRAMES[0]) + garbage + wire(FRAMES[1]))
    assert wired.frames == [FRAMES[0]]
    assert wired.transport.closed_by == "close"
    assert [type(frame) for frame in wired.sent] == [LinkRefused]


def test_a_frame_of_the_largest_size_is_taken() -> None:
    room = FRAME_BYTES_MAX - len(encode(Feed(TAG, AudioIn(0, bytes(70_000))))) + 70_000
    frame = Feed(TAG, AudioIn(0, bytes(room)))
    assert len(encode(frame)) == FRAME_BYTES_MAX
    wired = Wired()
    wired.come(wire(HELLO, frame, FRAMES[1]))
    assert wired.frames == [HELLO, frame, FRAMES[1]]


def test_a_link_that_was_closed_here_takes_nothing_more() -> None:
    wired = Wired()
    wired.come(wire(FRAMES[0], CloseSession("s"), FRAMES[1]))
    assert wired.frames == [FRAMES[0], CloseSession("s")]


def test_a_link_that_is_closing_or_down_swallows_what_is_sent() -> None:
    wired = Wired()
    assert wired.link.is_up
    wired.link.close()
    wired.link.send(FRAMES[0])
    assert (wired.link.is_up, wired.losses) == (False, 0)
    wired.link.connection_lost(None)
    wired.link.connection_lost(None)
    wired.link.send(FRAMES[0])
    assert (bytes(wired.transport.written), wired.losses) == (b"", 1)


def test_a_lost_link_gives_its_buffer_back_though_somebody_still_knows_it() -> None:
    wired = Wired()
    wired.come(wire(*FRAMES[:2])[:-1])
    assert wired.link.get_buffer(-1).nbytes > FRAME_BYTES_MAX // 2
    wired.link.connection_lost(None)
    assert wired.link.get_buffer(-1).nbytes == 0


def test_a_lost_link_can_be_closed_again() -> None:
    wired = Wired()
    wired.link.connection_lost(None)
    wired.link.close()
    wired.link.abort()
    assert wired.transport.closed_by == ""


def test_a_link_that_was_never_made_is_down() -> None:
    link = Link(lambda _link, _frame: None, lambda _link: None)
    link.send(FRAMES[0])
    link.close()
    link.abort()
    assert (link.is_up, link.backlog_bytes) == (False, 0)


@pytest.mark.parametrize(("backlog_bytes", "closed_by"), [(BACKLOG_BYTES_MAX, ""), (BACKLOG_BYTES_MAX + 1, "abort")])
def test_a_peer_that_no_longer_reads_is_given_up(backlog_bytes: int, closed_by: str) -> None:
    wired = Wired()
    wired.transport.backlog_bytes = backlog_bytes
    wired.link.send(FRAMES[0])
    assert (wired.transport.closed_by, wired.link.backlog_bytes) == (closed_by, backlog_bytes)


# ---- sockets ------------------------------------------------------------------------------------------------


def test_a_pair_talks_both_ways_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            here, there = await listener.greeted_pair()
            for frame in FRAMES[1:]:
                here.link.send(frame)
                there.link.send(frame)
            for end in (here, there):
                assert [await end.frame() for _ in FRAMES[1:]] == list(FRAMES[1:])

    play(scenario())


def test_closing_writes_what_was_sent_and_then_ends_both_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            here, there = await listener.greeted_pair()
            big = Feed(TAG, AudioIn(0, bytes(200_000)))
            for _ in range(4):
                here.link.send(big)
            here.link.close()
            assert [await there.frame() for _ in range(4)] == [big] * 4
            await there.end()
            await here.end()
            assert not here.link.is_up
            assert not there.link.is_up

    play(scenario())


def test_garbage_over_a_socket_ends_that_link_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            other, other_there = await listener.greeted_pair()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            there = await listener.accepted()
            writer.write(wire(FRAMES[0]) + struct.pack(">I", FRAME_BYTES_MAX + 1))
            assert await there.frame() == FRAMES[0]
            await there.end()
            assert [type(frame) for frame in unwired(await reader.read())] == [LinkRefused]
            writer.close()
            await writer.wait_closed()
            other.link.send(Cancel(TAG))
            assert await other_there.frame() == Cancel(TAG)

    play(scenario())


def test_a_reader_that_stops_is_given_up_at_the_backlog_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1_024)
            there = await listener.accepted()
            # No window bounds what is no payload. The kernel takes some of it; far less than twice the limit.
            big = LinkRefused(LINK_VERSION, 200_000 * "x")
            for _ in range(2 * BACKLOG_BYTES_MAX // 200_000):
                there.link.send(big)
                assert there.link.backlog_bytes <= BACKLOG_BYTES_MAX
            assert not there.link.is_up
            await there.end()
            writer.close()
            await writer.wait_closed()

    play(scenario())


# ---- greeting -----------------------------------------------------------------------------------------------


def taking(*frames: Frame) -> Wired:
    """A link to which `frames` have come."""
    wired = Wired()
    wired.come(wire(*frames))
    return wired


@pytest.mark.parametrize("version", [1, LINK_VERSION + 1])
def test_another_version_is_told_which_one_must_be_updated(version: int) -> None:
    wired = taking(Hello(version, "control", "gw"), EndEpoch("s", 1))
    older = min(version, LINK_VERSION)
    reason = (
        f"the peer's Hello speaks version {version} of the links, this side {LINK_VERSION}: "
        f"update the installation that speaks version {older}"
    )
    assert (wired.frames, wired.sent) == ([], [LinkRefused(LINK_VERSION, reason)])
    assert (wired.transport.closed_by, wired.link.retry_ms) == ("close", REFUSED_RETRY_MS)


def test_a_later_version_is_told_so_whatever_its_greeting_holds() -> None:
    hello = msgspec.msgpack.encode({"type": "Hello", "version": LINK_VERSION + 1, "mood": "good"})
    wired = Wired()
    wired.come(struct.pack(">I", len(hello)) + hello)
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert f"speaks version {LINK_VERSION + 1}" in refused.reason


def test_who_connected_refuses_another_version_too() -> None:
    wired = Wired()
    wired.link.send(HELLO)
    wired.come(wire(Welcome(1, "talker", 1, "rev", ())))
    assert wired.frames == []
    assert [type(frame) for frame in wired.sent] == [Hello, LinkRefused]


def test_a_refusal_ends_the_link_and_both_sides_log_it() -> None:
    with capture_logs() as said:
        refusing = taking(Hello(1, "control", "gw"))
        refused = Wired()
        refused.link.send(Hello(LINK_VERSION, "control", "gw"))
        refused.come(bytes(refusing.transport.written))
    assert (refused.transport.closed_by, refused.frames) == ("close", [])
    assert refused.link.retry_ms == REFUSED_RETRY_MS
    assert [line["event"] for line in said] == ["link_refused", "link_refused_by_peer"]
    assert all("update the installation that speaks version 1" in line["reason"] for line in said)


def test_a_refusal_in_another_version_is_understood() -> None:
    refused = Wired()
    refused.link.send(HELLO)
    refused.come(wire(LinkRefused(9, "too old")))
    assert refused.transport.closed_by == "close"
    assert [type(frame) for frame in refused.sent] == [Hello]


@pytest.mark.parametrize("first", [EndEpoch("s", 1), WELCOME, FRAMES[2]], ids=["order", "Welcome", "payload"])
def test_who_connects_says_hello_first(first: Frame) -> None:
    wired = taking(first)
    assert wired.frames == []
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert f"begins with a {type(first).__name__}, not with Hello" in refused.reason


@pytest.mark.parametrize("again", [HELLO, WELCOME], ids=["Hello", "Welcome"])
def test_a_greeting_comes_once(again: Frame) -> None:
    wired = taking(HELLO, again)
    assert wired.frames == [HELLO]
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert "after the greeting" in refused.reason


def test_a_link_that_was_merely_lost_is_made_again_at_once() -> None:
    wired = taking(HELLO)
    wired.link.connection_lost(None)
    assert wired.link.retry_ms == CONNECT_RETRY_MS_MIN


# ---- payload and the window ---------------------------------------------------------------------------------


def test_a_control_link_takes_no_payload() -> None:
    wired = taking(Hello(LINK_VERSION, "control", "gw"), FRAMES[2])
    assert len(wired.frames) == 1
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert "Feed" in refused.reason


def test_a_control_link_sends_no_payload() -> None:
    wired = Wired()
    wired.link.send(Hello(LINK_VERSION, "control", "gw"))
    with pytest.raises(ControlPayloadError, match="Feed"):
        wired.link.send(FRAMES[2])


def test_a_frame_that_is_too_large_fails_where_it_is_sent() -> None:
    wired = Wired()
    wired.link.send(HELLO)
    for frame in (Feed(TAG, AudioIn(0, bytes(FRAME_BYTES_MAX))), LinkRefused(1, FRAME_BYTES_MAX * "x")):
        with pytest.raises(FrameTooLargeError, match=type(frame).__name__):
            wired.link.send(frame)
    assert (wired.sent, wired.transport.closed_by) == ([HELLO], "")


def test_bytes_of_the_window_come_back_once_many_have_been_taken() -> None:
    big = Feed(TAG, AudioIn(0, bytes(100_000)))
    size = len(wire(big))
    wired = taking(HELLO, big, big)
    assert wired.sent == []
    wired.come(wire(big))
    assert wired.sent == [Taken(3 * size)]
    assert 2 * size < GIVE_BACK_BYTES <= 3 * size


def test_more_than_the_window_is_never_in_flight_and_terminals_pass() -> None:
    sender, taker = Wired(), Wired()
    sender.link.send(HELLO)
    big = Feed(TAG, AudioIn(0, bytes(100_000)))
    for _ in range(20):
        sender.link.send(big)
    sender.link.send(Cancel(TAG))
    first = sender.sent
    assert first[-1] == Cancel(TAG)
    assert first.count(big) * len(wire(big)) <= LINK_WINDOW_BYTES < (first.count(big) + 3) * len(wire(big))
    rounds = 0
    while sender.transport.written:
        written, sender.transport.written = bytes(sender.transport.written), bytearray()
        taker.come(written)
        taken, taker.transport.written = bytes(taker.transport.written), bytearray()
        sender.come((b"" if rounds else wire(WELCOME)) + taken)
        rounds += 1
    assert taker.frames.count(big) == 20


def test_a_peer_that_ignores_the_window_is_refused() -> None:
    wired = taking(HELLO)
    wired.link._intake.came(LINK_WINDOW_BYTES)
    wired.come(wire(FRAMES[2]))
    assert (wired.frames, wired.transport.closed_by) == ([HELLO], "close")


def test_bytes_that_were_not_in_flight_cannot_come_back() -> None:
    wired = Wired()
    wired.link.send(HELLO)
    wired.come(wire(WELCOME, Taken(1)))
    refused = wired.sent[-1]
    assert isinstance(refused, LinkRefused)
    assert "not in flight" in refused.reason


# ---- TCP ----------------------------------------------------------------------------------------------------


def free_tcp_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp:127.0.0.1:{free.getsockname()[1]}"


def test_frames_go_over_tcp_without_delay() -> None:
    async def scenario() -> None:
        async with Listener(free_tcp_address()) as listener:
            here, there = await listener.greeted_pair()
            big = Feed(TAG, AudioIn(0, bytes(200_000)))
            here.link.send(big)
            assert await there.frame() == big
            for end in (here, there):
                assert end.link._socket is not None
                assert end.link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert end.link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    play(scenario())


def test_who_connects_early_over_tcp_waits_and_says_so() -> None:
    async def scenario() -> None:
        waits = asyncio.Event()

        def note(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
            assert line["event"] == "link_waits"
            waits.set()
            raise structlog.DropEvent

        structlog.configure(processors=[note])
        address = free_tcp_address()
        here = End()
        connecting = asyncio.create_task(here.connect(address))
        async with asyncio.timeout(WAIT_S_MAX):
            await waits.wait()
        async with Listener(address) as listener:
            await connecting
            there = await listener.accepted()
            here.link.send(HELLO)
            assert await there.frame() == HELLO
        await here.end()

    try:
        play(scenario())
    finally:
        structlog.reset_defaults()


# ---- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("unix:/run/s.sock", UnixAddress(Path("/run/s.sock"))),
        ("tcp:worker:7000", TcpAddress("worker", 7000)),
        ("tcp:[::1]:7000", TcpAddress("::1", 7000)),
    ],
)
def test_an_address_names_a_place(address: str, place: UnixAddress | TcpAddress) -> None:
    assert parse_address(address) == place


@pytest.mark.parametrize(
    "address", ["", "unix:", "tcp:host", "tcp::80", "tcp:host:", "tcp:host:70000", "udp:h:1", "/s"]
)
def test_another_kind_of_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(LinkError, match=repr(address)):
        parse_address(address)


def test_what_crosses_hosts_fits_a_frame() -> None:
    payload = bytes(payload_bytes_max("tcp:worker:7000"))
    tag = Tag("s" * 128, 2**62, 2**62, "r" * 128)
    frame = Feed(tag, Latents(2**62, 2**62, payload, clause_end=True, final=True), 2**62)
    assert len(encode(frame)) <= FRAME_BYTES_MAX < len(encode(frame)) + FRAME_FIELDS_BYTES_MAX
    assert payload_bytes_max("unix:/run/s.sock") == BLOCK_BYTES


def test_only_this_user_may_use_the_socket_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> None:
        for _ in range(2):
            server = await listen(f"unix:{path}", lambda: End().link)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            server.close()
        assert path.exists()
        remove_socket(f"unix:{path}")
        assert not path.exists()
        remove_socket("tcp:127.0.0.1:1")

    play(scenario())


@pytest.mark.parametrize("stale", [False, True], ids=["no file", "nobody listens"])
def test_who_connects_early_waits_for_the_listener(tmp_path: Path, stale: bool) -> None:
    async def scenario() -> None:
        address = f"unix:{tmp_path}/s"
        if stale:
            (await listen(address, lambda: End().link)).close()
        here = End()
        connecting = asyncio.create_task(here.connect(address))
        await asyncio.sleep(0)
        async with Listener(address) as listener:
            await connecting
            there = await listener.accepted()
            here.link.send(FRAMES[0])
            assert await there.frame() == FRAMES[0]
        await here.end()

    play(scenario())


def test_a_link_can_be_made_anew_after_its_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            for _ in range(3):
                here, there = await listener.pair()
                await there.abort()
                await here.end()

    play(scenario())


@pytest.mark.parametrize(("place", "fault"), [("file/s", "Not a directory"), ("x" * 120, "too long")])
def test_an_address_that_no_waiting_mends_is_refused_by_name(tmp_path: Path, place: str, fault: str) -> None:
    (tmp_path / "file").write_text("no folder")

    async def scenario() -> None:
        for use in (connect, listen):
            with pytest.raises(LinkError, match=fault) as caught:
                await use(f"unix:{tmp_path}/{place}", lambda: End().link)
            assert f"'unix:{tmp_path}/{place}'" in str(caught.value)

    play(scenario())
