"""Graphs that can run, and what is said of those that cannot: the stage, and how to mend it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stages.edges import GATEWAY, InEdge, OutEdge
from stages.engines import registry
from stages.engines.profiles import PROFILES, Makes, Takes
from stages.graph import Edge, Graph, GraphError, Schedule, StageNode, address_of, worker_spec
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
LINE = (CLAUSES, LATENTS, AUDIO)

ALIGNER = StageNode(name="align", kind="observer", engine="scripted", streams_max=8)
TEXT_SEEN = Edge(source="think", target="align", payload="clauses", need="complete", window=4_000)
SOUND_SEEN = Edge(source="sound", target="align", payload="audio", need="complete", window=24_000 * 60)


def line(*, edges: tuple[Edge, ...] = LINE, **changed: StageNode) -> Graph:
    """Encoder | Thinker → Talker → vocoder → gateway, with stages exchanged or added."""
    return Graph(stages=tuple({**STAGES, **changed}.values()), edges=edges)


def observed(**changed: StageNode) -> Graph:
    """The line, and an aligner that looks at text and sound."""
    return line(edges=(*LINE, TEXT_SEEN, SOUND_SEEN), **{"align": ALIGNER, **changed})


def changed(edge: Edge, **fields: Any) -> Edge:
    return Edge(**(edge.model_dump() | fields))


def node(like: str, **fields: Any) -> StageNode:
    return StageNode(**(STAGES[like].model_dump() | fields))


# ---- graphs that run ----------------------------------------------------------------------------------------


def test_a_line_runs_and_knows_its_stages_and_edges() -> None:
    graph = line()
    assert graph.stage("speak") is graph.stages[2]
    assert [graph.edges_from(stage.name) for stage in graph.stages] == [(), (CLAUSES,), (LATENTS,), (AUDIO,)]
    assert [graph.edges_to(stage.name) for stage in graph.stages] == [(), (), (CLAUSES,), (LATENTS,)]
    assert graph.downstream("think") == ["think", "speak", "sound"]
    assert graph.output_rate == 24_000


def test_fan_out_and_join_are_just_edges() -> None:
    graph = observed()
    assert graph.edges_from("sound") == (AUDIO, SOUND_SEEN)
    assert graph.edges_to("align") == (TEXT_SEEN, SOUND_SEEN)
    assert graph.downstream("think") == ["think", "speak", "sound", "align"]  # after all that it is fed by


def test_each_stage_knows_the_finals_that_it_owes() -> None:
    graph = observed()
    finals = {stage.name: graph.finals_of(stage) for stage in graph.stages}
    assert finals == {"hear": (), "think": ("text",), "speak": (), "sound": ("audio",), "align": ()}


def test_two_thinkers_may_speak_through_one_talker() -> None:
    graph = line(edges=(*LINE, changed(CLAUSES, source="other")), other=node("think", name="other"))
    assert graph.edges_from("other") == (changed(CLAUSES, source="other"),)
    assert graph.downstream("think", "other")[-2:] == ["speak", "sound"]


def test_a_graph_comes_from_plain_data() -> None:
    graph = observed()
    assert Graph.model_validate(graph.model_dump()) == graph


@pytest.mark.parametrize(
    ("edge", "smaller"),
    [
        (changed(CLAUSES, window=320), 319),
        (changed(LATENTS, window=32), 31),
        (changed(AUDIO, window=2 * 160 * 24), 2 * 160 * 24 - 1),
    ],
    ids=["clauses", "latents", "audio"],
)
def test_half_a_window_holds_one_hand_over_and_not_less(edge: Edge, smaller: int) -> None:
    others = tuple(other for other in LINE if other.payload != edge.payload)
    line(edges=(*others, edge))
    with pytest.raises(ValidationError, match="enlarge the window"):
        line(edges=(*others, changed(edge, window=smaller)))


def test_a_schedule_says_how_large_chunks_are_and_reaches_the_engine_that_makes_them() -> None:
    scheduled = changed(LATENTS, schedule=Schedule(first=4, then=24))
    graph = line(edges=(CLAUSES, scheduled, AUDIO))
    assert graph.options_of(graph.stage("speak")) == {"chunk_first": 4, "chunk_then": 24}
    with pytest.raises(ValidationError, match=r"up to 25 units, more than half of the window of 48"):
        line(edges=(CLAUSES, changed(LATENTS, schedule=Schedule(first=25, then=8)), AUDIO))


@pytest.fixture
def free_engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine that offers every kind of stage, and checks its options itself."""
    for kind in ("thinker", "talker", "vocoder", "observer"):
        monkeypatch.setitem(registry._BUILDERS, ("free", kind), "nowhere:build")
    return "free"


