"""How pauses are judged that nobody plays."""

from __future__ import annotations

import pytest

from benchmarks.turn_ends import TEST, TUNING, Pause, told_apart, ways


def test_one_of_two_is_more_finished() -> None:
    assert told_apart([0.9, 0.8], [0.1, 0.2]) == 1.0
    assert told_apart([0.1], [0.9]) == 0.0
    assert told_apart([0.5, 0.9], [0.5, 0.1]) == pytest.approx(0.875)


def test_a_pause_that_is_long_enough_ends_the_turn() -> None:
    pause = Pause(0, "broken off", 700, "I live in London.", 0.02)
    by_name = {way.name: way for way in ways()}
    assert len(by_name) == 7
    fixed, words = by_name["`server_vad`, 500 ms"], by_name["`semantic_vad`, auto, words"]
    both = by_name["`semantic_vad`, auto, words and sound"]
    assert [way.silence_ms(pause) for way in (fixed, words, both)] == [500, 420, 1_262]
    assert not words.ends(pause, 480)
    assert words.ends(pause, 481)
    assert not both.ends(pause, 1_000)


def test_no_sentence_is_for_tuning_and_for_testing() -> None:
    tuning, test = (set(text.strip().splitlines()) for text in (TUNING, TEST))
    assert not tuning & test
