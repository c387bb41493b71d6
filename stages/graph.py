"""The pipeline as data: stages, edges, and what makes a graph that can run.

Theory of operation
    The gateway feeds the encoder and the Thinker; edges lead on from there, and back to the gateway. What an engine
    makes and takes stands in its profile; an edge joins two that agree. Lines, fan-outs (several edges from one stage)
    and joins (several into one) are all just edges.

Rules
* Everything is validated when the graph is built, options too as far as an engine can judge them without its model. An
  error names the stage or the edge, and how to mend it.
* Every number has an end: what nobody can mean is refused here, and not by a worker that finds no memory for it.
* A window is in the edge's unit: see `stages.edges`. The largest single hand-over of a producer must fit half of it, so
  that one can be made while another is in flight. Where the consumer needs more than chunks, the window is the most
  that a response has; each of its streams reserves that.
* An observer holds up nobody: it needs the prefix or the complete value.
* A response is whole when its finals are there: the Thinker's text, and the audio of who hands it to the gateway.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stages.block_table import BLOCKS, BLOCKS_MAX, SESSION_BLOCKS_MAX
from stages.contracts import Payload
from stages.edges import GATEWAY, SAMPLE_RATE_MAX, SAMPLE_RATE_MIN, WINDOW_MAX, InEdge, Need, OutEdge
from stages.engines import registry
from stages.engines.profiles import SOUND_AXES, EngineProfile, Makes, Takes, profile_of
from stages.event_log import EVENTS_KEPT_MAX, EVENTS_MAX, NAME_CHARACTERS_MAX
from stages.stage import STREAMS_MAX
from stages.tenant_shares import TENANT_WEIGHT_MAX, TENANTS_MAX
from stages.worker import WorkerSpec

StageKind = Literal["encoder", "thinker", "talker", "vocoder", "observer"]
Final = Literal["text", "audio"]
TenantName = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
TenantWeight = Annotated[int, Field(ge=1, le=TENANT_WEIGHT_MAX)]

REPLICAS_MAX = 64  # of one stage; each loads its model anew
STAGES_MAX = 32  # the conversation has four, and a few that look on
EDGES_MAX = 128
STEP_S_MAX = 3_600  # a step of an hour hangs, whatever it computes
CHUNK_MS_MAX = 10_000  # what is made at once is lost at once when the caller interrupts

# Fed by the gateway itself.
FED_BY_GATEWAY = ("encoder", "thinker")


class GraphError(ValueError):
    """The graph cannot run; the text names the stage and the mend."""


class Schedule(BaseModel):
    """Sizes of the chunks that the producer hands over, in the edge's unit: the first of a response, and all others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int = Field(ge=1, le=WINDOW_MAX)
    then: int = Field(ge=1, le=WINDOW_MAX)


class StageNode(BaseModel):
    """One stage. `chunk_ms_max`: the longest piece of sound a vocoder makes at once; `secrets` as in `WorkerSpec`.

    `device` (`cpu`, `cuda:0`, …), `memory_fraction` of it for each replica, and `batch_max` streams in one step are
    options of the engine, by these names, where they are not the defaults. A step that takes longer than `step_s_max`
    will never end, and its worker is replaced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    kind: StageKind
    engine: str
    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    replicas: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    step_s_max: int = Field(default=60, ge=1, le=STEP_S_MAX)
    device: str = Field(default="cpu", pattern=r"^[a-z]+(:[0-9]{1,3})?$")
    memory_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    batch_max: int = Field(default=1, ge=1, le=STREAMS_MAX)
    streams_max: int = Field(default=STREAMS_MAX, ge=1, le=STREAMS_MAX)
    chunk_ms_max: int = Field(default=0, ge=0, le=CHUNK_MS_MAX)

    @property
    def profile(self) -> EngineProfile:
        return profile_of(self.engine, self.kind)

    @property
    def replica_names(self) -> tuple[str, ...]:
        """A lone replica has the stage's own name."""
        if self.replicas == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.replicas + 1))


