"""What is done to a part of the service, and how one sees that it is mended."""

from __future__ import annotations

import signal
import time
from enum import Enum

from tests.live.service import Service, open_processes

PARTS = ("gateway", "encoder", "thinker", "talker", "vocoder", "store")


class Blow(Enum):
    KILL = "kill"
    STOP = "stop"


class Strike:
    """`part` is hit now. What has been said of it stands in the log from line `since` on."""

    def __init__(self, service: Service, part: str, blow: Blow) -> None:
        self.part = part
        self._service = service
        self._since = len(service.lines)
        with open_processes([service.pid_of(part)]) as (process,):
            self._ns = time.monotonic_ns()
            signal.pidfd_send_signal(process, signal.SIGKILL if blow is Blow.KILL else signal.SIGSTOP)

    def wait_for_successor(self) -> int:
        """Until another process has taken its place; how long that took, in ms."""
        event, fields = ("store_restarted", {}) if self.part == "store" else ("child_restarted", {"child": self.part})
        self._service.wait_for_event(event, since=self._since, **fields)
        return self._ms_until(self._service.said_ns(event, since=self._since, **fields))

    def ms_ago(self) -> int:
        return self._ms_until(time.monotonic_ns())

    def _ms_until(self, ns: int) -> int:
        return (ns - self._ns) // 1_000_000
