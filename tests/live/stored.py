"""What the service's store has of a call, read behind the service's back."""

from __future__ import annotations

import time
from typing import cast

from redis import Redis

from sessions.redis_store import session_keys
from tests.live.caller import Caller
from tests.live.service import EVENT_S_MAX, Service

# Entries that name an item which is not written yet.
UNDER_WAY = (b"ReplySpeaking", b"ReplyHeard")


def wait_until_written(service: Service, caller: Caller) -> None:
    """Ask the store until it has every item that the caller was told of, and not only what is said in it: they are
    written behind its back."""
    items = {e["item"]["id"].encode() for e in caller.of_type("conversation.item.done")}
    _, log = session_keys(caller.session)
    deadline_s = time.monotonic() + EVENT_S_MAX
    with Redis(unix_socket_path=str(service.data_dir / "store" / "valkey.sock")) as store:
        while not all(any(item in entry for entry in _entries(store, log)) for item in items):
            assert time.monotonic() < deadline_s, "an item was not written"


def _entries(store: Redis, log: str) -> list[bytes]:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", store.xrange(log))
    written = [b"".join(fields.values()) for _, fields in entries]
    return [entry for entry in written if not any(mark in entry for mark in UNDER_WAY)]
