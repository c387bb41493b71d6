from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from stages.engines.local.onnx_session import open_session
from tests.stages.engines.local.tiny_voice import write_tiny_voice


def test_a_session_runs_on_one_thread_that_does_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, onnxruntime.SessionOptions, list[str]]] = []

    def open_fake(path: str, options: onnxruntime.SessionOptions, providers: list[str]) -> object:
        opened.append((path, options, providers))
        return object()

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_fake)
    open_session(tmp_path / "voice.onnx")
    ((path, options, providers),) = opened
    assert path == str(tmp_path / "voice.onnx")
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert providers == ["CPUExecutionProvider"]


def test_a_session_computes(tmp_path: Path) -> None:
    session = open_session(write_tiny_voice(tmp_path))
    feed = {"input": np.array([[1, 2]]), "input_lengths": np.array([2]), "scales": np.zeros(3, dtype=np.float32)}
    (wave,) = session.run(["output"], feed)
    assert wave.shape == (1, 1, 1, 16)
