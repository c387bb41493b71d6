"""What a store promises, and what servers really say of their append-only file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.durability import Durability, Persistence, Promise, mend, promise_of, shortfall
from sessions.embedded_valkey import EmbeddedValkey
from sessions.store import SessionStore
from tests.sessions.store_backends import debian_server, memory_backend, server_backend

CRASH: Durability = "process-crash-safe"
POWER: Durability = "power-loss-safe"


@pytest.mark.parametrize(
    ("server", "promise"),
    [
        (Persistence(), None),
        (Persistence(appendonly=False, appendfsync="always"), "memory"),
        (Persistence(appendonly=True), "process-crash-safe"),
        (Persistence(appendonly=True, appendfsync="no"), "process-crash-safe"),
        (Persistence(appendonly=True, appendfsync="everysec"), "process-crash-safe"),
        (Persistence(appendonly=True, appendfsync="always"), "power-loss-safe"),
    ],
)
def test_what_can_be_relied_on(server: Persistence, promise: Promise | None) -> None:
    assert promise_of(server) == promise


@pytest.mark.parametrize(
    ("wanted", "server", "lack"),
    [
        (CRASH, Persistence(appendonly=True), None),
        (CRASH, Persistence(appendonly=True, appendfsync="always"), None),
        (CRASH, Persistence(appendonly=False), "it is memory, and process-crash-safe is asked for"),
        (CRASH, Persistence(), "it does not tell its AOF policy: whether it is process-crash-safe is not known"),
        (POWER, Persistence(appendonly=True, appendfsync="always"), None),
        (
            POWER,
            Persistence(appendonly=True, appendfsync="everysec"),
            "it is process-crash-safe, and power-loss-safe is asked for",
        ),
        (
            POWER,
            Persistence(appendonly=True),
            "it does not tell its AOF policy: whether it is power-loss-safe is not known",
        ),
    ],
)
def test_what_is_lacking_is_said(wanted: Durability, server: Persistence, lack: str | None) -> None:
    assert shortfall(wanted, server) == lack


def test_a_mend_names_the_settings() -> None:
    assert mend("process-crash-safe") == "set appendonly yes and appendfsync everysec at the server"
    assert mend("power-loss-safe").startswith("set appendonly yes and appendfsync always at the server, or ")


async def ask(store: SessionStore) -> Persistence:
    return await store.persistence()


def test_the_model_keeps_nothing() -> None:
    assert promise_of(memory_backend().run(ask)) == "memory"


@pytest.mark.slow
@pytest.mark.parametrize("durability", [CRASH, POWER])
def test_the_embedded_store_gives_what_is_asked_for(tmp_path: Path, durability: Durability) -> None:
    with EmbeddedValkey(tmp_path, durability=durability) as running:
        assert promise_of(server_backend(running.url).run(ask)) == durability


def test_a_server_as_debian_ships_it_keeps_nothing(tmp_path: Path) -> None:
    with debian_server(tmp_path) as url:
        assert server_backend(url).run(ask) == Persistence(appendonly=False, appendfsync="everysec")
