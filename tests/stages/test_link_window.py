"""The receiver's side of a link's window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.credit import Credit
from stages.link_window import FRAME_BYTES_MAX, GIVE_BACK_BYTES, HEADER_BYTES, LINK_WINDOW_BYTES, Intake
from stages.messages import FrameError

LARGEST = FRAME_BYTES_MAX + HEADER_BYTES


def test_little_is_not_given_back_at_once() -> None:
    intake = Intake()
    intake.came(GIVE_BACK_BYTES)
    assert intake.dealt_with(GIVE_BACK_BYTES - 1) == 0
    assert intake.dealt_with(1) == GIVE_BACK_BYTES
    intake.came(1)
    assert intake.dealt_with(1) == 0


def test_more_than_the_window_is_refused() -> None:
    intake = Intake()
    intake.came(LINK_WINDOW_BYTES)
    with pytest.raises(FrameError, match="in flight"):
        intake.came(1)


def test_what_was_given_back_may_come_again() -> None:
    intake = Intake()
    for _ in range(3):
        intake.came(LINK_WINDOW_BYTES)
        assert intake.dealt_with(LINK_WINDOW_BYTES) == LINK_WINDOW_BYTES


@given(st.lists(st.integers(HEADER_BYTES + 1, LARGEST), max_size=60))
def test_a_sender_never_waits_for_a_receiver_that_has_taken_everything(sizes: list[int]) -> None:
    window, intake = Credit(LINK_WINDOW_BYTES), Intake()
    for size in sizes:
        assert window.available >= LARGEST
        assert window.take(size)
        intake.came(size)
        window.give_back(intake.dealt_with(size))
