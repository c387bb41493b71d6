"""Builds the torch engine's stages from their options; see `stages.engines.registry`.

Rules
* Nothing of torch is imported before a stage is built: the gateway reads this module's names without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import msgspec

from stages.engines.registry import EngineUnknownError
from stages.stream import StageModel

LIBRARIES = ("torch", "transformers")


def encoder(options: Mapping[str, object]) -> StageModel:
    """Options: those of the model, `ModelOptions`, and no others."""
    model, revision, _ = _load(options, ())
    from stages.engines.torch_omni.encoder import EncoderModel

    return EncoderModel(model, revision)


def thinker(options: Mapping[str, object]) -> StageModel:
    """Options: those of the model, and `ThinkerSettings`."""
    model, revision, own = _load(options, ("sessions", "context_tokens", "output_tokens_max", "piece_tokens_max"))
    from stages.engines.torch_omni.model import vocabulary_of
    from stages.engines.torch_omni.thinker import ThinkerModel, ThinkerSettings

    settings = msgspec.convert(own, ThinkerSettings)
    return ThinkerModel(model, revision, vocabulary_of(model.config), settings)


def talker(options: Mapping[str, object]) -> StageModel:
    """Options: those of the model, and `TalkerSettings`."""
    model, revision, own = _load(options, ("first_chunk_frames", "chunk_frames", "frames_max", "temperature"))
    from stages.engines.torch_omni.talker import TalkerModel, TalkerSettings

    return TalkerModel(model, revision, msgspec.convert(own, TalkerSettings))


def vocoder(options: Mapping[str, object]) -> StageModel:
    """Options: those of the model, and `Code2WavSettings`."""
    model, revision, own = _load(options, ("decode_frames_max",))
    from stages.engines.torch_omni.code2wav import Code2WavModel, Code2WavSettings

    return Code2WavModel(model, revision, msgspec.convert(own, Code2WavSettings))


def _load(options: Mapping[str, object], own: tuple[str, ...]) -> tuple[Any, str, dict[str, object]]:
    """The model that the options name, its revision, and the stage's `own` options."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise EngineUnknownError(
            f"engine 'torch' needs {' and '.join(missing)}; docs/dependencies.md says how to install them"
        )
    from stages.engines.torch_omni.model import ModelOptions, load

    chosen = {name: value for name, value in options.items() if name in own}
    of_model = {name: value for name, value in options.items() if name not in own}
    return *load(msgspec.convert(of_model, ModelOptions)), chosen
