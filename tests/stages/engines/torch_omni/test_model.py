"""The model: what a seed determines, and what a folder does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.engines.torch_omni.model import load, vocabulary_of
from stages.engines.torch_omni.options import ModelOptions

pytestmark = pytest.mark.slow


def same(one: Any, other: Any) -> bool:
    weights, others = one.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_seed_determines_every_weight(tiny: Any) -> None:
    again, revision = load(ModelOptions(seed=0))
    assert revision == "tiny-0"
    assert same(tiny, again)
    assert not same(tiny, load(ModelOptions(seed=1))[0])


def test_the_sound_of_the_tiny_model_is_neither_silence_nor_noise_at_full_scale(tiny: Any) -> None:
    codes = torch.randint(0, 2_048, (1, 16, 30), generator=torch.Generator().manual_seed(0))
    wave = tiny.code2wav(codes)
    assert 0.01 < float(wave.std()) < 0.5
    assert float((wave.abs() >= 1.0).float().mean()) < 0.05


def test_a_checkpoint_is_loaded_from_its_folder(tiny: Any, tmp_path: Path) -> None:
    tiny.save_pretrained(tmp_path)
    loaded, revision = load(ModelOptions(checkpoint=str(tmp_path)))
    assert same(tiny, loaded)
    assert vocabulary_of(loaded.config) == vocabulary_of(tiny.config)
    load(ModelOptions(seed=1))[0].save_pretrained(tmp_path)
    assert load(ModelOptions(checkpoint=str(tmp_path)))[1] != revision


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no file named"):
        load(ModelOptions(checkpoint=str(tmp_path)))
