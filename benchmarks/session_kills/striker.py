"""Kills what the plan names, and waits until all are there again: the next kill hits a service that is whole.

Rules
* Just before a kill the store is read behind the service's back: what it has then, it has acknowledged.
* After the store's end nothing is killed until no call waits for it: what is not stored yet is not promised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

from redis import Redis

from benchmarks.session_kills.caller import Conversing
from benchmarks.session_kills.plan import Kill, ServicePlan
from sessions.records import Compacted, ItemAppended, decode_entry
from sessions.redis_store import session_keys
from tests.live.service import EVENT_S_MAX, Reached, Service

POLL_S = 0.1  # whoever asks at once again takes the processor from those who start


class NotMendedError(Exception):
    """The service was not whole again in time."""


class Striker:
    """Of one service and its conversations. `checkpoints`: by session, the items that the store had at any kill."""

    def __init__(self, service: Service, plan: ServicePlan, calls: Sequence[Conversing]) -> None:
        self._service = service
        self.gateways = plan.gateways
        self._gateways = [f"gateway-{n + 1}" for n in range(plan.gateways)] if plan.gateways > 1 else ["gateway"]
        self._calls = calls
        self.checkpoints: dict[str, set[str]] = {call.session: set() for call in calls}

    def strike(self, kill: Kill) -> None:
        """Raises `NotMendedError`."""
        threading.Event().wait(kill.after_ms / 1_000)
        self._read_store()
        since = len(self._service.lines)
        part = self._gateways[kill.gateway - 1] if kill.victim == "gateway" else kill.victim
        self._service.kill(part)
        if part == "store":
            self._service.wait_for_event("store_restarted", since=since)
        else:
            self._service.wait_for_event("child_restarted", since=since, child=part)
        self._wait_until_whole()

    def _wait_until_whole(self) -> None:
        doors = [self._service.alone(name) for name in self._gateways] if len(self._gateways) > 1 else [self._service]
        deadline_s = time.monotonic() + EVENT_S_MAX
        while not all(map(_is_whole, doors)):
            threading.Event().wait(POLL_S)
            if time.monotonic() > deadline_s:
                raise NotMendedError(str([door.get("/readyz") for door in doors]))

    def _read_store(self) -> None:
        with Redis(unix_socket_path=str(self._service.data_dir / "store" / "valkey.sock")) as store:
            for session, items in self.checkpoints.items():
                entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", store.xrange(session_keys(session)[1]))
                for _, fields in entries:
                    items.update(_items_of(fields))


def _is_whole(door: Reached) -> bool:
    try:
        return door.get("/readyz").status == 200 and door.metric("duplex_calls_unstored") == 0
    except OSError:
        return False  # it has no socket yet


def _items_of(fields: dict[bytes, bytes]) -> list[str]:
    """Of one entry of a log; a claim has none."""
    entry = decode_entry(fields[b"entry"]) if b"entry" in fields else None
    match entry:
        case ItemAppended(item):
            return [item.id]
        case Compacted(items):
            return [item.id for item in items]
        case _:
            return []
