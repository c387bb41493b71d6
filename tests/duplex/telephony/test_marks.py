"""Marks that come back: played, returned, or nobody's."""

from __future__ import annotations

import pytest

from duplex.telephony.carrier import CarrierError, Played, Returned
from duplex.telephony.marks import MARKS_MAX, Marks


def test_a_mark_that_comes_back_was_played_and_answers_for_those_before_it() -> None:
    marks = Marks()
    for offset in (160, 320, 480):
        marks.sent(7, offset)
    assert marks.came_back(7, 320) == Played(7, 320)
    with pytest.raises(CarrierError):
        marks.came_back(7, 160)
    assert marks.came_back(7, 480) == Played(7, 480)


def test_vellum_38316_a_mark_of_what_was_flushed_is_returned_and_not_played() -> None:
    marks = Marks()
    marks.sent(7, 160)
    marks.sent(7, 320)
    marks.flushed(320)
    marks.sent(8, 480)
    assert marks.came_back(7, 160) == Returned(7, 160)
    assert marks.came_back(7, 320) == Returned(7, 320)
    assert marks.came_back(8, 480) == Played(8, 480)


def test_a_mark_that_nobody_waits_for_is_refused() -> None:
    marks = Marks()
    marks.sent(7, 160)
    with pytest.raises(CarrierError) as refused:
        marks.came_back(8, 160)
    assert refused.value.code == "unknown_mark"
    assert marks.came_back(7, 160) == Played(7, 160)


def test_so_many_are_waited_for() -> None:
    marks = Marks()
    for offset in range(MARKS_MAX + 1):
        marks.sent(1, offset)
    with pytest.raises(CarrierError):
        marks.came_back(1, 0)
    assert marks.came_back(1, 1) == Played(1, 1)
