"""A stage worker: one process, one stage, its links on an event loop and its model on engine threads.

Theory of operation
    `python -m stages.worker SPEC` loads the model, listens, connects onward and writes `ready` to its standard
    output. It lives until its standard input ends: whoever started it holds the other end, so a worker never
    outlives its supervisor, however that one died.

Rules
* All decisions are in `stages.stage`; this file carries bytes, clocks and threads.
* What a worker is told and cannot be is said in one line, with its name, and it ends with `STATUS_REFUSED`. Where the
  host or a peer does not let it run, or a step hangs, it ends with `STATUS_FAILED`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

from stages.arena import Arena
from stages.block_table import BLOCKS, BLOCKS_MAX, SESSION_BLOCKS_MAX, ArenaError, BlockTable, TableSize
from stages.edges import InEdge, OutEdge
from stages.effects import Effect, ReportFault, Send, StartBatch, StartStep, StepFlags
from stages.engines import registry
from stages.event_log import EVENTS_KEPT_MAX, EVENTS_MAX, PAGE_EVENTS_MAX, EventLog
from stages.exchange import Exchange
from stages.kv_cache import kv_of
from stages.link import Link, LinkError, connect, listen, payload_bytes_max, remove_socket
from stages.messages import (
    LINK_VERSION,
    Audit,
    Audited,
    EventPage,
    Frame,
    Hello,
    Inspect,
    Open,
    PayloadFrame,
    ReadEvents,
    Refused,
    Welcome,
    WorkerSnapshot,
    audited,
)
from stages.outgoing import FrameTooLargeError
from stages.snapshots import Snapshots
from stages.stage import STREAMS_MAX, Stage
from stages.stream import Output, StageFailure, StageModel
from stages.tenant_shares import TENANT_WEIGHT_MAX, TENANTS_MAX

PAYLOAD_BYTES_MAX = 1 << 31  # what fits no link is refused by name; this only keeps the number one
HAND_OVER_TOO_LARGE = "hand_over_too_large"
STATUS_FAILED, STATUS_REFUSED = 1, 2
STOP_STEP_MS_MAX = 3_000  # a running step is bounded at about 150 ms; a model that hangs is left to the kernel

_log = structlog.get_logger("stages.worker")

ReplicaName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]  # a stage's, with a number at its end
Incarnation = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
StreamCount = Annotated[int, msgspec.Meta(ge=1, le=STREAMS_MAX)]
PayloadBytes = Annotated[int, msgspec.Meta(ge=0, le=PAYLOAD_BYTES_MAX)]
EventCount = Annotated[int, msgspec.Meta(ge=0, le=EVENTS_KEPT_MAX)]
BlockCount = Annotated[int, msgspec.Meta(ge=1, le=BLOCKS_MAX)]
TenantWeight = Annotated[int, msgspec.Meta(ge=1, le=TENANT_WEIGHT_MAX)]


class SpecError(ValueError):
    """A worker was told what it cannot be: whoever made its specification must change it."""


class _Named(msgspec.Struct, frozen=True):
    """What is read of a specification that cannot be used."""

    replica: str = "?"


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker is. Addresses as in `stages.link`; `edges`, `inputs`, `streams_max` and `tenant_weights` as in
    `stages.stage`; `arena_blocks` and `session_blocks_max` as in `stages.block_table`.

    `replica` is its name, of its own among all workers. `secrets`: options that are not on the command line but in the
    environment, by the names of their variables. `payload_bytes_max`: the largest payload that the stage hands over or
    publishes, where that is known (else 0). `events_max`: how many events its log holds.
    """

    replica: ReplicaName
    kind: str
    engine: str
    address: str
    incarnation: Incarnation
    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    edges: tuple[OutEdge, ...] = ()
    inputs: tuple[InEdge, ...] = ()
    streams_max: StreamCount = STREAMS_MAX
    payload_bytes_max: PayloadBytes = 0
    events_max: EventCount = EVENTS_MAX
    arena_blocks: BlockCount = BLOCKS
    session_blocks_max: BlockCount = SESSION_BLOCKS_MAX
    tenant_weights: Annotated[dict[str, TenantWeight], msgspec.Meta(max_length=TENANTS_MAX)] = {}

    def stage_of(self, model: StageModel, events: EventLog) -> Stage:
        """The stage that this worker runs, with `model`."""
        return Stage(
            model,
            self.edges,
            self.inputs,
            streams_max=self.streams_max,
            observes=self.kind == "observer",
            tenant_weights=self.tenant_weights,
            events=events,
        )


