"""Pings that come back or do not, and steps that never end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.liveness import PINGS_PER_SILENCE, Hung, Liveness
from stages.messages import Ping, Pong

SILENCE_NS = 1_000
STEP_NS = 500


def ticks(liveness: Liveness, count: int) -> list[Ping | Hung]:
    return [liveness.tick() for _ in range(count)]


def test_a_process_that_never_answers_hangs_after_the_silence() -> None:
    liveness = Liveness(SILENCE_NS)
    assert liveness.interval_ns * PINGS_PER_SILENCE == SILENCE_NS
    pings = ticks(liveness, PINGS_PER_SILENCE)
    assert pings == [Ping(sequence) for sequence in range(1, PINGS_PER_SILENCE + 1)]
    assert liveness.tick() == Hung("silence")
    assert liveness.tick() == Hung("silence"), "it still does"


def test_who_answers_lives_however_long_it_goes_on() -> None:
    liveness = Liveness(SILENCE_NS)
    for sequence in range(1, 100):
        assert liveness.tick() == Ping(sequence)
        assert liveness.pong(Pong(sequence, 0)) is None


def test_an_answer_excuses_no_later_ping() -> None:
    liveness = Liveness(SILENCE_NS)
    ticks(liveness, 3)
    liveness.pong(Pong(1, 0))
    assert ticks(liveness, 2) == [Ping(4), Ping(5)]
    assert liveness.tick() == Hung("silence")


@pytest.mark.parametrize("sequence", [0, 1, 5])
def test_an_old_answer_and_one_to_what_was_never_asked_prove_nothing(sequence: int) -> None:
    liveness = Liveness(SILENCE_NS)
    ticks(liveness, 2)
    liveness.pong(Pong(2, 0))
    liveness.pong(Pong(sequence, 0))
    assert ticks(liveness, PINGS_PER_SILENCE + 1)[-2:] == [Ping(2 + PINGS_PER_SILENCE), Hung("silence")]


def test_time_in_which_the_keeper_does_not_run_is_no_silence() -> None:
    liveness = Liveness(SILENCE_NS)
    ticks(liveness, 3)
    # The keeper is stopped for an hour. It goes on with one tick, however late that is, and then reads what has come.
    assert liveness.tick() == Ping(4)
    assert liveness.pong(Pong(3, 0)) is None
    assert ticks(liveness, 3) == [Ping(5), Ping(6), Ping(7)]


@pytest.mark.parametrize(("age_ns", "hung"), [(STEP_NS, None), (STEP_NS + 1, Hung("step"))])
def test_a_step_that_runs_too_long_is_a_hang_though_the_process_answers(age_ns: int, hung: Hung | None) -> None:
    liveness = Liveness(SILENCE_NS, STEP_NS)
    liveness.tick()
    assert liveness.pong(Pong(1, age_ns)) == hung


def test_where_there_are_no_steps_none_is_too_long() -> None:
    liveness = Liveness(SILENCE_NS)
    liveness.tick()
    assert liveness.pong(Pong(1, 2**62)) is None


@settings(max_examples=50)
@given(st.lists(st.one_of(st.just("tick"), st.integers(0, 30)), max_size=60))
def test_it_hangs_once_so_many_pings_in_a_row_have_no_answer(steps: list[str | int]) -> None:
    liveness = Liveness(SILENCE_NS)
    sent = answered = 0
    for step in steps:
        if isinstance(step, int):
            assert liveness.pong(Pong(step, 0)) is None
            answered = max(answered, step) if step <= sent else answered
            continue
        hangs = sent - answered >= PINGS_PER_SILENCE
        sent += not hangs
        assert liveness.tick() == (Hung("silence") if hangs else Ping(sent))
