"""An utterance is heard whole, its final is said once, and nothing grows without bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import EndOfTurn, Item, Pause, Prompt, SpeechResumed, Transcript
from stages.engines.local import utterance
from stages.engines.local.utterance import (
    CUT_SAMPLES,
    INPUT_CREDIT_SAMPLES,
    SEGMENT_SAMPLES_MAX,
    STORED_SAMPLES_HIGH,
    PartialBudget,
)
from stages.stream import StageFailure
from tests.stages.engines.local.utterance_bench import (
    MS,
    SECOND,
    Audio,
    Bench,
    NumberedRecogniser,
    equal,
    silence,
    speech,
)

# ---- the final ----------------------------------------------------------------------------------------


def test_a_pause_settles_early_and_the_end_publishes_at_once() -> None:
    bench = Bench(partials=False)
    words = speech(SECOND)
    bench.say(words)
    bench.say(silence(100 * MS))
    bench.feed(Pause(SECOND))
    assert bench.start() == "settle"
    assert bench.step is not None
    assert (bench.step.urgency, bench.step.units) == (0, 0)
    bench.end()
    assert bench.transcripts == [Transcript("#0", SECOND + 100 * MS, settled=True)]
    assert equal(bench.recogniser.heard[0], np.concatenate([words, silence(100 * MS)]))
    bench.say(silence(300 * MS))
    assert bench.start() == ""
    bench.feed(EndOfTurn(SECOND + 400 * MS))
    assert bench.final == Transcript("#0", SECOND + 400 * MS, settled=True, final=True)
    assert len(bench.recogniser.heard) == 1
    assert bench.consumed == bench.sent


def test_the_tail_of_a_pause_is_bounded() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.say(silence(SECOND))
    bench.feed(Pause(SECOND))
    assert bench.work() == ["settle"]
    assert len(bench.recogniser.heard[0]) == SECOND + 200 * MS


def test_what_comes_after_the_pause_was_declared_is_not_taken_for_silence() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    bench.say(speech(100 * MS))
    assert bench.work() == ["settle"]
    assert len(bench.recogniser.heard[0]) == SECOND


def test_an_end_while_the_settled_text_is_under_way_waits_for_it() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    assert bench.start() == "settle"
    bench.feed(EndOfTurn(SECOND))
    assert bench.transcripts == []
    bench.end()
    assert bench.transcripts == [bench.final]
    assert bench.final.text == "#0"


def test_an_end_without_a_pause_is_heard_at_once() -> None:
    bench = Bench(partials=False)
    words = speech(SECOND)
    bench.say(words)
    bench.feed(EndOfTurn(900 * MS))
    assert bench.start() == "final"
    assert bench.step is not None
    assert bench.step.urgency == 0
    bench.end()
    assert bench.final.through_sample == 900 * MS
    assert equal(bench.recogniser.heard[0], words[: 900 * MS])


def test_an_end_before_the_pause_is_heard_again() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    assert bench.work() == ["settle"]
    bench.feed(EndOfTurn(800 * MS))
    assert bench.work() == ["final"]
    assert len(bench.recogniser.audio_of(bench.final.text)) == 800 * MS


def test_an_end_before_the_pause_voids_the_settled_text_under_way() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    bench.start()
    bench.feed(EndOfTurn(800 * MS))
    bench.end()
    assert bench.transcripts == []
    assert bench.work() == ["final"]
    assert len(bench.recogniser.audio_of(bench.final.text)) == 800 * MS


@pytest.mark.parametrize("heard_samples", [0, 10, 49 * MS])
def test_an_empty_utterance_has_an_empty_final(heard_samples: int) -> None:
    bench = Bench()
    if heard_samples:
        bench.say(speech(heard_samples))
    bench.feed(EndOfTurn(heard_samples))
    assert bench.final == Transcript("", heard_samples, settled=True, final=True)
    assert bench.recogniser.heard == []


def test_a_pause_with_nothing_to_hear_settles_at_once() -> None:
    bench = Bench()
    bench.feed(Pause(5))
    bench.feed(EndOfTurn(10))
    assert [transcript.settled for transcript in bench.transcripts] == [True, True]
    assert bench.final.text == ""


def test_a_pause_and_the_end_amid_a_guess_wait_for_it() -> None:
    bench = Bench()
    bench.say(speech(SECOND))
    assert bench.start() == "partial"
    bench.feed(Pause(0))
    bench.feed(EndOfTurn(SECOND))
    assert bench.transcripts == []
    bench.end()
    assert bench.work() == ["final"]
    assert bench.recogniser.audio_of(bench.final.text).shape == (200 * MS,)


def test_nothing_is_taken_after_the_end() -> None:
    bench = Bench()
    words = speech(SECOND)
    bench.say(words)
    bench.feed(EndOfTurn(SECOND))
    assert bench.start() == "final"
    bench.say(speech(SECOND))
    for item in (Pause(500 * MS), SpeechResumed(), EndOfTurn(400 * MS)):
        bench.feed(item)
    bench.end()
    assert bench.final.through_sample == SECOND
    assert equal(bench.recogniser.audio_of(bench.final.text), words)
    assert bench.consumed == bench.sent
    assert bench.stream.next_step() is None
    assert bench.stream.held() == {"samples": 0}


# ---- speech that goes on ---------------------------------------------------------------------------------


def test_speech_that_resumes_voids_the_settled_text() -> None:
    bench = Bench(partials=False)
    words, more = speech(SECOND), speech(SECOND, seed=1)
    bench.say(words)
    bench.feed(Pause(SECOND))
    bench.work()
    bench.feed(SpeechResumed())
    bench.say(more)
    bench.feed(EndOfTurn(2 * SECOND))
    assert bench.work() == ["final"]
    assert equal(bench.recogniser.audio_of(bench.final.text), np.concatenate([words, more]))


def test_speech_that_resumes_voids_a_settled_text_under_way() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    bench.start()
    bench.feed(SpeechResumed())
    bench.say(speech(SECOND))
    bench.feed(Pause(2 * SECOND))
    bench.end()
    assert bench.transcripts == [], "the older pause's text is thrown away"
    assert bench.work() == ["settle"]
    bench.feed(EndOfTurn(2 * SECOND))
    assert len(bench.recogniser.audio_of(bench.final.text)) == 2 * SECOND


def test_a_pause_told_again_is_settled_once_and_a_later_one_anew() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(900 * MS))
    assert bench.work() == ["settle"]
    bench.feed(Pause(900 * MS))
    assert bench.work() == []
    bench.feed(Pause(SECOND))
    assert bench.work() == ["settle"]


def test_a_void_step_that_has_not_begun_hears_nothing() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    bench.start()
    bench.feed(SpeechResumed())
    bench.end()
    assert bench.recogniser.heard == []


# ---- partials ----------------------------------------------------------------------------------------------


def test_partials_are_unsettled_quick_and_of_low_urgency() -> None:
    bench = Bench()
    bench.say(speech(499 * MS))
    assert bench.start() == ""
    bench.say(speech(MS))
    assert bench.start() == "partial"
    assert bench.step is not None
    assert bench.step.urgency == 2
    bench.end()
    assert bench.transcripts == [Transcript("#0", 500 * MS)]
    assert bench.recogniser.thorough == [False]


def test_partials_are_made_only_when_asked_for() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    assert bench.start() == ""


@pytest.mark.parametrize(("cost_ms", "interval_ms"), [(0, 320), (90, 320), (150, 500), (300, 1000)])
def test_the_next_partial_waits_for_audio_in_proportion_to_the_last_ones_cost(cost_ms: int, interval_ms: int) -> None:
    bench = Bench()
    bench.say(speech(500 * MS))
    bench.start()
    bench.say(speech(200 * MS))
    bench.end(cost_ms)
    bench.say(speech((interval_ms - 201) * MS))
    assert bench.start() == ""
    bench.say(speech(MS))
    assert bench.start() == "partial"


def test_the_core_time_for_partials_is_shared_by_the_open_utterances() -> None:
    budget = PartialBudget(0.5)
    bench, other = Bench(budget=budget), Bench(budget=budget)
    Bench(budget=budget, partials=False)
    assert budget.interval_samples(100_000_000) == 400 * MS
    other.stream.close()
    other.stream.close()
    assert budget.interval_samples(100_000_000) == 200 * MS
    bench.feed(EndOfTurn(0))
    bench.stream.close()
    assert budget.interval_samples(100_000_000) == 200 * MS


@pytest.mark.parametrize("core_share", [0.0, -1.0, 1.01])
def test_a_share_is_a_part_of_one_core(core_share: float) -> None:
    with pytest.raises(ValueError, match="core_share"):
        PartialBudget(core_share)


def test_a_looped_guess_is_not_published() -> None:
    bench = Bench(recogniser=NumberedRecogniser(looped=True))
    bench.say(speech(SECOND))
    assert bench.work() == ["partial"]
    assert bench.transcripts == []


@pytest.mark.parametrize("item", [Pause(SECOND), EndOfTurn(SECOND)])
def test_a_guess_overtaken_by_a_pause_or_the_end_is_void(item: Item) -> None:
    bench = Bench()
    bench.say(speech(SECOND))
    bench.start()
    bench.feed(item)
    bench.end()
    assert bench.transcripts == []
    assert bench.start() in {"settle", "final"}


def test_a_step_that_was_never_started_is_planned_again() -> None:
    bench = Bench()
    bench.say(speech(SECOND))
    assert bench.stream.next_step() is not None
    bench.feed(Pause(SECOND))
    assert bench.work() == ["settle"]
    assert bench.transcripts == [Transcript("#0", SECOND, settled=True)]


# ---- long utterances ---------------------------------------------------------------------------------------


def test_a_long_utterance_is_committed_in_the_middle_of_the_silence() -> None:
    bench = Bench(partials=False)
    words, more = speech(9 * SECOND), speech(SECOND, seed=1)
    bench.say(words)
    bench.say(silence(200 * MS))
    bench.feed(Pause(9 * SECOND))
    assert bench.work() == ["settle"]
    assert bench.stream.held() == {"samples": 100 * MS}
    bench.feed(SpeechResumed())
    bench.say(more)
    bench.feed(EndOfTurn(bench.sent))
    assert bench.work() == ["final"]
    assert bench.final.text == "#0 #1"
    assert equal(bench.recogniser.heard[1], np.concatenate([silence(100 * MS), more]))


def test_a_committed_text_is_still_the_final_of_its_pause() -> None:
    bench = Bench(partials=False)
    bench.say(speech(9 * SECOND))
    bench.feed(Pause(9 * SECOND))
    bench.work()
    bench.feed(EndOfTurn(bench.sent))
    assert bench.final.text == "#0"


def test_a_long_silence_is_dropped_but_for_the_onset_of_what_may_follow() -> None:
    bench = Bench(partials=False)
    bench.say(speech(SECOND))
    bench.feed(Pause(SECOND))
    bench.work()
    for _ in range(60):
        bench.say(silence(SECOND))
        assert bench.work() == []
    assert bench.stored_peak <= 9 * SECOND
    bench.feed(SpeechResumed())
    bench.say(speech(SECOND))
    bench.feed(EndOfTurn(bench.sent))
    assert bench.work() == ["final"]
    assert bench.final.text == "#0 #1"
    assert bench.consumed == bench.sent


def test_without_a_pause_a_cut_is_made_at_the_quietest_spot() -> None:
    bench = Bench(partials=False)
    words = speech(CUT_SAMPLES)
    words[8 * SECOND : 8 * SECOND + 100 * MS] = 1
    bench.say(words)
    assert bench.start() == ""
    bench.say(speech(MS))
    assert bench.start() == "cut"
    assert bench.step is not None
    assert bench.step.urgency == 1
    assert bench.step.end == 8 * SECOND + 50 * MS
    bench.end()
    assert bench.transcripts == [Transcript("#0", 8 * SECOND + 50 * MS)]


def test_a_backlog_at_the_end_is_cut_first_and_urgent() -> None:
    bench = Bench(partials=False)
    words = speech(SEGMENT_SAMPLES_MAX + SECOND)
    bench.say(words)
    bench.feed(EndOfTurn(bench.sent))
    assert bench.start() == "cut"
    assert bench.step is not None
    assert bench.step.urgency == 0
    bench.end()
    assert bench.transcripts == []
    assert bench.work() == ["final"]
    assert equal(bench.recogniser.audio_of(bench.final.text), words)


def test_a_cut_that_reaches_past_the_end_of_the_turn_is_void() -> None:
    bench = Bench(partials=False)
    words = speech(CUT_SAMPLES + MS)
    bench.say(words)
    assert bench.start() == "cut"
    bench.feed(EndOfTurn(5 * SECOND))
    bench.end()
    assert bench.work() == ["final"]
    assert equal(bench.recogniser.audio_of(bench.final.text), words[: 5 * SECOND])


def test_a_cut_past_a_backdated_pause_settles_it() -> None:
    bench = Bench(partials=False)
    words = np.concatenate([speech(7 * SECOND), silence(4 * SECOND + MS)])
    bench.say(words)
    assert bench.start() == "cut"
    bench.feed(Pause(7 * SECOND))
    bench.end()
    assert [transcript.settled for transcript in bench.transcripts] == [False, True]
    bench.feed(EndOfTurn(bench.sent))
    assert bench.final.text == "#0"


def test_a_transcript_without_end_is_a_failure() -> None:
    recogniser = NumberedRecogniser(padding="x" * utterance.TRANSCRIPT_CHARS_MAX)
    bench = Bench(partials=False, recogniser=recogniser)
    bench.say(speech(CUT_SAMPLES + MS))
    bench.start()
    with pytest.raises(StageFailure) as failure:
        bench.end()
    assert failure.value.code == "utterance_too_long"


# ---- credit and faults -------------------------------------------------------------------------------------


def test_credit_is_withheld_while_the_engine_lags_and_comes_back_with_the_text() -> None:
    bench = Bench(partials=False)
    bench.say(speech(STORED_SAMPLES_HIGH))
    assert bench.consumed == bench.sent
    assert bench.start() == "cut"
    bench.say(speech(INPUT_CREDIT_SAMPLES))
    assert bench.consumed == STORED_SAMPLES_HIGH
    bench.end()
    assert bench.consumed == bench.sent
    bench.feed(EndOfTurn(bench.sent))
    bench.work()
    assert len(bench.recogniser.audio_of(bench.final.text)) == bench.sent


def test_audio_beyond_the_credit_is_a_failure() -> None:
    bench = Bench(partials=False)
    bench.say(speech(STORED_SAMPLES_HIGH))
    with pytest.raises(StageFailure) as failure:
        bench.say(speech(INPUT_CREDIT_SAMPLES + 1))
    assert failure.value.code == "input_overrun"


def test_duplicates_are_heard_once_and_paid_back() -> None:
    bench = Bench(partials=False)
    words = speech(SECOND)
    bench.say(words)
    bench.sent = 500 * MS
    bench.say(words[500 * MS :])
    bench.feed(EndOfTurn(SECOND))
    bench.work()
    assert equal(bench.recogniser.audio_of(bench.final.text), words)
    assert bench.consumed == 1500 * MS


def test_an_item_of_another_stage_is_refused() -> None:
    with pytest.raises(StageFailure) as failure:
        Bench().feed(Prompt(()))
    assert failure.value.code == "wrong_item"


def test_close_gives_everything_back() -> None:
    bench = Bench()
    bench.say(speech(SECOND))
    bench.stream.close()
    assert bench.stream.finished
    assert bench.stream.held() == {"samples": 0}


# ---- whatever the chunks -------------------------------------------------------------------------------------

PHRASES = st.lists(st.tuples(st.integers(60, 13_000), st.integers(150, 2500)), min_size=1, max_size=4)


def drive(bench: Bench, audio: Audio, marks: dict[int, Item], data: st.DataObject) -> None:
    """Feed `audio` in arbitrary chunks; steps start and come back at arbitrary chunks' ends."""
    chunks = st.integers(20, 1500)
    while bench.sent < len(audio):
        until = min([bench.sent + data.draw(chunks) * MS, *(mark for mark in marks if mark > bench.sent)])
        bench.say(audio[bench.sent : until])
        if bench.sent in marks:
            bench.feed(marks[bench.sent])
        if bench.step is None:
            bench.start()
        if bench.step is not None and (
            data.draw(st.booleans()) or bench.stream.held()["samples"] > STORED_SAMPLES_HIGH
        ):
            bench.end(cost_ms=data.draw(st.integers(1, 300)))
    if not bench.stream.finished:
        bench.feed(EndOfTurn(len(audio)))
    if bench.step is not None:
        bench.end()
    bench.work()


