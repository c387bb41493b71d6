"""Servers are started once per run; each test uses sessions of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sessions.store_backends import Backend, debian_server, embedded_server, memory_backend, server_backend

SERVERS = [
    pytest.param("valkey_url", id="valkey", marks=pytest.mark.live),
    pytest.param("redis_url", id="redis", marks=pytest.mark.live),
]


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_server(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture(scope="session")
def other_valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a second server, to which one fails over."""
    with embedded_server(tmp_path_factory.mktemp("other")) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with debian_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["memory", *SERVERS])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each store that keeps the contract."""
    if request.param == "memory":
        return memory_backend()
    return server_backend(request.getfixturevalue(request.param))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Backend:
    """Each store that is a real server."""
    return server_backend(request.getfixturevalue(request.param))
