"""What is made now, what ahead, and with which prompt."""

from __future__ import annotations

from itertools import count

import pytest

from media.chunk import ms_to_samples
from sessions.effects import CancelStream, FeedStream, OpenStream, Tell
from sessions.events import MessageStarted, ResponseFinished, ResponseStarted
from sessions.hearing import Hearing, Turn
from sessions.items import ROOT, History, Item
from sessions.making import Making
from sessions.plan import Marks
from sessions.planner import Identity, ReplyDefaults
from sessions.quotas import Allowance, Quotas
from sessions.remembered import Remembered
from sessions.response import Deadlines
from sessions.route import line
from sessions.settings import INPUT_RATE, ResponseSpec, SessionSettings, TurnDetection
from sessions.speaking import Speaking
from stages.contracts import OUT_OF_BAND, Message, Prompt, ThinkerOptions, Transcript
from tests.sessions.talk import EPOCH, INSTRUCTIONS, SYSTEM, kinds, of, told, user

SAID = "are you there?"
ONSET = ms_to_samples(1_000, INPUT_RATE)


class Bench:
    """A caller has said something, and speaks again."""

    def __init__(
        self, settings: SessionSettings | None = None, *, prepare: bool = True, allowance: Allowance | None = None
    ) -> None:
        ids = count(1)
        identity = Identity("sess", EPOCH, lambda prefix: f"{prefix}_{next(ids)}")
        defaults = ReplyDefaults(INSTRUCTIONS, max_output_tokens=100, prepare=prepare)
        self.hearing = Hearing("sess", "encoder", lambda: identity.new_id("item"))
        history = History((Item("first", "user", "hello", spoken=True),))
        self.speaking = Speaking(60_000, Deadlines(), None, identity.tenant, recalls=False, history=history)
        self.remembered = Remembered(history, 1_000, self.hearing, self.speaking)
        self.making = Making(
            identity,
            settings or SessionSettings(),
            defaults,
            line(),
            hearing=self.hearing,
            speaking=self.speaking,
            remembered=self.remembered,
            allowance=allowance,
        )

    def speak(self, *, provisional: bool = False, paused: bool = True) -> Turn:
        self.hearing.start(ONSET, ONSET, EPOCH, answer=True, provisional=provisional)
        turn = self.hearing.current
        assert turn is not None
        if paused:
            self.hearing.pause(2 * ONSET)
        return turn

    def hear(self, turn: Turn, text: str = SAID, *, settled: bool = True) -> list[str]:
        return kinds(self.making.partly_understood(turn, Transcript(text, 0, settled=settled), 0))


def test_the_prompt_as_it_stands_is_read_ahead_one_at_a_time() -> None:
    bench = Bench()
    assert not bench.making.reading
    opened, fed = bench.making.read()
    assert isinstance(opened, OpenStream)
    assert bench.making.reading == opened.tag
    assert fed == FeedStream("thinker", opened.tag, Prompt((SYSTEM, user("hello"))))
    again = bench.making.read((user("other"),))
    assert again[0] == CancelStream("thinker", opened.tag)
    assert again[2] == FeedStream("thinker", of(again, OpenStream)[0].tag, Prompt((SYSTEM, user("other"))))
    assert len(bench.making.stop_reading()) == 1
    assert bench.making.stop_reading() == []


def test_a_prefill_that_its_stage_has_left_is_not_cancelled() -> None:
    bench = Bench()
    tag = of(bench.making.read(), OpenStream)[0].tag
    bench.making.gone(tag)
    assert bench.making.reading is None
    assert bench.making.stop_reading() == []


def test_words_that_are_not_settled_are_read_ahead() -> None:
    bench = Bench()
    bench.making.read()
    turn = bench.speak(paused=False)
    (fed,) = bench.making.partly_understood(turn, Transcript(SAID, 0), 0)
    assert isinstance(fed, FeedStream)
    assert fed.item == Prompt((SYSTEM, user("hello"), user(SAID)))
    assert bench.hear(turn, "", settled=False) == []


def test_an_answer_is_prepared_only_where_its_tokens_are_at_hand() -> None:
    allowance = Allowance(Quotas(tokens_per_day=1_000), 100)
    bench = Bench(allowance=allowance)
    turn = bench.speak()
    assert bench.hear(turn) == []
    allowance.drawn({"tokens": 200}, {"tokens": 200})
    assert "OpenStream" in bench.hear(turn)


def test_a_response_waits_for_its_tokens_and_is_rejected_where_there_are_none() -> None:
    allowance = Allowance(Quotas(tokens_per_day=1_000), 100)
    bench = Bench(allowance=allowance)
    bench.making.start(ResponseSpec(), Marks(), 1, 0)
    assert bench.making.admit_accepted(0) == []
    assert len(bench.speaking.accepted) == 1
    allowance.drawn({"tokens": 200}, {"tokens": 50})
    told = bench.making.admit_accepted(0)
    ended = [effect.event.response for effect in of(told, Tell) if isinstance(effect.event, ResponseFinished)]
    assert [(one.status, one.code) for one in ended] == [("failed", "quota_exceeded")]
    assert not bench.speaking.accepted


