"""The graph that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from duplex.config import Config, ConfigError, load
from duplex.pipeline import graph_of, route_of, voices_of
from duplex.places import SPARE_PLACES
from media.chunk import ms_to_samples
from sessions.route import Leg, Route, line
from stages import weights
from stages.edges import GATEWAY
from stages.engines.local.loaded_voices import voice_name
from stages.engines.registry import build
from stages.graph import Edge, Graph, GraphError, StageNode, worker_spec


def test_the_voices_that_sessions_can_ask_for() -> None:
    assert voices_of(Config(engine="scripted")) == voices_of(Config(engine="synthetic")) == ()
    assert voices_of(Config(voice=(Path("/m/b.onnx"), Path("/m/c.onnx")))) == ("b", "c")


@pytest.mark.models
def test_the_shipped_voice_is_called_as_its_file() -> None:
    assert voices_of(Config()) == (voice_name(weights.locate("piper-en-us-joe")),)


def test_a_line_of_four_stages() -> None:
    graph = graph_of(Config())
    assert [(stage.name, stage.engine) for stage in graph.stages] == [
        ("encoder", "local"),
        ("thinker", "local"),
        ("talker", "local"),
        ("vocoder", "local"),
    ]
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        ("thinker", "talker"),
        ("talker", "vocoder"),
        ("vocoder", GATEWAY),
    ]


def test_the_generation_lead_is_the_last_window() -> None:
    (edge,) = graph_of(Config(generation_lead_ms=1_000)).edges_from("vocoder")
    assert edge.window == ms_to_samples(1_000, 24_000)


def test_each_worker_keeps_as_many_events_as_was_set() -> None:
    graph = graph_of(Config(events_max=7))
    specs = [worker_spec(graph, stage, stage.name, Path("/run"), 1) for stage in graph.stages]
    assert [spec.events_max for spec in specs] == [7, 7, 7, 7]


def test_as_many_places_as_calls() -> None:
    assert graph_of(Config(calls_max=7)).stage("thinker").options == {"slots": 7, "idle_s": 600}
    scripted = graph_of(Config(engine="scripted", calls_max=7)).stage("thinker")
    assert scripted.options["sessions_max"] == 7 + SPARE_PLACES


def test_there_may_be_more_calls_than_places_for_kv() -> None:
    of_local = graph_of(Config(calls_max=100)).stage("thinker").options
    assert of_local["slots"] == 15, "as many as llama.cpp has"
    fewer = Config(calls_max=7, kv_slots=2, kv_idle_s=30)
    assert graph_of(fewer).stage("thinker").options == {"slots": 2, "idle_s": 30}
    synthetic = graph_of(load({}, engine="synthetic", calls_max=7, kv_slots=2, kv_idle_s=30)).stage("thinker").options
    assert [synthetic[name] for name in ("sessions_max", "kv_places", "kv_idle_s")] == [7 + SPARE_PLACES, 2, 30]
    with pytest.raises(GraphError, match="slots"):
        graph_of(Config(calls_max=100, kv_slots=16))


def test_the_script_reaches_its_stages() -> None:
    graph = graph_of(load({"DUPLEX_SCRIPTED_HEARD": "one|two", "DUPLEX_SCRIPTED_REPLIES": "three"}, engine="scripted"))
    assert graph.stage("encoder").options == {"heard": ["one", "two"]}
    assert graph.stage("thinker").options["replies"] == ["three"]
    assert graph.stage("talker").options == graph.stage("vocoder").options == {}


def test_another_voice_can_say_the_script() -> None:
    graph = graph_of(load({"DUPLEX_SCRIPTED_REPLIES": "three"}, engine="synthetic", thinker="scripted"))
    assert [stage.engine for stage in graph.stages] == ["synthetic", "scripted", "synthetic", "synthetic"]
    build("scripted", "thinker", graph.stage("thinker").options).close()
    assert graph.stage("thinker").options["replies"] == ["three"]


def test_other_models_are_named_to_their_stages() -> None:
    graph = graph_of(
        Config(thinker_gguf=Path("/m/a.gguf"), voice=(Path("/m/b.onnx"), Path("/m/c.onnx")), data_dir=Path("/d"))
    )
    assert graph.stage("thinker").options["gguf"] == "/m/a.gguf"
    for stage in ("talker", "vocoder"):
        assert graph.stage(stage).options == {"cache_dir": "/d/cache", "voices": ["/m/b.onnx", "/m/c.onnx"]}


def test_a_key_is_on_no_command_line() -> None:
    asked = {
        "thinker": "openai",
        "openai_base_url": "http://127.0.0.1/v1",
        "openai_model": "m",
        "openai_api_key": "sk-hidden",
    }
    graph = graph_of(load({f"DUPLEX_{name.upper()}": value for name, value in asked.items()}))
    assert graph.stage("thinker").engine == "openai"
    for stage in graph.stages:
        assert "sk-hidden" not in repr(worker_spec(graph, stage, stage.name, Path("/run"), 1))


# ---- the way of a response --------------------------------------------------------------------------


def test_the_route_of_the_line_is_the_usual_one() -> None:
    assert route_of(graph_of(Config())) == line()


def test_branches_are_legs_of_the_route() -> None:
    usual = graph_of(Config(engine="scripted"))
    critic, aligner = (StageNode(name=name, kind="observer", engine="scripted") for name in ("critic", "aligner"))
    text = Edge(source="thinker", target="critic", payload="clauses", need="complete", window=4_000)
    sound = Edge(source="vocoder", target="critic", payload="audio", need="complete", window=1_000_000)
    seen = [edge.model_copy(update={"target": name}) for name in ("critic", "aligner") for edge in (text, sound)]
    graph = Graph(stages=(*usual.stages, critic, aligner), edges=(*usual.edges, *seen))
    route = route_of(graph)
    assert route == Route(
        "encoder",
        (
            Leg("thinker", "thinker", ("talker", "critic", "aligner"), ("text",)),
            Leg("talker", "talker", ("vocoder",), spoken=True),
            Leg("vocoder", "vocoder", ("critic", "aligner"), ("audio",), spoken=True),
            Leg("critic", "observer", spoken=True),
            Leg("aligner", "observer", spoken=True),
        ),
    )


def test_a_graph_in_which_nobody_hears_has_no_route() -> None:
    usual = graph_of(Config(engine="scripted"))
    with pytest.raises(GraphError, match="add an encoder"):
        route_of(Graph(stages=usual.stages[1:], edges=usual.edges))


@pytest.mark.parametrize("lead_ms", [400, 5_000])
def test_every_lead_that_can_be_configured_makes_a_graph(lead_ms: int) -> None:
    graph_of(Config(generation_lead_ms=lead_ms))


def test_a_synthetic_graph_says_what_each_stage_takes(tmp_path: Path) -> None:
    graph = graph_of(load({}, engine="synthetic"))
    assert {stage.engine for stage in graph.stages} == {"synthetic"}
    assert graph.stage("thinker").options["reply_words"] == {"kind": "uniform", "low": 8, "high": 24}
    profile = tmp_path / "profile.toml"
    profile.write_text("[thinker]\nreply_words = 3\nsessions_max = 9\n[talker]\nword_ms = 2\n[encoder]\nseed = 5\n")
    asked = {"DUPLEX_SYNTHETIC_PROFILE": str(profile), "DUPLEX_CALLS_MAX": "7"}
    graph = graph_of(load(asked, engine="synthetic"))
    assert graph.stage("thinker").options["reply_words"] == 3
    assert graph.stage("thinker").options["sessions_max"] == 7 + SPARE_PLACES
    assert graph.stage("talker").options["word_ms"] == 2
    assert graph.stage("encoder").options["seed"] == 5
    for stage in graph.stages:
        build("synthetic", stage.kind, stage.options).close()


def test_a_profile_that_cannot_be_used_is_told_with_its_setting_and_option(tmp_path: Path) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text("[thinker]\nword_ms = -1\n")
    with pytest.raises(ConfigError, match=r"^synthetic_profile \(DUPLEX_SYNTHETIC_PROFILE\): .*thinker\.word_ms"):
        graph_of(Config(engine="synthetic", synthetic_profile=profile))
