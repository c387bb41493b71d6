"""Processes that are started, watched, mended, replaced and ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duplex import child as child_module
from duplex.child import Child, ChildPlan, StartError
from duplex.tasks import stop_task
from stages import replica
from stages.replica import ReplicaState, ReplicaStatistics
from tests.live.service import open_processes, wait_for_ends

S_MAX = 20

READY = "import sys; print('ready 1', flush=True); sys.stdin.read()"
CHATTY = "import sys; print('hello'); print('ready', flush=True); sys.stdin.read()"
FLOODING = "import sys; print('ready'); sys.stdout.write('x' * (1 << 20)); sys.stdout.flush(); sys.exit(5)"
DYING = "import sys; sys.exit(3)"
SILENT = "import sys; print('hello', flush=True); sys.stdin.read()"
STUBBORN = "import signal, time; print('ready', flush=True); signal.pause()"
# Answers pings, with steps of the age that the second placeholder says (ns); ends when it is asked to retire.
ANSWERING = """
import asyncio, sys
from stages.link import Link, listen
from stages.messages import LINK_VERSION, Hello, Ping, Pong, Retire, Welcome

async def main():
    done = asyncio.Event()
    def take(link, frame):
        if isinstance(frame, Hello):
            link.send(Welcome(LINK_VERSION, "part", 1, "", ()))
        elif isinstance(frame, Ping):
            link.send(Pong(frame.sequence, {age_ns}))
        elif isinstance(frame, Retire):
            done.set()
    await listen(sys.argv[1], lambda: Link(take, lambda _: None))
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), done.set)
    print("ready", flush=True)
    await done.wait()

