"""What operators do with sessions, through the real service: and what is left of a deleted one in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis import Redis

from sessions.records import FIRST_FENCE
from sessions.redis_store import session_keys
from stages.contracts import EPOCHS_PER_FENCE
from tests.live.caller import Caller, calling
from tests.live.rtc_caller import rtc_calling
from tests.live.service import Service, serving
from tests.live.stored import wait_until_written

pytestmark = [pytest.mark.live, pytest.mark.slow]

OPERATOR = {"Authorization": "Bearer of-an-operator"}
REPLY = "Yes indeed, my friend."
WORDS = ("herons", "egrets", "friend", "Gardener")
SETTINGS = {
    "scripted_heard": "good morning",
    "scripted_replies": REPLY,
    "instructions": "Speak like a Gardener.",
    "operator_token": "of-an-operator",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("sessions"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def other(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A second service on the first one's store."""
    settings = SETTINGS | {"redis_url": f"unix://{service.data_dir}/store/valkey.sock"}
    with serving(tmp_path_factory.mktemp("other"), settings) as running:
        yield running


def ask(service: Service, method: str, path: str) -> tuple[int, Any]:
    answer = service.send(method, path, b"" if method == "POST" else None, OPERATOR)
    return answer.status, answer.json


def converse(service: Service, caller: Caller) -> str:
    """A typed turn and its answer, all written; gives the session."""
    caller.type_text("Remember herons.")
    caller.send("response.create", response={"output_modalities": ["text"]})
    caller.until("response.drained")
    wait_until_written(service, caller)
    return caller.session


def all_sessions(service: Service, limit: int) -> dict[str, Any]:
    """Through all pages, by id."""
    found: dict[str, Any] = {}
    query = f"?limit={limit}"
    while True:
        status, page = ask(service, "GET", f"/v1/sessions{query}")
        assert status == 200
        found |= {one["id"]: one for one in page["data"]}
        if page["next"] is None:
            return found
        query = f"?limit={limit}&cursor={page['next']}"


def keys_and_values(service: Service) -> dict[bytes, bytes]:
    """Everything that the store holds, key by key."""
    with Redis(unix_socket_path=str(service.data_dir / "store" / "valkey.sock")) as store:
        return {key: _value(store, key) for key in store.scan_iter()}


def _value(store: Redis, key: bytes) -> bytes:
    kind = cast("bytes", store.type(key))
    assert kind in (b"hash", b"stream"), "nothing else is kept there"
    return repr(store.hgetall(key) if kind == b"hash" else store.xrange(key)).encode()


def assert_nothing_is_left(service: Service, session: str) -> None:
    for key, value in keys_and_values(service).items():
        assert session.encode() not in key
        assert session.encode() not in value


def test_a_session_is_listed_shown_ended_and_kept(service: Service) -> None:
    with calling(service) as caller:
        session = converse(service, caller)
        listed = all_sessions(service, 1)[session]
        here = ask(service, "GET", "/v1/sessions?here=1")[1]["data"]
        status, shown = ask(service, "GET", f"/v1/sessions/{session}")
        ended = ask(service, "POST", f"/v1/sessions/{session}/end")
        closed = caller.until_closed()
    assert (listed["state"], listed["here"], listed["tenant"]) == ("running", True, "default")
    assert [one["id"] for one in here] == [session]
    assert (status, shown["contents"]["turns"]) == (200, 1)
    assert shown["contents"]["epoch"] >= FIRST_FENCE * EPOCHS_PER_FENCE
    assert [item["role"] for item in shown["contents"]["items"]] == ["user", "assistant"]
    assert [word for word in WORDS if word in str(shown)] == []
    assert closed == (4002, "ended_by_operator")
    assert (ended[0], ended[1]["state"]) == (200, "stored")
    assert ask(service, "GET", f"/v1/sessions/{session}")[1]["state"] == "stored"
    assert ask(service, "POST", f"/v1/sessions/{session}/end")[0] == 200
    assert ask(service, "DELETE", f"/v1/sessions/{session}")[0] == 200


