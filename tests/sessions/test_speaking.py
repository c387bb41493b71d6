"""Responses as the client and the stages see them: orders, text, frames, terminals, drains, and prepared ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from sessions.effects import AuditStream, CancelStream, Effect, GrantCredit, Measured, OpenStream
from sessions.events import (
    ReplyAudio,
    ReplyText,
    ResponseDrained,
    ResponseFinished,
    ResponseView,
    Usage,
)
from sessions.heard import Cut
from sessions.plan import Ended, Marks, Plan
from sessions.response import Deadlines, Phase
from sessions.responses import DRAINING_MAX
from sessions.route import Leg, line
from sessions.settings import OUTPUT_RATE, ResponseSpec
from sessions.speaking import Speaking
from stages.contracts import (
    OUT_OF_BAND,
    AudioOut,
    Options,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    VocoderOptions,
    Word,
    WordTimes,
)
from tests.sessions.quick_store import QuickStore
from tests.sessions.talk import MS, kinds, of, silence, told

THINKER = ThinkerOptions((), 100)
OPTIONS: tuple[Options, ...] = (THINKER, TalkerOptions(), VocoderOptions())


def stages(*, with_audio: bool) -> tuple[tuple[Leg, Options], ...]:
    return tuple(zip(line().legs_of(with_audio=with_audio), OPTIONS, strict=False))


FRAME = 480
WHOLE_NS = Deadlines().whole_ns_max


def speaking(lead_ms: int = 60_000, deadlines: Deadlines | None = None) -> Speaking:
    return QuickStore(lead_ms, deadlines or Deadlines(), recalls=False)


def plan(name: str = "r1", *, with_audio: bool = True, in_conversation: bool = True) -> Plan:
    tag = Tag("sess", 7 if in_conversation else OUT_OF_BAND, 1, name)
    view = ResponseView(name, f"{name}_item", tag.epoch, ("audio",) if with_audio else ("text",), in_conversation, ())
    return Plan(ResponseSpec(), tag, view.item, "before", stages(with_audio=with_audio), with_audio, view)


def start(mouth: Speaking, what: Plan, marks: Marks | None = None, now_ns: int = 0) -> list[Effect]:
    """The effects of a response that is admitted as soon as it was accepted."""
    effects = mouth.accept(what, marks or Marks(), now_ns)
    return effects + mouth.admit(what.tag.response, what.stages, now_ns)


def opened(mouth: Speaking, what: Plan) -> None:
    for leg, _ in reversed(what.stages):
        mouth.opened(what.tag, leg.stage, 0)


def started(mouth: Speaking, what: Plan, marks: Marks | None = None) -> Plan:
    """`what`, open at all stages."""
    start(mouth, what, marks)
    opened(mouth, what)
    return what


def audio(samples: int, *, seq: int = 0, first: int = 0, final: bool = False) -> AudioOut:
    return AudioOut(seq, OUTPUT_RATE, first, silence(samples), final)


def send_all(mouth: Speaking, now_ns: int = 0) -> list[Effect]:
    sent: list[Effect] = []
    while effects := mouth.take_due(now_ns):
        sent += effects
    return sent


def close_all(mouth: Speaking, what: Plan, now_ns: int = 0) -> list[Effect]:
    return [effect for leg, _ in what.stages for effect in mouth.closed(what.tag, leg.stage, {}, None, now_ns)]


# ---- the way up ------------------------------------------------------------------------------------


def test_the_client_is_told_before_any_stage_is_asked() -> None:
    mouth, what = speaking(), plan()
    assert start(mouth, what)[2:] == [
        OpenStream("talker", what.tag, TalkerOptions(), ("vocoder",), WHOLE_NS),
        OpenStream("vocoder", what.tag, VocoderOptions(), (), WHOLE_NS),
    ]
    assert mouth.opened(what.tag, "vocoder", 3) == []
    left_ns = WHOLE_NS - 5
    assert mouth.opened(what.tag, "talker", 5) == [OpenStream("thinker", what.tag, THINKER, ("talker",), left_ns)]
    assert mouth.active == what.view
    assert mouth.running == (what.view,)


def test_a_text_is_asked_of_the_thinker_alone() -> None:
    mouth, what = speaking(), plan(with_audio=False)
    assert start(mouth, what)[-1] == OpenStream("thinker", what.tag, THINKER, (), WHOLE_NS)


def test_an_accepted_response_is_made_with_the_options_that_hold_when_it_is_admitted() -> None:
    mouth, what = speaking(), plan(with_audio=False)
    assert kinds(mouth.accept(what, Marks(), 0)) == ["ResponseStarted", "MessageStarted"]
    assert [each.tag.response for each in mouth.accepted] == ["r1"]
    assert mouth.active == what.view
    later = ThinkerOptions((), 50)
    asked = OpenStream("thinker", what.tag, later, (), WHOLE_NS - 9)
    assert mouth.admit("r1", ((what.stages[0][0], later),), 9) == [asked], "it lasts from when it was accepted"
    assert not mouth.accepted


def test_a_response_that_was_never_admitted_ends_and_drains_at_once() -> None:
    for with_audio in (True, False):
        mouth, what = speaking(), plan(with_audio=with_audio)
        mouth.accept(what, Marks(), 0)
        effects = mouth.cancel("r1", "turn_detected", 5)
        assert kinds(effects) == ["ResponseFinished", "ResponseDrained", "Measured"]
        assert mouth.undrained == 0


def test_text_is_told_as_it_comes_and_says_whether_it_is_spoken() -> None:
    mouth = speaking()
    for what, spoken in ((plan(), True), (plan("r2", with_audio=False, in_conversation=False), False)):
        started(mouth, what)
        effects = mouth.published(what.tag, TextDelta("Hi "), 0)
        assert told(effects, ReplyText) == [ReplyText(what.tag.response, what.item, "Hi ", spoken)]


def test_one_response_of_the_conversation_at_a_time() -> None:
    mouth = speaking()
    started(mouth, plan())
    with pytest.raises(AssertionError, match="one response"):
        mouth.accept(plan("r2"), Marks(), 0)


def test_only_so_many_responses_drain_at_once() -> None:
    mouth = speaking()
    for number in range(DRAINING_MAX):
        assert not mouth.is_full
        what = plan(f"r{number}")
        start(mouth, what)
        mouth.cancel(what.tag.response, "client_cancelled", 0)
    assert mouth.is_full
    with pytest.raises(AssertionError, match="has asked"):
        mouth.accept(plan("one_more"), Marks(), 0)


# ---- sound -----------------------------------------------------------------------------------------


def test_frames_carry_their_place_and_give_their_credit_back() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    assert mouth.published(what.tag, audio(3 * FRAME), 0) == []
    sent = send_all(mouth)
    frames = told(sent, ReplyAudio)
    assert [(each.frame.start_sample, each.frame.samples) for each in frames] == [(0, 480), (480, 480), (960, 480)]
    assert [each.watermark for each in frames] == [480, 960, 1440]
    assert {(each.item, each.epoch) for each in frames} == {("r1_item", 7)}
    assert of(sent, GrantCredit) == [GrantCredit("vocoder", what.tag, FRAME)] * 3
    assert mouth.take_due(0) == []


def test_no_sample_is_granted_that_was_not_sent() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(1_000), 0)
    send_all(mouth)
    effects = mouth.cancel("r1", "turn_detected", 5)
    assert of(effects, GrantCredit) == []
    assert Measured("wasted_audio_seconds", 40 / OUTPUT_RATE) in effects  # 1000 - 2 * 480
    ledger = mouth.ledger("r1", 5)
    assert ledger is not None
    assert (ledger.generated, ledger.sent) == (1_000, 960)
    close_all(mouth, what)
    assert mouth.sent_of("r1", 9) == 960, "also after its end, when the caller still hears it"
    assert mouth.sent_of("r2", 9) is None


def test_livekit_agents_1988_success_waits_for_the_last_sample_to_be_sent() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, TextDone("", "stop", 7, 3, 5), 0)
    assert mouth.published(what.tag, audio(FRAME + 1, final=True), 0) == []
    first = mouth.take_due(0)
    assert told(first, ResponseFinished) == []
    last = mouth.take_due(0)
    end = told(last, ResponseFinished)[0].response
    assert told(last, ReplyAudio)[0].frame.samples == 1
    assert (end.status, end.reason, end.usage) == ("completed", "", Usage(7, 3, 5))
    assert mouth.active is None


def test_a_final_chunk_without_audio_ends_the_response_and_is_no_frame() -> None:
    mouth, what = speaking(), plan()
    marks = Marks(speech_end_ns=1)
    started(mouth, what, marks)
    mouth.published(what.tag, TextDone("", "stop", 0, 0, 0), 0)
    mouth.published(what.tag, audio(0, final=True), 0)
    effects = mouth.take_due(10)
    assert told(effects, ReplyAudio) == []
    assert of(effects, GrantCredit) == []
    assert of(effects, Measured) == []  # nothing was heard first
    assert told(effects, ResponseFinished)[0].response.status == "completed"


def test_frames_wait_for_the_ear() -> None:
    mouth, what = speaking(lead_ms=40), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(10 * FRAME), 0)
    assert len(told(send_all(mouth, 1_000 * MS), ReplyAudio)) == 2
    assert len(told(send_all(mouth, 1_020 * MS), ReplyAudio)) == 1
    assert mouth.played_out_ns == 1_060 * MS


def test_our_voice_sounds_until_the_ear_has_had_it_all() -> None:
    mouth, what = QuickStore(60_000, Deadlines()), plan()
    assert not mouth.is_sounding(0)
    started(mouth, what)
    assert mouth.is_sounding(0)
    mouth.published(what.tag, TextDone("", "stop", 0, 0, 0), 0)
    mouth.published(what.tag, audio(FRAME, final=True), 0)
    send_all(mouth, 100 * MS)
    assert mouth.active is None
    assert mouth.is_sounding(119 * MS)
    assert not mouth.is_sounding(120 * MS)
    assert mouth.played_out_ns == 120 * MS


def test_what_was_said_within_the_last_twelve_seconds_may_come_back_as_an_echo() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    words = tuple(Word(f"w{at}", at * OUTPUT_RATE, (at + 1) * OUTPUT_RATE) for at in range(20))
    mouth.published(what.tag, WordTimes(0, OUTPUT_RATE, words), 0)
    mouth.published(what.tag, audio(15 * OUTPUT_RATE + FRAME), 0)
    send_all(mouth)
    assert mouth.words_about(0).split() == [f"w{at}" for at in range(3, 16)]


def test_a_reply_that_ran_dry_is_counted() -> None:
    mouth, what = speaking(lead_ms=40), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(FRAME), 0)
    send_all(mouth, 100 * MS)
    mouth.published(what.tag, audio(FRAME, seq=1, first=FRAME), 0)
    send_all(mouth, 300 * MS)
    assert mouth.underruns == 1


@pytest.mark.parametrize(
    "broken",
    [
        AudioOut(0, OUTPUT_RATE, 0, b"\0" * 961),
        AudioOut(0, 16_000, 0, silence(480)),
        AudioOut(1, OUTPUT_RATE, 0, silence(480)),
        AudioOut(0, OUTPUT_RATE, 1, silence(480)),
        AudioOut(0, OUTPUT_RATE, 0, b""),
    ],
    ids=["odd length", "other rate", "chunk missing", "samples missing", "nothing"],
)
def test_pipecat_4952_a_broken_chunk_ends_its_response_and_no_other(broken: AudioOut) -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    effects = mouth.published(what.tag, broken, 0)
    end = told(effects, ResponseFinished)[0].response
    assert (end.status, end.code) == ("failed", "invalid_audio")
    assert {each.stage for each in of(effects, CancelStream)} == {"thinker", "talker", "vocoder"}
    after = started(mouth, plan("r2"))
    mouth.published(after.tag, audio(FRAME), 0)
    assert len(told(send_all(mouth), ReplyAudio)) == 1


# ---- the ways down ---------------------------------------------------------------------------------


def test_a_stop_aborts_all_stages_before_it_is_told() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    assert kinds(mouth.cancel("r1", "turn_detected", 0)) == ["CancelStream"] * 3 + ["ResponseFinished"]
    assert mouth.active is None
    assert mouth.running == ()
    assert mouth.undrained == 1
    assert kinds(close_all(mouth, what)) == ["ResponseDrained", "Measured", *["AuditStream"] * 3]
    assert mouth.undrained == 0
    assert mouth.ledger("r1", 0) is None


def test_what_was_said_ends_with_the_last_word_that_was_sent() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, TextDelta("one two three"), 0)
    words = tuple(Word(text, at * 1000, (at + 1) * 1000) for at, text in enumerate(("one", "two", "three")))
    mouth.published(what.tag, WordTimes(0, OUTPUT_RATE, words), 0)
    mouth.published(what.tag, audio(3_000, final=True), 0)
    for _ in range(5):
        mouth.take_due(0)
    effects = mouth.cancel("r1", "turn_detected", 0)
    assert told(effects, ResponseFinished)[0].response.text == "one two"  # 2400 samples went out
    cut = Cut(2_400, "one two", "three", error_samples=2_400)
    assert mouth.take_ended() == [
        Ended(what, Phase.CANCELLED, False, "one two", sent_samples=2_400, cut=cut, is_stored=True)
    ]
    assert mouth.take_ended() == []


@pytest.mark.parametrize(
    ("deltas", "rest"), [((), "one two"), (("one",), " two"), (("one ",), "two"), (("one two", " three"), "")]
)
def test_words_that_were_heard_before_they_were_told_are_told_before_the_end(
    deltas: tuple[str, ...], rest: str
) -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    for delta in deltas:
        mouth.published(what.tag, TextDelta(delta), 0)
    mouth.published(what.tag, WordTimes(0, OUTPUT_RATE, (Word("one", 0, 240), Word("two", 240, 480))), 0)
    mouth.published(what.tag, audio(FRAME), 0)
    mouth.take_due(0)
    effects = mouth.cancel("r1", "turn_detected", 0)
    assert [one.delta for one in told(effects, ReplyText)] == ([rest] if rest else [])
    assert [kind for kind in kinds(effects) if kind in ("ReplyText", "ResponseFinished")][-1] == "ResponseFinished"
    assert told(effects, ResponseFinished)[0].response.text == "one two"


def test_pipecat_3627_words_that_come_after_the_cut_and_were_heard_before_it_are_not_lost() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(2 * FRAME), 0)
    mouth.take_due(0)
    mouth.cancel("r1", "turn_detected", 0)
    assert mouth.take_ended()[0].text == ""
    mouth.published(what.tag, WordTimes(0, OUTPUT_RATE, (Word("one", 0, 480), Word("two", 480, 960))), 0)
    assert mouth.take_refined() == [what.item]


def test_a_text_that_was_cut_is_what_was_told_of_it() -> None:
    mouth, what = speaking(), plan(with_audio=False)
    started(mouth, what)
    mouth.published(what.tag, TextDelta("half a"), 0)
    mouth.cancel("r1", "client_cancelled", 0)
    assert mouth.take_ended()[0].text == "half a"
    assert mouth.ledger("r1", 0) is None


def test_a_reply_that_was_limited_is_incomplete_and_not_cut() -> None:
    mouth, what = speaking(), plan(with_audio=False)
    started(mouth, what)
    mouth.published(what.tag, TextDelta("as far as"), 0)
    effects = mouth.published(what.tag, TextDone("", "max_output_tokens", 1, 0, 3), 0)
    end = told(effects, ResponseFinished)[0].response
    assert (end.status, end.reason, end.text) == ("incomplete", "max_output_tokens", "as far as")
    assert mouth.take_ended() == [Ended(what, Phase.SUCCEEDED, whole=False, text="as far as", sent_samples=0)]


@pytest.mark.parametrize("late", [TextDelta("x"), TextDone("", "stop", 0, 0, 0), audio(FRAME)])
def test_pipecat_950_what_comes_after_the_end_is_dropped_and_counted(
    late: TextDelta | TextDone | AudioOut,
) -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.cancel("r1", "turn_detected", 0)
    assert mouth.published(what.tag, late, 0) == []
    assert mouth.stale_dropped == 1
    assert mouth.take_due(0) == []


def test_what_is_about_no_response_is_dropped_and_counted() -> None:
    mouth = speaking()
    unknown = Tag("sess", 7, 1, "never")
    assert mouth.opened(unknown, "thinker", 0) == []
    assert mouth.refused(unknown, "thinker", "code", "", 0) == []
    assert mouth.closed(unknown, "thinker", {}, None, 0) == []
    assert mouth.lost(unknown, "thinker", 0) == []
    assert mouth.published(unknown, TextDelta("x"), 0) == []
    started(mouth, plan())
    assert mouth.published(Tag("sess", 6, 1, "r1"), TextDelta("x"), 0) == []
    assert mouth.stale_dropped == 6


def test_a_stage_that_fails_is_not_aborted_again_and_the_others_are() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    effects = mouth.closed(what.tag, "talker", {"frames": 2}, ("bad_text", "cannot say it"), 0)
    assert [each.stage for each in of(effects, CancelStream)] == ["thinker", "vocoder"]
    end = told(effects, ResponseFinished)[0].response
    assert (end.status, end.code, end.message) == ("failed", "bad_text", "cannot say it")


def test_a_refusal_is_told_with_its_code() -> None:
    mouth, what = speaking(), plan()
    start(mouth, what)
    effects = mouth.refused(what.tag, "vocoder", "capacity", "full", 0)
    assert [each.stage for each in of(effects, CancelStream)] == ["talker"]
    assert told(effects, ResponseFinished)[0].response.code == "capacity"


def test_a_lost_stage_fails_what_was_put_out_and_its_death_drains_it() -> None:
    mouth = speaking()
    one, other = started(mouth, plan()), started(mouth, plan("r2", with_audio=False, in_conversation=False))
    mouth.published(one.tag, TextDelta("Well"), 0)
    effects = mouth.lost(one.tag, "talker", 0)
    assert [end.response.id for end in told(effects, ResponseFinished)] == ["r1"]
    assert mouth.running == (other.view,)
    for stage in ("thinker", "vocoder"):
        mouth.closed(one.tag, stage, {}, None, 0)
    drained = told(mouth.closed(one.tag, "talker", {"process_exit": 1}, None, 2 * MS), ResponseDrained)
    assert drained == [ResponseDrained("r1", "complete", 2.0, (("talker.process_exit", 1),))]


def test_a_response_that_has_drained_is_looked_for_wherever_it_was_asked_for_in_any_attempt() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.lost(what.tag, "talker", 0)
    again = replace(what, tag=structs.replace(what.tag, attempt=1))
    opened(mouth, again)
    mouth.cancel("r1", "turn_detected", 0)
    close_all(mouth, what)
    effects = close_all(mouth, again)
    assert of(effects, AuditStream) == [
        AuditStream(stage, tag) for stage in ("talker", "thinker", "vocoder") for tag in (what.tag, again.tag)
    ]


def test_deadlines_are_acted_on_in_time_and_told() -> None:
    deadlines = Deadlines(first_output_ns_max=10 * MS, drain_ns_max=5 * MS)
    mouth, what = speaking(deadlines=deadlines), plan()
    assert mouth.next_deadline_ns() is None
    started(mouth, what)
    assert mouth.next_deadline_ns() == 10 * MS
    assert mouth.tick(9 * MS) == []
    assert told(mouth.tick(10 * MS), ResponseFinished)[0].response.code == "deadline_exceeded"
    effects = mouth.tick(15 * MS)
    assert told(effects, ResponseDrained)[0].status == "orphaned"
    assert Measured("drain_lag_seconds", 0.005, "orphaned") in effects
    assert of(effects, AuditStream) == [], "it is known to be held"
    assert mouth.next_deadline_ns() is None
    assert close_all(mouth, what) == []
    assert mouth.stale_dropped == 3


# ---- the critical path -----------------------------------------------------------------------------


def test_the_parts_of_the_way_to_the_first_frame_sum_to_the_whole() -> None:
    mouth, what = speaking(), plan()
    marks = Marks(speech_end_ns=100 * MS, turn_end_ns=600 * MS, understood_ns=650 * MS)
    started(mouth, what, marks)
    for at_ms in (700, 800):
        mouth.published(what.tag, TextDelta("a "), at_ms * MS)
    for at_ms, seq in ((760, 0), (790, 1)):
        mouth.published(what.tag, WordTimes(seq, 100, ()), at_ms * MS)
        mouth.published(what.tag, audio(FRAME, seq=seq, first=seq * FRAME), (at_ms + 10) * MS)
    mouth.published(what.tag, TextDone("", "stop", 0, 0, 0), 800 * MS)
    mouth.published(what.tag, audio(0, seq=2, first=2 * FRAME, final=True), 800 * MS)
    sent = send_all(mouth, 805 * MS)
    assert of(sent, Measured) == [Measured("first_audio_seconds", 0.705)]
    timings = told(sent, ResponseFinished)[0].timings
    assert timings == (
        ("end_of_turn_wait", 500.0),
        ("encoder", 50.0),
        ("thinker", 50.0),
        ("talker", 60.0),
        ("vocoder", 10.0),
        ("playout", 35.0),
        ("total", 705.0),
    )
    assert sum(ms for _, ms in timings[:-1]) == timings[-1][1]


def test_a_way_that_was_not_gone_to_its_end_has_no_parts() -> None:
    assert Marks(speech_end_ns=1, turn_end_ns=2).parts() == ()
    assert Marks(0, 1, 1, 1, 1, 1, 1).parts() == ()


# ---- beside the conversation -----------------------------------------------------------------------


def test_a_response_outside_the_conversation_is_not_the_active_one() -> None:
    mouth = speaking()
    inside, outside = started(mouth, plan()), started(mouth, plan("r2", in_conversation=False))
    assert mouth.active == inside.view
    assert set(mouth.running) == {inside.view, outside.view}
    mouth.cancel("r2", "client_cancelled", 0)
    assert mouth.active == inside.view
