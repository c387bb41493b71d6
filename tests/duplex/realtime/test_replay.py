"""What a client has missed is told again whole, or not at all."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.realtime import replay
from duplex.realtime.dialect import AUDIO_DELTA, Message
from duplex.realtime.replay import BYTES_MAX, EVENTS_MAX, KEPT_MAX, Replays, SentEvents

SESSION = "sess_1"


def message(seq: int, kind: str = "of_our_own") -> Message:
    return {"type": kind, "server_event_seq": seq}


def keep(one: SentEvents, told: Message, size: int) -> None:
    """As `size` bytes, or as few as it takes."""
    one.keep(told, msgspec.json.encode(told).ljust(size))


def sent(count: int, *, last: int = 0, size: int = 10) -> SentEvents:
    one = SentEvents(last)
    for seq in range(last + 1, last + count + 1):
        keep(one, message(seq), size)
    return one


def seqs(messages: list[Message] | None) -> list[int] | None:
    return None if messages is None else [one["server_event_seq"] for one in messages]


def test_what_followed_a_number_is_given() -> None:
    one = sent(5, last=1)
    assert one.last == 6
    assert seqs(one.since(1)) == [2, 3, 4, 5, 6]
    assert seqs(one.since(4)) == [5, 6]
    assert seqs(one.since(6)) == []


@pytest.mark.parametrize("seen", [0, 7], ids=["before the first", "never sent"])
def test_a_number_of_another_connection_gives_nothing(seen: int) -> None:
    assert sent(5, last=1).since(seen) is None


def test_sound_is_counted_and_left_out() -> None:
    one = sent(1)
    keep(one, message(2, AUDIO_DELTA), BYTES_MAX)
    keep(one, message(3), 10)
    assert (seqs(one.since(0)), one.last) == ([1, 3], 3)


@pytest.mark.parametrize(("count", "size"), [(EVENTS_MAX + 1, 1), (9, BYTES_MAX // 8), (1, BYTES_MAX + 1)])
def test_the_oldest_leave_and_what_followed_them_is_still_whole(count: int, size: int) -> None:
    one = sent(count, size=size)
    assert one.since(0) is None
    assert seqs(one.since(1)) == list(range(2, count + 1))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, BYTES_MAX // 3)), max_size=40), st.integers(0, 45))
def test_either_all_of_it_is_given_or_nothing(messages: list[tuple[bool, int]], seen: int) -> None:
    one, told = SentEvents(0), list[int]()
    for seq, (is_sound, size) in enumerate(messages, 1):
        keep(one, message(seq, AUDIO_DELTA if is_sound else "of_our_own"), size)
        told += [] if is_sound else [seq]
    given_again = seqs(one.since(seen))
    assert given_again is None or given_again == [seq for seq in told if seq > seen]
    assert one.since(len(messages)) == []


class Source:
    def __init__(self) -> None:
        self.sent = sent(1)

    def hand_over(self) -> SentEvents:
        return self.sent


def test_only_the_owner_before_has_told_it() -> None:
    replays, source = Replays(), Source()
    for fence, is_known in ((5, False), (6, True), (7, False)):
        replays.hold(SESSION, 5, source)
        assert (replays.take(SESSION, fence) is source.sent) == is_known
    assert replays.take(SESSION, 6) is None, "it is given once"


def test_no_more_are_kept_than_may_be() -> None:
    replays, source = Replays(), Source()
    for number in range(KEPT_MAX):
        replays.hold(f"sess_{number}", 1, source)
    replays.hold("sess_0", 2, source)
    replays.hold("another", 1, source)
    assert replays.take("sess_0", 3) is source.sent, "it is not the oldest any more"
    assert replays.take("sess_1", 2) is None
    assert replays.take("another", 2) is source.sent


def test_what_has_ended_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(replay, "KEPT_S", 0.0)
        replays, source, later = Replays(), Source(), Source()
        replays.hold(SESSION, 1, source)
        replays.ended(SESSION, source)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert replays.take(SESSION, 2) is None
        replays.hold(SESSION, 2, later)
        replays.forget(SESSION, source)
        assert replays.take(SESSION, 3) is later.sent, "another connection has the session"

    asyncio.run(scenario())