class Worker:
    """Carries frames and steps between the links, the `Stage` of `model` and the engine threads."""

    def __init__(self, spec: WorkerSpec, model: StageModel) -> None:
        self._spec = spec
        self._events = EventLog(spec.events_max)
        self._kv = kv_of(model)
        self._kv.log_to(self._events)
        self._note_moment()  # from now on it holds everything, though nothing may happen for long
        self._stage = spec.stage_of(model, self._events)
        self._revision = model.revision
        self._threads = ThreadPoolExecutor(model.concurrency, thread_name_prefix=f"{spec.replica}-engine")
        size = TableSize(spec.arena_blocks, session_blocks_max=spec.session_blocks_max)
        self._blocks = BlockTable(spec.replica, spec.incarnation, size, events=self._events)
        self._exchange = Exchange(Arena(self._blocks), self._pause)
        self._snapshots = Snapshots(spec.replica, self._stage.target_at)
        self._links: dict[int, Link] = {}
        self._batches: set[asyncio.Future[None]] = set()
        self._onward = {name: address for edge in spec.edges for name, address in edge.replicas.items()}
        self._all_onward_up = asyncio.Event()
        self._retired = asyncio.Event()

    # ---- links -----------------------------------------------------------------------------------

    def _accepted(self) -> Link:
        return Link(self._frame, self._lost, self._exchange)

    def _frame(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._greet(link, frame)
        elif isinstance(frame, ReadEvents):
            link.send(self._event_page(frame))
        elif isinstance(frame, Inspect):
            link.send(self._snapshot(self._note_moment()))
        elif isinstance(frame, Audit):
            link.send(self._audited(link, frame))
        elif isinstance(frame, Open) and self._exchange.is_closing(frame.tag.key):
            link.send(Refused(frame.tag, "busy", "the end of a stream of that name has yet to be read"))
        else:
            self._carry_out(self._stage.handle(link.number, frame, self._note_moment()))

    def _event_page(self, asked: ReadEvents) -> EventPage:
        excerpt = self._events.read(
            asked.before,
            session=asked.session,
            response=asked.response,
            events_max=min(asked.events_max, PAGE_EVENTS_MAX),
        )
        return EventPage(asked.number, excerpt, self._events.statistics())

    def _audited(self, link: Link, asked: Audit) -> Audited:
        audits, session, stream = self._stage.audits, asked.session, asked.stream
        held = audits.of_stream(stream) if stream else audits.of_session(session, link.number)
        held |= self._exchange.held_of(session, stream)
        return audited(self._spec.replica, asked, held, audits.strays())

    def _note_moment(self) -> int:
        """Tell the event log and the cache of KV that something has come, now; gives that moment."""
        now_ns = time.monotonic_ns()
        self._events.at(now_ns)
        self._kv.at(now_ns)
        return now_ns

    def _snapshot(self, now_ns: int) -> WorkerSnapshot:
        arena = self._blocks.statistics(now_ns)
        sent = self._exchange.statistics()
        return self._snapshots.take(self._stage.statistics(), sent, arena, self._kv.statistics(), now_ns)

    def _greet(self, link: Link, hello: Hello) -> None:
        spec = self._spec
        self._note_moment()
        self._links[link.number] = link
        stage = self._stage
        link.send(Welcome(LINK_VERSION, spec.replica, spec.incarnation, self._revision, stage.onward, stage.inward))
        self._carry_out(self._stage.link_up(link.number, hello))

    def _lost(self, link: Link) -> None:
        if self._links.pop(link.number, None) is not None:
            self._carry_out(self._stage.link_lost(link.number, self._note_moment()))

    async def keep_onward(self, replica: str, address: str) -> None:
        """Stay connected to `replica` of a next stage. Raises `LinkError`."""
        while True:
            lost = asyncio.Event()
            link = await connect(address, partial(self._onward_link, replica, lost))
            link.send(Hello(LINK_VERSION, "data", f"{self._spec.replica}/{self._spec.incarnation}"))
            await lost.wait()
            # One that takes the link and drops it, such as another version, must not be called in a tight loop.
            await asyncio.sleep(link.retry_ms / 1000)

    def _onward_link(self, replica: str, lost: asyncio.Event) -> Link:
        def down(link: Link) -> None:
            self._lost(link)
            lost.set()

        return Link(partial(self._onward_frame, replica), down, self._exchange)

    def _onward_frame(self, replica: str, link: Link, frame: Frame) -> None:
        """The next stage is there once it says so: for a moment, the socket of a dying one still takes links."""
        if isinstance(frame, Welcome):
            self._links[link.number] = link
            self._carry_out(self._stage.onward_up(replica, link.number))
            if self._stage.is_onward_up:
                self._all_onward_up.set()
        else:
            self._frame(link, frame)

    # ---- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        failures: dict[str, str] = {}
        for effect in effects:
            match effect:
                case Send(number, frame):
                    self._send(number, frame, failures)
                case StartBatch():
                    task = asyncio.ensure_future(self._run_batch(effect))
                    self._batches.add(task)
                    task.add_done_callback(self._batches.discard)
                case ReportFault(key, error):
                    _log.error("engine_fault", stream=key, error=type(error).__name__, exc_info=error)
        for key, message in failures.items():
            self._carry_out(self._stage.send_failed(key, HAND_OVER_TOO_LARGE, message, self._note_moment()))
        if self._stage.has_retired:
            self._retired.set()

    def _send(self, number: int, frame: Frame, failures: dict[str, str]) -> None:
        """Send `frame`, or note why its stream fails. Until that has closed, the exchange drops what it sends."""
        try:
            self._exchange.send(number, frame)
        except FrameTooLargeError as error:
            if not isinstance(frame, PayloadFrame):
                raise
            self._exchange.fail(frame.tag, HAND_OVER_TOO_LARGE, str(error))
            failures[frame.tag.key] = str(error)

    def _pause(self, key: str, *, paused: bool) -> None:
        if paused:
            self._stage.pause(key)
        else:
            self._carry_out(self._stage.go_on(key, self._note_moment()))

    async def _run_batch(self, batch: StartBatch) -> None:
        loop = asyncio.get_running_loop()

        def context(start: StartStep) -> _Context:
            return _Context(start.flags, lambda outputs: loop.call_soon_threadsafe(self._progress, start.key, outputs))

        contexts = [context(start) for start in batch.steps]
        results = await loop.run_in_executor(self._threads, _compute, batch, contexts)
        self._carry_out(self._stage.batch_done(batch.number, results, self._note_moment()))

    def _progress(self, key: str, outputs: Sequence[Output]) -> None:
        self._note_moment()
        self._carry_out(self._stage.progress(key, outputs))

    # ---- life ------------------------------------------------------------------------------------

    async def serve(self, ready: Callable[[], None], stopped: asyncio.Event) -> None:
        """Listen until `stopped`, or until it has retired; call `ready` once the stage can take streams.

        Raises `LinkError`.
        """
        try:
            self._check_payload_fits()
            await self._serve(ready, stopped)
        finally:
            self._exchange.close()

    async def _serve(self, ready: Callable[[], None], stopped: asyncio.Event) -> None:
        server = await listen(self._spec.address, self._accepted)
        lasting: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in (stopped, self._retired)]
        try:
            if self._onward:
                await self._connect_onward(lasting)
            if not any(task.done() for task in lasting):
                ready()
                await asyncio.wait(lasting, return_when=asyncio.FIRST_COMPLETED)
            for task in lasting:
                if task.done():
                    task.result()
        finally:
            for task in lasting:
                task.cancel()
            await asyncio.wait(lasting)
            server.close()
            remove_socket(self._spec.address)
            await self._end_links()

    def _check_payload_fits(self) -> None:
        largest = self._spec.payload_bytes_max
        for address in [self._spec.address, *self._onward.values()]:
            if largest > payload_bytes_max(address):
                raise LinkError(
                    f"{self._spec.replica!r} hands over up to {largest} bytes at once, "
                    f"and a link to {address!r} carries {payload_bytes_max(address)}: make smaller pieces"
                )

    async def _connect_onward(self, lasting: list[asyncio.Task[Any]]) -> None:
        """Start to keep the links onward, and wait for one to each next stage, or until one of `lasting` has ended.

        One to each is enough: where another replica keeps dying, this one must not wait for it.
        """
        lasting += [asyncio.create_task(self.keep_onward(*replica)) for replica in self._onward.items()]
        up = asyncio.create_task(self._all_onward_up.wait())
        await asyncio.wait([up, *lasting], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()

    async def _end_links(self) -> None:
        for link in list(self._links.values()):
            # Now, and not when the loop gets to it: no stream may outlive the model.
            self._lost(link)
            link.abort()
        if self._batches:
            await asyncio.wait(self._batches, timeout=STOP_STEP_MS_MAX / 1000)
        self._threads.shutdown(wait=not self._batches, cancel_futures=True)

    @property
    def hangs(self) -> bool:
        """After `serve`: a step is still running, so neither the model nor its thread can be ended."""
        return bool(self._batches)


class _Context:
    """`StepContext` over the flags that the stage writes."""

    def __init__(self, flags: StepFlags, hand_over: Any) -> None:
        self._flags = flags
        self._hand_over = hand_over
        self._woken = threading.Event()
        flags.wake = self._woken.set

    def cancelled(self) -> bool:
        return self._flags.cancelled

    def wait_cancelled(self, ns_max: int) -> bool:
        # One that was cancelled before it began has woken nobody.
        return self._flags.cancelled or self._woken.wait(ns_max / 1e9)

    def stalled(self) -> bool:
        return self._flags.stalled

    def progress(self, outputs: Sequence[Output]) -> None:
        self._hand_over(outputs)


def _compute(batch: StartBatch, contexts: Sequence[_Context]) -> Sequence[object]:
    """Run the batch. Whatever a model throws is a failure of the streams in it, not of the worker."""
    try:
        return batch.run(contexts)
    except StageFailure as failure:
        return [failure] * len(batch.steps)
    except Exception as error:  # noqa: BLE001 - the boundary between our code and the model libraries
        kind, steps = batch.steps[0].step.kind, len(batch.steps)
        _log.error("step_failed", step=kind, batch=steps, error=type(error).__name__, exc_info=True)
        return [StageFailure("step_failed", f"{type(error).__name__} in a {kind} step")] * steps


async def _run(spec: WorkerSpec) -> bool:
    """Serve until stopped. True where a step hangs, and with it the thread that it runs on."""
    # A terminal's Ctrl-C reaches the whole group; the supervisor decides when its workers end.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_reader(sys.stdin.fileno(), _stdin_readable, loop, stopped)
    model = _model_of(spec)
    worker = Worker(spec, model)
    try:
        await worker.serve(_announce, stopped)
    finally:
        if not worker.hangs:
            model.close()
    return worker.hangs


def read_spec(encoded: str) -> WorkerSpec:
    """The specification in that JSON. Raises `SpecError`."""
    try:
        return msgspec.json.decode(encoded, type=WorkerSpec)
    except msgspec.DecodeError as error:
        raise SpecError(f"its specification cannot be used: {error}: correct it where it was made") from error


def _name_in(encoded: str) -> str:
    """Of which worker that is, where that much can be read."""
    try:
        return msgspec.json.decode(encoded, type=_Named).replica
    except msgspec.DecodeError:
        return _Named().replica


def _model_of(spec: WorkerSpec) -> StageModel:
    """Raises `SpecError`; `OSError` for files that cannot be read."""
    secrets = {option: os.environ[name] for option, name in spec.secrets.items() if name in os.environ}
    try:
        return registry.build(spec.engine, spec.kind, spec.options | secrets)
    except registry.EngineUnknownError as error:
        raise SpecError(f"{error}: change the stage's engine or its options") from error
    except msgspec.ValidationError as error:
        raise SpecError(f"engine {spec.engine!r} cannot use its options: {error}: set what it takes") from error


def _stdin_readable(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stopped.set()


def _announce() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _log_processors(process: str) -> list[Processor]:
    """One JSON object a line, which names `process`, also where an engine thread logs. Tracebacks come without locals,
    which may hold what somebody said."""

    def named(_logger: object, _method: str, event: EventDict) -> EventDict:
        return {**event, "process": process}

    return [
        named,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(),
    ]


def main() -> int:
    """Entry point: `python -m stages.worker SPEC`, SPEC being a `WorkerSpec` as JSON."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m stages.worker SPEC_JSON\n")
        return STATUS_REFUSED
    name = _name_in(sys.argv[1])
    structlog.configure(processors=_log_processors(name), logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    try:
        hangs = asyncio.run(_run(read_spec(sys.argv[1])))
    except (SpecError, ArenaError, LinkError, OSError) as error:
        sys.stderr.write(f"worker {name!r}: {error}\n")
        return STATUS_REFUSED if isinstance(error, SpecError) else STATUS_FAILED
    if hangs:
        _log.error("step_hangs", stop_step_ms_max=STOP_STEP_MS_MAX)
        # The interpreter would wait for the thread for ever, and the worker outlive its supervisor.
        os._exit(STATUS_FAILED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
