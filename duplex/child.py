"""One process of the service, kept alive: started, watched, ended, started again.

Theory of operation
    `stages.replica` decides what becomes of a process that dies, `stages.liveness` whether one hangs; this starts,
    kills and waits. A child says `ready` on its standard output. Its standard input is a pipe that we hold: a child
    whose input ends stops by itself.

Rules
* A child that hangs is killed, and has ended before its successor starts: there are never two of them.
* A start that fails leaves no process behind.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from duplex.tasks import stop_task
from duplex.watchdog import Watchdog
from stages.link import LinkError
from stages.liveness import Liveness
from stages.messages import Frame, Retire
from stages.replica import Quarantine, Replica, ReplicaState, ReplicaStatistics

READY_S_MAX = 120  # the first start splits the voice in two and may run beside other work
STOP_S_MAX = 10
RETIRE_S_MAX = 60  # a long reply; what still runs then is cut short
OUTPUT_BYTES_MAX = 1 << 16

_log = structlog.get_logger("duplex.child")


class StartError(RuntimeError):
    """A part did not come up; the text names it and says what it said."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How a child is started, and when it hangs. `arguments` are made anew for each incarnation.

    `address`: where it answers pings. `step_ns_max` 0: it runs no steps. `stage`: what it is a replica of. `files`: our
    descriptors that it gets under the same numbers.
    """

    name: str
    stage: str
    arguments: Callable[[int], Sequence[str]]
    environment: dict[str, str]
    address: str
    silence_ns_max: int
    step_ns_max: int = 0
    files: Callable[[], Sequence[int]] = tuple


class Child:
    """`on_change` is called whenever its state has changed, `on_linked` when its probe link is made."""

    def __init__(
        self,
        plan: ChildPlan,
        on_change: Callable[[], None] = lambda: None,
        on_linked: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self._on_change = on_change
        self._on_linked = on_linked
        self._replica = Replica()
        self._process: asyncio.subprocess.Process | None = None
        self._watchdog: Watchdog | None = None
        self._up = asyncio.Event()
        self.ready_line = ""

    @property
    def pid(self) -> int:
        """The running process, 0 where there is none."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    def statistics(self) -> ReplicaStatistics:
        return self._replica.statistics()

    def send(self, frame: Frame) -> None:
        """Send `frame` on the probe link, where there is one."""
        if self._watchdog is not None:
            self._watchdog.send(frame)

    # ---- start -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start and wait until it is ready; raises `StartError`."""
        self._process = None
        incarnation = self._replica.start(time.monotonic_ns())
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.plan.arguments(incarnation),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self.plan.environment,
            pass_fds=self.plan.files(),
            start_new_session=True,
        )
        self.ready_line = await self._until_ready(self._process)
        self._replica.ready()
        self._up.set()
        self._on_change()

    async def _until_ready(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None, "standard output is a pipe"
        try:
            async with asyncio.timeout(READY_S_MAX):
                line = await _ready_line(process.stdout)
        except TimeoutError as error:
            self._replica.hang()
            self._on_change()
            process.kill()
            await process.wait()
            raise StartError(f"{self.plan.name} was not ready after {READY_S_MAX} s") from error
        if not line:
            code = await process.wait()
            raise StartError(f"{self.plan.name} ended with status {code}; its message stands above")
        return line

    # ---- life ------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Start it again whenever it dies, until cancelled."""
        while True:
            status = await self._until_dead()
            was_retiring = self._replica.state is ReplicaState.RETIRING
            answer = self._replica.died(time.monotonic_ns())
            self._up.clear()
            self._on_change()
            if was_retiring:
                _log.info("child_retired", child=self.plan.name, status=status)
            else:
                _log.error("child_died", child=self.plan.name, status=status, deaths=self.statistics().deaths)
            if isinstance(answer, Quarantine):
                _log.error("child_quarantined", child=self.plan.name, probe_s=answer.probe_after_ns // 10**9)
                await asyncio.sleep(answer.probe_after_ns / 1e9)
            else:
                await asyncio.sleep(answer.after_ns / 1e9)
            try:
                await self.start()
            except (StartError, OSError) as error:
                _log.error("child_not_restarted", child=self.plan.name, error=str(error))
            else:
                incarnation = self._replica.incarnation
                _log.info("child_restarted", child=self.plan.name, incarnation=incarnation, pid=self.pid)

    async def _until_dead(self) -> int | None:
        """The exit status; None where it could not even be started."""
        process = self._process
        if process is None:
            return None
        watching = asyncio.create_task(self._kill_when_hung(process))
        try:
            return await _end_of(process)
        finally:
            await stop_task(watching)

    async def _kill_when_hung(self, process: asyncio.subprocess.Process) -> None:
        plan = self.plan
        self._watchdog = Watchdog(plan.address, Liveness(plan.silence_ns_max, plan.step_ns_max), self._on_linked)
        try:
            hung = await self._watchdog.until_hung()
        except LinkError as error:
            _log.error("child_not_watched", child=plan.name, error=str(error))
            return
        finally:
            self._watchdog = None
        if process.returncode is None:
            _log.error("child_hangs", child=plan.name, why=hung.why, pid=process.pid)
            self._replica.hang()
            self._on_change()
            process.kill()

    # ---- end -------------------------------------------------------------------------------------

    async def replace(self) -> None:
        """Let it finish what it has, and come back when another one has taken its place.

        It must be kept by `keep`. What still runs after `RETIRE_S_MAX` is cut short.
        """
        process = self._process
        if process is None or self._replica.state is not ReplicaState.UP:
            return
        self._replica.retire()
        self._up.clear()
        self._on_change()
        self.send(Retire())
        try:
            async with asyncio.timeout(RETIRE_S_MAX):
                await process.wait()
        except TimeoutError:
            _log.error("child_killed", child=self.plan.name)
            process.kill()
        await self._up.wait()

    async def stop(self) -> None:
        """Let go of its standard input; kill it where it does not end by that."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None, "standard input is a pipe"
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            _log.error("child_killed", child=self.plan.name)
            process.kill()
            await process.wait()


async def _ready_line(output: asyncio.StreamReader) -> str:
    """The line that says `ready`, whatever a library may have written before it; empty where the output ends first."""
    async for line in output:
        if line.startswith(b"ready"):
            return line.decode().strip()
    return ""


async def _end_of(process: asyncio.subprocess.Process) -> int:
    """The exit status. Until then its output is read and thrown away, so that it never blocks on a full pipe."""
    assert process.stdout is not None, "standard output is a pipe"
    discarding = asyncio.create_task(_discard(process.stdout))
    try:
        return await process.wait()
    finally:
        discarding.cancel()


async def _discard(output: asyncio.StreamReader) -> None:
    while await output.read(OUTPUT_BYTES_MAX):
        pass
