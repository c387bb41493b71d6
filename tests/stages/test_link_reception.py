"""Links that come in and do not greet: how long they stay, how many, what they cost; and ends that nobody reads."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import msgspec
import pytest

from stages import link as links
from stages import lobby
from stages.contracts import AudioIn, Tag
from stages.link import HELLO_BYTES_MAX
from stages.link_window import FRAME_BYTES_MAX
from stages.messages import (
    LINK_VERSION,
    PEER_NAME_CHARACTERS_MAX,
    ArenaOffer,
    Feed,
    Hello,
    LinkRefused,
    Welcome,
    encode,
)
from tests.stages.link_bench import WAIT_S_MAX, Listener, play
from tests.stages.test_link import HELLO, Wired, unwired, wire


async def refusal_of(reader: asyncio.StreamReader) -> str:
    """Why the link was refused, once it has ended."""
    async with asyncio.timeout(WAIT_S_MAX):
        (refused,) = unwired(await reader.read())
    assert isinstance(refused, LinkRefused)
    return refused.reason


@pytest.mark.parametrize("sent", [b"", struct.pack(">I", 100) + b"unfinished"], ids=["nothing", "half a frame"])
def test_who_connects_and_does_not_greet_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(lobby, "GREETING_MS_MAX", 1)

    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(sent)
            assert "no greeting came" in await refusal_of(reader)
            await (await listener.accepted()).end()
            writer.close()

    play(scenario())


def test_who_has_greeted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            here, there = await listener.greeted_pair()
            monkeypatch.setattr(lobby, "GREETING_MS_MAX", 1)
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            await refusal_of(reader)
            writer.close()
            assert here.link.is_up
            assert there.link.is_up

    play(scenario())


def test_of_too_many_that_do_not_greet_the_first_goes_and_a_true_peer_gets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lobby, "UNGREETED_MAX", 3)

    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            silent = [await asyncio.open_unix_connection(str(tmp_path / "s")) for _ in range(3)]
            ends = [await listener.accepted() for _ in silent]
            here, there = await listener.pair()
            here.link.send(HELLO)
            assert await there.frame() == HELLO
            assert "came first" in await refusal_of(silent[0][0])
            assert [end.link.is_up for end in ends] == [False, True, True]
            for _, writer in silent:
                writer.close()

    play(scenario())


def test_a_full_house_turns_the_next_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "LINKS_MAX", 1)

    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            first, _ = await listener.greeted_pair()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            assert "1 links are open" in await refusal_of(reader)
            writer.close()
            await (await listener.accepted()).end()
            await first.abort()
            await listener.greeted_pair()

    play(scenario())


# ---- what is read before the greeting -----------------------------------------------------------------------


def test_room_for_large_frames_is_only_made_once_the_peer_is_known() -> None:
    wired = Wired()
    assert wired.link.get_buffer(-1).nbytes <= HELLO_BYTES_MAX + 4
    wired.come(wire(HELLO))
    assert wired.link.get_buffer(-1).nbytes > FRAME_BYTES_MAX


def test_what_came_behind_the_greeting_in_one_piece_is_kept() -> None:
    wired = Wired()
    large = Feed(Tag("s", 1, 1, "r"), AudioIn(0, bytes(2 * HELLO_BYTES_MAX)), 1)
    stream = wire(HELLO) + wire(large)
    buffer = wired.link.get_buffer(-1)
    first = len(buffer)
    buffer[:] = stream[:first]
    wired.link.buffer_updated(first)
    wired.come(stream[first:])
    assert wired.frames == [HELLO, large]


def test_a_first_frame_that_no_greeting_needs_is_refused_before_it_has_come() -> None:
    wired = Wired()
    wired.come(struct.pack(">I", HELLO_BYTES_MAX + 1))
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert f"a frame of {HELLO_BYTES_MAX + 1} bytes" in refused.reason


def test_the_longest_greeting_is_taken() -> None:
    offer = ArenaOffer("w" * 64, 2**62, 2**30, bytes(16), 1 << 16, 1 << 30)
    hello = Hello(LINK_VERSION, "data", PEER_NAME_CHARACTERS_MAX * "\U0001f600", offer)
    assert len(encode(hello)) <= HELLO_BYTES_MAX


def test_an_answer_may_be_longer_since_it_was_asked_for() -> None:
    wired = Wired()
    wired.link.send(HELLO)
    many = Welcome(LINK_VERSION, "talker", 1, "rev", ("vocoder-1",) * 1_000)
    assert len(encode(many)) > HELLO_BYTES_MAX
    wired.come(wire(many))
    assert wired.frames == [many]


def test_a_greeting_without_end_is_refused() -> None:
    """What a later version puts into its greeting is passed over, but not at any depth."""
    nested = b"\x83\xa4type\xa5Hello\xa7version\x09\xa4mood" + b"\x91" * (HELLO_BYTES_MAX - 64)
    wired = Wired()
    wired.come(struct.pack(">I", len(nested)) + nested)
    assert [type(frame) for frame in wired.sent] == [LinkRefused]
    assert wired.transport.closed_by == "close"


def test_what_is_said_of_a_frame_fits_one_however_much_it_quotes() -> None:
    long = msgspec.msgpack.encode({"type": "x" * (FRAME_BYTES_MAX - 100)})
    wired = Wired()
    wired.come(wire(HELLO))
    wired.come(struct.pack(">I", len(long)) + long)
    (refused,) = wired.sent
    assert isinstance(refused, LinkRefused)
    assert refused.reason.startswith("a frame of the unknown type 'xxx")
    assert wired.transport.closed_by == "close"


# ---- the end ------------------------------------------------------------------------------------------------


def test_a_link_that_was_closed_ends_though_the_peer_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CLOSE_MS_MAX", 1)

    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/s") as listener:
            _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1_024)
            there = await listener.accepted()
            while not there.link.backlog_bytes:
                there.link.send(LinkRefused(LINK_VERSION, 200_000 * "x"))
            there.link.close()
            await there.end()
            writer.close()

    play(scenario())
