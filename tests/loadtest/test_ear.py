"""What all ears have in common, as far as no protocol adds to it."""

from __future__ import annotations

import pytest

from loadtest import realtime_wire as wire
from loadtest.ear import NOTES_MAX, OPEN_RESPONSES_MAX, Ear
from loadtest.playout_model import ReplyAudio
from loadtest.turns import Reply, Turn
from tests.loadtest.link import utterances


def ear() -> Ear:
    (utterance,) = utterances(100)
    return Ear([Turn(0, utterance)], 8_000)


def test_an_ear_of_no_protocol_hears_and_reports_nothing() -> None:
    deaf = ear()
    deaf.begin_call(0, True)
    deaf.advance(1)
    deaf.hang_up(2)
    assert deaf.on_event(wire.OtherEvent(type="ping"), 3) == deaf.acknowledge(4) == deaf.flush(5) == []
    assert (deaf.replies, deaf.undrained(), deaf.recording.pcm) == ([], False, b"")
    with pytest.raises(NotImplementedError):
        deaf._sound_end_ns()


def test_notes_are_taken_once_and_bounded() -> None:
    chatty = ear()
    for number in range(NOTES_MAX + 1):
        chatty.note(str(number))
    assert chatty.take_notes() == [str(number) for number in range(1, NOTES_MAX + 1)]
    assert chatty.take_notes() == []


def test_the_newest_responses_that_are_open_are_named() -> None:
    busy = ear()
    for number in range(OPEN_RESPONSES_MAX + 2):
        done_ns = 1 if number == OPEN_RESPONSES_MAX else None
        busy._replies[str(number)] = Reply(str(number), None, ReplyAudio(), done_ns=done_ns)
    assert busy.open_responses()[0] == "1"
    assert busy.open_responses()[-1] == str(OPEN_RESPONSES_MAX + 1)