def test_what_is_set_for_a_stage_reaches_its_engine(free_engine: str) -> None:
    speak = node("speak", engine=free_engine, options={"voice": "x"}, device="cuda:1", memory_fraction=0.5, batch_max=4)
    graph = line(speak=speak)
    told = {"voice": "x", "device": "cuda:1", "memory_fraction": 0.5, "batch_max": 4}
    assert graph.options_of(speak) == told
    assert worker_spec(graph, speak, "speak", Path("/run"), 1).options == told


def test_fractions_of_a_device_may_add_up_to_all_of_it(free_engine: str) -> None:
    tenth = {"engine": free_engine, "device": "cuda:0", "memory_fraction": 0.1}
    line(think=node("think", **tenth, replicas=7), speak=node("speak", **tenth, replicas=3))
    with pytest.raises(ValidationError) as caught:
        line(think=node("think", **tenth, replicas=7), speak=node("speak", **tenth, replicas=4))
    assert said_in(caught.value) == (
        "stages think, speak together take 1.10 of the memory of cuda:0: lower a memory_fraction or move a stage"
    )


# ---- graphs that cannot run ---------------------------------------------------------------------------------


def said_in(error: ValidationError) -> str:
    """What the one `GraphError` says."""
    (fault,) = error.errors()
    assert isinstance(fault["ctx"]["error"], GraphError)
    return str(fault["ctx"]["error"])


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
            {"speak": node("speak", engine="openai")},
            "stage 'speak': engine 'openai' is no talker; use one of local, scripted, synthetic, torch",
        ),
        (
            LINE,
            {"speak": node("speak", options={"pitch": 2})},
            "stage 'speak': engine 'scripted' has no option 'pitch'; it has chunk_first, chunk_then, frames_per_word, "
            "heard, replies, sessions_max: remove it, or use another engine",
        ),
        (
            LINE,
            {"hear": node("hear", engine="local", secrets={"api_key": "DUPLEX_KEY"})},
            "stage 'hear': engine 'local' has no option 'api_key'; it has none: remove it, or use another engine",
        ),
        (
            LINE,
            {"hear": node("hear", device="cuda:0")},
            "stage 'hear': engine 'scripted' has no option 'device'; it has frames_per_word, heard, replies, "
            "sessions_max: remove it, or use another engine",
        ),
        (
            LINE,
            {"hear": node("hear", engine="synthetic", device="cuda:0")},
            "stage 'hear': engine 'synthetic' has no option 'device'; it has concurrency, cpu_share, final_ms, "
            "heard_word_ms, interruptible, partial_interval_ms, partial_ms, seed, settle_ms: remove it, or use another "
            "engine",
        ),
        (
            LINE,
            {"think": node("think", engine="synthetic", options={"sessions_max": 0})},
            "stage 'think': engine 'synthetic' cannot use its options: Expected `int` >= 1 - at `$.sessions_max`: "
            "set what it takes",
        ),
        (
            LINE,
            {"think": StageNode(name="think", kind="thinker", engine="openai", secrets={"api_key": "DUPLEX_KEY"})},
            "stage 'think': engine 'openai' cannot use its options: Object missing required field `base_url`: "
            "set what it takes",
        ),
        (
            LINE,
            {"hear": node("hear", batch_max=8)},
            "stage 'hear': engine 'scripted' has no option 'batch_max'; it has frames_per_word, heard, replies, "
            "sessions_max: remove it, or use another engine",
        ),
        (
            (changed(CLAUSES, schedule=Schedule(first=10, then=20)), LATENTS, AUDIO),
            {},
            "stage 'think': engine 'scripted' has no option 'chunk_first'; it has frames_per_word, heard, replies, "
            "sessions_max: remove it, or use another engine",
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
            (changed(LATENTS, payload="codec"),),
            {},
            "edge speak → sound: from talker to vocoder go latents, not codec: name latents",
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
            (CLAUSES, changed(CLAUSES, window=400)),
            {},
            "edge think → speak is there twice: remove one",
        ),
        (
            (CLAUSES, changed(LATENTS, axes=("channel", "frame")), AUDIO),
            {},
            "edge speak → sound: the edge says that latents come as (channel, frame), and both its ends have them as "
            "(frame, channel): set axes to these, or leave them out",
        ),
        (
            (changed(CLAUSES, need="complete"),),
            {},
            "edge think → speak: 'speak' needs chunks, not complete: set need to chunks",
        ),
        (
            (*LINE, changed(TEXT_SEEN, need="chunks"), SOUND_SEEN),
            {"align": ALIGNER},
            "edge think → align: 'align' needs complete, not chunks: set need to complete",
        ),
        (
            (changed(CLAUSES, window=319),),
            {},
            "edge think → speak: one hand-over of 'think' is up to 160 units, more than half of the window of 319: "
            "enlarge the window or make smaller pieces",
        ),
        (
            (AUDIO,),
            {"sound": node("sound", chunk_ms_max=0)},
            "stage 'sound' does not say how long its chunks are: set chunk_ms_max",
        ),
        (
            (AUDIO,),
            {"sound": node("sound", chunk_ms_max=201)},
            "edge sound → gateway: a generation lead of 400 ms is smaller than two chunks of 'sound', of 201 ms each: "
            "enlarge the window or make smaller pieces",
        ),
        (
            (*LINE, changed(TEXT_SEEN, window=159), SOUND_SEEN),
            {"align": ALIGNER},
            "edge think → align: one hand-over of 'think' is up to 160 units, and 159 are reserved for the whole "
            "response: enlarge the window",
        ),
        (
            (*LINE, TEXT_SEEN),
            {"align": ALIGNER},
            "stage 'align' lacks audio: lead an edge of audio to it",
        ),
        (
            (*LINE, TEXT_SEEN, SOUND_SEEN, changed(TEXT_SEEN, source="other"), changed(CLAUSES, source="other")),
            {"align": ALIGNER, "other": node("think", name="other")},
            "stage 'align' gathers clauses of one stage, not of 2: remove one edge",
        ),
        (
            LINE,
            {"idle": node("speak", name="idle")},
            "stage 'idle' is never reached: lead an edge to it, or remove it",
        ),
        (
            LINE,
            {"other": node("think", name="other")},
            "stage 'other' leads nowhere: lead an edge from it, or remove it",
        ),
        (
            (CLAUSES, LATENTS),
            {},
            "stage 'sound' leads nowhere: lead an edge from it, or remove it",
        ),
    ],
)
def test_a_graph_that_cannot_run_says_which_stage_and_what_to_do(
    edges: tuple[Edge, ...], stages: dict[str, StageNode], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        line(edges=edges, **stages)
    assert said_in(caught.value) == said


def test_a_graph_without_its_finals_says_which_and_who_gives_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Graph(stages=(STAGES["hear"],), edges=())
    assert said_in(caught.value) == "no stage gives the text of a response: add a thinker"


def test_a_graph_whose_sound_goes_nowhere_but_to_an_observer_lacks_its_audio() -> None:
    with pytest.raises(ValidationError) as caught:
        line(edges=(CLAUSES, LATENTS, TEXT_SEEN, SOUND_SEEN), align=ALIGNER)
    assert said_in(caught.value) == "no stage gives the audio of a response: lead an edge of audio to the gateway"


def test_a_response_has_one_voice() -> None:
    also = (changed(LATENTS, target="also"), changed(AUDIO, source="also"))
    with pytest.raises(ValidationError) as caught:
        line(edges=(*LINE, *also), also=node("sound", name="also"))
    assert said_in(caught.value) == ("stages sound, also each give the audio of a response: remove all edges but one")


def test_a_cycle_is_refused_and_shown(monkeypatch: pytest.MonkeyPatch, free_engine: str) -> None:
    usual = PROFILES["scripted", "talker"]
    echo = replace(usual, takes=(*usual.takes, Takes("latents", ("frame", "channel"))), settings=None)
    monkeypatch.setitem(PROFILES, ("free", "talker"), echo)
    talkers = {name: node("speak", name=name, engine=free_engine) for name in ("speak", "again")}
    back = (changed(LATENTS, target="again"), changed(LATENTS, source="again", target="speak"))
    with pytest.raises(ValidationError) as caught:
        line(edges=(*LINE, *back), **talkers)
    assert said_in(caught.value) == (
        "stage 'speak' is fed by what it makes itself (speak → again → speak): remove one of these edges"
    )


@pytest.mark.parametrize("axes", [("channel", "frame"), ("frame",)])
def test_ends_that_lay_out_their_axes_differently_are_refused(
    monkeypatch: pytest.MonkeyPatch, free_engine: str, axes: tuple[str, ...]
) -> None:
    usual = PROFILES["scripted", "vocoder"]
    monkeypatch.setitem(PROFILES, ("free", "vocoder"), replace(usual, takes=(Takes("latents", axes),)))
    with pytest.raises(ValidationError) as caught:
        line(sound=node("sound", engine=free_engine))
    order = f"({', '.join(axes)})"
    assert said_in(caught.value) == (
        f"edge speak → sound: 'speak' makes latents as (frame, channel), 'sound' takes them as {order}: "
        "use engines that agree"
    )


def test_ends_of_different_sample_rates_are_refused(monkeypatch: pytest.MonkeyPatch, free_engine: str) -> None:
    usual = PROFILES["scripted", "vocoder"]
    made = Makes("audio", ("sample",), 0, sample_rate=22_050)
    monkeypatch.setitem(PROFILES, ("free", "vocoder"), replace(usual, makes=(made,)))
    with pytest.raises(ValidationError) as caught:
        line(sound=node("sound", engine=free_engine))
    assert said_in(caught.value) == (
        "edge sound → gateway: 'sound' makes sound of 22050 Hz, 'gateway' takes 24000 Hz: set output_rate to 22050"
    )
    stages = tuple({**STAGES, "sound": node("sound", engine=free_engine)}.values())
    Graph(stages=stages, edges=LINE, output_rate=22_050)


def test_an_observer_that_would_hold_others_up_is_refused(monkeypatch: pytest.MonkeyPatch, free_engine: str) -> None:
    usual = PROFILES["scripted", "observer"]
    monkeypatch.setitem(PROFILES, ("free", "observer"), replace(usual, takes=(Takes("clauses", ("character",)),)))
    watcher = StageNode(name="align", kind="observer", engine=free_engine)
    with pytest.raises(ValidationError) as caught:
        line(edges=(*LINE, changed(TEXT_SEEN, need="chunks")), align=watcher)
    assert said_in(caught.value) == (
        "edge think → align: an observer that takes chunks would hold 'think' up: use another engine"
    )


def test_edges_of_one_stage_name_one_schedule() -> None:
    schedules = (Schedule(first=4, then=8), Schedule(first=8, then=8))
    edges = (
        changed(LATENTS, schedule=schedules[0]),
        changed(LATENTS, target="also", schedule=schedules[1]),
        changed(AUDIO, source="also"),
    )
    with pytest.raises(ValidationError) as caught:
        line(edges=(CLAUSES, *edges, AUDIO), also=node("sound", name="also"))
    assert said_in(caught.value) == "stage 'speak' makes chunks of one schedule: name the same one on all its edges"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"name": "Hear"}, "name"),
        ({"name": "../hear"}, "name"),
        ({"kind": "mouth"}, "kind"),
        ({"chunk_ms_max": -1}, "chunk_ms_max"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 65}, "replicas"),
        ({"step_s_max": 0}, "step_s_max"),
        ({"step_s_max": 10**9}, "step_s_max"),
        ({"chunk_ms_max": 10**9}, "chunk_ms_max"),
        ({"device": "cuda:1000"}, "device"),
        ({"memory_fraction": 1.1}, "memory_fraction"),
        ({"device": "the big one"}, "device"),
        ({"streams_max": 0}, "streams_max"),
        ({"gpu": 1}, "gpu"),
    ],
)
def test_a_wrong_field_of_a_stage_is_refused_by_name(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StageNode(**({"name": "hear", "kind": "encoder", "engine": "scripted"} | fields))
    assert [error["loc"] for error in caught.value.errors()] == [(place,)]


@pytest.mark.parametrize(
    "fields", [{"window": 0}, {"window": 10**23}, {"payload": "pcm"}, {"need": "all"}, {"lossy": True}]
)
def test_a_wrong_field_of_an_edge_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        changed(AUDIO, **fields)
    assert [error["loc"] for error in caught.value.errors()] == [tuple(fields)]


def test_an_unknown_stage_is_named_beside_those_there_are() -> None:
    with pytest.raises(GraphError, match="there is no stage 'mouth': use one of hear, think, speak, sound"):
        line().stage("mouth")


def test_a_graph_has_an_end() -> None:
    with pytest.raises(ValidationError, match="at most 32"):
        Graph(stages=tuple(node("hear", name=f"s{number}") for number in range(33)), edges=())


# ---- what workers are told ----------------------------------------------------------------------------------


def test_each_worker_is_told_how_large_its_arena_is() -> None:
    graph = observed().model_copy(update={"arena_blocks": 3, "session_blocks_max": 2})
    for stage in graph.stages:
        spec = worker_spec(graph, stage, stage.name, Path("/run"), 1)
        assert (spec.arena_blocks, spec.session_blocks_max) == (3, 2)


def test_each_worker_is_told_what_tenants_weigh() -> None:
    graph = Graph(stages=line().stages, edges=LINE, tenant_weights={"paid": 3})
    specs = [worker_spec(graph, stage, stage.name, Path("/run"), 1) for stage in graph.stages]
    assert [spec.tenant_weights for spec in specs] == [{"paid": 3}] * 4


def test_each_worker_is_told_its_edges() -> None:
    graph, run_dir = observed(), Path("/run/duplex")
    specs = {stage.name: worker_spec(graph, stage, stage.name, run_dir, 4) for stage in graph.stages}
    at = {name: f"unix:/run/duplex/{name}.sock" for name in specs}
    assert specs == {
        "hear": WorkerSpec("hear", "encoder", "scripted", at["hear"], 4),
        "think": WorkerSpec(
            "think",
            "thinker",
            "scripted",
            at["think"],
            4,
            {"sessions_max": 2},
            edges=(
                OutEdge("speak", "clauses", 320, {"speak": at["speak"]}),
                OutEdge("align", "clauses", 4_000, {"align": at["align"]}, "complete", observed=True),
            ),
        ),
        "speak": WorkerSpec(
            "speak",
            "talker",
            "scripted",
            at["speak"],
            4,
            edges=(OutEdge("sound", "latents", 48, {"sound": at["sound"]}),),
            inputs=(InEdge("clauses", 320),),
        ),
        "sound": WorkerSpec(
            "sound",
            "vocoder",
            "scripted",
            at["sound"],
            4,
            edges=(
                OutEdge(GATEWAY, "audio", 9_600, sample_rate=24_000),
                OutEdge("align", "audio", 1_440_000, {"align": at["align"]}, "complete", True, 24_000),
            ),
            inputs=(InEdge("latents", 48),),
            payload_bytes_max=2 * 160 * 24,
        ),
        "align": WorkerSpec(
            "align",
            "observer",
            "scripted",
            at["align"],
            4,
            inputs=(InEdge("clauses", 4_000, "complete"), InEdge("audio", 1_440_000, "complete")),
            streams_max=8,
        ),
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
        assert (spec.replica, spec.address) == (name, f"unix:/run/{name}.sock")
        assert [edge.replicas for edge in spec.edges] == [targets]


def test_no_stage_has_the_name_of_anothers_replica() -> None:
    with pytest.raises(ValidationError, match="'speak-1': rename the stage"):
        line(
            speak=StageNode(name="speak", kind="talker", engine="scripted", replicas=2),
            hear=StageNode(name="speak-1", kind="encoder", engine="scripted"),
        )


def test_secrets_reach_the_worker_by_the_names_of_their_variables_only() -> None:
    options, secrets = {"base_url": "http://llm/v1", "model": "m"}, {"api_key": "DUPLEX_OPENAI_API_KEY"}
    stage = StageNode(name="think", kind="thinker", engine="openai", options=options, secrets=secrets)
    spec = worker_spec(line(think=stage), stage, "think", Path("/run"), 1)
    assert (spec.options, spec.secrets) == (options, secrets)


def test_the_addresses_of_two_stages_differ() -> None:
    assert address_of(Path("/run"), "hear") == "unix:/run/hear.sock"
