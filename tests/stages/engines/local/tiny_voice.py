"""A Piper voice in miniature: the same inputs, cuts and outputs as a real one, in a graph of 16 nodes.

It says nothing: a phoneme lasts as many frames as its id, times `length`, and the wave is a function of the frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 3
HOP = 8
SAMPLE_RATE = 16_000
SYMBOLS = "_^$ .,;:?!abcdefghijklmnopqrstuvwxyz"


def tiny_graph() -> onnx.ModelProto:
    """ids -> durations (Ceil, CumSum) and latents of one frame per id -> Conv, LeakyRelu, ConvTranspose x2, Conv."""
    random = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    def index(name: str, value: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, dtype=np.int64), name)

    node = helper.make_node
    nodes = [
        node("Cast", ["input"], ["x"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["x", "axis1"], ["row"]),
        node("Gather", ["scales", "place0"], ["noise_scale"]),
        node("Gather", ["scales", "place1"], ["length_scale"]),
        node("Gather", ["scales", "place2"], ["noise_w"]),
        node("RandomNormalLike", ["row"], ["random_a"]),
        node("Mul", ["random_a", "noise_w"], ["jitter"]),
        node("Add", ["row", "jitter"], ["lengths"]),
        node("Mul", ["lengths", "length_scale"], ["scaled"]),
        node("Ceil", ["scaled"], ["whole"]),
        node("CumSum", ["whole", "axis2"], ["edges"]),
        node("Conv", ["edges", "spread"], ["mean"]),
        node("RandomNormalLike", ["mean"], ["random_b"]),
        node("Mul", ["random_b", "noise_scale"], ["grain"]),
        node("Add", ["mean", "grain"], ["frames"]),
        node("Conv", ["frames", "pre"], ["d0"], pads=[1, 1]),
        node("LeakyRelu", ["d0"], ["d1"]),
        node("ConvTranspose", ["d1", "up1"], ["d2"], strides=[4]),
        node("LeakyRelu", ["d2"], ["d3"]),
        node("ConvTranspose", ["d3", "up2"], ["d4"], strides=[2]),
        node("Tanh", ["d4"], ["d5"]),
        node("Unsqueeze", ["d5", "axis1"], ["output"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis1"),
        index("axis2", 2),
        *(index(f"place{place}", place) for place in range(3)),
        weight("spread", CHANNELS, 1, 1),
        weight("pre", CHANNELS, CHANNELS, 3),
        weight("up1", CHANNELS, 2, 4),
        weight("up2", 2, 1, 2),
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("input", TensorProto.INT64, ["batch", "ids"]),
        value("input_lengths", TensorProto.INT64, ["batch"]),
        value("scales", TensorProto.FLOAT, [3]),
    ]
    outputs = [value("output", TensorProto.FLOAT, ["batch", 1, 1, "time"])]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initializer=constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def tiny_config() -> dict[str, object]:
    """The JSON that belongs to it. The id of each symbol is its place in `SYMBOLS`."""
    return {
        "audio": {"sample_rate": SAMPLE_RATE, "quality": "none"},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.5, "length_scale": 1, "noise_w": 0.0},
        "phoneme_type": "espeak",
        "phoneme_id_map": {symbol: [place] for place, symbol in enumerate(SYMBOLS)},
        "num_speakers": 1,
    }


def write_tiny_voice(folder: Path) -> Path:
    """Write the voice and its configuration; returns the voice's path."""
    voice = folder / "tiny.onnx"
    onnx.save(tiny_graph(), str(voice))
    voice.with_name("tiny.onnx.json").write_text(json.dumps(tiny_config()))
    return voice


def ids(symbols: Sequence[str]) -> tuple[int, ...]:
    return tuple(SYMBOLS.index(symbol) for symbol in symbols)
