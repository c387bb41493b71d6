"""How the calls of the echo's benchmark are made and counted; its figures are its own."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.echo import Line, Room, Studio, Trial, known_after_ms, over_telephone, rms
from media.echo import UNLIKE, Kinship, Likeness
from media.turn_events import Held, Resumed, TurnEvent, TurnStarted, Yielded

OURS = Likeness(Kinship.OURS)


def test_a_burst_is_known_after_as_much_of_it_as_it_took() -> None:
    assert known_after_ms([UNLIKE, UNLIKE, OURS, UNLIKE]) == 96
    assert known_after_ms([UNLIKE]) is None


def test_bursts_are_parted_by_quiet_that_lasts() -> None:
    loud, quiet = (0.9, UNLIKE), (0.1, UNLIKE)
    trial = Trial([quiet, loud, *[quiet] * 3, loud, *[quiet] * 4, loud])
    assert [len(burst) for burst in trial.bursts()] == [2, 1]


def test_what_a_detector_says_is_counted() -> None:
    events: list[tuple[int, TurnEvent]] = [
        (10, Held(0)),
        (40, Resumed("echo")),
        (50, Held(0)),
        (90, Yielded(0, "duration")),
        (95, TurnStarted(0, 1)),
    ]
    trial = Trial(events=events)
    assert (trial.held_ms, trial.first_stop_ms, trial.is_interrupted, trial.has_turn) == (70, 90, True, True)


@pytest.mark.models
@pytest.mark.slow
def test_an_echo_is_as_loud_late_and_noisy_as_its_line_and_is_known() -> None:
    studio = Studio(1)
    reply = studio.said(1)[0]
    line = Line(gain=0.5, delay_ms=300, room="hall", is_telephone=True, noise_db=20)
    heard = studio.echo(reply, line)
    assert np.sqrt(np.mean(heard[:7_000] ** 2)) == pytest.approx(rms(heard) / 10, rel=0.3)
    assert len(over_telephone(heard)) == pytest.approx(len(heard), abs=3)
    trial = Room().play(reply, heard, is_telephone=True)
    assert any(likeness.is_ours for _, likeness in trial.windows)
    assert not trial.is_interrupted
