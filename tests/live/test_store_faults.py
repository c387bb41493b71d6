"""The store of the real service stands still or is full: calls go on, say so, and end when that lasts too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from redis import Redis

from tests.live.caller import Caller, calling
from tests.live.service import EVENT_S_MAX, Service, serving
from tests.live.stored import wait_until_written
from tests.live.test_resume import converse, resume, texts

pytestmark = [pytest.mark.live, pytest.mark.slow]

SUSPENDED, RESTORED = "session.durability.suspended", "session.durability.restored"
SETTINGS = {"scripted_replies": "Yes indeed, my friend.", "worker_silence_s": "60"}  # nobody kills a store that stops


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("patient"), SETTINGS | {"store_outage_s": "60"}) as running:
        yield running


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("brief"), SETTINGS | {"store_outage_s": "1"}) as running:
        yield running


def store_socket(service: Service) -> Path:
    return service.data_dir / "store" / "valkey.sock"


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    with service.stopped("store"):
        yield


@contextmanager
def full(service: Service) -> Iterator[None]:
    with Redis(unix_socket_path=str(store_socket(service))) as store:
        room = cast("dict[str, str]", store.config_get("maxmemory"))["maxmemory"]
        store.config_set("maxmemory", 1)
        try:
            yield
        finally:
            store.config_set("maxmemory", room)


FAULTS = [
    pytest.param(stopped, "the store does not answer", "store_unavailable", id="stopped"),
    pytest.param(full, "the store is full", "store_full", id="full"),
]


def wait_for_readiness(service: Service, status: int, reason: str | None) -> None:
    deadline_s = time.monotonic() + EVENT_S_MAX
    while ((answer := service.get("/readyz")).status, answer.json.get("reason")) != (status, reason):
        assert time.monotonic() < deadline_s, answer


def say(caller: Caller, text: str, item: str) -> None:
    caller.type_text(text, id=item)
    caller.send("response.create", response={"output_modalities": ["text"]})
    assert caller.until("response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize(("fault", "reason", "_code"), FAULTS)
def test_a_call_goes_on_and_nothing_of_it_is_lost(patient: Service, fault: type, reason: str, _code: str) -> None:
    with calling(patient) as caller:
        token = converse(caller)
        with fault(patient):
            say(caller, "And swans.", "item_swans")
            caller.find(lambda event: event["type"] == SUSPENDED)
            say(caller, "And geese.", "item_geese")
            wait_for_readiness(patient, 503, reason)
            assert patient.metric("duplex_calls_unstored") == 1
        caller.until(RESTORED)
        wait_until_written(patient, caller)
        wait_for_readiness(patient, 200, None)
        assert patient.metric("duplex_calls_unstored") == 0
        assert [len(caller.of_type(kind)) for kind in (SUSPENDED, RESTORED)] == [1, 1]
    with calling(patient) as caller:
        items = texts(resume(caller, token)["items"])
    asked = [text for role, text in items if role == "user"]
    assert (asked, len(items)) == (["Remember herons.", "And swans.", "And geese."], 6)


@pytest.mark.parametrize(("fault", "_reason", "code"), FAULTS)
def test_an_outage_that_lasts_ends_the_call_with_its_reason(
    brief: Service, fault: type, _reason: str, code: str
) -> None:
    with calling(brief) as caller:
        token = converse(caller)
        wait_until_written(brief, caller)
        with fault(brief):
            caller.type_text("And swans.", id="item_swans")
            assert caller.until_closed() == (1013, code)
            assert (SUSPENDED in caller.types(), RESTORED in caller.types()) == (True, False)
        wait_for_readiness(brief, 200, None)
    with calling(brief) as caller:
        items = texts(resume(caller, token)["items"])
    assert items[0] == ("user", "Remember herons.")
