"""The worker's shell in this process: handshake, threads, links that come and go, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog

from stages import worker
from stages.contracts import Clause, ObserverOptions, Tag, TextDelta
from stages.link import LinkError
from stages.messages import (
    Cancel,
    Closed,
    Feed,
    Frame,
    Grant,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    SessionOpened,
    StepDone,
    Welcome,
)
from stages.stage import Stage
from stages.stream import Emit, Publish, StageFailure, StepContext
from stages.worker import Worker, WorkerSpec
from tests.stages.link_bench import WAIT_S_MAX, End, Listener, play
from tests.stages.puppet import PuppetModel, PuppetStep

TAG = Tag("s", 1, 1, "r")
WELCOME = Welcome(1, "next", 1, "rev", onward_up=True)
HELLO = Hello(1, "control", "gw_1")


@dataclass(frozen=True, slots=True)
class ThreadStep(PuppetStep):
    """Runs `work` on the engine thread."""

    work: Callable[[StepContext], None] = lambda _: None

    def run(self, context: StepContext) -> object:
        self.work(context)
        return self


class Running:
    """A worker of puppets that serves on `address`."""

    def __init__(self, folder: Path, *, onward: str = "", onward_window: int = 0) -> None:
        self.address = f"unix:{folder}/stage.sock"
        self.path = folder / "stage.sock"
        self.model = PuppetModel()
        stage = Stage(self.model, onward_window=onward_window)
        spec = WorkerSpec("stage", "talker", "puppet", self.address, 3, onward=onward, onward_window=onward_window)
        self.worker = Worker(spec, stage, "rev", 1)
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.ends: list[End] = []

    async def serve(self) -> None:
        await self.worker.serve(self.ready.set, self.stopped)

    async def link(self, *frames: Frame) -> End:
        """A link on which `frames` are sent at once."""
        end = End()
        await end.connect(self.address)
        self.ends.append(end)
        for frame in frames:
            end.link.send(frame)
        return end

    async def gateway(self, *, onward: bool = False) -> End:
        """A control link with one session and one stream open."""
        end = await self.link(HELLO, OpenSession("s", 1), Open(TAG, ObserverOptions(), onward))
        assert isinstance(await end.frame(), Welcome)
        assert [await end.frame() for _ in range(2)] == [SessionOpened("s"), Opened(TAG)]
        return end

    def plan(self, *steps: PuppetStep, ends: bool = True) -> None:
        stream = self.model.streams[TAG.key]
        stream.steps.extend(steps)
        stream.ends = ends


@asynccontextmanager
async def greeting(listener: Listener) -> AsyncIterator[asyncio.Task[End]]:
    """Play the next stage for the first link to it, which it gives once it was greeted."""

    async def greet() -> End:
        end = await listener.accepted()
        assert await end.frame() == Hello(1, "data", "stage/3")
        end.link.send(WELCOME)
        return end

    yield asyncio.create_task(greet())


@asynccontextmanager
async def running(folder: Path, *, onward: str = "", onward_window: int = 0) -> AsyncIterator[Running]:
    """Serve until the block ends; then nothing may be left."""
    one = Running(folder, onward=onward, onward_window=onward_window)
    serving = asyncio.create_task(one.serve())
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            await one.ready.wait()
            yield one
            one.stopped.set()
            await serving
        for end in one.ends:
            await end.end()
        assert not one.path.exists()
    finally:
        serving.cancel()


# ---- handshake ----------------------------------------------------------------------------------------------


def test_a_peer_is_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            end = await one.link(HELLO)
            assert await end.frame() == Welcome(1, "stage", 3, "rev", onward_up=True)

    play(scenario())


def test_a_gateway_that_connects_anew_has_lost_what_it_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            await one.link(HELLO)
            assert await gateway.frame() == Closed(TAG, "cancelled", {})

    play(scenario())


@pytest.mark.parametrize("first", [Hello(2, "control", "gw_1"), OpenSession("s", 1)], ids=["version", "no hello"])
def test_another_version_and_who_does_not_introduce_itself_are_refused(tmp_path: Path, first: Frame) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            end = await one.link(first, HELLO, OpenSession("s", 1))
            await end.end()
            assert end.frames.empty()
            assert one.model.calls == []

    play(scenario())


def test_garbage_ends_one_link_and_leaves_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            reader, writer = await asyncio.open_unix_connection(str(one.path))
            writer.write(b"\xff" * 64)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            gateway.link.send(Cancel(TAG))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})

    play(scenario())


# ---- steps --------------------------------------------------------------------------------------------------


def test_progress_comes_before_the_result_and_both_in_order(tmp_path: Path) -> None:
    def speak(context: StepContext) -> None:
        for number in range(3):
            context.progress([Publish(TextDelta(str(number)))])

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep((Publish(TextDelta("end")),), work=speak))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            frames = [await gateway.frame() for _ in range(6)]
            texts = [frame.event for frame in frames if isinstance(frame, Published)]
            assert texts == [TextDelta(text) for text in ("0", "1", "2", "end")]
            assert isinstance(frames[3], StepDone)
            assert frames[5] == Closed(TAG, "finished", {})

    play(scenario())


def test_a_step_runs_on_a_thread_of_the_engine_and_is_told_of_its_cancel(tmp_path: Path) -> None:
    started, names = threading.Event(), []

    def wait(context: StepContext) -> None:
        names.append(threading.current_thread().name)
        started.set()
        while not context.cancelled():
            threading.Event().wait(0.001)

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep((Publish(TextDelta("too late")),), work=wait))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
            gateway.link.send(Cancel(TAG))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})
            assert names[0].startswith("stage-engine")

    play(scenario())


def test_a_step_is_told_that_its_outputs_wait(tmp_path: Path) -> None:
    seen = []

    async def scenario() -> None:
        def emit(context: StepContext) -> None:
            context.progress([Emit(Clause(0, "abc"), 3), Emit(Clause(1, "de"), 2)])
            while not context.stalled():
                threading.Event().wait(0.001)
            seen.append(context.stalled())

        async with (
            Listener(f"unix:{tmp_path}/next.sock") as listener,
            greeting(listener) as greeted,
            running(tmp_path, onward=listener.address, onward_window=4) as one,
        ):
            next_stage = await greeted
            gateway = await one.gateway(onward=True)
            one.plan(ThreadStep(work=emit))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            assert await next_stage.frame() == Feed(TAG, Clause(0, "abc"), 3)
            assert isinstance(await gateway.frame(), StepDone)
            next_stage.link.send(Grant(TAG, 3))
            assert await next_stage.frame() == Feed(TAG, Clause(1, "de"), 2)
            assert await gateway.frame() == Closed(TAG, "finished", {})
            assert seen == [True]

    play(scenario())


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ZeroDivisionError(), "step_failed", "ZeroDivisionError in a puppet step"),
        (StageFailure("engine", "it broke"), "engine", "it broke"),
    ],
)
def test_whatever_a_model_throws_fails_its_stream_alone(
    tmp_path: Path, error: Exception, code: str, message: str
) -> None:
    def fail(_: StepContext) -> None:
        raise error

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=fail))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            assert await gateway.frame() == Closed(TAG, "failed", {}, code, message)
            gateway.link.send(Open(TAG, ObserverOptions()))
            assert await gateway.frame() == Opened(TAG)

    play(scenario())


# ---- the next stage -----------------------------------------------------------------------------------------


def test_the_worker_is_ready_once_the_next_stage_is_and_says_when_that_goes(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/next.sock"

    async def scenario() -> None:
        async with (
            Listener(address) as listener,
            greeting(listener) as greeted,
            running(tmp_path, onward=address, onward_window=4) as one,
        ):
            next_stage = await greeted
            gateway = await one.gateway(onward=True)
            await next_stage.abort()
            frames = [await gateway.frame() for _ in range(2)]
            lost = Closed(TAG, "failed", {}, "downstream_lost", "the next stage is gone")
            assert frames == [OnwardChanged(up=False), lost]
            # For a moment, the socket of a dying stage still takes links.
            await (await listener.accepted()).abort()
            async with greeting(listener) as again:
                await again
            assert await gateway.frame() == OnwardChanged(up=True)
            gateway.link.send(Open(TAG, ObserverOptions(), onward=True))
            assert await gateway.frame() == Opened(TAG)

    play(scenario())


def test_a_next_stage_is_there_once_it_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/next.sock") as listener:
            one = Running(tmp_path, onward=listener.address, onward_window=4)
            serving = asyncio.create_task(one.serve())
            next_stage = await listener.accepted()
            assert await next_stage.frame() == Hello(1, "data", "stage/3")
            gateway = await one.link(HELLO)
            assert await gateway.frame() == Welcome(1, "stage", 3, "rev", onward_up=False)
            assert not one.ready.is_set()
            next_stage.link.send(WELCOME)
            assert await gateway.frame() == OnwardChanged(up=True)
            await one.ready.wait()
            one.stopped.set()
            await serving
            await gateway.end()

    play(scenario())


def test_a_worker_that_is_stopped_while_it_waits_for_the_next_stage_was_never_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = Running(tmp_path, onward=f"unix:{tmp_path}/nobody.sock", onward_window=4)
        serving = asyncio.create_task(one.serve())
        await asyncio.sleep(0)
        one.stopped.set()
        await serving
        assert not one.ready.is_set()
        assert not one.path.exists()

    play(scenario())


def test_a_next_stage_that_can_never_be_reached_ends_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = Running(tmp_path, onward="tcp:next:1", onward_window=4)
        with pytest.raises(LinkError, match="tcp:next:1"):
            await one.serve()
        assert not one.ready.is_set()

    play(scenario())


# ---- the end ------------------------------------------------------------------------------------------------


def test_streams_and_sessions_are_closed_before_the_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            await one.gateway()
        assert not one.worker.hangs
        one.model.close()
        assert one.model.calls == ["open s", "close s", "close"]

    play(scenario())


def test_a_running_step_is_waited_for(tmp_path: Path) -> None:
    started = threading.Event()

    def wait(context: StepContext) -> None:
        started.set()
        while not context.cancelled():
            threading.Event().wait(0.001)

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=wait))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
        assert not one.worker.hangs
        one.model.close()

    play(scenario())


def test_a_step_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STOP_STEP_MS_MAX", 1)
    started, released = threading.Event(), threading.Event()

    def hang(_: StepContext) -> None:
        started.set()
        released.wait(WAIT_S_MAX)

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=hang))
            gateway.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
        assert one.worker.hangs
        released.set()

    play(scenario())


# ---- the command --------------------------------------------------------------------------------------------


@dataclass
class Command:
    """`python -m stages.worker`, run in this process; its standard input is at its end from the start."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Status, standard output, and standard error."""
        read, write = os.pipe()
        os.close(write)
        with os.fdopen(read) as stdin:
            self.monkeypatch.setattr("sys.stdin", stdin)
            self.monkeypatch.setattr("sys.argv", ["worker", *arguments])
            status = worker.main()
        said = self.capsys.readouterr()
        return status, said.out, said.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    yield Command(monkeypatch, capsys)
    structlog.reset_defaults()


