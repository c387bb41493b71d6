"""What the model of turn ends is given, and what it makes of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from duplex.turn_sound_service import SOUND_SECONDS_MAX
from media.mel import mel_filters
from media.onnx_model import ModelFileError
from media.pcm import FloatSamples, pcm16_to_float
from media.smart_turn import WINDOW_SAMPLES, WINDOW_SECONDS, SmartTurn, features
from stages.engines.local.say import speak
from stages.engines.local.talker import TalkerModel
from stages.engines.local.vocoder import ChunkFrames, VocoderModel
from stages.weights import locate
from tests.stages.engines.local.real_voice import real_acoustics, real_decoder, voice_path

RATE = 16_000


def plainly(sound: NDArray[Any]) -> NDArray[np.float64]:
    """Whisper's features of 8 s that end with `sound`, by the formula, in float64: transformers' extractor with
    `do_normalize`, whose window is mirrored at both ends and whose last frame is left out."""
    window = np.concatenate([np.zeros(WINDOW_SAMPLES), sound])[-WINDOW_SAMPLES:]
    window = (window - window.mean()) / np.sqrt(window.var() + 1e-7)
    padded = np.pad(window, 200, "reflect")
    hann = np.hanning(401)[:-1]
    power = np.stack([np.abs(np.fft.rfft(padded[k * 160 : k * 160 + 400] * hann)) ** 2 for k in range(800)])
    logs = np.log10(np.maximum(power @ mel_filters().astype(np.float64), 1e-10))
    scaled: NDArray[np.float64] = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return scaled.T


@pytest.mark.parametrize("seconds", [0.0, 0.4, 2.0, 8.0, 9.5])
def test_the_features_are_those_of_whispers_extractor(seconds: float) -> None:
    dice = np.random.default_rng(1)
    clock = np.arange(int(seconds * RATE)) / RATE
    tones = np.sin(2 * np.pi * np.outer((180, 950, 3_100), clock)).sum(axis=0)
    sound = (0.1 * tones * (np.sin(6 * clock) > 0) + 0.003 * dice.standard_normal(len(clock))).astype(np.float32)
    found = features(sound)
    assert found.shape == (80, 800)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plainly(sound), rtol=0, atol=1e-3)


def test_the_level_of_a_voice_says_nothing() -> None:
    sound: FloatSamples = (0.1 * np.sin(np.arange(8 * RATE) / 7)).astype(np.float32)
    softer: FloatSamples = sound * np.float32(0.125)
    assert features(softer) == pytest.approx(features(sound), abs=1e-3)


def test_the_service_hands_in_as_much_as_the_model_hears() -> None:
    assert WINDOW_SECONDS == SOUND_SECONDS_MAX


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.onnx: no such file"):
        SmartTurn(tmp_path / "none.onnx")


# ---- the model -------------------------------------------------------------------------------------

# Where each is broken off, in words. The voice says the whole sentence: its melody goes on at the break.
SENTENCES = (
    ("What is the capital of France?", 4),
    ("I would like to know how long it takes to get to the station.", 9),
    ("I think that the red one looks much better.", 6),
    ("Turn the light off in the kitchen and close the door.", 9),
)
PAUSE = np.zeros(RATE // 5, dtype=np.float32)
FADE = np.linspace(1, 0, RATE // 100, dtype=np.float32)  # no voice stops within a sample


@pytest.mark.models
@pytest.mark.slow
def test_a_sentence_that_is_broken_off_sounds_unfinished() -> None:
    model = SmartTurn(locate("smart-turn-v3.2"))
    path = voice_path()
    talker = TalkerModel([path], path, lambda voice, cache: real_acoustics())
    vocoder = VocoderModel([path], path, ChunkFrames(), lambda voice, cache: real_decoder())
    for text, count in SENTENCES:
        pcm, words = speak(text, talker, vocoder, RATE)
        sound = pcm16_to_float(pcm)
        assert model.probability(np.concatenate([sound, PAUSE])) > 0.9, text
        broken_off = sound[: words[count - 1].end].copy()
        broken_off[-len(FADE) :] *= FADE
        assert model.probability(np.concatenate([broken_off, PAUSE])) < 0.3, text


@pytest.mark.models
@pytest.mark.slow
def test_silence_and_a_long_turn_can_be_heard() -> None:
    model = SmartTurn(locate("smart-turn-v3.2"))
    dice = np.random.default_rng(2)
    for samples in (0, 1, 20 * RATE):
        assert 0.0 <= model.probability(0.1 * dice.standard_normal(samples).astype(np.float32)) <= 1.0
