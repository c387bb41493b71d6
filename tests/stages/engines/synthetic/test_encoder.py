"""The synthetic encoder: guesses, what settles at a pause, and the final."""

from __future__ import annotations

import pytest

from stages.contracts import (
    AudioIn,
    Clause,
    EncoderOptions,
    EndOfTurn,
    Item,
    ObserverOptions,
    Pause,
    SpeechResumed,
    Transcript,
)
from stages.engines.synthetic.build import encoder
from stages.engines.synthetic.encoder import HEARD_WORDS_MAX
from stages.stream import Consumed, Publish, StageFailure, StageStream
from tests.stages.engines.synthetic.bench import TAG, events, run, step_of

TIMES = {"partial_ms": 7, "settle_ms": 5, "final_ms": 3, "heard_word_ms": 100, "partial_interval_ms": 320}
START = 16_000


def utterance(*, partials: bool = False) -> StageStream:
    return encoder(TIMES).open(TAG, EncoderOptions(partials=partials))


def sound(ms: int, start: int = START) -> AudioIn:
    return AudioIn(start, bytes(2 * 16 * ms))


def heard(words: int) -> str:
    return " ".join(f"heard{number}" for number in range(words))


def final(words: int, through: int) -> Publish:
    return Publish(Transcript(heard(words), through, settled=True, final=True))


def test_a_turn_is_heard_when_it_has_ended() -> None:
    stream = utterance()
    assert run(stream, sound(250)) == [Consumed(4_000)]
    end = START + 16 * 250
    assert list(stream.feed(EndOfTurn(end))) == []
    step = step_of(stream)
    assert (step.kind, step.urgency, step.service_ns) == ("final", 0, 3_000_000)
    assert list(stream.finish_step(step)) == [final(2, end)]
    assert stream.finished


def test_words_are_those_of_the_sound_before_the_end() -> None:
    stream = utterance()
    assert run(stream, sound(1_000), EndOfTurn(START + 16 * 450))[1:] == [final(4, START + 16 * 450)]
    short = utterance()
    assert run(short, sound(20), EndOfTurn(START + 320))[1:] == [final(1, START + 320)]


def test_a_turn_without_sound_has_no_words() -> None:
    assert run(utterance(), EndOfTurn(0)) == [final(0, 0)]


def test_a_transcript_has_a_length_that_can_be_sent() -> None:
    stream = utterance()
    items = [sound(10_000, START + second * 16_000) for second in range(0, 200, 10)]
    (done,) = events(run(stream, *items, EndOfTurn(START + 200 * 16_000)))
    assert isinstance(done, Transcript)
    assert len(done.text.split()) == HEARD_WORDS_MAX


def test_what_settles_in_a_pause_is_final_at_once() -> None:
    stream = utterance()
    pause = START + 16 * 300
    assert run(stream, sound(500), Pause(pause))[1:] == [Publish(Transcript(heard(3), pause, settled=True))]
    assert run(stream, sound(400, START + 8_000)) == [Consumed(6_400)]
    assert list(stream.feed(EndOfTurn(pause))) == [final(3, pause)]
    assert stream.finished
    assert stream.next_step() is None


def test_an_end_before_it_has_settled_is_the_settling_steps_to_tell() -> None:
    stream = utterance()
    run(stream, sound(500))
    stream.feed(Pause(START + 16 * 300))
    step = step_of(stream)
    stream.feed(EndOfTurn(START + 16 * 320))
    assert list(stream.finish_step(step)) == [final(3, START + 16 * 320)]
    assert stream.finished


def test_speech_that_goes_on_makes_it_a_guess() -> None:
    stream = utterance()
    run(stream, sound(500), Pause(START + 16 * 300), SpeechResumed())
    end = START + 16 * 900
    assert run(stream, sound(500, START + 8_000), EndOfTurn(end))[1:] == [final(9, end)]


def test_a_step_for_an_older_pause_settles_nothing() -> None:
    stream = utterance()
    run(stream, sound(500))
    stream.feed(Pause(START + 16 * 300))
    older = step_of(stream)
    for item in (SpeechResumed(), sound(500, START + 8_000), Pause(START + 16 * 800)):
        stream.feed(item)
    assert list(stream.finish_step(older)) == [Publish(Transcript(heard(10), START + 16_000))]
    newer = step_of(stream)
    assert list(stream.finish_step(newer)) == [Publish(Transcript(heard(8), START + 16 * 800, settled=True))]


def test_while_the_caller_speaks_it_guesses_now_and_then() -> None:
    stream = utterance(partials=True)
    stream.feed(sound(319))
    assert stream.next_step() is None
    stream.feed(sound(1, START + 16 * 319))
    step = step_of(stream)
    assert (step.kind, step.urgency, step.service_ns) == ("partial", 2, 7_000_000)
    assert stream.held() == {"samples": 16 * 320}
    stream.feed(sound(200, START + 16 * 320))
    assert list(stream.finish_step(step)) == [Publish(Transcript(heard(5), START + 16 * 520))]
    assert stream.held() == {"samples": 0}
    assert stream.next_step() is None


def test_a_pause_takes_the_place_of_a_guess_that_has_not_begun() -> None:
    stream = utterance(partials=True)
    stream.feed(sound(400))
    assert step_of(stream).kind == "partial"
    stream.feed(Pause(START + 16 * 300))
    assert step_of(stream).kind == "settle"
    stream.feed(EndOfTurn(START + 16 * 300))
    assert step_of(stream).kind == "final"


@pytest.mark.parametrize("item", [Clause(0, "")])
def test_other_items_are_refused(item: Item) -> None:
    with pytest.raises(StageFailure, match="encoder takes no Clause") as caught:
        utterance().feed(item)
    assert caught.value.code == "wrong_item"


def test_other_options_are_refused() -> None:
    with pytest.raises(StageFailure, match="encoder takes no ObserverOptions") as caught:
        encoder({}).open(TAG, ObserverOptions())
    assert caught.value.code == "wrong_options"
