from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.contracts import TalkerOptions, Word
from stages.engines.local.say import Undisturbed, speak
from stages.engines.local.talker import TalkerModel
from stages.engines.local.vocoder import ChunkFrames, VocoderModel
from stages.stream import StageFailure
from tests.stages.engines.local.real_voice import real_acoustics, real_decoder
from tests.stages.engines.local.tiny_voice import HOP, SAMPLE_RATE
from tests.stages.engines.local.voice_bench import FakeAcousticSession, fake_acoustics, fake_decoder


def _models(session: FakeAcousticSession | None = None) -> tuple[TalkerModel, VocoderModel]:
    acoustics = fake_acoustics(session or FakeAcousticSession())
    decoder, _ = fake_decoder()
    path = Path("voice.onnx")
    talker = TalkerModel([path], path, lambda voice, cache: acoustics)
    return talker, VocoderModel([path], path, ChunkFrames(), lambda voice, cache: decoder)


def test_a_text_is_said_from_beginning_to_end() -> None:
    session = FakeAcousticSession()
    pcm, words = speak("Dr. Ab said:  ok, fine. By!", *_models(session), SAMPLE_RATE // 2)
    assert session.texts == ["^_d_r_ _a_b_ _s_a_i_d_:_$", "^_o_k_,_$", "^_f_i_n_e_._$", "^_b_y_!_$"]
    frames = sum(len(text) for text in session.texts)
    assert len(pcm) == 2 * frames * HOP // 2
    assert [word.text for word in words] == ["Dr.", "Ab", "said:", "ok,", "fine.", "By!"]
    assert words[0] == Word("Dr.", 2 * HOP // 2, 6 * HOP // 2)
    assert words[-1].end <= len(pcm) // 2


def test_a_text_that_never_pauses_is_cut() -> None:
    session = FakeAcousticSession()
    _, words = speak("ab " * 150, *_models(session), SAMPLE_RATE)
    assert len(words) == 150
    assert all(text.count("a") <= 67 for text in session.texts)


@pytest.mark.parametrize(("text", "words"), [("", ()), ("\N{GRINNING FACE}", (Word("\N{GRINNING FACE}", 0, 0),))])
def test_nothing_to_say_is_no_sound(text: str, words: tuple[Word, ...]) -> None:
    assert speak(text, *_models(), SAMPLE_RATE) == (b"", words)


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(StageFailure):
        speak("hi", *_models(), 12_345)
    with pytest.raises(StageFailure):
        speak("hi", *_models(), SAMPLE_RATE, TalkerOptions(speed=9.0))


def test_nobody_disturbs_a_step() -> None:
    context = Undisturbed()
    assert not context.cancelled()
    assert not context.stalled()
    with pytest.raises(AssertionError, match="0 outputs early"):
        context.progress(())


# ---- the real voice ---------------------------------------------------------------------------------------

# Said by the voice and heard by another maker's recogniser; "number" and "$45.50" are written out on the way.
HEARD = (
    ("The weather is very nice today.", "the weather is very nice today"),
    ("I can help you with your order.", "i can help you with your order"),
    ("It costs $45.50 at 10:30 pm.", "forty five dollars and fifty cents"),
    ("The number is 555-0123.", "five five zero one two three"),
)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(("text", "heard"), HEARD)
def test_the_real_voice_can_be_understood(text: str, heard: str) -> None:
    from pocketsphinx import Decoder

    pcm, _ = speak(text, *_real_models(), 16_000)
    recogniser = Decoder(samprate=16_000, loglevel="FATAL")
    recogniser.start_utt()
    recogniser.process_raw(pcm, full_utt=True)
    recogniser.end_utt()
    assert heard in recogniser.hyp().hypstr


@pytest.mark.models
@pytest.mark.slow
def test_the_words_of_the_real_voice_are_where_they_are_heard() -> None:
    from pocketsphinx import Decoder

    pcm, words = speak(HEARD[0][0], *_real_models(), 16_000)
    recogniser = Decoder(samprate=16_000, loglevel="FATAL")
    recogniser.start_utt()
    recogniser.process_raw(pcm, full_utt=True)
    recogniser.end_utt()
    found = [segment for segment in recogniser.seg() if not segment.word.startswith("<")]
    starts = [segment.start_frame * 160 for segment in found]
    ends = [segment.end_frame * 160 for segment in found]
    assert np.abs(np.subtract(starts, [word.start for word in words])).max() <= 0.1 * 16_000
    assert np.abs(np.subtract(ends, [word.end for word in words])).max() <= 0.1 * 16_000


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_says_the_same_again() -> None:
    first, again = (speak("Hello there, how are you?", *_real_models(), 24_000) for _ in range(2))
    assert first == again


def _real_models() -> tuple[TalkerModel, VocoderModel]:
    path = Path("joe.onnx")
    talker = TalkerModel([path], path, lambda voice, cache: real_acoustics())
    return talker, VocoderModel([path], path, ChunkFrames(), lambda voice, cache: real_decoder())
