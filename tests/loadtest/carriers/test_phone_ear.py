"""What becomes of sound without names."""

from __future__ import annotations

import pytest

from loadtest.carriers import phone_ear as module
from loadtest.carriers.effects import Accepted, Cleared, Complaint, HungUp
from loadtest.carriers.phone_ear import COMPLAINTS_MAX, REPLY_PAUSE_MS, PhoneEar
from loadtest.errors import ServerViolation
from loadtest.line import Line
from loadtest.playout_model import Heard
from loadtest.turns import Reply, Turn
from tests.loadtest.fake_realtime_server import LOUD
from tests.loadtest.link import utterances

MS = 1_000_000


class Listener:
    """An ear, and the turns of two utterances of 100 ms."""

    def __init__(self) -> None:
        self.turns = [Turn(index, utterance) for index, utterance in enumerate(utterances(100, 100))]
        self.ear = PhoneEar(self.turns, Line("audio/pcmu"))
        self.ear.begin_call(0, False)

    def say(self, index: int, at_ms: int) -> None:
        self.turns[index].say(at_ms * MS)
        self.ear.begin_turn(index)

    def accept(self, at_ms: int, ms: int, sample: bytes = LOUD) -> None:
        self.ear.take(Accepted(sample * 8 * ms), at_ms * MS)

    def hear(self, at_ms: int, ms: int, sample: bytes = LOUD) -> None:
        self.ear.take(Heard(at_ms * MS, sample * 8 * ms), (at_ms + ms) * MS)

    def clear(self, at_ms: int, ms: int) -> None:
        self.ear.take(Cleared(8 * ms, ()), at_ms * MS)

    @property
    def reply(self) -> Reply:
        (reply,) = self.ear.replies
        return reply


def test_a_reply_is_over_when_nothing_more_is_heard_for_a_while() -> None:
    listener = Listener()
    listener.say(0, 0)
    listener.accept(200, 60)
    listener.hear(200, 20)
    assert listener.ear.progress_ns(listener.turns[0]) == 220 * MS
    listener.hear(220, 40)
    end_ms = 260 + REPLY_PAUSE_MS
    listener.ear.advance((end_ms - 1) * MS)
    assert listener.ear.over_ns(listener.turns[0]) is None
    assert listener.ear.open_response(listener.turns[0]) == "reply_1"
    listener.ear.advance(end_ms * MS)
    assert listener.ear.over_ns(listener.turns[0]) == end_ms * MS
    assert (listener.reply.status, listener.reply.turn) == ("completed", 0)
    audio = listener.reply.audio
    assert (audio.received_samples, audio.heard_samples, audio.dry_ns) == (480, 480, 0)
    assert listener.ear.take_notes() == ["turn 1: reply begins, 100.0 ms after the end of speech", "reply completed"]


def test_a_reply_that_waits_at_the_carrier_is_not_over() -> None:
    listener = Listener()
    listener.say(0, 0)
    listener.accept(200, 60)
    listener.hear(200, 20)
    listener.ear.advance(10_000 * MS)
    assert listener.reply.done_ns is None


def test_silence_that_is_sent_on_ends_a_reply_and_begins_none() -> None:
    listener = Listener()
    listener.accept(0, 20, b"\0\0")
    assert listener.ear.replies == []
    listener.hear(0, 20, b"\0\0")
    listener.accept(20, 20)
    listener.hear(20, 20)
    listener.accept(40, 2_000, b"\0\0")
    listener.ear.advance((40 + REPLY_PAUSE_MS) * MS)
    assert (listener.reply.status, listener.reply.turn) == ("completed", None)
    assert listener.ear.greeting_over_ns() == (40 + REPLY_PAUSE_MS) * MS
    listener.hear(40, 2_000, b"\0\0")
    assert listener.ear.greeting_over_ns() == 2_040 * MS
    assert listener.reply.audio.heard_samples == 8 * 2_020


def test_a_pause_within_a_reply_is_counted_as_dry() -> None:
    listener = Listener()
    for at_ms, ms in ((0, 20), (24, 20), (144, 20)):
        listener.accept(at_ms, ms)
        listener.hear(at_ms, ms)
    assert listener.reply.audio.dry_ns == 100 * MS
    assert listener.reply.audio.gap_ns_max == 120 * MS


