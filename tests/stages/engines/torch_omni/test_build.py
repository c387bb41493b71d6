"""Building a stage: what is refused, with torch and without."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import msgspec
import pytest

from stages.engines.registry import EngineUnknownError, build
from stages.engines.torch_omni import build as builders

KINDS = ("encoder", "thinker", "talker", "vocoder")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is an extra: make test-torch")


@pytest.mark.parametrize("kind", KINDS)
def test_libraries_that_are_missing_are_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "find_spec", lambda name: None)
    with pytest.raises(EngineUnknownError, match="torch and transformers"):
        build("torch", kind, {})


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_is_built_from_its_options(kind: str) -> None:
    model = build("torch", kind, {"seed": 3})
    assert (model.concurrency, model.revision) == (1, "tiny-3")
    model.open_session("s")
    assert model.kept_for("s") == ({"contexts": 0, "hearings": 1} if kind == "thinker" else {})
    model.close_session("s")
    assert not any(model.kept_for("s").values())
    model.close()


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("encoder", {"sessions": 2}),
        ("thinker", {"chunk_then": 2}),
        ("talker", {"decode_frames_max": 2}),
        ("vocoder", {"seed": "x"}),
        ("thinker", {"sessions": 0}),
        ("thinker", {"piece_tokens_max": 0}),
        ("thinker", {"context_tokens": 8, "output_tokens_max": 5}),
        ("talker", {"chunk_first": 0}),
        ("talker", {"temperature": -0.1}),
        ("vocoder", {"decode_frames_max": 0}),
    ],
)
def test_a_wrong_option_is_refused(kind: str, options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        build("torch", kind, options)


@needs_torch
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineUnknownError, match="finds no device 'cuda:999' here"):
        build("torch", "encoder", {"device": "cuda:999"})


def test_nothing_of_torch_is_imported_for_the_names() -> None:
    assert "torch" not in vars(sys.modules[builders.__name__])
