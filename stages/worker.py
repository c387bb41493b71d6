"""A stage worker: one process, one stage, its links on an event loop and its model on engine threads.

Theory of operation
    `python -m stages.worker SPEC` loads the model, listens, connects onward and writes `ready` to its standard
    output. It lives until its standard input ends: whoever started it holds the other end, so a worker never
    outlives its supervisor, however that one died.

Rules
* All decisions are in `stages.stage`; this file carries bytes, clocks and threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

from stages.engines import registry
from stages.link import CONNECT_RETRY_MS_MIN, Link, LinkError, connect, listen, unix_path
from stages.messages import LINK_VERSION, Frame, Hello, Welcome
from stages.stage import Effect, Send, Stage, StartStep, StepFlags
from stages.stream import Output, StageFailure, Step

STOP_STEP_MS_MAX = 3_000  # a running step is bounded at about 150 ms; a model that hangs is left to the kernel

# One JSON object a line. Tracebacks without locals, which may hold what somebody said.
_LOG_PROCESSORS: list[Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    structlog.processors.JSONRenderer(),
]

_log = structlog.get_logger("stages.worker")


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker is. Addresses as in `stages.link`; windows in the units of the outgoing edges.

    `secrets`: options that are not on the command line but in the environment, by the names of their variables.
    """

    stage: str
    kind: str
    engine: str
    address: str
    incarnation: int
    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    onward: str = ""
    onward_window: int = 0
    publish_window: int = 0