asyncio.run(main())
"""
ALIVE, STUCK = ANSWERING.format(age_ns=0), ANSWERING.format(age_ns=10**12)
NOWHERE = "unix:/nowhere/part.sock"


class Watched(Child):
    """Sets `up` whenever it was started."""

    def __init__(self, plan: ChildPlan) -> None:
        super().__init__(plan, self._note, self._linked)
        self.up = asyncio.Event()
        self.linked = asyncio.Event()
        self.changed = asyncio.Event()
        self.states: list[ReplicaState] = []

    def _note(self) -> None:
        self.states.append(self.statistics().state)
        self.changed.set()

    def _linked(self) -> None:
        self.linked.set()

    async def start(self) -> None:
        await super().start()
        self.up.set()

    async def reached(self, state: ReplicaState) -> None:
        """Wait for the next time that it is in `state`; what came before is forgotten."""
        while state not in self.states:
            self.changed.clear()
            await self.changed.wait()
        del self.states[: self.states.index(state) + 1]


def child(*scripts: str, address: str = NOWHERE, silence_s: float = 60, step_ms_max: int = 0) -> Watched:
    """Runs the first of `scripts` at its first start, and so on; the last one from then on."""

    def arguments(incarnation: int) -> Sequence[str]:
        return ("-c", scripts[min(incarnation, len(scripts)) - 1], address)

    silence_ns, step_ns = int(silence_s * 1e9), step_ms_max * 1_000_000
    return Watched(ChildPlan("part", "stage", arguments, dict(os.environ), address, silence_ns, step_ns))


def play(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario

    asyncio.run(bounded())


@asynccontextmanager
async def kept(one: Watched) -> AsyncIterator[None]:
    """`one` started, and kept until the block ends."""
    await one.start()
    keeping = asyncio.create_task(one.keep())
    try:
        yield
    finally:
        await stop_task(keeping)
        await one.stop()


live = [pytest.mark.live, pytest.mark.slow]


class TestChild:
    pytestmark = live

    @pytest.mark.parametrize(("script", "line"), [(READY, "ready 1"), (CHATTY, "ready")])
    def test_it_is_started_once_it_says_so(self, script: str, line: str) -> None:
        async def scenario() -> None:
            one = child(script)
            assert one.pid == 0
            await one.start()
            assert one.ready_line == line
            assert one.pid > 0
            await one.stop()
            assert one.pid == 0
            await one.stop()  # once more harms nobody

        play(scenario())

    def test_one_that_dies_at_its_start_is_named_with_its_status(self) -> None:
        async def scenario() -> None:
            with pytest.raises(StartError, match="part ended with status 3"):
                await child(DYING).start()

        play(scenario())

    def test_one_that_is_never_ready_is_named_and_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child_module, "READY_S_MAX", 0.3)

        async def scenario() -> None:
            one = child(SILENT)
            with pytest.raises(StartError, match=r"part was not ready after 0\.3 s"):
                await one.start()
            assert one.pid == 0, "a start that fails leaves nothing behind"

        play(scenario())

    def test_one_that_does_not_end_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child_module, "STOP_S_MAX", 0.2)

        async def scenario() -> None:
            one = child(STUBBORN)
            await one.start()
            with open_processes([one.pid]) as processes:
                await one.stop()
                wait_for_ends(processes)

        play(scenario())

    def test_one_that_dies_is_started_again(self) -> None:
        async def scenario() -> None:
            one = child(READY)
            await one.start()
            keeping = asyncio.create_task(one.keep())
            first = one.pid
            one.up.clear()
            os.kill(first, signal.SIGKILL)
            await one.up.wait()
            assert one.pid not in {0, first}
            await stop_task(keeping)
            await one.stop()

        play(scenario())

    def test_one_that_cannot_be_started_again_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stages.restart.PAUSE_NS_MIN", 1_000_000)

        async def scenario() -> None:
            one = child("print('ready', flush=True)", DYING, DYING, READY)
            await one.start()
            one.up.clear()
            keeping = asyncio.create_task(one.keep())
            await one.up.wait()
            assert one.ready_line == "ready 1"
            await stop_task(keeping)
            await one.stop()

        play(scenario())

    def test_what_it_writes_never_blocks_it(self) -> None:
        async def scenario() -> None:
            one = child(FLOODING, READY)
            await one.start()
            one.up.clear()
            keeping = asyncio.create_task(one.keep())
            await one.up.wait()
            assert one.ready_line == "ready 1"
            await stop_task(keeping)
            await one.stop()

        play(scenario())

    def test_a_start_that_hangs_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child_module, "READY_S_MAX", 0.3)

        async def scenario() -> None:
            one = child("print('ready', flush=True)", SILENT, READY)
            async with kept(one):
                await one.reached(ReplicaState.HUNG)
                await one.reached(ReplicaState.UP)
                assert (one.statistics().hangs, one.statistics().incarnation) == (1, 3)

        play(scenario())

    def test_one_that_the_system_will_not_start_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stages.restart.PAUSE_NS_MIN", 1_000_000)

        async def scenario() -> None:
            one = child(READY)
            async with kept(one):
                with monkeypatch.context() as elsewhere:
                    elsewhere.setattr("sys.executable", "/nowhere/python")
                    os.kill(one.pid, signal.SIGKILL)
                    await one.reached(ReplicaState.DOWN)
                    await one.reached(ReplicaState.DOWN)
                    assert one.pid == 0
                await one.reached(ReplicaState.UP)

        play(scenario())

    def test_one_that_keeps_dying_is_left_alone_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stages.restart.PAUSE_NS_MIN", 1_000_000)
        monkeypatch.setattr(replica, "QUARANTINE_NS", 1_000_000)

        async def scenario() -> None:
            one = child(*["print('ready', flush=True)"] * replica.DEATHS_MAX, READY)
            async with kept(one):
                await one.reached(ReplicaState.QUARANTINED)
                await one.reached(ReplicaState.UP)
                assert one.statistics().deaths == replica.DEATHS_MAX

        play(scenario())


class TestHangs:
    pytestmark = live

    def test_one_that_says_nothing_is_killed_and_followed(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            one = child(READY, ALIVE, address=f"unix:{tmp_path}/part.sock", silence_s=0.4)
            async with kept(one):
                with open_processes([one.pid]) as processes:
                    await one.reached(ReplicaState.HUNG)
                    await one.linked.wait()
                    wait_for_ends(processes)
                assert one.statistics() == ReplicaStatistics(ReplicaState.UP, 2, deaths=1, hangs=1)

        play(scenario())

    def test_one_that_was_paused_is_dead_when_it_is_let_go_on(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            one = child(ALIVE, address=f"unix:{tmp_path}/part.sock", silence_s=0.4)
            async with kept(one):
                await one.linked.wait()
                with open_processes([one.pid]) as (process,):
                    os.kill(one.pid, signal.SIGSTOP)
                    await one.reached(ReplicaState.HUNG)
                    await one.reached(ReplicaState.UP)
                    with pytest.raises(ProcessLookupError):
                        signal.pidfd_send_signal(process, signal.SIGCONT)

        play(scenario())

    def test_one_whose_step_never_ends_is_killed_though_it_answers(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            one = child(STUCK, ALIVE, address=f"unix:{tmp_path}/part.sock", silence_s=0.8, step_ms_max=100)
            async with kept(one):
                await one.reached(ReplicaState.HUNG)
                await one.reached(ReplicaState.UP)

        play(scenario())

    def test_one_that_can_never_be_reached_goes_on_without_being_watched(self) -> None:
        async def scenario() -> None:
            one = child("print('ready', flush=True)", READY, address="nowhere", silence_s=0.2)
            async with kept(one):
                await one.reached(ReplicaState.DOWN)
                await one.reached(ReplicaState.UP)
                assert one.statistics().hangs == 0

        play(scenario())


class TestReplacing:
    pytestmark = live

    def test_it_ends_when_it_has_finished_and_another_follows(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            one = child(ALIVE, address=f"unix:{tmp_path}/part.sock")
            async with kept(one):
                await one.linked.wait()
                await one.replace()
                assert ReplicaState.RETIRING in one.states
                assert one.statistics() == ReplicaStatistics(ReplicaState.UP, 2, deaths=0, hangs=0)

        play(scenario())

    def test_what_does_not_finish_is_cut_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child_module, "RETIRE_S_MAX", 0.1)

        async def scenario() -> None:
            one = child(READY)
            async with kept(one):
                await one.replace()
                assert one.statistics() == ReplicaStatistics(ReplicaState.UP, 2, deaths=0, hangs=0)

        play(scenario())

    def test_one_that_is_not_up_is_left_alone(self) -> None:
        async def scenario() -> None:
            one = child(READY)
            await one.replace()
            assert one.pid == 0

        play(scenario())
