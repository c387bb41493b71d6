from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stages.engines.local import piper_split
from stages.engines.local.onnx_session import Output, Tensor, open_session
from stages.engines.local.piper_split import SplitVoice, UnsupportedVoiceError, file_digest, split_voice
from tests.stages.engines.local.real_voice import voice_path
from tests.stages.engines.local.tiny_voice import CHANNELS, HOP, tiny_graph, write_tiny_voice


def _inputs(ids: list[int], noise_scale: float = 0.0, noise_w: float = 0.0) -> dict[str, Tensor]:
    return {
        "input": np.array([ids], dtype=np.int64),
        "input_lengths": np.array([len(ids)], dtype=np.int64),
        "scales": np.array([noise_scale, 1.0, noise_w], dtype=np.float32),
    }


def _noise(durations: list[float], latents: list[float]) -> dict[str, Tensor]:
    return {
        "duration_noise": np.array(durations, dtype=np.float32),
        "latent_noise": np.array(latents, dtype=np.float32),
    }


def _acoustic(halves: SplitVoice, feed: dict[str, Tensor]) -> list[Output]:
    return open_session(halves.acoustic).run(None, feed)


def test_both_halves_together_are_the_whole(tmp_path: Path) -> None:
    voice = write_tiny_voice(tmp_path)
    halves = split_voice(voice, tmp_path / "cache")
    assert (halves.channels, halves.hop, halves.digest) == (CHANNELS, HOP, file_digest(voice))

    feed = _inputs([3, 1, 2, 5])
    (whole,) = open_session(voice).run(None, feed)
    latents, durations = _acoustic(halves, feed | _noise([0.0], [0.0]))
    (wave,) = open_session(halves.decoder).run(None, {"latents": latents})

    assert latents.shape == (1, CHANNELS, 4)
    assert durations.reshape(-1).tolist() == [3, 1, 2, 5]
    assert np.array_equal(wave, whole)


def test_noise_is_an_input_of_any_length_read_round_and_round(tmp_path: Path) -> None:
    halves = split_voice(write_tiny_voice(tmp_path), tmp_path / "cache")
    feed = _inputs([3, 1, 2], noise_scale=1.0, noise_w=1.0)
    quiet, plain = _acoustic(halves, feed | _noise([0.0], [0.0]))
    _, lengthened = _acoustic(halves, feed | _noise([0.0, 1.0], [0.0]))
    noisy, _ = _acoustic(halves, feed | _noise([0.0], [1.0, 2.0]))

    assert (lengthened - plain).reshape(-1).tolist() == [0, 1, 0]
    places = np.arange(CHANNELS * 3).reshape(1, CHANNELS, 3)
    np.testing.assert_allclose(noisy - quiet, 1.0 + places % 2, atol=1e-5)


def test_a_cached_split_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voice = write_tiny_voice(tmp_path)
    first = split_voice(voice, tmp_path / "cache")
    monkeypatch.setattr(piper_split, "_split", _never)
    assert split_voice(voice, tmp_path / "cache") == first


def _never(voice: Path, workspace: Path) -> piper_split.Manifest:
    raise AssertionError(f"{voice} was split again into {workspace}")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _alter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")


@pytest.mark.parametrize("part", ["acoustic.onnx", "decoder.onnx", "manifest.json"])
@pytest.mark.parametrize("harm", [_truncate, _alter, Path.unlink])
def test_a_harmed_cache_is_made_again(tmp_path: Path, part: str, harm: Callable[[Path], None]) -> None:
    voice, cache = write_tiny_voice(tmp_path), tmp_path / "cache"
    halves = split_voice(voice, cache)
    wanted = {path.name: path.read_bytes() for path in cache.iterdir()}
    (harmed,) = cache.glob(f"*{part}")
    harm(harmed)

    assert split_voice(voice, cache) == halves
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == wanted


def test_another_voice_has_another_cache_entry(tmp_path: Path) -> None:
    voice, cache = write_tiny_voice(tmp_path), tmp_path / "cache"
    before = split_voice(voice, cache)
    graph = tiny_graph()
    graph.doc_string = "another"
    onnx.save(graph, str(voice))
    assert split_voice(voice, cache).acoustic != before.acoustic
    assert before.acoustic.exists()


def _split_in_child(voice: Path, cache: Path, done: multiprocessing.SimpleQueue[SplitVoice]) -> None:
    done.put(split_voice(voice, cache))


