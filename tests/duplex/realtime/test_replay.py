"""What a client has missed is told again whole, or not at all."""

from __future__ import annotations

from base64 import b64encode
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.realtime.dialect import AUDIO_DELTA, Message
from duplex.realtime.replay import BYTES_MAX, ENDED_BYTES_MAX, ENDED_MAX, EVENTS_MAX, Replays, SentEvents

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


def assert_alike(one: SentEvents, other: SentEvents) -> None:
    assert other.last == one.last
    assert [other.since(seen) for seen in range(one.last + 2)] == [one.since(seen) for seen in range(one.last + 2)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, BYTES_MAX // 3)), max_size=20))
def test_what_was_packed_goes_on_as_if_it_had_not_been(messages: list[tuple[bool, int]]) -> None:
    one = SentEvents(3)
    for seq, (is_sound, size) in enumerate(messages, 4):
        keep(one, message(seq, AUDIO_DELTA if is_sound else "of_our_own"), size)
    other = SentEvents.unpacked(one.packed())
    assert_alike(one, other)
    for seq in (one.last + 1, one.last + 2, one.last + 3):
        keep(one, message(seq), BYTES_MAX // 2)
        keep(other, message(seq), BYTES_MAX // 2)
    assert_alike(one, other)


def test_packed_it_is_small() -> None:
    one = SentEvents(0)
    for seq in range(1, EVENTS_MAX + 1):
        word = {"event_id": f"event_{seq * 0x9E3779B97F4A7C15 % 2**96:024x}", "delta": f"word{seq}"}
        told = {**message(seq, "response.output_audio_transcript.delta"), **word}
        one.keep(told, msgspec.json.encode(told))
    assert seqs(one.since(0)) == list(range(1, EVENTS_MAX + 1))
    assert len(one.packed()) < BYTES_MAX // 8


class Source:
    """Of one message, which is hard to pack."""

    def __init__(self, size: int = 10) -> None:
        one = SentEvents(0)
        one.keep(message(1), b'"%b"' % b64encode(Random(size).randbytes(size * 3 // 4)))
        self.sent: SentEvents | None = one

    def hand_over(self) -> SentEvents | None:
        return self.sent


def ended(replays: Replays, count: int, *, size: int = 10) -> None:
    """So many connections of as many sessions, each at the nanosecond of its number."""
    for number in range(count):
        source = Source(size)
        replays.hold(f"sess_{number}", 1, source)
        replays.ended(f"sess_{number}", source, number)


def known(replays: Replays, count: int) -> list[int]:
    """Of which of so many sessions it is known what was told; they are taken."""
    return [number for number in range(count) if replays.take(f"sess_{number}", 2) is not None]


@pytest.mark.parametrize("is_over", [False, True], ids=["living", "over"])
def test_only_the_owner_before_has_told_it(is_over: bool) -> None:
    replays, source = Replays(), Source()
    for fence, is_known in ((5, False), (6, True), (7, False)):
        replays.hold(SESSION, 5, source)
        if is_over:
            replays.ended(SESSION, source, 0)
        sent = replays.take(SESSION, fence)
        assert (sent is not None) == is_known
        assert sent is None or sent.last == 1
    assert replays.take(SESSION, 6) is None, "it is given once"


def test_connections_that_live_do_not_push_each_other_out() -> None:
    replays, count = Replays(), 2 * ENDED_MAX
    for number in range(count):
        replays.hold(f"sess_{number}", 1, Source())
    assert known(replays, count) == list(range(count))


def test_of_those_that_are_over_the_oldest_leave_where_there_are_too_many() -> None:
    replays, lives = Replays(), Source()
    replays.hold("living", 1, lives)
    ended(replays, ENDED_MAX + 2)
    assert known(replays, ENDED_MAX + 2) == list(range(2, ENDED_MAX + 2))
    assert replays.take("living", 2) is lives.sent


def test_of_those_that_are_over_the_oldest_leave_where_they_are_too_large() -> None:
    replays, size = Replays(), BYTES_MAX - 1_000
    sent = Source(size).sent
    assert sent is not None
    fit = ENDED_BYTES_MAX // len(sent.packed())
    assert fit < ENDED_MAX // 10
    ended(replays, fit + 2, size=size)
    assert ENDED_BYTES_MAX // 2 < replays.ended_bytes <= ENDED_BYTES_MAX
    assert known(replays, fit + 2) == list(range(2, fit + 2))
    assert replays.ended_bytes == 0


def test_a_session_whose_connection_is_over_may_have_another() -> None:
    replays, source, later = Replays(), Source(), Source()
    replays.hold(SESSION, 1, source)
    replays.ended(SESSION, source, 0)
    replays.hold(SESSION, 2, later)
    assert replays.ended_bytes == 0, "of the one before nothing is wanted any more"
    replays.ended(SESSION, source, 1)
    replays.forget(SESSION, source)
    replays.expire(1)
    assert replays.take(SESSION, 3) is later.sent


def test_what_has_ended_expires_in_the_order_of_the_ends() -> None:
    replays = Replays()
    ended(replays, 4)
    replays.expire(1)
    assert known(replays, 4) == [2, 3]
    ended(replays, 4)
    replays.expire(3)
    assert replays.ended_bytes == 0
    assert known(replays, 4) == []


def test_what_is_forgotten_is_not_kept_when_it_ends() -> None:
    replays, source = Replays(), Source()
    replays.hold(SESSION, 1, source)
    replays.forget(SESSION, source)
    replays.ended(SESSION, source, 0)
    assert replays.take(SESSION, 2) is None


def test_where_some_was_dropped_nothing_is_kept() -> None:
    replays, source = Replays(), Source()
    source.sent = None
    replays.hold(SESSION, 1, source)
    replays.ended(SESSION, source, 0)
    assert replays.take(SESSION, 2) is None
