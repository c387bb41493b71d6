"""ONNX Runtime on one thread that never spins, behind a narrow type.

Four model processes share two cores, so a session computes in the thread that calls `run` and in no other,
and a thread that waits must not burn a neighbour's core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

Tensor = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Output = npt.NDArray[np.float32]


class OnnxSession(Protocol):
    """A loaded graph: named inputs in, all outputs in the graph's order out."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Tensor]) -> list[Output]:
        """Compute; `output_names` None asks for all outputs."""
        ...


def open_session(path: Path) -> OnnxSession:
    """Load the graph in `path` for the CPU, one thread, no spinning; raises ONNX Runtime's own errors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session: OnnxSession = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session