class Edge(BaseModel):
    """A hand-over. `axes`: their order, slowest first, where it is to be checked. `need`: what the target is given.
    `schedule`: sizes of chunks, where the engine lets them be set. `window`: see the rules above."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    target: str
    payload: Payload
    axes: tuple[str, ...] = ()
    need: Need = "chunks"
    schedule: Schedule | None = None
    window: int = Field(ge=1, le=WINDOW_MAX)

    def __str__(self) -> str:
        return f"edge {self.source} → {self.target}"


class Graph(BaseModel):
    """`events_max`: how many events each worker's log holds. `arena_blocks`, `session_blocks_max`: of each worker's
    arena, as in `stages.block_table`. `tenant_weights`: shares of each stage's time, by tenant; others weigh 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: tuple[StageNode, ...] = Field(max_length=STAGES_MAX)
    edges: tuple[Edge, ...] = Field(max_length=EDGES_MAX)
    output_rate: int = Field(default=24_000, ge=SAMPLE_RATE_MIN, le=SAMPLE_RATE_MAX)
    events_max: int = Field(default=EVENTS_MAX, ge=0, le=EVENTS_KEPT_MAX)
    arena_blocks: int = Field(default=BLOCKS, ge=1, le=BLOCKS_MAX)
    session_blocks_max: int = Field(default=SESSION_BLOCKS_MAX, ge=1, le=BLOCKS_MAX)
    tenant_weights: dict[TenantName, TenantWeight] = Field(default={}, max_length=TENANTS_MAX)

    # ---- what can be asked -------------------------------------------------------------------------

    def stage(self, name: str) -> StageNode:
        """Raises `GraphError` where there is no such stage."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise GraphError(f"there is no stage {name!r}: use one of {known}")

    def edges_from(self, name: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == name)

    def edges_to(self, name: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == name)

    def finals_of(self, stage: StageNode) -> tuple[Final, ...]:
        """The finals that `stage` owes to each response."""
        speaks = any(edge.target == GATEWAY for edge in self.edges_from(stage.name))
        written: tuple[Final, ...] = ("text",) if stage.kind == "thinker" else ()
        return (*written, "audio") if speaks else written

    def options_of(self, stage: StageNode) -> dict[str, Any]:
        """All that the engine of `stage` is told."""
        settings: dict[str, Any] = {}
        for name in ("device", "memory_fraction", "batch_max"):
            if getattr(stage, name) != StageNode.model_fields[name].default:
                settings[name] = getattr(stage, name)
        for edge in self.edges_from(stage.name):
            if edge.schedule is not None:
                settings |= {"chunk_first": edge.schedule.first, "chunk_then": edge.schedule.then}
        return stage.options | settings

    def downstream(self, *names: str) -> list[str]:
        """These stages and all that follow on them, each after what it is fed by. Raises `GraphError` for a cycle."""
        found: list[str] = []
        for name in names:
            self._visit(name, (), found)
        return found[::-1]

    def _visit(self, name: str, path: tuple[str, ...], found: list[str]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise GraphError(f"stage {name!r} is fed by what it makes itself ({cycle}): remove one of these edges")
        if name in found or name == GATEWAY:
            return
        for edge in reversed(self.edges_from(name)):
            self._visit(edge.target, (*path, name), found)
        found.append(name)

    # ---- what makes it run -------------------------------------------------------------------------

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise GraphError(f"stage {name!r} is named twice: give each stage a name of its own")
            if name == GATEWAY:
                raise GraphError(f"stage {name!r}: edges end at the gateway by that name: give the stage another one")
        replicas = [name for stage in self.stages for name in stage.replica_names]
        for name in replicas:
            if replicas.count(name) > 1:
                raise GraphError(f"a stage and a replica of another are both named {name!r}: rename the stage")
        for stage in self.stages:
            self._check_engine(stage)
        for edge in self.edges:
            self._check_edge(edge)
        for stage in self.stages:
            self._check_options(stage)
        self._check_devices()
        self._check_shape()
        return self

    @staticmethod
    def _check_engine(stage: StageNode) -> None:
        offered = registry.engines_for(stage.kind)
        if stage.engine not in offered:
            message = f"stage {stage.name!r}: engine {stage.engine!r} is no {stage.kind}"
            raise GraphError(f"{message}; use one of {', '.join(offered)}")

    def _check_options(self, stage: StageNode) -> None:
        schedules = {edge.schedule for edge in self.edges_from(stage.name) if edge.schedule is not None}
        if len(schedules) > 1:
            raise GraphError(f"stage {stage.name!r} makes chunks of one schedule: name the same one on all its edges")
        known = stage.profile.options
        if known is None:
            return
        for name in (*self.options_of(stage), *stage.secrets):
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                message = f"stage {stage.name!r}: engine {stage.engine!r} has no option {name!r}"
                raise GraphError(f"{message}; {has}: remove it, or use another engine")
        self._check_values(stage)

    def _check_values(self, stage: StageNode) -> None:
        """A secret's value is known to its worker alone; any stands for it here."""
        try:
            stage.profile.check(dict.fromkeys(stage.secrets, "secret") | self.options_of(stage))
        except msgspec.ValidationError as error:
            message = f"stage {stage.name!r}: engine {stage.engine!r} cannot use its options: {error}"
            raise GraphError(f"{message}: set what it takes") from error

    def _check_devices(self) -> None:
        taken: dict[str, float] = defaultdict(float)
        for stage in self.stages:
            taken[stage.device] += stage.replicas * stage.memory_fraction
        for device, fraction in taken.items():
            if fraction > 1 + 1e-9:  # tenths do not add up to exactly one
                names = ", ".join(stage.name for stage in self.stages if stage.device == device)
                raise GraphError(
                    f"stages {names} together take {fraction:.2f} of the memory of {device}: "
                    "lower a memory_fraction or move a stage"
                )

    # ---- edges -------------------------------------------------------------------------------------

    def _check_edge(self, edge: Edge) -> None:
        source = self.stage(edge.source)
        target = None if edge.target == GATEWAY else self.stage(edge.target)
        if sum((other.source, other.target) == (edge.source, edge.target) for other in self.edges) > 1:
            raise GraphError(f"{edge} is there twice: remove one")
        made, taken = self._joined(edge, source, target)
        _check_axes(edge, made, taken)
        self._check_rates(edge, made, taken)
        if edge.need != taken.need:
            raise GraphError(f"{edge}: {edge.target!r} needs {taken.need}, not {edge.need}: set need to {taken.need}")
        if target is not None and target.kind == "observer" and edge.need == "chunks":
            raise GraphError(f"{edge}: an observer that takes chunks would hold {edge.source!r} up: use another engine")
        self._check_window(source, edge, made)

    def _check_rates(self, edge: Edge, made: Makes, taken: Takes) -> None:
        made_rate, taken_rate = made.sample_rate or self.output_rate, taken.sample_rate or self.output_rate
        if edge.payload == "audio" and made_rate != taken_rate:
            fixed = {made.sample_rate, taken.sample_rate} - {0}
            mend = f"set output_rate to {fixed.pop()}" if len(fixed) == 1 else "use engines that agree"
            raise GraphError(
                f"{edge}: {edge.source!r} makes sound of {made_rate} Hz, {edge.target!r} takes {taken_rate} Hz: {mend}"
            )

    def _joined(self, edge: Edge, source: StageNode, target: StageNode | None) -> tuple[Makes, Takes]:
        """What goes over the edge, as either end declares it."""
        # The gateway plays sound as it comes.
        profile = target.profile if target else EngineProfile(takes=(Takes("audio", SOUND_AXES),))
        made, taken = source.profile.made(edge.payload), profile.taken(edge.payload)
        if made is None or taken is None:
            fitting = [one.payload for one in source.profile.makes if profile.taken(one.payload)]
            raise GraphError(
                f"{edge}: from {source.kind} to {target.kind if target else GATEWAY} "
                f"go {' or '.join(fitting) or 'no hand-overs'}, not {edge.payload}: "
                f"{f'name {fitting[0]}' if fitting else 'remove the edge, or join other stages'}"
            )
        return made, taken

    def _check_window(self, source: StageNode, edge: Edge, made: Makes) -> None:
        largest = made.units_max or source.chunk_ms_max * self.output_rate // 1000
        if edge.schedule is not None:
            largest = max(edge.schedule.first, edge.schedule.then)
        if not largest:
            raise GraphError(f"stage {source.name!r} does not say how long its chunks are: set chunk_ms_max")
        if edge.need != "chunks":
            if largest > edge.window:
                raise GraphError(
                    f"{edge}: one hand-over of {source.name!r} is up to {largest} units, and {edge.window} are "
                    "reserved for the whole response: enlarge the window"
                )
        elif 2 * largest > edge.window and edge.target == GATEWAY:
            chunk_ms, lead_ms = (units * 1000 // self.output_rate for units in (largest, edge.window))
            raise GraphError(
                f"{edge}: a generation lead of {lead_ms} ms is smaller than two chunks of {source.name!r}, of "
                f"{chunk_ms} ms each: enlarge the window or make smaller pieces"
            )
        elif 2 * largest > edge.window:
            raise GraphError(
                f"{edge}: one hand-over of {source.name!r} is up to {largest} units, "
                f"more than half of the window of {edge.window}: enlarge the window or make smaller pieces"
            )

    # ---- the whole ---------------------------------------------------------------------------------

    def _check_shape(self) -> None:
        self.downstream(*[stage.name for stage in self.stages])  # a cycle may be where nothing leads to
        reached = self.downstream(*[stage.name for stage in self.stages if stage.kind in FED_BY_GATEWAY])
        for stage in self.stages:
            if stage.name not in reached:
                raise GraphError(f"stage {stage.name!r} is never reached: lead an edge to it, or remove it")
            for taken in stage.profile.takes:
                self._check_given(stage, taken)
            if stage.profile.makes and not self.edges_from(stage.name):
                raise GraphError(f"stage {stage.name!r} leads nowhere: lead an edge from it, or remove it")
        self._check_finals()

    def _check_finals(self) -> None:
        if not any("text" in self.finals_of(stage) for stage in self.stages):
            raise GraphError("no stage gives the text of a response: add a thinker")
        speakers = [stage.name for stage in self.stages if "audio" in self.finals_of(stage)]
        if not speakers:
            raise GraphError(f"no stage gives the audio of a response: lead an edge of audio to the {GATEWAY}")
        if len(speakers) > 1:
            raise GraphError(
                f"stages {', '.join(speakers)} each give the audio of a response: remove all edges but one"
            )

    def _check_given(self, stage: StageNode, taken: Takes) -> None:
        given = sum(edge.payload == taken.payload for edge in self.edges_to(stage.name))
        if not given:
            raise GraphError(f"stage {stage.name!r} lacks {taken.payload}: lead an edge of {taken.payload} to it")
        if given > 1 and taken.need != "chunks":
            raise GraphError(
                f"stage {stage.name!r} gathers {taken.payload} of one stage, not of {given}: remove one edge"
            )


def _check_axes(edge: Edge, made: Makes, taken: Takes) -> None:
    if made.axes != taken.axes:
        raise GraphError(
            f"{edge}: {edge.source!r} makes {edge.payload} as {_order(made.axes)}, {edge.target!r} takes them as "
            f"{_order(taken.axes)}: use engines that agree"
        )
    if edge.axes and edge.axes != made.axes:
        raise GraphError(
            f"{edge}: the edge says that {edge.payload} come as {_order(edge.axes)}, and both its ends have them as "
            f"{_order(made.axes)}: set axes to these, or leave them out"
        )


def _order(axes: tuple[str, ...]) -> str:
    return f"({', '.join(axes)})"


def graph_from_toml(text: str) -> Graph:
    """The graph in `text`, with tables `[[stages]]` and `[[edges]]`. Raises `GraphError` with all that is wrong."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GraphError(f"the graph is no TOML: {error}") from error
    return graph_from(**given)


def graph_from(**given: Any) -> Graph:
    """The graph of these fields. Raises `GraphError` with all that is wrong."""
    try:
        return Graph.model_validate(given)
    except ValidationError as error:
        raise GraphError("; ".join(_faults(error, given))) from error


# What can be done about a field, by pydantic's name of the fault; else another value is to be set.
_MENDS = {"missing": "add it", "extra_forbidden": "remove it"}


def _faults(error: ValidationError, given: Mapping[str, Any]) -> Iterator[str]:
    for fault in error.errors():
        if not fault["loc"]:
            yield str(fault["ctx"]["error"])
            continue
        said = fault["msg"][:1].lower() + fault["msg"][1:]
        yield f"{_place(fault['loc'], given)}: {said}: {_MENDS.get(fault['type'], 'set it so')}"


def _place(place: tuple[int | str, ...], given: Mapping[str, Any]) -> str:
    """The field at `place`, with its stage or edge by the names that were given."""
    match place:
        case ("stages", int(number), *field):
            whose = _named(given["stages"][number], "stage {name!r}") or f"stage number {number + 1}"
        case ("edges", int(number), *field):
            whose = _named(given["edges"][number], "edge {source} → {target}") or f"edge number {number + 1}"
        case _:
            return ".".join(map(str, place))
    return ": ".join([whose, ".".join(map(str, field))] if field else [whose])


def _named(one: object, form: str) -> str:
    """Its names in that form; empty where it lacks them."""
    try:
        return form.format_map(one) if isinstance(one, Mapping) else ""
    except KeyError:
        return ""


def address_of(run_dir: Path, name: str) -> str:
    """Where the process of that name listens: a replica of a stage, or the gateway."""
    return f"unix:{run_dir / name}.sock"


def worker_spec(graph: Graph, stage: StageNode, replica: str, run_dir: Path, incarnation: int) -> WorkerSpec:
    """What the worker process `replica` of `stage` is told."""
    chunk_bytes = 2 * (stage.chunk_ms_max * graph.output_rate // 1000)  # 16-bit mono
    hands_over_audio = any(edge.payload == "audio" for edge in graph.edges_from(stage.name))
    return WorkerSpec(
        replica,
        stage.kind,
        stage.engine,
        address_of(run_dir, replica),
        incarnation,
        graph.options_of(stage),
        stage.secrets,
        edges=tuple(_out_edge(graph, edge, run_dir) for edge in graph.edges_from(stage.name)),
        inputs=tuple(InEdge(edge.payload, edge.window, edge.need) for edge in graph.edges_to(stage.name)),
        streams_max=stage.streams_max,
        payload_bytes_max=chunk_bytes if hands_over_audio else 0,
        events_max=graph.events_max,
        arena_blocks=graph.arena_blocks,
        session_blocks_max=graph.session_blocks_max,
        tenant_weights=graph.tenant_weights,
    )


def _out_edge(graph: Graph, edge: Edge, run_dir: Path) -> OutEdge:
    rate = graph.output_rate if edge.payload == "audio" else 0
    if edge.target == GATEWAY:
        return OutEdge(GATEWAY, edge.payload, edge.window, sample_rate=rate)
    target = graph.stage(edge.target)
    replicas = {name: address_of(run_dir, name) for name in target.replica_names}
    observed = target.kind == "observer"
    return OutEdge(edge.target, edge.payload, edge.window, replicas, edge.need, observed, rate)
