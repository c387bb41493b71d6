"""Builds the torch engine's stages from their options; see `stages.engines.registry`.

Rules
* Nothing of torch is imported before a stage is built: the gateway reads this module's names without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TypeVar

import msgspec

from stages.engines.registry import EngineUnknownError
from stages.engines.torch_omni.options import Code2WavSettings, ModelOptions, TalkerSettings, ThinkerSettings
from stages.stream import StageModel

Settings = TypeVar("Settings", ThinkerSettings, TalkerSettings, Code2WavSettings)

LIBRARIES = ("torch", "transformers")


def encoder(options: Mapping[str, object]) -> StageModel:
    """Options: `ModelOptions`."""
    _require_libraries()
    from stages.engines.torch_omni.encoder import EncoderModel
    from stages.engines.torch_omni.model import load

    return EncoderModel(*load(msgspec.convert(options, ModelOptions)))


def thinker(options: Mapping[str, object]) -> StageModel:
    """Options: `ModelOptions` and `ThinkerSettings`."""
    _require_libraries()
    from stages.engines.torch_omni.model import load, vocabulary_of
    from stages.engines.torch_omni.thinker import ThinkerModel

    of_model, settings = _parted(options, ThinkerSettings)
    model, revision = load(of_model)
    return ThinkerModel(model, revision, vocabulary_of(model.config), settings)


def talker(options: Mapping[str, object]) -> StageModel:
    """Options: `ModelOptions` and `TalkerSettings`."""
    _require_libraries()
    from stages.engines.torch_omni.model import load
    from stages.engines.torch_omni.talker import TalkerModel

    of_model, settings = _parted(options, TalkerSettings)
    return TalkerModel(*load(of_model), settings)


def vocoder(options: Mapping[str, object]) -> StageModel:
    """Options: `ModelOptions` and `Code2WavSettings`."""
    _require_libraries()
    from stages.engines.torch_omni.code2wav import Code2WavModel
    from stages.engines.torch_omni.model import load

    of_model, settings = _parted(options, Code2WavSettings)
    return Code2WavModel(*load(of_model), settings)


def _require_libraries() -> None:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise EngineUnknownError(
            f"engine 'torch' needs {' and '.join(missing)}; docs/dependencies.md says how to install them"
        )


def _parted(options: Mapping[str, object], of_stage: type[Settings]) -> tuple[ModelOptions, Settings]:
    """The options of the model, and those of the stage. Raises `msgspec.ValidationError`."""
    own = {name: value for name, value in options.items() if name in of_stage.__struct_fields__}
    others = {name: value for name, value in options.items() if name not in own}
    return msgspec.convert(others, ModelOptions), msgspec.convert(own, of_stage)
