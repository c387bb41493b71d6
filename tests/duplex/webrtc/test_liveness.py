"""When a silent caller has gone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.webrtc.liveness import STALL_NS_MAX, Liveness

SECOND = 1_000_000_000
SILENCE = 5 * SECOND


def test_silence_counts_from_the_last_sign() -> None:
    liveness = Liveness(SILENCE)
    assert liveness.left_ns(10 * SECOND, 12 * SECOND) == 3 * SECOND
    assert liveness.left_ns(10 * SECOND, 15 * SECOND) == 0


def test_who_gave_none_yet_has_not_gone() -> None:
    liveness = Liveness(SILENCE)
    assert [liveness.left_ns(None, now * SECOND) for now in (1, 6, 11)] == [SILENCE] * 3


def test_a_stall_of_ours_is_no_silence_of_theirs() -> None:
    liveness = Liveness(SILENCE)
    assert liveness.left_ns(10 * SECOND, 10 * SECOND) == SILENCE
    woken = 15 * SECOND + STALL_NS_MAX + 1
    assert liveness.left_ns(10 * SECOND, woken) == SILENCE, "what they sent meanwhile is not read yet"
    assert liveness.left_ns(10 * SECOND, woken + SILENCE) == 0, "nothing was there"


def test_a_wake_up_that_is_a_little_late_changes_nothing() -> None:
    liveness = Liveness(SILENCE)
    liveness.left_ns(10 * SECOND, 10 * SECOND)
    assert liveness.left_ns(10 * SECOND, 15 * SECOND + STALL_NS_MAX) == -STALL_NS_MAX


def test_after_a_stall_later_signs_count_as_ever() -> None:
    liveness = Liveness(SILENCE)
    liveness.left_ns(10 * SECOND, 10 * SECOND)
    liveness.left_ns(10 * SECOND, 30 * SECOND)
    assert liveness.left_ns(33 * SECOND, 35 * SECOND) == 3 * SECOND


SIGNS = st.lists(st.tuples(st.integers(0, 8 * SECOND), st.integers(0, STALL_NS_MAX)), max_size=20)


@settings(max_examples=50)
@given(SIGNS)
def test_whoever_asks_in_time_is_told_what_is_left_of_the_silence(signs: list[tuple[int, int]]) -> None:
    """Signs come so long after each other, and each question a little late."""
    liveness, now_ns, sign_ns = Liveness(SILENCE), SECOND, SECOND
    for pause_ns, late_ns in signs:
        left_ns = liveness.left_ns(sign_ns, now_ns)
        assert left_ns == sign_ns + SILENCE - now_ns
        now_ns += max(0, left_ns) + late_ns
        sign_ns = min(sign_ns + pause_ns, now_ns)
