"""Engines by name. Those that need weights have tests of their own."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import msgspec
import pytest

from stages.engines import registry
from stages.engines.registry import EngineUnknownError, build, engines_for
from stages.engines.scripted import ScriptedModel
from stages.graph import StageKind

LINE = ("encoder", "thinker", "talker", "vocoder")
KINDS = tuple(kind for kind in get_args(StageKind) if engines_for(kind))


@pytest.mark.parametrize("kind", LINE)
def test_every_stage_of_the_line_has_an_engine_with_weights_and_two_without(kind: str) -> None:
    assert set(engines_for(kind)) >= {"local", "scripted", "synthetic"}
    assert list(engines_for(kind)) == sorted(engines_for(kind))


def test_an_unknown_kind_has_none() -> None:
    assert engines_for("gateway") == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_built_from_its_options(kind: str) -> None:
    model = build("scripted", kind, {"sessions_max": 3})
    assert isinstance(model, ScriptedModel)
    assert (model.revision, model.concurrency) == ("scripted", 1)


def test_an_unknown_engine_is_named_beside_those_there_are() -> None:
    with pytest.raises(
        EngineUnknownError, match="no engine 'magic' for a talker; there are: local, scripted, synthetic"
    ):
        build("magic", "talker", {})


def test_an_engine_need_not_offer_every_kind() -> None:
    assert "openai" in engines_for("thinker")
    with pytest.raises(EngineUnknownError, match="no engine 'openai' for a vocoder"):
        build("openai", "vocoder", {})


@pytest.mark.parametrize(
    ("options", "named"),
    [({"volume": 11}, "volume"), ({"frames_per_word": 0}, "frames_per_word"), ({"heard": []}, "heard")],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        build("scripted", "encoder", options)


@pytest.mark.parametrize("target", sorted(set(registry._BUILDERS.values())))
def test_every_entry_leads_to_a_builder(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(import_module(module), name))
