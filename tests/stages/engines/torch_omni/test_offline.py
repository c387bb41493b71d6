"""All four stages against the library's offline `generate`: text, codes and waveform, uncut and cut off."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.contracts import (
    AudioIn,
    EncoderOptions,
    EndOfTurn,
    Message,
    PrefillOptions,
    Prompt,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    VocoderOptions,
)
from stages.engines.torch_omni.code2wav import Code2WavModel
from stages.engines.torch_omni.encoder import EncoderModel
from stages.engines.torch_omni.model import vocabulary_of
from stages.engines.torch_omni.options import Code2WavSettings, TalkerSettings, ThinkerSettings
from stages.engines.torch_omni.talker import TalkerModel
from stages.engines.torch_omni.thinker import ThinkerModel
from tests.stages.engines.torch_omni.chain import Place, chained, pump, sound_of, text_of
from tests.stages.engines.torch_omni.offline import Offline, generate

pytestmark = pytest.mark.slow

TOKENS_MAX = 10
FRAMES_MAX = 30
# Half a step of PCM16, 1.53e-5, and the order of sums: 1.2e-6 was the most that was seen.
TOLERANCE = 2e-5

SYSTEM = Message("system", "Be kind.")
TYPED = (SYSTEM, Message("user", "What is the weather like in the mountains today?"))
ALOUD = (SYSTEM, Message("user", "", audio_turn=1))
INPUT, OUTPUT = Tag("s", 1, 1), Tag("s", 1, 1, "r")
PCM = (np.random.default_rng(3).normal(size=50_000) * 2_000).astype(np.int16)


@dataclass(frozen=True, slots=True)
class Stages:
    encoder: EncoderModel
    thinker: ThinkerModel
    talker: TalkerModel
    vocoder: Code2WavModel

    def hear(self, piece: int) -> None:
        """Let the encoder and the Thinker hear `PCM`, `piece` samples at a time."""
        places = chained(self.encoder.open(INPUT, EncoderOptions()), self.thinker.open(INPUT, PrefillOptions()))
        places[1].feed(Prompt(ALOUD))
        for start in range(0, len(PCM), piece):
            places[0].feed(AudioIn(start, PCM[start : start + piece].tobytes()))
            pump(places)
        places[0].feed(EndOfTurn(len(PCM)))
        pump(places)
        assert all(place.stream.finished for place in places)

    def answer(self, messages: tuple[Message, ...]) -> list[Place]:
        return chained(
            self.thinker.open(OUTPUT, ThinkerOptions(messages, TOKENS_MAX)),
            self.talker.open(OUTPUT, TalkerOptions()),
            self.vocoder.open(OUTPUT, VocoderOptions()),
        )


def stages(model: Any, *, chunks: tuple[int, int] = (4, 25), decoded: int = 2, piece: int = 32) -> Stages:
    thinker = ThinkerModel(model, "tiny", vocabulary_of(model.config), ThinkerSettings(piece_tokens_max=piece))
    thinker.open_session("s")
    return Stages(
        EncoderModel(model, "tiny"),
        thinker,
        TalkerModel(model, "tiny", TalkerSettings(*chunks, frames_max=FRAMES_MAX)),
        Code2WavModel(model, "tiny", Code2WavSettings(decoded)),
    )


@pytest.fixture(scope="module")
def typed(tiny: Any) -> Offline:
    return generate(tiny, TYPED, tokens_max=TOKENS_MAX, frames_max=FRAMES_MAX)


@pytest.fixture(scope="module")
def aloud(tiny: Any) -> Offline:
    sound = (PCM / 32_768).astype(np.float32)
    return generate(tiny, ALOUD, sounds={1: sound}, tokens_max=TOKENS_MAX, frames_max=FRAMES_MAX)


def check(places: list[Place], truth: Offline) -> None:
    pump(places)
    text, done = text_of(places[0])
    assert text == "".join(f"<{token}>" for token in truth.tokens)
    assert done is not None
    assert done.text == text
    assert truth.codes.shape == (16, FRAMES_MAX)
    assert len(truth.wave) == FRAMES_MAX * 1_920 - 555
    close(sound_of(places[2].events), truth.wave)
    for place in places:
        assert place.stream.finished
        assert place.returned_units == place.fed_units
        assert not any(place.stream.held().values())


def close(sound: NDArray[np.int16], wave: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(sound / 32_768, wave.clip(-1, 32_767 / 32_768), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("chunks", "decoded"), [((1, 1), 1), ((4, 25), 2), ((4, 25), 25), ((10, 10), 10), ((100, 100), 100)]
)
def test_the_schedule_of_chunks_changes_nothing(
    tiny: Any, typed: Offline, chunks: tuple[int, int], decoded: int
) -> None:
    check(stages(tiny, chunks=chunks, decoded=decoded).answer(TYPED), typed)


@pytest.mark.parametrize("piece", [7, 500])
def test_the_pieces_of_the_prompt_change_nothing(tiny: Any, typed: Offline, piece: int) -> None:
    check(stages(tiny, piece=piece).answer(TYPED), typed)


@pytest.mark.parametrize(("samples", "piece"), [(320, 32), (1_600, 5), (50_000, 500)])
def test_the_pieces_of_the_sound_change_nothing(tiny: Any, aloud: Offline, samples: int, piece: int) -> None:
    made = stages(tiny, piece=piece)
    made.hear(samples)
    check(made.answer(ALOUD), aloud)


def test_a_model_in_bfloat16_hands_over_float32_all_the_same(tiny: Any) -> None:
    made = stages(copy.deepcopy(tiny).bfloat16())
    made.hear(1_600)
    places = made.answer(ALOUD)
    pump(places)
    assert len(sound_of(places[2].events)) == FRAMES_MAX * 1_920 - 555


def test_a_reply_after_a_cancelled_one_is_whole(tiny: Any, typed: Offline) -> None:
    made = stages(tiny)
    cancelled = made.answer(TYPED)
    pump(cancelled, 20)
    for place in cancelled:
        place.stream.close()
    check(made.answer(TYPED), typed)


@pytest.mark.parametrize("steps", [1, 4, 12, 30, 60])
def test_what_is_heard_of_a_cancelled_reply_is_its_beginning(tiny: Any, typed: Offline, steps: int) -> None:
    made = stages(tiny, chunks=(2, 3))
    places = made.answer(TYPED)
    assert pump(places, steps) == steps
    for place in places:
        place.stream.close()
        assert not any(place.stream.held().values())
    sound = sound_of(places[2].events)
    assert len(sound) < len(typed.wave)
    assert bool(len(sound)) == (steps > 12)
    close(sound, typed.wave[: len(sound)])
