"""The gateway's end of the supervisor's probe link: pings are answered, reports of the pipeline's processes taken.

A ping is answered by the very loop that serves the calls, so an answer says that calls are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from stages.edges import GATEWAY
from stages.link import Link, listen
from stages.messages import LINK_VERSION, Frame, Hello, Ping, Pong, ReplicaReport, Retire, Welcome

_log = structlog.get_logger("duplex.probe_server")


class ProbeServer:
    """`on_report` is called for each report, `on_retire` when this process is to leave its calls to another one."""

    def __init__(
        self, on_report: Callable[[ReplicaReport], None], on_retire: Callable[[], None] = lambda: None
    ) -> None:
        self._on_report = on_report
        self._on_retire = on_retire
        self._links: set[Link] = set()

    async def listen(self, address: str) -> asyncio.Server:
        """Answer whoever connects to `address`. Raises `LinkError` where that cannot be."""
        return await listen(address, self._accepted)

    def close(self) -> None:
        """Drop the links."""
        for link in list(self._links):
            link.abort()

    def _accepted(self) -> Link:
        return Link(self._frame, self._links.discard)

    def _frame(self, link: Link, frame: Frame) -> None:
        match frame:
            case Hello(role="probe"):
                self._links.add(link)
                link.send(Welcome(LINK_VERSION, GATEWAY, 0, "", ()))  # its life is counted by who keeps it
            case Ping(sequence) if link in self._links:
                link.send(Pong(sequence, 0))
            case ReplicaReport() if link in self._links:
                self._on_report(frame)
            case Retire() if link in self._links:
                self._on_retire()
            case _:
                _log.error("link_refused", frame=type(frame).__name__)
                link.close()
