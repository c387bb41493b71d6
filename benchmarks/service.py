"""A service of its own for a measurement: real processes, a free port, a data folder that goes with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

START_S_MAX = 120
STOP_S_MAX = 30


@dataclass(frozen=True, slots=True)
class Service:
    """`pids` by child name, as the supervisor started them; `log` is what it and its children wrote."""

    url: str
    pid: int
    log: Path
    data_dir: Path

    def children(self) -> dict[str, int]:
        """Process ids of the service's direct children by what they are."""
        found = {}
        tasks = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        for pid in map(int, tasks.read_text(encoding="ascii").split()):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found[_name_of(arguments)] = pid
        return found

    def kill(self, child: str) -> None:
        """SIGKILL a child by its name."""
        os.kill(self.children()[child], signal.SIGKILL)


def _name_of(arguments: list[bytes]) -> str:
    words = [argument.decode() for argument in arguments]
    if "stages.worker" in words:
        return words[words.index("stages.worker") + 1].partition('"replica":"')[2].partition('"')[0]
    return "gateway" if "duplex.gateway_process" in words else "store"


@asynccontextmanager
async def running_service(engine: str = "local", **settings: str) -> AsyncIterator[Service]:
    """Start the service with `DUPLEX_*` settings, and end it with Ctrl-C's signal. Raises RuntimeError."""
    data_dir = Path(tempfile.mkdtemp(prefix="duplex-"))
    log = data_dir / "log"
    environment = os.environ | {f"DUPLEX_{name.upper()}": value for name, value in settings.items()}
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "duplex.cli", "serve", "--engine", engine, "--port", "0", "--data-dir", str(data_dir)),
            stderr=asyncio.subprocess.PIPE,
            stdout=sink,
            env=environment,
        )
        assert process.stderr is not None, "standard error is a pipe"
        copying: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(START_S_MAX):
                url = await _url_of(process.stderr, log)
            copying = asyncio.create_task(_copy(process.stderr, log))
            yield Service(url, process.pid, log, data_dir)
        finally:
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
            if copying is not None:
                await copying
            shutil.rmtree(data_dir)


async def _url_of(stream: asyncio.StreamReader, log: Path) -> str:
    with log.open("ab") as sink:
        while line := await stream.readline():
            sink.write(line)
            if line.startswith(b"Ready: "):
                return line.decode().partition(" ")[2].strip()
    raise RuntimeError(f"the service did not start; what it said is in {log}")


async def _copy(stream: asyncio.StreamReader, log: Path) -> None:
    with log.open("ab") as sink:
        while line := await stream.readline():
            sink.write(line)
            sink.flush()
