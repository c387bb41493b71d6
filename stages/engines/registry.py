"""Engines by name: builds the model of a stage from its specification.

Imports of an engine's libraries happen here, in the worker that needs them, and nowhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

from stages.stream import StageModel

Builder = Callable[[Mapping[str, object]], StageModel]

_BUILDERS: dict[tuple[str, str], str] = {
    ("local", "encoder"): "stages.engines.local.build:encoder",
    ("local", "thinker"): "stages.engines.local.build:thinker",
    ("local", "talker"): "stages.engines.local.build:talker",
    ("local", "vocoder"): "stages.engines.local.build:vocoder",
    ("openai", "thinker"): "stages.engines.openai:build",
    ("scripted", "encoder"): "stages.engines.scripted:build_encoder",
    ("scripted", "thinker"): "stages.engines.scripted:build_thinker",
    ("scripted", "talker"): "stages.engines.scripted:build_talker",
    ("scripted", "vocoder"): "stages.engines.scripted:build_vocoder",
    ("scripted", "observer"): "stages.engines.scripted:build_observer",
    ("synthetic", "encoder"): "stages.engines.synthetic.build:encoder",
    ("synthetic", "thinker"): "stages.engines.synthetic.build:thinker",
    ("synthetic", "talker"): "stages.engines.synthetic.build:talker",
    ("synthetic", "vocoder"): "stages.engines.synthetic.build:vocoder",
    ("torch", "encoder"): "stages.engines.torch_omni.build:encoder",
    ("torch", "thinker"): "stages.engines.torch_omni.build:thinker",
    ("torch", "talker"): "stages.engines.torch_omni.build:talker",
    ("torch", "vocoder"): "stages.engines.torch_omni.build:vocoder",
}


class EngineUnknownError(ValueError):
    """No engine of that name offers that kind of stage, or not here: the configuration must change."""


def engines_for(kind: str) -> tuple[str, ...]:
    """The names of the engines that can be a stage of `kind`."""
    return tuple(sorted(engine for engine, offered in _BUILDERS if offered == kind))


def build(engine: str, kind: str, options: Mapping[str, object]) -> StageModel:
    """Load the model of a stage. Raises `EngineUnknownError`, or what the engine says of its options or files."""
    target = _BUILDERS.get((engine, kind))
    if target is None:
        raise EngineUnknownError(f"no engine {engine!r} for a {kind}; there are: {', '.join(engines_for(kind))}")
    module, _, name = target.partition(":")
    builder = cast("Builder", getattr(importlib.import_module(module), name))
    return builder(options)
