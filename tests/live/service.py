"""The whole service as real processes, for tests: started, observed from outside, and stopped with nothing left.

Theory of operation
    `Service` runs `python -m duplex.cli serve` on a free port and a data directory of its own, with the scripted engine
    unless told otherwise.
    A thread collects what it writes to standard error; every wait is for a line of it, or for the end of a process.
    Before the service is stopped, its processes are entered as descriptors; afterwards each must have ended.

Rules
* Only processes that this service started are signalled, by the ids that the kernel names as its descendants.
* Nothing sleeps: waits are for events and have a limit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

START_S_MAX = 40.0
EVENT_S_MAX = 20.0
STOP_S_MAX = 25.0
HTTP_S_MAX = 5.0
ROOT = Path(__file__).parents[2]
_MARKS = {"gateway": "duplex.gateway_process", "store": "valkey-server"}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with no configuration of the service but `settings` (names without `DUPLEX_`)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUPLEX_")}
    return kept | {f"DUPLEX_{name.upper()}": value for name, value in settings.items()}


class Reached(ABC):
    """What answers HTTP at `address`, `host:port`."""

    @property
    @abstractmethod
    def address(self) -> str: ...

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, None, headers)

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        request = urllib.request.Request(
            f"http://{self.address}{path}", data=body, headers=dict(headers), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:
                return Answer(answer.status, _lower(answer.headers.items()), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers.items()), error.read())

    def metrics(self) -> dict[str, float]:
        """The samples of `/metrics`, named with their labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def metric(self, name: str) -> float:
        """The value of one sample of `/metrics`, named with its labels; 0 where there is none."""
        return self.metrics().get(name, 0.0)

    def wait_for_metrics(self, wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Ask until they are as `wanted`."""
        deadline_s = time.monotonic() + EVENT_S_MAX
        while not wanted(found := self.metrics()):
            assert time.monotonic() < deadline_s, {name: value for name, value in found.items() if value}
        return found

    def wait_for_calls(self, count: int) -> None:
        """Ask until so many places are taken: a place is given back without a word, a moment after its call's end."""
        deadline_s = time.monotonic() + EVENT_S_MAX
        while self.get("/readyz").json.get("calls") != count:
            assert time.monotonic() < deadline_s, "a place was not given back"


class ReachedAt(Reached):
    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def address(self) -> str:
        return self._address


class Service(Reached):
    """`settings` are configuration by environment, `secrets` other variables of it; `port` 0 takes any free one."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str],
        *,
        port: int = 0,
        engine: str = "scripted",
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data_dir = data_dir
        self.lines: list[str] = []
        self._line_ns: list[int] = []
        self._changed = threading.Condition()
        self._ended = False
        command = [
            "-m",
            "duplex.cli",
            "serve",
            "--engine",
            engine,
            "--port",
            str(port),
            "--data-dir",
            str(data_dir),
        ]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=clean_environment(settings) | dict(secrets),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._line_ns.append(time.monotonic_ns())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # ---- what it says ------------------------------------------------------------------------------

    def wait_for_line(self, wanted: Callable[[str], bool], *, since: int = 0, s_max: float = EVENT_S_MAX) -> str:
        """The first line from number `since` on that is `wanted`; fails where the output ends or time runs out."""

        def found() -> str | None:
            return next((line for line in self.lines[since:] if wanted(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, timeout=s_max)
            line = found()
        assert line is not None, "the service did not say it:\n" + "\n".join(self.lines[-40:])
        return line

    def wait_for_event(self, event: str, *, since: int = 0, **fields: str) -> dict[str, Any]:
        """The first log record named `event` with these fields, from line `since` on."""

        def wanted(line: str) -> bool:
            record = _record(line)
            return record.get("event") == event and all(record.get(name) == value for name, value in fields.items())

        return _record(self.wait_for_line(wanted, since=since))

    def said_ns(self, event: str, *, since: int = 0, **fields: str) -> int:
        """When the first such record was read; it must have come."""
        records = enumerate(map(_record, self.lines[since:]), since)
        return next(
            self._line_ns[at]
            for at, record in records
            if record.get("event") == event and all(record.get(name) == value for name, value in fields.items())
        )

    def wait_until_ready(self) -> None:
        self.wait_for_line(lambda line: line.startswith("Ready:"), s_max=START_S_MAX)

    @property
    def address(self) -> str:
        """`host:port`."""
        ready = next(line for line in self.lines if line.startswith("Ready:"))
        return ready.partition("http://")[2].strip()

    def alone(self, gateway: str) -> Reached:
        """One gateway of several, at its own address."""
        said = self.wait_for_line(lambda line: line.startswith(f"{gateway} alone:"))
        return ReachedAt(said.partition("http://")[2].strip())

    # ---- its processes -----------------------------------------------------------------------------

    def pid_of(self, part: str) -> int:
        """The process of `gateway`, of `store` or of a replica."""
        mark = _MARKS.get(part, f'"replica":"{part}"')
        pids = [pid for pid in descendants(self.process.pid) if mark in _command_line(pid)]
        assert len(pids) == 1, f"{part} runs {len(pids)} times"
        return pids[0]

    def processes(self) -> dict[int, str]:
        """All that run now, the supervisor among them, with the beginning of their command lines."""
        return {pid: _command_line(pid)[:80] for pid in [self.process.pid, *descendants(self.process.pid)]}

    def kill(self, part: str) -> None:
        """SIGKILL, and wait until the process is gone."""
        pid = self.pid_of(part)
        with open_processes([pid]) as processes:
            os.kill(pid, signal.SIGKILL)
            wait_for_ends(processes)

    @contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """Meanwhile `part` gets no processor. It goes on afterwards, if it has not been killed."""
        with open_processes([self.pid_of(part)]) as (process,):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            try:
                yield
            finally:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGCONT)

    # ---- its end -----------------------------------------------------------------------------------

    def wait(self) -> int:
        """The exit status, once it has ended and all was read."""
        status = self.process.wait(STOP_S_MAX)
        self._reader.join(STOP_S_MAX)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def stop(self, *, times: int = 1) -> None:
        """Interrupt it `times` times; it must end in good order and leave nothing behind."""
        pids = descendants(self.process.pid)
        shared = shared_memory_of([self.process.pid, *pids])
        with open_processes(pids) as processes:
            for _ in range(times):
                self.process.send_signal(signal.SIGINT)
            status = self.wait()
            wait_for_ends(processes)
        assert status == 0, "\n".join(self.lines[-40:])
        assert sockets_in(self.data_dir) == []
        assert shared & shared_memory_of(_all_processes()) == set(), "its shared memory is still mapped"
        assert [name for name, _ in shared if Path(name).exists()] == []

    def abandon(self) -> None:
        """For a test that failed: end what is left, children by the end of their input."""
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


def sockets_in(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.rglob("*.sock"))


@contextmanager
def serving(
    data_dir: Path,
    settings: Mapping[str, str],
    *,
    port: int = 0,
    engine: str = "scripted",
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Service]:
    """A ready service; stopped, and checked for leftovers, on leaving."""
    service = Service(data_dir, settings, port=port, engine=engine, secrets=secrets)
    try:
        service.wait_until_ready()
        yield service
        if service.process.returncode is None:
            service.stop()
    finally:
        service.abandon()


def _record(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    record: dict[str, Any] = json.loads(line)
    return record


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> list[int]:
    """Children of `pid`, their children, and so on, as the kernel knows them now."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [int(child) for thread in Path(f"/proc/{parent}/task").glob("*") for child in _children_of(thread)]
        found += children
        waiting += children
    return found


def _children_of(thread: Path) -> list[str]:
    """A process belongs to the thread that started it."""
    try:
        return (thread / "children").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _all_processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def shared_memory_of(pids: Iterable[int]) -> set[tuple[str, str]]:
    """What any of the processes has mapped of /dev/shm and of files without a name: name and inode."""
    found: set[tuple[str, str]] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        lines = (line.split(maxsplit=5) for line in maps.splitlines() if "/dev/shm/" in line or "/memfd:" in line)
        found |= {(line[5], line[4]) for line in lines}
    return found


@contextmanager
def open_processes(pids: list[int]) -> Iterator[list[int]]:
    """Descriptors of processes, which become readable when those end; an id that is used again is no matter."""
    processes = []
    for pid in pids:
        try:
            processes.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    try:
        yield processes
    finally:
        for process in processes:
            os.close(process)


def wait_for_ends(processes: list[int]) -> None:
    for process in processes:
        assert select.select([process], [], [], EVENT_S_MAX)[0], "a process is still running"
