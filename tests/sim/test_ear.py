"""What a caller has heard by any moment, of what comes and of what is thrown away."""

from __future__ import annotations

from tests.sim.clock import MS
from tests.sim.ear import Ear

RATE = 1_000  # a sample is a millisecond


def ear(*pieces: tuple[str, int, int, int]) -> Ear:
    """That takes pieces: of which response, from which sample to which, no earlier than at so many ms."""
    one = Ear()
    for response, start, end, earliest_ms in pieces:
        one.take(response, (start, end), RATE, earliest_ms * MS)
    return one


def heard(one: Ear, response: str, *moments_ms: int) -> list[int]:
    return [one.heard(response, at_ms * MS) for at_ms in moments_ms]


def test_sound_is_heard_from_its_moment_on() -> None:
    assert heard(ear(("r", 0, 20, 100)), "r", 0, 100, 101, 119, 120, 900) == [0, 0, 1, 19, 20, 20]
    assert heard(ear(), "r", 900) == [0]


def test_what_comes_early_waits_for_what_sounds_and_what_is_late_leaves_a_gap() -> None:
    one = ear(("r", 0, 20, 100), ("r", 20, 40, 50), ("r", 40, 60, 200))
    assert heard(one, "r", 130, 140, 170, 200, 210, 220) == [30, 40, 40, 40, 50, 60]
    assert one.quiet_from_ns == 220 * MS


def test_each_reply_waits_for_the_one_before_it() -> None:
    one = ear(("r", 0, 20, 100), ("s", 0, 20, 0))
    assert heard(one, "s", 120, 130) == [0, 10]
    assert [one.unplayed(at_ms * MS) for at_ms in (110, 120, 140)] == [["r", "s"], ["s"], []]


def test_what_is_thrown_away_is_never_heard_and_leaves_no_silence() -> None:
    one = ear(("r", 0, 20, 100), ("r", 20, 40, 200), ("r", 40, 60, 300))
    one.flush("r", 210 * MS)
    one.fall_silent(210 * MS)
    assert heard(one, "r", 205, 210, 900) == [25, 30, 30]
    one.take("s", (0, 20), RATE, 0)
    assert heard(one, "s", 220) == [10]
    assert [one.knows(response) for response in "rst"] == [True, True, False]
    one.take("r", (60, 80), RATE, 0)
    assert not one.knows("r"), "which goes on in spite of that"


def test_what_is_not_thrown_away_keeps_its_place() -> None:
    one = ear(("r", 0, 20, 100), ("s", 0, 20, 0))
    one.flush("r", 110 * MS)
    one.fall_silent(110 * MS)
    assert (one.quiet_from_ns, heard(one, "s", 130)) == (140 * MS, [10])