def test_nothing_is_left_of_a_deleted_session_not_even_while_its_call_writes(service: Service) -> None:
    with calling(service) as caller:
        session = converse(service, caller)
        assert any(b"herons" in value for value in keys_and_values(service).values()), "it is there before"
        caller.send("response.create")
        caller.until("response.output_audio.delta")
        for number in range(200):
            caller.type_text(f"And egrets, number {number}.")
        status, deleted = ask(service, "DELETE", f"/v1/sessions/{session}")
        closed = caller.until_closed()
    assert (status, deleted["drained"]) == (200, True)
    assert closed == (4003, "session_deleted")
    assert_nothing_is_left(service, session)
    assert [key for key, value in keys_and_values(service).items() if b"egrets" in value] == []
    assert [word for word in WORDS if word in service.get("/metrics").body.decode()] == []
    assert [line for line in service.lines if any(word in line for word in WORDS)] == []
    events = service.get(f"/v1/events?session={session}").body.decode()
    assert [word for word in WORDS if word in events] == []
    for method, path in (("GET", ""), ("POST", "/end"), ("DELETE", "")):
        status, error = ask(service, method, f"/v1/sessions/{session}{path}")
        assert (status, error["error"]["code"]) == (404, "session_not_found")
    service.wait_for_calls(0)
    assert service.metric("duplex_undrained_responses") == 0


def test_a_client_cannot_come_back_to_a_deleted_session(service: Service) -> None:
    with calling(service) as caller:
        session = converse(service, caller)
        token = caller.events[0]["session"]["resume_token"]
        ask(service, "DELETE", f"/v1/sessions/{session}")
    with calling(service) as again:
        again.send("session.resume", token=token)
        assert again.until("error")["error"]["code"] == "session_not_resumable"
    service.wait_for_calls(0)
    assert_nothing_is_left(service, session)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/end", (200, (4002, "ended_by_operator"))),
        ("DELETE", "", (200, (4003, "session_deleted"))),
    ],
)
def test_a_silent_call_of_another_gateway_ends_at_once(
    service: Service, other: Service, method: str, path: str, told: tuple[int, tuple[int, str]]
) -> None:
    with calling(other) as caller:
        session = converse(service, caller)
        seen = all_sessions(service, 100)[session]
        assert (seen["state"], seen["here"]) == ("running", False)
        assert seen["owner"] == all_sessions(other, 100)[session]["owner"]
        answered, _ = ask(service, method, f"/v1/sessions/{session}{path}")
        assert (answered, caller.until_closed()) == told
    other.wait_for_calls(0)
    if method == "DELETE":
        assert_nothing_is_left(service, session)
    else:
        assert all_sessions(other, 100)[session]["state"] == "stored"


@pytest.mark.parametrize(
    ("method", "path", "code"), [("POST", "/end", "ended_by_operator"), ("DELETE", "", "session_deleted")]
)
def test_a_browsers_call_is_told_why_it_ends(service: Service, method: str, path: str, code: str) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            session = (await caller.until("session.created"))["session"]["id"]
            answered = await asyncio.to_thread(ask, service, method, f"/v1/sessions/{session}{path}")
            assert answered[0] == 200
            assert (await caller.until("error"))["error"]["code"] == code

    asyncio.run(run())
    service.wait_for_calls(0)


def test_a_deletion_that_no_gateway_heard_of_ends_the_call_once_they_hear_again(
    service: Service, other: Service
) -> None:
    since = len(service.lines)
    with calling(other) as caller:
        session = converse(service, caller)
        service.kill("store")  # with it go the connections over which notices come
        service.wait_for_event("store_restarted", since=since)
        with Redis(unix_socket_path=str(service.data_dir / "store" / "valkey.sock")) as store:
            assert store.delete(*session_keys(session)) == 2  # and nobody is told
        assert caller.until_closed() == (4003, "session_deleted")
    other.wait_for_calls(0)
    assert_nothing_is_left(service, session)


def test_callers_are_no_operators(service: Service) -> None:
    for path in ("/v1/sessions", "/v1/sessions/sess_1"):
        assert service.get(path).json["error"]["code"] == "missing_token"
        assert service.get(path, Authorization="Bearer x").json["error"]["code"] == "invalid_token"