@settings(max_examples=40, deadline=None)
@given(phrases=PHRASES, data=st.data())
def test_without_pauses_the_final_covers_exactly_the_audio(phrases: list[tuple[int, int]], data: st.DataObject) -> None:
    audio = np.concatenate([speech(said_ms * MS, said_ms) for said_ms, _ in phrases])
    bench = Bench(partials=data.draw(st.booleans()))
    drive(bench, audio, {len(audio): EndOfTurn(len(audio))}, data)
    assert equal(bench.recogniser.audio_of(bench.final.text), audio)
    assert bench.consumed == bench.sent
    assert bench.stored_peak <= STORED_SAMPLES_HIGH + INPUT_CREDIT_SAMPLES


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(phrases=PHRASES, data=st.data())
def test_with_pauses_all_speech_is_heard_once_and_in_order(phrases: list[tuple[int, int]], data: st.DataObject) -> None:
    """Silences are zeros and may be heard twice, in part, or not at all; every sample of speech is heard once."""
    parts: list[Audio] = []
    marks: dict[int, Item] = {}
    at = 0
    for said_ms, silent_ms in phrases:
        parts += [speech(said_ms * MS, said_ms), silence(silent_ms * MS)]
        at += said_ms * MS
        marks[at + data.draw(st.integers(32, 140)) * MS] = Pause(at)
        at += silent_ms * MS
        marks[at + data.draw(st.integers(0, 40)) * MS] = SpeechResumed()
    audio = np.concatenate(parts)
    marks = {sample: item for sample, item in marks.items() if sample < len(audio)}
    bench = Bench(partials=data.draw(st.booleans()))
    drive(bench, audio, marks, data)
    heard = bench.recogniser.audio_of(bench.final.text)
    assert equal(heard[heard != 0], audio[audio != 0])
    assert max(len(span) for span in bench.recogniser.heard) <= SEGMENT_SAMPLES_MAX
    assert bench.consumed == bench.sent
