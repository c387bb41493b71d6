"""The network tells voice from noise, and a call's results do not depend on who shares its batch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from media.onnx_model import ModelFileError
from media.pcm import FloatSamples
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES
from media.vad import SileroVad, VadState

FORMANTS_HZ = ((700, 80), (1_200, 90), (2_600, 120))
PITCH_HZ = 120


def windows_of(samples: FloatSamples) -> list[FloatSamples]:
    return list(samples.reshape(-1, WINDOW_SAMPLES))


def vowel(windows: int) -> list[FloatSamples]:
    """An "a": a pulse train through three resonances (centre and width in Hz)."""
    count = windows * WINDOW_SAMPLES
    sound = np.diff(np.floor(np.arange(count) * PITCH_HZ / VAD_SAMPLE_RATE), prepend=0.0)
    time = np.arange(1_000) / VAD_SAMPLE_RATE
    for centre, width in FORMANTS_HZ:
        ringing = np.exp(-np.pi * width * time) * np.sin(2 * np.pi * centre * time)
        sound = np.convolve(sound, ringing)[:count]
    return windows_of((0.5 * sound / np.max(np.abs(sound))).astype(np.float32))


def noise(windows: int, seed: int) -> list[FloatSamples]:
    generator = np.random.default_rng(seed)
    return windows_of((0.02 * generator.standard_normal(windows * WINDOW_SAMPLES)).astype(np.float32))


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    package = find_spec("silero_vad")
    assert package is not None
    assert package.submodule_search_locations is not None
    return SileroVad(Path(package.submodule_search_locations[0]) / "data" / "silero_vad.onnx")


def alone(vad: SileroVad, windows: list[FloatSamples], state: VadState | None = None) -> list[float]:
    state = state or VadState()
    return [vad.probabilities([(state, window)])[0] for window in windows]


@pytest.mark.models
def test_voice_is_told_from_noise_and_silence(vad: SileroVad) -> None:
    assert min(alone(vad, vowel(3))) > 0.5
    assert max(alone(vad, noise(10, seed=0))) < 0.2
    assert max(alone(vad, windows_of(np.zeros(10 * WINDOW_SAMPLES, dtype=np.float32)))) < 0.2


@pytest.mark.models
def test_a_batch_gives_each_call_what_it_would_get_alone(vad: SileroVad) -> None:
    calls = [vowel(6), noise(6, seed=1), noise(6, seed=2), vowel(9)[3:]]
    states = [VadState() for _ in calls]
    together = [
        vad.probabilities([(state, call[step]) for state, call in zip(states, calls, strict=True)]) for step in range(6)
    ]
    for number, call in enumerate(calls):
        np.testing.assert_allclose([row[number] for row in together], alone(vad, call), rtol=0, atol=1e-5)


@pytest.mark.models
def test_calls_may_join_and_leave_between_batches(vad: SileroVad) -> None:
    first, second = vowel(4), noise(4, seed=3)
    one, two = VadState(), VadState()
    heard = [vad.probabilities([(one, first[0])])[0]]
    heard.append(vad.probabilities([(two, second[0]), (one, first[1])])[1])
    heard.append(vad.probabilities([(one, first[2]), (two, second[1])])[0])
    vad.probabilities([(two, second[2])])
    heard.append(vad.probabilities([(one, first[3])])[0])
    np.testing.assert_allclose(heard, alone(vad, first), rtol=0, atol=1e-5)


@pytest.mark.models
def test_a_window_is_heard_in_the_context_of_the_one_before(vad: SileroVad) -> None:
    sound = vowel(2)
    state = VadState()
    vad.probabilities([(state, sound[0])])
    np.testing.assert_array_equal(state.context, sound[0][-64:])
    with_context = vad.probabilities([(state, sound[1])])[0]
    assert abs(with_context - alone(vad, [sound[1]])[0]) > 1e-3


@pytest.mark.models
def test_reset_is_a_new_call(vad: SileroVad) -> None:
    state = VadState()
    before = alone(vad, vowel(3), state)
    state.reset()
    assert alone(vad, vowel(3), state) == before


@pytest.mark.models
def test_an_empty_batch_and_misuse(vad: SileroVad) -> None:
    assert vad.probabilities([]) == []
    state, window = VadState(), noise(1, seed=0)[0]
    with pytest.raises(AssertionError):
        vad.probabilities([(state, window), (state, window)])
    with pytest.raises(AssertionError):
        vad.probabilities([(state, window[:256])])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.onnx: no such file"):
        SileroVad(tmp_path / "none.onnx")


def test_another_model_is_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [value], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)
    (tmp_path / "other.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"other\.onnx: inputs \['x'\]"):
        SileroVad(tmp_path / "other.onnx")
