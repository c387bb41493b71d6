"""Links over real sockets, and their framing byte by byte."""

from __future__ import annotations

import asyncio
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import AudioIn, Tag
from stages.link import BACKLOG_BYTES_MAX, FRAME_BYTES_MAX, Link, LinkError, connect, listen, unix_path
from stages.messages import Cancel, CloseSession, EndEpoch, Feed, Frame, Grant, Hello, encode
from tests.stages.link_bench import End, FakeTransport, Listener, play

TAG = Tag("s", 1, 1, "r")
FRAMES: tuple[Frame, ...] = (
    Hello(1, "control", "gw"),
    EndEpoch("s", 4),
    Feed(TAG, AudioIn(0, bytes(640)), 320),
    Grant(TAG, 1),
)


def wire(*frames: Frame) -> bytes:
    payloads = [encode(frame) for frame in frames]
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


class Wired:
    """A link on a transport without a socket."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.losses = 0
        self.transport = FakeTransport()
        self.link = Link(self._on_frame, self._on_lost)
        self.link.connection_made(self.transport)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame, CloseSession):
            link.close()

    def _on_lost(self, link: Link) -> None:
        self.losses += 1


# ---- framing ------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.sampled_from(FRAMES), max_size=6), st.data())
def test_frames_come_whole_however_the_bytes_are_split(frames: list[Frame], data: st.DataObject) -> None:
    wired, stream = Wired(), wire(*frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        wired.link.data_received(stream[start:end])
    assert wired.frames == frames
    assert not wired.transport.closed_by


def test_a_frame_comes_with_its_last_byte() -> None:
    wired, stream = Wired(), wire(FRAMES[0], FRAMES[1])
    arrivals = []
    for byte in stream:
        wired.link.data_received(bytes([byte]))
        arrivals.append(len(wired.frames))
    first = len(wire(FRAMES[0]))
    assert [arrivals.index(1), arrivals.index(2)] == [first - 1, len(stream) - 1]


def test_what_is_sent_is_what_the_other_end_takes() -> None:
    sender, taker = Wired(), Wired()
    for frame in FRAMES:
        sender.link.send(frame)
    taker.link.data_received(bytes(sender.transport.written))
    assert taker.frames == list(FRAMES)


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
    wired.link.data_received(wire(FRAMES[0]) + garbage + wire(FRAMES[1]))
    assert wired.frames == [FRAMES[0]]
    assert wired.transport.closed_by == "close"


def test_a_frame_of_the_largest_size_is_taken() -> None:
    room = FRAME_BYTES_MAX - len(encode(Feed(TAG, AudioIn(0, bytes(70_000))))) + 70_000
    frame = Feed(TAG, AudioIn(0, bytes(room)))
    assert len(encode(frame)) == FRAME_BYTES_MAX
    wired = Wired()
    wired.link.data_received(wire(frame))
    assert wired.frames == [frame]


def test_a_link_that_was_closed_here_takes_nothing_more() -> None:
    wired = Wired()
    wired.link.data_received(wire(FRAMES[0], CloseSession("s"), FRAMES[1]))
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
            here, there = await listener.pair()
            for frame in FRAMES:
                here.link.send(frame)
                there.link.send(frame)
            for end in (here, there):
                assert [await end.frame() for _ in FRAMES] == list(FRAMES)

    play(scenario())


def test_closing_writes_what_was_sent_and_then_ends_both_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            here, there = await listener.pair()
            big = Feed(TAG, AudioIn(0, bytes(200_000)))
            for _ in range(5):
                here.link.send(big)
            here.link.close()
            assert [await there.frame() for _ in range(5)] == [big] * 5
            await there.end()
            await here.end()
            assert not here.link.is_up
            assert not there.link.is_up

    play(scenario())


def test_garbage_over_a_socket_ends_that_link_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            other, other_there = await listener.pair()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            there = await listener.accepted()
            writer.write(wire(FRAMES[0]) + struct.pack(">I", FRAME_BYTES_MAX + 1))
            assert await there.frame() == FRAMES[0]
            await there.end()
            assert await reader.read() == b""
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
            big = Feed(TAG, AudioIn(0, bytes(200_000)))
            # The kernel takes some of it; far less than twice the limit.
            for _ in range(2 * BACKLOG_BYTES_MAX // 200_000):
                there.link.send(big)
                assert there.link.backlog_bytes <= BACKLOG_BYTES_MAX
            assert not there.link.is_up
            await there.end()
            writer.close()
            await writer.wait_closed()

    play(scenario())


# ---- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "unix:", "tcp:127.0.0.1:80", "/run/s.sock"])
def test_another_kind_of_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(LinkError, match=repr(address)):
        unix_path(address)


def test_only_this_user_may_use_the_socket_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> None:
        for _ in range(2):
            server = await listen(f"unix:{path}", lambda: End().link)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            server.close()
        assert path.exists()

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
