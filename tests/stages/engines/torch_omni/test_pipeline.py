"""The torch engine in a graph: what fits together, and what only looks alike. Nothing of torch is needed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stages.graph import Schedule
from tests.stages.engines.torch_omni.pipeline import CODES, HEARD, MIND, SOUND, omni_graph


def test_the_four_stages_make_a_line() -> None:
    graph = omni_graph(frames_max=10)
    assert graph.downstream("hear") == ["hear", "think", "speak", "sound"]
    assert graph.options_of(graph.stage("speak")) == {"frames_max": 10}


def test_an_edge_may_have_its_own_schedule_of_chunks() -> None:
    graph = omni_graph(HEARD, MIND, CODES.model_copy(update={"schedule": Schedule(first=1, then=2)}), SOUND)
    assert graph.options_of(graph.stage("speak")) == {"chunk_first": 1, "chunk_then": 2}


def test_what_was_heard_is_not_what_the_thinker_has_in_mind() -> None:
    with pytest.raises(ValidationError, match=r"as \(heard position, channel\).*as \(position, channel\)"):
        omni_graph(HEARD.model_copy(update={"target": "speak"}), MIND, CODES, SOUND)


def test_an_option_of_another_stage_is_refused() -> None:
    with pytest.raises(ValidationError, match="no option 'sessions'"):
        omni_graph(sessions=2)
