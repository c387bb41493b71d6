"""Graphs that can run, and what is said of those that cannot: the stage, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stages.graph import GATEWAY, HAND_OVER_MAX, Edge, Graph, GraphError, StageNode, address_of, worker_spec
from stages.worker import WorkerSpec

STAGES = {
    "hear": StageNode(name="hear", kind="encoder", engine="scripted"),
    "think": StageNode(name="think", kind="thinker", engine="scripted", options={"sessions_max": 2}),
    "speak": StageNode(name="speak", kind="talker", engine="scripted"),
    "sound": StageNode(name="sound", kind="vocoder", engine="scripted", chunk_ms_max=160),
}
CLAUSES = Edge(source="think", target="speak", payload="clauses", window=320)
LATENTS = Edge(source="speak", target="sound", payload="latents", window=48)
AUDIO = Edge(source="sound", target=GATEWAY, payload="audio", window=9_600)


def line(*, edges: tuple[Edge, ...] = (CLAUSES, LATENTS, AUDIO), **changed: StageNode) -> Graph:
    """Encoder | Thinker → Talker → vocoder → gateway, with stages exchanged."""
    return Graph(stages=tuple({**STAGES, **changed}.values()), edges=edges)


def changed(edge: Edge, **fields: Any) -> Edge:
    return Edge(**(edge.model_dump() | fields))


# ---- graphs that run ----------------------------------------------------------------------------------------


def test_a_line_runs_and_knows_its_stages_and_edges() -> None:
    graph = line()
    assert graph.stage("speak") is graph.stages[2]
    assert [graph.edge_from(stage.name) for stage in graph.stages] == [None, CLAUSES, LATENTS, AUDIO]
    assert graph.output_rate == 24_000


def test_a_graph_comes_from_plain_data_as_from_toml() -> None:
    graph = line()
    assert Graph.model_validate(graph.model_dump()) == graph


def test_two_thinkers_may_speak_through_one_talker() -> None:
    other = StageNode(name="other", kind="thinker", engine="scripted")
    graph = line(edges=(CLAUSES, changed(CLAUSES, source="other"), LATENTS, AUDIO), other=other)
    assert graph.edge_from("other") == changed(CLAUSES, source="other")


@pytest.mark.parametrize(
    "edge",
    [
        changed(CLAUSES, window=2 * HAND_OVER_MAX["clauses"]),
        changed(LATENTS, window=2 * HAND_OVER_MAX["latents"]),
        changed(AUDIO, window=2 * 160 * 24),
    ],
    ids=lambda edge: edge.payload,
)
def test_a_window_holds_two_of_the_largest_hand_overs_and_not_one_unit_less(edge: Edge) -> None:
    assert line(edges=(edge,)).edges == (edge,)
    with pytest.raises(ValidationError, match="more than half of the window"):
        line(edges=(changed(edge, window=edge.window - 1),))


# ---- graphs that cannot run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "stages", "said"),
    [
        (
            (),
            {"double": STAGES["hear"]},
            "stage 'hear' is named twice: give each stage a name of its own",
        ),
        (
            (),
            {"odd": StageNode(name=GATEWAY, kind="talker", engine="scripted")},
            "stage 'gateway': edges end at the gateway by that name: give the stage another one",
        ),
        (
            (),
            {"speak": StageNode(name="speak", kind="talker", engine="openai")},
            "stage 'speak': engine 'openai' is no talker; use one of local, scripted",
        ),
        (
            (changed(CLAUSES, source="thinker"),),
            {},
            "there is no stage 'thinker': use one of hear, think, speak, sound",
        ),
        (
            (changed(CLAUSES, target="speaker"),),
            {},
            "there is no stage 'speaker': use one of hear, think, speak, sound",
        ),
        (
            (changed(CLAUSES, payload="latents"),),
            {},
            "edge think → speak: from thinker to talker go clauses, not latents: name clauses",
        ),
        (
            (changed(CLAUSES, target="sound"),),
            {},
            "edge think → sound: from thinker to vocoder go no hand-overs, not clauses: "
            "remove the edge, or join other stages",
        ),
        (
            (Edge(source="hear", target=GATEWAY, payload="audio", window=10),),
            {},
            "edge hear → gateway: from encoder to gateway go no hand-overs, not audio: "
            "remove the edge, or join other stages",
        ),
        (
            (CLAUSES, CLAUSES),
            {},
            "stage 'think' has two edges, and one reader of what it makes: remove one",
        ),
        (
            (changed(CLAUSES, window=319),),
            {},
            "edge think → speak: one hand-over of 'think' is up to 160 units, more than half of the window of 319: "
            "enlarge the window or make smaller pieces",
        ),
        (
            (AUDIO,),
            {"sound": StageNode(name="sound", kind="vocoder", engine="scripted")},
            "stage 'sound' does not say how long its chunks are: set chunk_ms_max",
        ),
        (
            (AUDIO,),
            {"sound": StageNode(name="sound", kind="vocoder", engine="scripted", chunk_ms_max=201)},
            "edge sound → gateway: one hand-over of 'sound' is up to 4824 units, more than half of the window of 9600: "
            "enlarge the window or make smaller pieces",
        ),
    ],
)
def test_a_graph_that_cannot_run_says_which_stage_and_what_to_do(
    edges: tuple[Edge, ...], stages: dict[str, StageNode], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        line(edges=edges, **stages)
    (error,) = caught.value.errors()
    assert error["msg"] == f"Value error, {said}"
    assert isinstance(error["ctx"]["error"], GraphError)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"name": "Hear"}, "name"),
        ({"name": "../hear"}, "name"),
        ({"kind": "observer"}, "kind"),
        ({"chunk_ms_max": -1}, "chunk_ms_max"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 17}, "replicas"),
        ({"step_s_max": 0}, "step_s_max"),
    ],
)
def test_a_wrong_field_of_a_stage_is_refused_by_name(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StageNode(**({"name": "hear", "kind": "encoder", "engine": "scripted"} | fields))
    assert [error["loc"] for error in caught.value.errors()] == [(place,)]


@pytest.mark.parametrize("fields", [{"window": 0}, {"payload": "pcm"}, {"lossy": True}])
def test_a_wrong_field_of_an_edge_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        changed(AUDIO, **fields)
    assert [error["loc"] for error in caught.value.errors()] == [tuple(fields)]


def test_an_unknown_stage_is_named_beside_those_there_are() -> None:
    with pytest.raises(GraphError, match="there is no stage 'mouth': use one of hear, think, speak, sound"):
        line().stage("mouth")


# ---- what workers are told ----------------------------------------------------------------------------------


def test_each_worker_is_told_its_links_and_windows() -> None:
    graph, run_dir = line(), Path("/run/duplex")
    specs = {stage.name: worker_spec(graph, stage, stage.name, run_dir, 4) for stage in graph.stages}
    assert specs == {
        "hear": WorkerSpec("hear", "encoder", "scripted", "unix:/run/duplex/hear.sock", 4),
        "think": WorkerSpec(
            "think",
            "thinker",
            "scripted",
            "unix:/run/duplex/think.sock",
            4,
            {"sessions_max": 2},
            onward={"speak": "unix:/run/duplex/speak.sock"},
            onward_window=320,
        ),
        "speak": WorkerSpec(
            "speak",
            "talker",
            "scripted",
            "unix:/run/duplex/speak.sock",
            4,
            onward={"sound": "unix:/run/duplex/sound.sock"},
            onward_window=48,
        ),
        "sound": WorkerSpec("sound", "vocoder", "scripted", "unix:/run/duplex/sound.sock", 4, publish_window=9_600),
    }


def test_replicas_are_linked_each_with_each() -> None:
    graph = line(
        speak=StageNode(name="speak", kind="talker", engine="scripted", replicas=2),
        sound=StageNode(name="sound", kind="vocoder", engine="scripted", chunk_ms_max=190, replicas=2),
    )
    assert graph.stage("hear").replica_names == ("hear",)
    assert graph.stage("speak").replica_names == ("speak-1", "speak-2")
    targets = {f"sound-{number}": f"unix:/run/sound-{number}.sock" for number in (1, 2)}
    for name in ("speak-1", "speak-2"):
        spec = worker_spec(graph, graph.stage("speak"), name, Path("/run"), 1)
        assert (spec.replica, spec.address, spec.onward) == (name, f"unix:/run/{name}.sock", targets)


def test_no_stage_has_the_name_of_anothers_replica() -> None:
    with pytest.raises(ValidationError, match="'speak-1': rename the stage"):
        line(
            speak=StageNode(name="speak", kind="talker", engine="scripted", replicas=2),
            hear=StageNode(name="speak-1", kind="encoder", engine="scripted"),
        )


def test_secrets_reach_the_worker_by_the_names_of_their_variables_only() -> None:
    stage = StageNode(name="think", kind="thinker", engine="openai", secrets={"api_key": "DUPLEX_OPENAI_API_KEY"})
    spec = worker_spec(line(think=stage), stage, "think", Path("/run"), 1)
    assert (spec.options, spec.secrets) == ({}, {"api_key": "DUPLEX_OPENAI_API_KEY"})


def test_the_addresses_of_two_stages_differ() -> None:
    assert address_of(Path("/run"), "hear") == "unix:/run/hear.sock"
