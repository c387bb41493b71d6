"""When sound that does not come is missing, and how much of it."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.missing_sound import AHEAD_NS_MAX, LATE_NS_MAX, LOOK_NS_MAX, MissingSound

MS = 1_000_000
RATE = 16_000
START_NS = 5_000 * MS
LATE_MS = LATE_NS_MAX // MS


def sent(message_ms: int, messages: int, every_ms: int) -> tuple[MissingSound, int]:
    """After a client that sends such messages; gives when the last one came, too."""
    sound, now_ns = MissingSound(RATE), START_NS
    for _ in range(messages):
        now_ns += every_ms * MS
        look(sound, now_ns)
        sound.came(message_ms * RATE // 1_000, now_ns)
    return sound, now_ns


def missing_ms(sound: MissingSound, now_ns: int) -> float:
    return look(sound, now_ns) * 1_000 / RATE


def look(sound: MissingSound, now_ns: int) -> int:
    """Looking all the time until then, since long before."""
    for at_ns in range(max(START_NS, now_ns - 100_000 * MS), now_ns, LOOK_NS_MAX):
        sound.samples(at_ns)
    return sound.samples(now_ns)


def test_nothing_is_missing_before_anything_has_come() -> None:
    assert MissingSound(RATE).samples(START_NS) == 0


@pytest.mark.parametrize("message_ms", [20, 100, 1_000])
def test_what_a_live_microphone_stops_sending_is_missing_a_while_after_it_was_due(message_ms: int) -> None:
    sound, last_ns = sent(message_ms, messages=50, every_ms=message_ms)
    due_ns = last_ns + message_ms * MS
    assert missing_ms(sound, due_ns + LATE_NS_MAX - 1) == 0
    assert missing_ms(sound, due_ns + LATE_NS_MAX) == LATE_MS
    assert missing_ms(sound, due_ns + 5_000 * MS) == 5_000


def test_sound_that_comes_late_is_not_missing_any_more() -> None:
    sound, last_ns = sent(20, messages=10, every_ms=20)
    late_ns = last_ns + 3_000 * MS
    assert missing_ms(sound, late_ns) > 0
    sound.came(RATE // 50, late_ns)
    assert missing_ms(sound, late_ns) == 0


def test_a_recording_that_is_sent_at_once_is_waited_for_as_long_as_it_lasts() -> None:
    sound, last_ns = sent(4_000, messages=1, every_ms=0)
    assert missing_ms(sound, last_ns + 4_000 * MS + LATE_NS_MAX - 1) == 0
    assert missing_ms(sound, last_ns + 4_000 * MS + LATE_NS_MAX) == LATE_MS


def test_no_recording_is_waited_for_any_longer_than_the_limit() -> None:
    sound, last_ns = sent(60_000, messages=1, every_ms=0)
    assert missing_ms(sound, last_ns + AHEAD_NS_MAX + LATE_NS_MAX) == LATE_MS


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 60_000)), min_size=1, max_size=40))
def test_no_more_is_missing_than_has_not_come_in_its_time(steps: list[tuple[int, int]]) -> None:
    sound, now_ns = MissingSound(RATE), START_NS
    for pause_ms, samples in steps:
        before_ns, now_ns = now_ns, now_ns + pause_ms * MS
        assert missing_ms(sound, now_ns) <= (now_ns - before_ns) / MS
        sound.came(samples, now_ns)
        assert look(deepcopy(sound), now_ns + LATE_NS_MAX - 1) == 0
        assert look(deepcopy(sound), now_ns + AHEAD_NS_MAX + LATE_NS_MAX) > 0


@pytest.mark.parametrize("stalled_ms", [500, 3_000])
def test_while_we_stand_still_nothing_is_missing(stalled_ms: int) -> None:
    sound, last_ns = sent(20, messages=50, every_ms=20)
    assert missing_ms(sound, last_ns + 1_000 * MS) == 0
    woken_ns = last_ns + 1_000 * MS + stalled_ms * MS
    assert sound.samples(woken_ns) == 0, "what came meanwhile has yet to be read"
    due_ns = last_ns + 20 * MS + LATE_NS_MAX + stalled_ms * MS
    assert sound.samples(woken_ns + 100 * MS) == 0
    assert sound.samples(due_ns - 1) == 0
    assert sound.samples(due_ns) > 0


def test_sound_is_coming_until_some_is_missing() -> None:
    sound = MissingSound(RATE)
    assert not sound.is_coming(START_NS)
    sound.came(RATE, START_NS)
    assert sound.is_coming(START_NS + 1_000 * MS + LATE_NS_MAX - 1)
    assert not sound.is_coming(START_NS + 1_000 * MS + LATE_NS_MAX)