def test_in_a_pause_whose_words_are_known_the_answer_is_prepared() -> None:
    bench = Bench()
    turn = bench.speak()
    assert "OpenStream" in bench.hear(turn)
    prepared = bench.speaking.prepared
    assert prepared is not None
    assert (prepared.tag.turn, prepared.tag.epoch) == (turn.tag.turn, EPOCH)
    assert not bench.making.is_prepared(ResponseSpec()), "its turn is no history yet"
    bench.remembered.create(Item("second", "user", SAID, spoken=True), None)
    assert bench.making.is_prepared(ResponseSpec())
    assert not bench.making.is_prepared(ResponseSpec(instructions="Be quick."))


@pytest.mark.parametrize(
    "bench",
    [
        Bench(prepare=False),
        Bench(SessionSettings(modalities=("text",))),
        Bench(SessionSettings(turn_detection=TurnDetection(create_response=False))),
    ],
    ids=["nobody wants it", "text only", "nobody asked"],
)
def test_what_is_not_prepared(bench: Bench) -> None:
    bench.hear(bench.speak())
    assert bench.speaking.prepared is None
    assert not bench.making.is_prepared(ResponseSpec())


def test_nothing_is_done_ahead_for_what_may_prove_to_be_no_turn() -> None:
    bench = Bench()
    bench.making.read()
    assert bench.hear(bench.speak(provisional=True)) == []


def test_a_response_takes_the_place_of_what_was_done_ahead() -> None:
    bench = Bench()
    turn = bench.speak()
    bench.hear(turn)
    bench.making.epoch += 1
    effects = bench.making.start(ResponseSpec(), Marks(), turn.tag.turn, 0)
    (started,), (message,) = told(effects, ResponseStarted), told(effects, MessageStarted)
    assert (message.previous, started.response.epoch) == ("first", EPOCH + 1)
    assert bench.speaking.prepared is None
    outside = bench.making.plan(ResponseSpec(in_conversation=False), 9)
    assert outside.previous_item is None


def test_a_response_waits_for_words_that_are_being_understood_unless_it_brings_its_own() -> None:
    bench = Bench()
    turn = bench.speak()
    bench.hearing.end(3 * ONSET, 0, 0, None)
    bench.making.start(ResponseSpec(), Marks(), turn.tag.turn, 0)
    assert bench.making.admit_accepted(0) == []
    own = ResponseSpec(in_conversation=False, messages=(("user", "classify this"),))
    bench.making.start(own, Marks(), turn.tag.turn, 0)
    admitted = bench.making.admit_accepted(0)
    assert {stream.tag.epoch for stream in of(admitted, OpenStream)} == {OUT_OF_BAND}
    bench.hearing.transcript(turn.tag, Transcript(SAID, 0, final=True), 0)
    admitted = bench.making.admit_accepted(0)
    assert {stream.tag.epoch for stream in of(admitted, OpenStream)} == {EPOCH}


def test_what_has_not_begun_is_asked_again_where_the_history_has_changed() -> None:
    bench = Bench()
    assert bench.making.ask_again(0) == []
    bench.making.start(ResponseSpec(), Marks(), 1, 0)
    opened = of(bench.making.admit_accepted(0), OpenStream)
    assert bench.making.ask_again(0) == [], "nothing has changed"
    bench.remembered.create(Item("before", "user", "by the way", spoken=False), ROOT)
    for stream in reversed(opened):
        bench.speaking.opened(stream.tag, stream.stage, 0)
    bench.making.ask_again(0)
    assert bench.speaking.unbegun is not None
    assert isinstance(bench.speaking.unbegun.stages[0][1], ThinkerOptions)
    assert bench.speaking.unbegun.stages[0][1].messages == (SYSTEM, user("by the way"), user("hello"))


def test_the_messages_of_the_usual_prompt() -> None:
    bench = Bench(SessionSettings(instructions="Be brief."))
    (_, fed) = bench.making.read()
    assert isinstance(fed, FeedStream)
    assert fed.item == Prompt((Message("system", "Be brief."), user("hello")))


def test_words_are_said_behind_an_item_without_a_prompt() -> None:
    bench = Bench()
    effects = bench.making.say("Wait.", "first", 0)
    (message,) = told(effects, MessageStarted)
    assert message.previous == "first"
    assert [opened.stage for opened in of(effects, OpenStream)] == ["vocoder"]
    assert bench.making.ask_again(0) == []
    assert bench.making.admit_accepted(0) == []
