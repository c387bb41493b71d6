"""A small ONNX model in the thread that calls it: one thread, no spinning, its inputs checked.

Rules
* ORT_DISABLE_TELEMETRY is set before this module is imported.
* A session is called from one thread at a time, and computes in no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from media.pcm import FloatSamples

ORT_LOG_ERRORS_ONLY = 3


class ModelFileError(RuntimeError):
    """The file is not the model that is wanted: who installed or configured it must act."""


class OnnxModel(Protocol):
    """A loaded graph: named inputs in, all outputs in the graph's order out."""

    def run(self, output_names: None, feeds: Mapping[str, FloatSamples | NDArray[np.int64]]) -> list[FloatSamples]: ...


def open_model(path: Path, inputs: frozenset[str]) -> OnnxModel:
    """Load the graph in `path`, which takes `inputs`, for the CPU. Raises `ModelFileError`."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = ORT_LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {item.name for item in session.get_inputs()}
    if names != inputs:
        raise ModelFileError(f"{path}: inputs {sorted(names)}, but {sorted(inputs)} are wanted")
    model: OnnxModel = session
    return model
