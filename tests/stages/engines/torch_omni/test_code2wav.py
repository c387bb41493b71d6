"""The vocoder stage: chunks of sound out of codec frames, their clock, their credit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stages.contracts import AudioOut, CodecFrames, Item, Latents, Options, Tag, TalkerOptions, VocoderOptions
from stages.engines.torch_omni.code2wav import FRAMES_WAITING_MAX, Code2WavModel
from stages.engines.torch_omni.options import Code2WavSettings
from stages.stream import StageFailure
from tests.stages.engines.torch_omni.chain import Place, pump, sound_of

TAG = Tag("s", 1, 1, "r")
FRAMES = 12
CODES = np.random.default_rng(1).integers(0, 2_048, (16, FRAMES))


def vocoder(model: Any, frames: int = 2, options: Options = VocoderOptions()) -> Place:  # noqa: B008
    return Place(Code2WavModel(model, "tiny", Code2WavSettings(frames)).open(TAG, options))


def item(start: int, count: int, *, final: bool = False) -> CodecFrames:
    return CodecFrames(start, count, CODES[:, start : start + count].astype("<i8").tobytes(), final)


@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
@pytest.mark.parametrize("items", [[12], [1] * 12, [4, 8], [4, 8, 0]])
def test_the_sound_is_the_models_to_half_a_step_of_pcm16(tiny: Any, at_once: int, items: list[int]) -> None:
    with torch.inference_mode():
        whole = tiny.code2wav(torch.tensor(CODES)[None])[0, 0].numpy()
    place = vocoder(tiny, at_once)
    start = 0
    for number, count in enumerate(items, 1):
        place.feed(item(start, count, final=number == len(items)), count)
        start += count
        pump([place])
    np.testing.assert_allclose(sound_of(place.events) / 32_768, whole.clip(-1, 32_767 / 32_768), rtol=0, atol=1.6e-5)
    assert isinstance(place.events[-1], AudioOut)
    assert place.events[-1].final
    assert place.stream.finished
    assert place.returned_units == place.fed_units == FRAMES
    assert not any(place.stream.held().values())


def test_a_step_decodes_a_few_frames_and_says_what_they_cost(tiny: Any) -> None:
    place = vocoder(tiny)
    place.feed(item(0, 5, final=True), 5)
    asked = []
    while step := place.stream.next_step():
        asked.append((step.units, step.urgency))
        place.step()
    assert asked == [(2 * 1_920 - 555, 0), (2 * 1_920, 1), (1_920, 1)]


def test_a_response_without_frames_ends_without_sound(tiny: Any) -> None:
    place = vocoder(tiny)
    place.feed(item(0, 0, final=True))
    assert pump([place]) == 1
    assert place.events == [AudioOut(0, 24_000, 0, b"", final=True)]
    assert place.stream.finished


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_response_holds_nothing(tiny: Any, steps: int) -> None:
    place = vocoder(tiny)
    place.feed(item(0, FRAMES), FRAMES)
    pump([place], steps)
    assert place.stream.held() == {"frames": FRAMES - 2 * steps, "positions": 2 * steps}
    place.stream.close()
    assert not any(place.stream.held().values())


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (item(1, 2), "wrong_item"),
        (CodecFrames(0, 2, bytes(16)), "wrong_item"),
        (CodecFrames(0, 1, np.full((16, 1), 2_048, "<i8").tobytes()), "wrong_item"),
        (CodecFrames(0, 1, np.full((16, 1), -1, "<i8").tobytes()), "wrong_item"),
        (Latents(0, 0, b""), "wrong_item"),
        (CodecFrames(0, FRAMES_WAITING_MAX + 1, bytes(128 * (FRAMES_WAITING_MAX + 1))), "input_overrun"),
    ],
)
def test_what_is_no_next_item_is_refused(tiny: Any, wrong: Item, code: str) -> None:
    with pytest.raises(StageFailure) as failed:
        vocoder(tiny).feed(wrong)
    assert failed.value.code == code


def test_nothing_follows_the_final_item(tiny: Any) -> None:
    place = vocoder(tiny)
    place.feed(item(0, 1, final=True), 1)
    with pytest.raises(StageFailure, match="ended: True"):
        place.feed(item(1, 1), 1)


@pytest.mark.parametrize("options", [VocoderOptions(8_000), TalkerOptions()])
def test_another_rate_is_refused(tiny: Any, options: Options) -> None:
    with pytest.raises(StageFailure) as failed:
        vocoder(tiny, options=options)
    assert failed.value.code == "wrong_options"
