"""The embedded store: a real Valkey in the data directory, for a service that was given no other.

Theory of operation
    `EmbeddedValkey` starts a keeper (`valkey_keeper`), which starts Valkey and stops it again when its standard
    input ends: on `stop()`, and just as well when this process is killed. Should the keeper itself be killed, Valkey
    goes on serving, `running` turns false, and the next `start()` shuts it down before it starts another.

Rules
* `start()` and `stop()` block (about 0.2 s); call them from a thread where an event loop runs.
* The socket can be reached by this user only. There is no TCP port.
* A restart loses nothing that was acknowledged (`process-crash-safe`); with `power-loss-safe`, each write
  is on the disk before it is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from sessions.durability import APPENDFSYNC, Durability
from sessions.valkey_keeper import SOCKET_NAME, START_S_MAX, STOP_S_MAX, end_leftover

# One session's log is at most 4 MiB and nearly always under 100 KiB: thousands of sessions.
MEMORY_MB_MAX = 512

# A service that was killed needs a moment until its keeper has stopped Valkey and given the lock up.
LOCK_WAIT_MS = 2000

# sockaddr_un.sun_path holds 108 bytes on Linux, with the closing NUL (unix(7)).
SOCKET_PATH_BYTES_MAX = 107

_KEEPER = Path(__file__).with_name("valkey_keeper.py")
# Interpreter and imports, a leftover that may have to be ended the hard way, and Valkey's own start.
_KEEPER_START_S_MAX = START_S_MAX + 2 * STOP_S_MAX + 10
# The keeper gives Valkey STOP_S_MAX before it kills it.
_KEEPER_STOP_S_MAX = 2 * STOP_S_MAX
_REPORT_BYTES_MAX = 64 * 1024


class EmbeddedStoreError(Exception):
    """The embedded store cannot run. The operator must act."""


class DataDirUnusable(EmbeddedStoreError):
    """The path cannot serve: too long for a socket, or characters that Valkey's configuration does not take."""


class DataDirInUse(EmbeddedStoreError):
    """Another service runs on this data directory."""


class EmbeddedStartFailed(EmbeddedStoreError):
    """Valkey did not come up; the text holds what it logged."""


class EmbeddedValkey:
    """Valkey on a Unix socket in `data_dir`, which is made if need be. A context manager that starts and stops it.

    Raises `DataDirUnusable`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        durability: Durability = "process-crash-safe",
        memory_mb_max: int = MEMORY_MB_MAX,
        lock_wait_ms: int = LOCK_WAIT_MS,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.socket_path = self.data_dir / SOCKET_NAME
        _check_path(self.socket_path)
        self._arguments = (APPENDFSYNC[durability], str(memory_mb_max), str(lock_wait_ms))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._server_pid = 0

    @property
    def url(self) -> str:
        """For `RedisSessionStore`."""
        return f"unix://{self.socket_path}"

    @property
    def running(self) -> bool:
        """Whether the keeper lives, and with it, as far as it knows, Valkey."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def server_pid(self) -> int:
        """The process id of Valkey itself, 0 before the first start."""
        return self._server_pid

    @property
    def keeper_pid(self) -> int:
        """The process id of the keeper, 0 if there is none."""
        return self._keeper.pid if self._keeper else 0

    def kill(self) -> None:
        """For a server that hangs: end it at once. Its keeper ends with it, and all that it acknowledged is kept."""
        if self.running:
            os.kill(self._server_pid, signal.SIGKILL)  # its keeper has yet to reap it: the id is still its own

    def start(self) -> None:
        """Return when Valkey answers. Raises `DataDirInUse` or `EmbeddedStartFailed`."""
        if self._keeper is not None:
            raise EmbeddedStartFailed("started already; stop it first")
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(
            [sys.executable, "-P", str(_KEEPER), str(self.data_dir), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._server_pid = self._read_report(self._keeper)
        except EmbeddedStoreError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop Valkey in good order and wait until it is gone. Does nothing if it was not started."""
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        try:
            keeper.communicate(timeout=_KEEPER_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.communicate()
        if keeper.returncode < 0:
            # By now the directory may serve another, whose server is not ours to stop.
            end_leftover(self.socket_path, only_pid=self._server_pid)

    def restart(self) -> None:
        """Stop what is left of it, and start it again. Raises as `start` does."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _read_report(self, keeper: subprocess.Popen[bytes]) -> int:
        assert keeper.stdout is not None
        if not select.select([keeper.stdout], [], [], _KEEPER_START_S_MAX)[0]:
            raise EmbeddedStartFailed(f"no word from its keeper within {_KEEPER_START_S_MAX} s")
        line = keeper.stdout.readline(_REPORT_BYTES_MAX)
        if not line:
            raise EmbeddedStartFailed("its keeper died")
        report = json.loads(line)
        match report.get("error"):
            case None:
                return int(report["pid"])
            case "in_use":
                raise DataDirInUse(f"{self.data_dir} is in use by {report['detail']}")
            case _:
                raise EmbeddedStartFailed(report["detail"])


def _check_path(path: Path) -> None:
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise DataDirUnusable(
            f"{path} has {size} bytes, more than the {SOCKET_PATH_BYTES_MAX} that the path of a Unix socket may have: "
            "use a shorter data directory"
        )
    if any(character.isspace() or character in "\"'" for character in str(path)):
        raise DataDirUnusable(f"{path}: Valkey's configuration takes no blanks or quotes in a path")