@pytest.mark.live
@pytest.mark.slow
def test_two_processes_may_split_at_once(tmp_path: Path) -> None:
    voice, cache = write_tiny_voice(tmp_path), tmp_path / "cache"
    context = multiprocessing.get_context("spawn")
    done: multiprocessing.SimpleQueue[SplitVoice] = context.SimpleQueue()
    children = [context.Process(target=_split_in_child, args=(voice, cache, done)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=60)
    assert [child.exitcode for child in children] == [0, 0]
    assert done.get() == done.get() == split_voice(voice, cache)
    assert len(list(cache.iterdir())) == 3


def test_a_loser_of_the_race_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voice, cache = write_tiny_voice(tmp_path), tmp_path / "cache"
    split = piper_split._split

    def split_twice(path: Path, workspace: Path) -> piper_split.Manifest:
        monkeypatch.setattr(piper_split, "_split", split)
        split_voice(voice, cache)
        return split(path, workspace)

    monkeypatch.setattr(piper_split, "_split", split_twice)
    halves = split_voice(voice, cache)
    monkeypatch.setattr(piper_split, "_split", _never)
    assert split_voice(voice, cache) == halves


# ---- refusals ---------------------------------------------------------------------------------------------


def _without(graph: onnx.GraphProto, *op_types: str) -> None:
    kept = [node for node in graph.node if node.op_type not in op_types]
    del graph.node[:]
    graph.node.extend(kept)


def _add_speaker(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("sid", TensorProto.INT64, ["batch"]))


def _drop_scales(graph: onnx.GraphProto) -> None:
    del graph.input[2]


def _second_durations(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Ceil", ["scaled"], ["whole2"]))
    graph.node.append(helper.make_node("CumSum", ["whole2", "axis2"], ["edges2"]))


def _condition_decoder(graph: onnx.GraphProto) -> None:
    last = graph.node[-1]
    graph.node.insert(len(graph.node) - 1, helper.make_node("Mul", ["d5", "noise_scale"], ["d6"]))
    last.input[0] = "d6"


def _bypass_decoder(graph: onnx.GraphProto) -> None:
    graph.node[-1].input[0] = "scaled"


def _compute_weights(graph: onnx.GraphProto) -> None:
    graph.node.insert(0, helper.make_node("Identity", ["pre"], ["made"]))
    next(node for node in graph.node if "pre" in node.input and node.op_type == "Conv").input[1] = "made"


def _third_noise(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("RandomNormalLike", ["mean"], ["random_c"]))


def _decode_input(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.op_type == "ConvTranspose").input[0] = "scales"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_add_speaker, "'sid'.*several speakers"),
        (_drop_scales, "no graph input 'scales'"),
        (lambda graph: _without(graph, "ConvTranspose"), "no ConvTranspose"),
        (lambda graph: _without(graph, "Conv"), "no Conv node"),
        (_decode_input, "no Conv node"),
        (lambda graph: _without(graph, "Ceil"), "0 Ceil nodes"),
        (_second_durations, "2 Ceil nodes"),
        (lambda graph: _without(graph, "RandomNormalLike"), "0 RandomNormalLike"),
        (_third_noise, "3 RandomNormalLike"),
        (_condition_decoder, r"no decoder .*'scales'"),
        (_bypass_decoder, "no decoder"),
        (_compute_weights, "no weights"),
    ],
)
def test_a_voice_is_refused_by_what_it_lacks(
    tmp_path: Path, change: Callable[[onnx.GraphProto], None], what: str
) -> None:
    model = tiny_graph()
    change(model.graph)
    voice = tmp_path / "odd.onnx"
    onnx.save(model, str(voice))
    with pytest.raises(UnsupportedVoiceError, match=what):
        split_voice(voice, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    voice = tmp_path / "text.onnx"
    voice.write_text("this is not a graph")
    with pytest.raises(UnsupportedVoiceError, match=r"text\.onnx is not an ONNX graph"):
        split_voice(voice, tmp_path / "cache")


def test_a_voice_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        split_voice(tmp_path / "none.onnx", tmp_path / "cache")


# ---- the real voice ---------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_split_is_the_real_voice(tmp_path: Path) -> None:
    voice = voice_path()
    halves = split_voice(voice, tmp_path / "cache")
    assert (halves.channels, halves.hop) == (192, 256)

    feed = _inputs([1, 0, 20, 0, 120, 0, 59, 0, 24, 0, 27, 0, 10, 0, 2])
    (whole,) = open_session(voice).run(None, feed)
    latents, durations = _acoustic(halves, feed | _noise([0.0], [0.0]))
    (wave,) = open_session(halves.decoder).run(None, {"latents": latents})
    assert latents.shape[2] == durations.sum() == wave.size / halves.hop
    np.testing.assert_allclose(wave.reshape(-1), whole.reshape(-1), atol=1e-6)
