"""The streaming decoder against the model's own, which decodes all at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stages.engines.torch_omni.waveform import StreamingDecoder, WaveformNet

FRAMES = 90  # more than the window of 72
CODES = np.random.default_rng(0).integers(0, 2_048, (16, FRAMES))
SCHEDULES = {
    "one by one": repeat(1),
    "4 then 25": chain([4], repeat(25)),
    "tens": repeat(10),
    "at once": repeat(FRAMES),
    "uneven": chain([1, 80, 2, 3], repeat(4)),
}


def pieces(schedule: Iterator[int]) -> Iterator[NDArray[np.int64]]:
    start = 0
    for count in schedule:
        if start >= FRAMES:
            return
        yield CODES[:, start : start + count]
        start += count


def streamed(net: WaveformNet, schedule: Iterator[int]) -> NDArray[np.float32]:
    decoder = StreamingDecoder(net)
    with torch.inference_mode():
        samples = np.concatenate([decoder.decode(piece) for piece in pieces(schedule)])
    assert decoder.positions == 71
    return samples


@pytest.fixture(scope="module")
def exact(tiny: Any) -> tuple[WaveformNet, NDArray[np.float32]]:
    """In float64, where the order of sums hides nothing."""
    model = copy.deepcopy(tiny).double()
    with torch.inference_mode():
        wave = model.code2wav(torch.tensor(CODES)[None])[0, 0]
    return WaveformNet(model), wave.float().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_pieces_sound_as_the_whole(exact: tuple[WaveformNet, NDArray[np.float32]], name: str) -> None:
    net, whole = exact
    wave = streamed(net, SCHEDULES[name])
    assert wave.shape == whole.shape == (FRAMES * 1_920 - 555,)
    np.testing.assert_allclose(wave, whole, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_in_float32_they_differ_by_the_order_of_sums(tiny: Any) -> None:
    with torch.inference_mode():
        whole = tiny.code2wav(torch.tensor(CODES)[None])[0, 0].numpy()
    np.testing.assert_allclose(streamed(WaveformNet(tiny), chain([4], repeat(25))), whole, rtol=0, atol=5e-6)


def test_the_sound_lags_by_555_samples(tiny: Any) -> None:
    net = WaveformNet(tiny)
    assert (net.samples_per_frame, net.lag, net.codebooks, net.codes) == (1_920, 555, 16, 2_048)
    assert [net.samples_after(frames) for frames in (0, 1, 2)] == [0, 1_365, 3_285]


def test_responses_do_not_hear_each_other(tiny: Any) -> None:
    net = WaveformNet(tiny)
    one, other = StreamingDecoder(net), StreamingDecoder(net)
    with torch.inference_mode():
        alone = StreamingDecoder(net).decode(CODES[:, :4])
        other.decode(CODES[:, 40:44])
        np.testing.assert_array_equal(one.decode(CODES[:, :4]), alone)


@pytest.mark.parametrize("part", [torch.nn.Conv1d(1, 1, 3), None])
def test_a_model_that_cannot_be_streamed_is_refused(tiny: Any, part: Any) -> None:
    model = copy.deepcopy(tiny)
    if part is None:
        model.code2wav.upsample[0][0].conv.kernel_size = (3,)
    else:
        model.code2wav.decoder.append(part)
    with pytest.raises(ValueError, match="cannot be streamed"):
        WaveformNet(model)
