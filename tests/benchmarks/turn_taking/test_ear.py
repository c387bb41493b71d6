"""What sounds when, and what the service says of it: the ear on its own."""

from __future__ import annotations

from benchmarks.turn_taking.ear import ITEM_GONE, Ear
from benchmarks.turn_taking.observation import Mark, Note, Sound
from loadtest import realtime_wire as wire

MS = 1_000_000
FRAME_MS = 20
FRAME = bytes(2 * wire.SAMPLE_RATE * FRAME_MS // 1_000)


def audio(start_ms: int, response: str = "one") -> wire.AudioDelta:
    return wire.AudioDelta(
        response_id=response,
        item_id=f"item of {response}",
        delta=FRAME,
        start_sample=start_ms * wire.SAMPLE_RATE // 1_000,
        samples=len(FRAME) // 2,
    )


def done(status: str, reason: str | None = None, response: str = "one") -> wire.ResponseDone:
    details = None if reason is None else wire.StatusDetails(reason)
    return wire.ResponseDone(response=wire.FinishedResponse(response, status, details))


def created(response: str = "one") -> wire.ResponseCreated:
    return wire.ResponseCreated(response=wire.CreatedResponse(response))


def talking(frames: int) -> Ear:
    """A response of which so many frames have come at 0."""
    ear = Ear()
    ear.on_event(created(), 0)
    for number in range(frames):
        ear.on_event(audio(number * FRAME_MS), 0)
    return ear


def test_frames_that_touch_are_one_sound() -> None:
    ear = talking(3)
    assert (ear.newest, ear.open_responses, ear.first_heard_ns("one")) == ("one", ("one",), 0)
    ear.advance(60 * MS)
    assert ear.sounds == (Sound("one", 0, 60 * MS),)
    assert not ear.is_over("one")
    ear.on_event(done("completed"), 60 * MS)
    assert ear.is_over("one")
    assert ear.notes == (Note(Mark.MADE, 60 * MS, "one"),)


def test_a_frame_that_is_late_begins_another_sound() -> None:
    ear = talking(1)
    ear.on_event(audio(20), 100 * MS)
    ear.advance(120 * MS)
    assert ear.sounds == (Sound("one", 0, 20 * MS), Sound("one", 100 * MS, 120 * MS))
    ear.on_event(created("two"), 120 * MS)
    ear.on_event(audio(0, "two"), 120 * MS)
    ear.advance(140 * MS)
    assert ear.sounds[-1] == Sound("two", 120 * MS, 140 * MS)


def test_the_ear_is_busy_while_something_is_made_or_heard() -> None:
    ear = talking(3)
    ear.on_event(done("completed"), 0)
    assert ear.busy(59 * MS)
    assert not ear.busy(60 * MS)
    assert not Ear().busy(0)


def test_what_was_given_up_is_flushed_where_it_stood() -> None:
    ear = talking(5)
    ear.on_event(wire.SpeechStarted(item_id="speech"), 30 * MS)
    ear.on_event(done("cancelled", "turn_detected"), 31 * MS)
    assert ear.sounds == (Sound("one", 0, 30 * MS),)
    assert ear.notes == (Note(Mark.YIELDED, 31 * MS, "one"),)
    assert ear.gave_up("one")


def test_what_was_made_already_is_given_up_by_the_flush() -> None:
    ear = talking(5)
    ear.on_event(done("completed"), 10 * MS)
    ear.on_event(wire.SpeechStarted(item_id="speech"), 30 * MS)
    assert ear.notes == (Note(Mark.MADE, 10 * MS, "one"), Note(Mark.YIELDED, 30 * MS, "one"))
    ear.on_event(wire.SpeechStarted(item_id="more"), 50 * MS)
    assert len(ear.notes) == 2


def test_a_cancel_of_ones_own_is_no_yield() -> None:
    ear = talking(5)
    ear.on_event(done("cancelled", "client_cancelled"), 30 * MS)
    assert ear.sounds == (Sound("one", 0, 30 * MS),)
    assert not ear.gave_up("one")


def test_words_are_those_of_the_last_word_on_it() -> None:
    ear = talking(1)
    ear.on_event(wire.TranscriptDelta(response_id="one", delta="one two"), 0)
    ear.on_event(wire.TranscriptDelta(response_id="one", delta=" three"), 0)
    assert ear.words == {"one": 3}
    ear.on_event(wire.TranscriptDone(response_id="one", transcript="one"), 0)
    assert ear.words == {"one": 1}


def test_what_the_service_understood_is_kept() -> None:
    ear = Ear()
    ear.on_event(wire.InputTranscribed(item_id="one", transcript="wait"), 0)
    ear.on_event(wire.InputTranscribed(item_id="two", transcript="a second"), 0)
    assert ear.heard_as == "wait a second"
    ear.forget()
    assert ear.heard_as == ""


def test_holds_and_commits_are_noted() -> None:
    ear = Ear()
    ear.on_event(wire.TurnHeld(), 1)
    ear.on_event(wire.TurnResumed(), 2)
    ear.on_event(wire.InputCommitted(item_id="turn"), 3)
    ear.on_event(wire.OtherEvent(type="rate_limits.updated"), 4)
    assert ear.notes == (Note(Mark.HELD, 1), Note(Mark.RESUMED, 2), Note(Mark.COMMITTED, 3))


def test_the_position_is_reported_where_it_has_moved() -> None:
    ear = talking(5)
    assert ear.acknowledge(0) == []
    ear.advance(30 * MS)
    assert ear.acknowledge(30 * MS) == [wire.PlaybackAck("one", "item of one", 720)]
    assert ear.acknowledge(30 * MS) == []


def test_items_are_named_once_the_newest_first() -> None:
    ear = talking(2)
    ear.remember_item("question")
    ear.on_event(wire.InputCommitted(item_id="turn"), 0)
    assert list(ear.take_items()) == ["turn", "question", "item of one"]
    assert list(ear.take_items()) == []


def test_complaints_are_kept_but_for_items_that_have_gone() -> None:
    ear = Ear()
    ear.on_event(wire.ErrorEvent(error=wire.ErrorBody(type="invalid", message="no")), 0)
    ear.on_event(wire.ErrorEvent(error=wire.ErrorBody(code=ITEM_GONE, message="gone")), 0)
    assert list(ear.errors) == ["invalid: no"]


def test_the_next_event_begins_with_nothing() -> None:
    ear = talking(2)
    ear.advance(40 * MS)
    ear.on_event(done("completed"), 40 * MS)
    ear.forget()
    assert (ear.sounds, ear.notes, ear.words, ear.newest) == ((), (), {}, "")
