"""The tiny model, made once. Without torch only the tests of what needs none are collected: `make test-torch`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore = [
        "test_audio_net.py",
        "test_code2wav.py",
        "test_context.py",
        "test_encoder.py",
        "test_model.py",
        "test_offline.py",
        "test_rows.py",
        "test_sampling.py",
        "test_talker.py",
        "test_thinker.py",
        "test_torch_live.py",
        "test_waveform.py",
    ]


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The tiny model of seed 0. A test that changes it changes a copy."""
    from stages.engines.torch_omni.model import load
    from stages.engines.torch_omni.options import ModelOptions

    return load(ModelOptions())[0]