class Worker:
    """Carries frames and steps between the links, the `Stage` and the engine threads."""

    def __init__(self, spec: WorkerSpec, stage: Stage, revision: str, concurrency: int) -> None:
        self._spec = spec
        self._stage = stage
        self._revision = revision
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"{spec.stage}-engine")
        self._links: dict[int, Link] = {}
        self._numbers: dict[Link, int] = {}
        self._next_number = itertools.count(1)
        self._steps: set[asyncio.Future[None]] = set()
        self._onward_lost = asyncio.Event()
        self._onward_greeted = asyncio.Event()

    # ---- links -----------------------------------------------------------------------------------

    def _accepted(self) -> Link:
        return Link(self._frame, self._lost)

    def _adopt(self, link: Link) -> int:
        number = next(self._next_number)
        self._links[number], self._numbers[link] = link, number
        return number

    def _frame(self, link: Link, frame: Frame) -> None:
        number = self._numbers.get(link)
        if number is None:
            self._greet(link, frame)
        else:
            self._carry_out(self._stage.handle(number, frame, time.monotonic_ns()))

    def _greet(self, link: Link, frame: Frame) -> None:
        if not isinstance(frame, Hello) or frame.version != LINK_VERSION:
            _log.error("link_refused", frame=type(frame).__name__, wanted_version=LINK_VERSION)
            link.close()
            return
        self._carry_out(self._stage.link_up(self._adopt(link), frame))
        link.send(
            Welcome(LINK_VERSION, self._spec.stage, self._spec.incarnation, self._revision, self._stage.is_onward_up)
        )

    def _lost(self, link: Link) -> None:
        number = self._numbers.pop(link, None)
        if number is not None:
            del self._links[number]
            self._carry_out(self._stage.link_lost(number, time.monotonic_ns()))

    async def keep_onward(self) -> None:
        """Stay connected to the next stage. Raises `LinkError`."""
        while True:
            self._onward_lost.clear()
            link = await connect(self._spec.onward, lambda: Link(self._onward_frame, self._onward_down))
            link.send(Hello(LINK_VERSION, "data", f"{self._spec.stage}/{self._spec.incarnation}"))
            await self._onward_lost.wait()
            # One that takes the link and drops it, such as another version, must not be called in a tight loop.
            await asyncio.sleep(CONNECT_RETRY_MS_MIN / 1000)

    def _onward_frame(self, link: Link, frame: Frame) -> None:
        """The next stage is there once it says so: for a moment, the socket of a dying one still takes links."""
        if link in self._numbers:
            self._frame(link, frame)
        elif isinstance(frame, Welcome):
            self._carry_out(self._stage.onward_up(self._adopt(link)))
            self._onward_greeted.set()

    def _onward_down(self, link: Link) -> None:
        self._lost(link)
        self._onward_lost.set()

    # ---- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(number, frame):
                    link = self._links.get(number)
                    if link is not None:
                        link.send(frame)
                case StartStep(key, step, flags):
                    task = asyncio.ensure_future(self._run_step(key, step, flags))
                    self._steps.add(task)
                    task.add_done_callback(self._steps.discard)

    async def _run_step(self, key: str, step: Step, flags: StepFlags) -> None:
        loop = asyncio.get_running_loop()
        context = _Context(flags, lambda outputs: loop.call_soon_threadsafe(self._progress, key, outputs))
        result, failure = await loop.run_in_executor(self._threads, _compute, step, context)
        self._carry_out(self._stage.step_done(key, result, failure, time.monotonic_ns()))

    def _progress(self, key: str, outputs: Sequence[Output]) -> None:
        self._carry_out(self._stage.progress(key, outputs))

    # ---- life ------------------------------------------------------------------------------------

    async def serve(self, ready: Callable[[], None], stopped: asyncio.Event) -> None:
        """Listen until `stopped`; call `ready` once the stage can take streams. Raises `LinkError`."""
        server = await listen(self._spec.address, self._accepted)
        lasting: list[asyncio.Task[Any]] = [asyncio.create_task(stopped.wait())]
        try:
            if self._spec.onward:
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
            unix_path(self._spec.address).unlink(missing_ok=True)
            await self._end_links()

    async def _connect_onward(self, lasting: list[asyncio.Task[Any]]) -> None:
        """Start to keep the link to the next stage, and wait until it is there or something of `lasting` has ended."""
        lasting.append(asyncio.create_task(self.keep_onward()))
        up = asyncio.create_task(self._onward_greeted.wait())
        await asyncio.wait([up, *lasting], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()

    async def _end_links(self) -> None:
        for link in list(self._numbers):
            # Now, and not when the loop gets to it: no stream may outlive the model.
            self._lost(link)
            link.abort()
        if self._steps:
            await asyncio.wait(self._steps, timeout=STOP_STEP_MS_MAX / 1000)
        self._threads.shutdown(wait=not self._steps, cancel_futures=True)

    @property
    def hangs(self) -> bool:
        """After `serve`: a step is still running, so neither the model nor its thread can be ended."""
        return bool(self._steps)


class _Context:
    """`StepContext` over the flags that the stage writes."""

    def __init__(self, flags: StepFlags, hand_over: Any) -> None:
        self._flags = flags
        self._hand_over = hand_over

    def cancelled(self) -> bool:
        return self._flags.cancelled

    def stalled(self) -> bool:
        return self._flags.stalled

    def progress(self, outputs: Sequence[Output]) -> None:
        self._hand_over(outputs)


def _compute(step: Step, context: _Context) -> tuple[object, StageFailure | None]:
    """Run the step. Whatever a model throws is a failure of this one stream, not of the worker."""
    try:
        return step.run(context), None
    except StageFailure as failure:
        return None, failure
    except Exception as error:  # noqa: BLE001 - the boundary between our code and the model libraries
        _log.error("step_failed", step=step.kind, error=type(error).__name__, exc_info=True)
        return None, StageFailure("step_failed", f"{type(error).__name__} in a {step.kind} step")


async def _run(spec: WorkerSpec) -> bool:
    """Serve until stopped. True where a step hangs, and with it the thread that it runs on."""
    # A terminal's Ctrl-C reaches the whole group; the supervisor decides when its workers end.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_reader(sys.stdin.fileno(), _stdin_readable, loop, stopped)
    secrets = {option: os.environ[name] for option, name in spec.secrets.items() if name in os.environ}
    model = registry.build(spec.engine, spec.kind, spec.options | secrets)
    stage = Stage(model, onward_window=spec.onward_window, publish_window=spec.publish_window)
    worker = Worker(spec, stage, model.revision, model.concurrency)
    try:
        await worker.serve(_announce, stopped)
    finally:
        if not worker.hangs:
            model.close()
    return worker.hangs


def _stdin_readable(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stopped.set()


def _announce() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main() -> int:
    """Entry point: `python -m stages.worker SPEC`, SPEC being a `WorkerSpec` as JSON."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m stages.worker SPEC_JSON\n")
        return 2
    structlog.configure(processors=_LOG_PROCESSORS, logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    try:
        hangs = asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=WorkerSpec)))
    except (msgspec.DecodeError, registry.EngineUnknownError, LinkError, OSError) as error:
        sys.stderr.write(f"worker: {error}\n")
        return 1
    if hangs:
        _log.error("step_hangs", stop_step_ms_max=STOP_STEP_MS_MAX)
        # The interpreter would wait for the thread for ever, and the worker outlive its supervisor.
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
