"""The sounds of a session: they come in, are complete, give way to newer ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import Message
from stages.engines.torch_omni.hearing import Hearing
from stages.stream import StageFailure


def aloud(turn: int, content: str = "") -> Message:
    return Message("user", content, audio_turn=turn)


def heard(hearing: Hearing) -> dict[int, int]:
    return {turn: len(sound.rows) for turn, sound in hearing.by_turn.items()}


def test_a_sound_grows_until_it_is_complete() -> None:
    hearing = Hearing(10)
    hearing.add(3, ["a", "b"], complete=False)
    assert hearing.unfinished(3) == 2
    hearing.add(3, ["c"], complete=True)
    assert hearing.by_turn[3].rows == ["a", "b", "c"]
    assert (hearing.unfinished(3), hearing.unfinished(4)) == (0, 0)
    assert hearing.by_number() == {0: hearing.by_turn[3]}


def test_a_turn_that_is_heard_again_has_a_new_number() -> None:
    hearing = Hearing(10)
    hearing.add(3, ["a"], complete=True)
    hearing.add(3, ["b"], complete=False)
    assert list(hearing.by_number()) == [1]
    assert hearing.by_turn[3].rows == ["b"]


def test_only_what_never_came_to_its_end_is_dropped() -> None:
    hearing = Hearing(10)
    hearing.add(1, ["a"], complete=True)
    hearing.add(2, ["b"], complete=False)
    for turn in (1, 2, 3):
        hearing.drop_unfinished(turn)
    assert heard(hearing) == {1: 1}


def test_the_oldest_gives_way_but_for_what_is_coming_in() -> None:
    hearing = Hearing(5)
    hearing.add(1, ["a"] * 2, complete=False)
    hearing.add(2, ["b"] * 2, complete=True)
    hearing.add(3, ["c"], complete=True)
    assert heard(hearing) == {1: 2, 2: 2, 3: 1}
    hearing.add(4, ["d"], complete=True)
    assert heard(hearing) == {1: 2, 3: 1, 4: 1}


def test_a_sound_that_no_prompt_can_hold_is_refused() -> None:
    hearing = Hearing(3)
    hearing.add(1, ["a"] * 2, complete=False)
    with pytest.raises(StageFailure, match="more than 3") as failed:
        hearing.add(1, ["b"] * 2, complete=False)
    assert failed.value.code == "audio_too_long"


def test_a_prompt_waits_for_the_sounds_that_are_coming_in() -> None:
    hearing = Hearing(10)
    hearing.add(1, ["a"], complete=True)
    hearing.add(2, ["b"], complete=False)
    assert not hearing.waits([Message("user", "typed"), aloud(1), aloud(7)])
    assert hearing.waits([aloud(1), aloud(2)])


def test_a_sound_that_is_expected_is_waited_for() -> None:
    hearing = Hearing(10)
    hearing.expect(1)
    hearing.check([aloud(1)])
    assert hearing.waits([aloud(1)])
    hearing.add(1, ["a"], complete=True)
    hearing.expect(1)
    assert not hearing.waits([aloud(1)])
    assert heard(hearing) == {1: 1}


def test_a_message_has_a_sound_or_text() -> None:
    hearing = Hearing(10)
    hearing.add(1, [], complete=False)
    hearing.check([aloud(1), aloud(2, "text"), Message("user", "")])
    with pytest.raises(StageFailure, match="turn 2") as failed:
        hearing.check([aloud(1), aloud(2)])
    assert failed.value.code == "audio_unknown"


STEPS = st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans())


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=20))
def test_where_there_is_too_much_nothing_is_left_that_could_be_forgotten(steps: list[tuple[int, int, bool]]) -> None:
    hearing, room, newest = Hearing(10), 10, None
    for turn, rows, complete in steps:
        with suppress(StageFailure):
            hearing.add(turn, ["row"] * rows, complete=complete)
            newest = turn
        counts = heard(hearing)
        assert max(counts.values()) <= room
        may_go = [key for key, sound in hearing.by_turn.items() if sound.complete and key != newest]
        assert sum(counts.values()) <= room or not may_go
        assert len(hearing.by_number()) == len(counts), "each has a number of its own"