def test_what_is_queued_is_told_apart() -> None:
    listener = Listener()
    listener.accept(0, 20, b"\0\0")
    listener.accept(0, 20)
    listener.accept(0, 40)
    listener.hear(0, 20, b"\0\0")
    listener.hear(20, 20)
    audio = listener.reply.audio
    assert (audio.received_samples, audio.heard_samples, audio.first_heard_ns) == (480, 160, 20 * MS)


def test_silence_that_is_thrown_away_belongs_to_nobody() -> None:
    listener = Listener()
    listener.accept(0, 20, b"\0\0")
    listener.clear(0, 20)
    assert listener.ear.replies == []


def test_what_is_thrown_away_ends_the_reply_and_the_next_sound_is_another() -> None:
    listener = Listener()
    listener.say(0, 0)
    listener.accept(200, 100)
    listener.hear(200, 20)
    listener.say(1, 250)
    listener.clear(260, 80)
    listener.accept(450, 40)
    first, second = listener.ear.replies
    assert (first.status, first.cut_ns, first.audio.discarded_samples) == ("cancelled", 260 * MS, 640)
    assert (first.turn, second.turn) == (0, 1)


def test_a_clear_behind_a_reply_that_was_heard_to_its_end_has_cut_nothing_off() -> None:
    listener = Listener()
    listener.accept(0, 20)
    listener.hear(0, 20)
    listener.clear(30, 0)
    assert (listener.reply.status, listener.reply.cut_ns) == ("completed", 30 * MS)
    listener.clear(40, 0)
    assert len(listener.ear.replies) == 1


def test_a_reply_that_stopped_before_the_caller_said_something_else_is_left_behind() -> None:
    listener = Listener()
    listener.say(0, 0)
    listener.accept(200, 20)
    listener.hear(200, 20)
    listener.say(1, 230)
    listener.accept(320, 20)  # before the caller has said it
    assert len(listener.ear.replies) == 1
    listener.accept(335, 20)  # afterwards, but without a break
    listener.hear(320, 40)
    assert len(listener.ear.replies) == 1
    listener.accept(400, 20)
    assert [reply.turn for reply in listener.ear.replies] == [0, 1]
    assert listener.ear.replies[0].status == "completed"


def test_what_is_heard_is_recorded_piece_by_piece() -> None:
    listener = Listener()
    listener.accept(0, 10)
    listener.accept(0, 10, b"\0\0")
    listener.accept(0, 10)
    listener.ear.take(Heard(0, LOUD * 80 + b"\0\0" * 80 + LOUD * 40), 25 * MS)
    assert listener.reply.audio.heard_samples == 200
    listener.clear(25, 5)
    assert listener.reply.audio.discarded_samples == 40
    assert len(listener.ear.recording.pcm) == 400


def test_hanging_up_is_no_fault_of_the_service() -> None:
    listener = Listener()
    listener.accept(0, 100)
    listener.hear(0, 20)
    listener.ear.hang_up(20 * MS)
    listener.clear(20, 80)
    listener.ear.take(HungUp("the caller hung up"), 20 * MS)
    assert (listener.reply.cut_ns, listener.reply.audio.discarded_samples) == (None, 640)


def test_complaints_are_kept_and_bounded() -> None:
    listener = Listener()
    for _ in range(COMPLAINTS_MAX + 1):
        listener.ear.take(Complaint("31950", "a binary message"), 0)
    assert listener.ear.complaints == ["31950 a binary message"] * COMPLAINTS_MAX
    assert listener.ear.take_notes()[0] == "the carrier complains: 31950 a binary message"


def test_replies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLIES_MAX", 2)
    listener = Listener()
    for at_ms in (0, 100):
        listener.accept(at_ms, 20)
        listener.clear(at_ms, 20)
    with pytest.raises(ServerViolation, match="more than 2 replies"):
        listener.accept(200, 20)


def test_a_telephone_has_nothing_to_report() -> None:
    ear = Listener().ear
    ear.advance(0)
    assert not ear.undrained()
    assert ear.acknowledge(0) == ear.flush(0) == []