def spec_json(folder: Path, **changed: object) -> str:
    spec = WorkerSpec("think", "thinker", "scripted", f"unix:{folder}/think.sock", 1)
    return msgspec.json.encode(msgspec.to_builtins(spec) | changed).decode()


@pytest.mark.parametrize("arguments", [(), ("one", "two")])
def test_the_command_takes_one_argument(command: Command, arguments: tuple[str, ...]) -> None:
    status, _, said = command.run(*arguments)
    assert (status, said) == (2, "usage: python -m stages.worker SPEC_JSON\n")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"stage": 7}, "stage"),
        ({"gpu": 1}, "gpu"),
        ({"engine": "magic"}, "no engine 'magic' for a thinker; there are: local, openai, scripted"),
        ({"kind": "mouth"}, "no engine 'scripted' for a mouth"),
        ({"options": {"volume": 11}}, "volume"),
        ({"options": {"replies": []}}, "replies"),
        ({"address": "tcp:0.0.0.0:1"}, "'tcp:0.0.0.0:1'"),
        ({"address": "unix:/nowhere/think.sock"}, "'unix:/nowhere/think.sock'"),
        ({"onward": "tcp:next:1", "onward_window": 320}, "'tcp:next:1'"),
    ],
)
def test_a_wrong_specification_is_refused_and_named(
    command: Command, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    status, out, said = command.run(spec_json(tmp_path, **changed))
    assert (status, out) == (1, "")
    assert said.startswith("worker: ")
    assert named in said


def test_what_is_no_json_is_refused(command: Command) -> None:
    assert command.run("{")[0] == 1


def test_a_worker_ends_with_its_standard_input(command: Command, tmp_path: Path) -> None:
    assert command.run(spec_json(tmp_path))[0] == 0
    assert not (tmp_path / "think.sock").exists()


def test_a_worker_without_its_next_stage_is_not_ready_when_it_ends(command: Command, tmp_path: Path) -> None:
    onward = {"onward": f"unix:{tmp_path}/nobody.sock", "onward_window": 320}
    assert command.run(spec_json(tmp_path, **onward)) == (0, "", "")


def test_an_option_that_is_secret_comes_from_the_environment_where_it_is_set(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUPLEX_TEST_KEY", "secret")
    secrets = {"api_key": "DUPLEX_TEST_KEY", "other": "DUPLEX_TEST_UNSET"}
    status, _, said = command.run(spec_json(tmp_path, secrets=secrets))
    assert status == 1
    assert "api_key" in said
    assert "other" not in said


def test_the_signal_handlers_end_with_the_worker(command: Command, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    command.run(spec_json(tmp_path))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
