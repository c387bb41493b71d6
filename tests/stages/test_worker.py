"""The worker's shell in this process: handshake, threads, links that come and go, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import structlog
import structlog.testing

from stages import worker
from stages.block_table import BLOCK_BYTES
from stages.contracts import AudioOut, Clause, ObserverOptions, Tag, TextDelta
from stages.edges import OutEdge
from stages.link import LinkError
from stages.link_window import FRAME_BYTES_MAX
from stages.messages import (
    LINK_VERSION,
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
    SessionRefused,
    StepDone,
    Welcome,
)
from stages.outgoing import FrameTooLargeError
from stages.stream import Emit, Publish, StageFailure, StepContext
from tests.stages.link_bench import WAIT_S_MAX, Listener, play
from tests.stages.puppet import BatchingPuppets, PuppetStep
from tests.stages.worker_bench import (
    HELLO,
    NEXT,
    TAG,
    WELCOME,
    Running,
    ThreadStep,
    greeting,
    is_stages_hello,
    running,
)

# ---- handshake ----------------------------------------------------------------------------------------------


def test_a_peer_is_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            end = await one.link(HELLO)
            assert await end.frame() == Welcome(LINK_VERSION, "stage", 3, "rev", ())

    play(scenario())


def test_a_gateway_that_connects_anew_has_lost_what_it_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            await one.link(HELLO)
            assert await gateway.frame() == Closed(TAG, "cancelled", {})

    play(scenario())


@pytest.mark.parametrize(
    "first", [Hello(LINK_VERSION + 1, "control", "gw_1"), OpenSession("s", 1)], ids=["version", "no hello"]
)
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
            assert b"LinkRefused" in await reader.read()
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
            one.media.link.send(Feed(TAG, Clause(0, "")))
            texts = [await one.media.frame() for _ in range(4)]
            assert texts == [Published(TAG, TextDelta(text)) for text in ("0", "1", "2", "end")]
            assert isinstance(await gateway.frame(), StepDone)
            assert await one.media.frame() == Closed(TAG, "finished", {})

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
            one.media.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
            gateway.link.send(Cancel(TAG))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})
            assert names[0].startswith("stage-engine")

    play(scenario())


def test_a_step_that_sleeps_is_woken_by_its_cancel(tmp_path: Path) -> None:
    started, woken = threading.Event(), []

    def sleep(context: StepContext) -> None:
        woken.append(context.wait_cancelled(1))
        started.set()
        woken.append(context.wait_cancelled(WAIT_S_MAX * 1_000_000_000))
        woken.append(context.wait_cancelled(WAIT_S_MAX * 1_000_000_000))

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=sleep))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
            gateway.link.send(Cancel(TAG))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})

    play(scenario())
    assert woken == [False, True, True]


def test_a_step_that_is_cancelled_before_it_begins_does_not_sleep(tmp_path: Path) -> None:
    """Feed and cancel come in one piece, so the cancel is there before a thread is."""
    woken = []

    def sleep(context: StepContext) -> None:
        woken.append(context.wait_cancelled(WAIT_S_MAX * 1_000_000_000))

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=sleep))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            gateway.link.send(Cancel(TAG))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})

    play(scenario())
    assert woken == [True]


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
            one.media.link.send(Feed(TAG, Clause(0, "")))
            assert await next_stage.frame() == Feed(TAG, Clause(0, "abc"), 3)
            assert isinstance(await gateway.frame(), StepDone)
            next_stage.link.send(Grant(TAG, 3))
            assert await next_stage.frame() == Feed(TAG, Clause(1, "de"), 2)
            assert await one.media.frame() == Closed(TAG, "finished", {})
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
            one.media.link.send(Feed(TAG, Clause(0, "")))
            assert await gateway.frame() == Closed(TAG, "failed", {}, code, message)
            gateway.link.send(Open(TAG, ObserverOptions()))
            assert await gateway.frame() == Opened(TAG)

    play(scenario())


def test_an_output_that_no_link_can_carry_fails_its_stream_alone(tmp_path: Path) -> None:
    huge = AudioOut(0, 24_000, 0, bytes(BLOCK_BYTES + 1))

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(PuppetStep((Publish(huge), Publish(TextDelta("after the gap")))), ends=False)
            one.media.link.send(Feed(TAG, Clause(0, "")))
            assert isinstance(await gateway.frame(), StepDone)
            closed = await gateway.frame()
            assert isinstance(closed, Closed)
            assert (closed.outcome, closed.code) == ("failed", "hand_over_too_large")
            gateway.link.send(Open(TAG, ObserverOptions()))
            assert await gateway.frame() == Opened(TAG)
            assert one.media.frames.empty()

    play(scenario())


@pytest.mark.parametrize("gives", [ZeroDivisionError(), StageFailure("engine", "it broke"), None], ids=repr)
def test_a_batch_runs_on_one_thread_and_what_breaks_it_fails_its_streams(
    tmp_path: Path, gives: Exception | None
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def hold(_: StepContext) -> None:
        started.set()
        go_on.wait(WAIT_S_MAX)

    def speak(context: StepContext) -> None:
        context.progress([Publish(TextDelta("early"))])

    async def scenario() -> None:
        model = BatchingPuppets()
        model.batch_gives = gives
        async with running(tmp_path, model=model) as one:
            gateway = await one.gateway()
            one.plan(ThreadStep(work=hold, batch_key=""))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
            tags = [Tag("s", 1, 1, name) for name in "ab"]
            for tag in tags:
                gateway.link.send(Open(tag, ObserverOptions()))
                assert await gateway.frame() == Opened(tag)
                model.streams[tag.key].steps.append(ThreadStep(work=speak))
                one.media.link.send(Feed(tag, Clause(0, "")))
            gateway.link.send(OpenSession("s", 1))
            assert await gateway.frame() == SessionOpened("s"), "both wait now"
            go_on.set()
            assert isinstance(await gateway.frame(), StepDone)
            assert await one.media.frame() == Closed(TAG, "finished", {})
            if isinstance(gives, Exception):
                code = "engine" if isinstance(gives, StageFailure) else "step_failed"
                closed = [await gateway.frame() for _ in tags]
                assert [(one.tag, one.code) for one in closed if isinstance(one, Closed)] == [(t, code) for t in tags]
                return
            assert [await one.media.frame() for _ in tags] == [Published(tag, TextDelta("early")) for tag in tags]
            done = [await gateway.frame() for _ in tags]
            assert [(one.tag, one.batch) for one in done if isinstance(one, StepDone)] == [(tag, 2) for tag in tags]

    play(scenario())


def test_a_stream_that_ends_with_an_output_that_no_link_can_carry_has_failed(tmp_path: Path) -> None:
    huge = AudioOut(0, 24_000, 0, bytes(BLOCK_BYTES + 1), final=True)

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(PuppetStep((Publish(huge),)))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            assert isinstance(await gateway.frame(), StepDone)
            closed = await one.media.frame()
            assert isinstance(closed, Closed)
            assert (closed.outcome, closed.code) == ("failed", "hand_over_too_large")

    play(scenario())


def test_what_an_engine_throws_on_the_loop_goes_to_the_log_and_its_stream_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.model.streams[TAG.key].feed_fails = ZeroDivisionError("a text that nobody is to see")
            with structlog.testing.capture_logs() as logs:
                one.media.link.send(Feed(TAG, Clause(0, "")))
                closed = await gateway.frame()
            assert closed == Closed(TAG, "failed", {}, "engine_fault", "the engine threw ZeroDivisionError")
            (entry,) = logs
            assert (entry["event"], entry["stream"], entry["error"]) == ("engine_fault", TAG.key, "ZeroDivisionError")
            assert isinstance(entry["exc_info"], ZeroDivisionError)

    play(scenario())


def test_a_frame_too_large_that_is_no_streams_is_a_fault_of_ours(tmp_path: Path) -> None:
    one = Running(tmp_path)
    with pytest.raises(FrameTooLargeError):
        one.worker._send(1, SessionRefused("s", "capacity", "x" * FRAME_BYTES_MAX), {})
    one.worker._exchange.close()


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
            lost = Closed(TAG, "failed", {}, "downstream_lost", "next is gone")
            assert frames == [OnwardChanged("next", up=False), lost]
            # For a moment, the socket of a dying stage still takes links.
            await (await listener.accepted()).abort()
            async with greeting(listener) as again:
                await again
            assert await gateway.frame() == OnwardChanged("next", up=True)
            gateway.link.send(Open(TAG, ObserverOptions(), (NEXT,)))
            assert await gateway.frame() == Opened(TAG)

    play(scenario())


def test_a_next_stage_is_there_once_it_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Listener(f"unix:{tmp_path}/next.sock") as listener:
            one = Running(tmp_path, onward=listener.address, onward_window=4)
            serving = asyncio.create_task(one.serve())
            next_stage = await listener.accepted()
            assert is_stages_hello(await next_stage.frame())
            gateway = await one.link(HELLO)
            assert await gateway.frame() == Welcome(LINK_VERSION, "stage", 3, "rev", ())
            assert not one.ready.is_set()
            next_stage.link.send(WELCOME)
            assert await gateway.frame() == OnwardChanged("next", up=True)
            await one.ready.wait()
            one.stopped.set()
            await serving
            await gateway.end()

    play(scenario())


def test_a_worker_with_two_next_stages_is_ready_once_both_are_and_keeps_each_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        addresses = {name: f"unix:{tmp_path}/{name}.sock" for name in ("one", "two")}
        async with Listener(addresses["one"]) as first, Listener(addresses["two"]) as second:
            edges = tuple(OutEdge(name, "clauses", 320, {name: address}) for name, address in addresses.items())
            one = Running(tmp_path, edges=edges)
            serving = asyncio.create_task(one.serve())
            async with greeting(first) as greeted:
                await greeted
            gateway = await one.link(HELLO)
            assert await gateway.frame() == Welcome(LINK_VERSION, "stage", 3, "rev", ("one",))
            assert not one.ready.is_set()
            async with greeting(second) as greeted:
                other = await greeted
            assert await gateway.frame() == OnwardChanged("two", up=True)
            await one.ready.wait()
            await other.abort()
            assert await gateway.frame() == OnwardChanged("two", up=False)
            async with greeting(second) as greeted:
                await greeted
            assert await gateway.frame() == OnwardChanged("two", up=True)
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
        one = Running(tmp_path, onward="tcp:next", onward_window=4)
        with pytest.raises(LinkError, match="tcp:next"):
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
            await one.gateway()
            one.plan(ThreadStep(work=wait))
            one.media.link.send(Feed(TAG, Clause(0, "")))
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
            await one.gateway()
            one.plan(ThreadStep(work=hang))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            await asyncio.to_thread(started.wait, WAIT_S_MAX)
        assert one.worker.hangs
        released.set()

    play(scenario())
