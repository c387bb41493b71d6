"""`/v1/sessions`: for whom, what is asked, and how it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import Message, Receive

from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.config import Config
from duplex.operations import Operations, Page
from duplex.session_views import SessionView
from duplex.sessions_endpoint import (
    BODY_BYTES_MAX,
    SESSIONS_MAX,
    SESSIONS_USUAL,
    UNDER_WAY_MAX,
    SessionsEndpoint,
    parse_query,
)
from sessions.records import CorruptLog
from sessions.store import CursorRefused, SessionUnknown, StoreFull, StoreTimeout

TOKEN, OPERATOR = "a-token-of-callers", "a-token-of-operators"
ENDPOINTS = [
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/sess_1"),
    ("POST", "/v1/sessions/sess_1/end"),
    ("DELETE", "/v1/sessions/sess_1"),
]


def view(state: Any = "stored") -> SessionView:
    return SessionView("sess_1", "t", state, None, False, 1, 2, 3)


class FakeOperations(Operations):
    """Answers as it is told, or fails with `error`."""

    def __init__(self, error: Exception | None = None, state: str = "stored") -> None:
        self.error = error
        self.state = state
        self.asked: list[object] = []

    def _ask(self, *what: object) -> None:
        self.asked.append(what)
        if self.error is not None:
            raise self.error

    async def page(self, cursor: str, count: int, tenant: str | None = None) -> Page:
        self._ask("page", cursor, count)
        return Page((view(),), "7")

    async def here(self, tenant: str | None = None) -> Page:
        self._ask("here")
        return Page((), None)

    async def show(self, session: str, tenant: str | None = None) -> SessionView:
        self._ask("show", session)
        return view()

    async def end(self, session: str, tenant: str | None = None) -> SessionView:
        self._ask("end", session)
        return view(self.state)

    async def delete(self, session: str, tenant: str | None = None) -> bool:
        self._ask("delete", session)
        return True


def client(operations: FakeOperations | None = None, *, operator_token: str | None = OPERATOR) -> TestClient:
    given = SecretStr(operator_token) if operator_token else None
    authority = Authority(Config(token=SecretStr(TOKEN), operator_token=given))
    endpoint = SessionsEndpoint(operations or FakeOperations(), authority)
    return TestClient(Starlette(routes=endpoint.routes()), headers={"Authorization": f"Bearer {OPERATOR}"})


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_it_is_for_operators_alone(method: str, path: str) -> None:
    operations = FakeOperations()
    with client(operations) as http:
        for headers, status, code in (
            ({"Authorization": ""}, 401, "missing_token"),
            ({"Authorization": f"Bearer {TOKEN}"}, 401, "invalid_token"),
            ({"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
        ):
            answer = http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert operations.asked == []
        assert http.request(method, path).status_code == 200


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_without_an_operators_token_nobody_is_served(method: str, path: str) -> None:
    operations = FakeOperations()
    with client(operations, operator_token=None) as http:
        for bearer in (TOKEN, OPERATOR, ""):
            answer = http.request(method, path, headers={"Authorization": f"Bearer {bearer}"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "operations_off")
    assert operations.asked == []


def test_what_is_asked_is_what_is_done() -> None:
    operations = FakeOperations()
    with client(operations) as http:
        listed = http.get("/v1/sessions?cursor=5&limit=20").json()
        assert (listed["object"], listed["next"]) == ("list", "7")
        assert [(one["id"], one["state"], one["object"]) for one in listed["data"]] == [("sess_1", "stored", "session")]
        assert http.get("/v1/sessions?here=1").json() == {"object": "list", "data": [], "next": None}
        assert http.get("/v1/sessions/sess_1").json()["id"] == "sess_1"
        assert http.post("/v1/sessions/sess_1/end").json()["state"] == "stored"
        deleted = http.delete("/v1/sessions/sess_1").json()
        assert deleted == {"object": "session.deleted", "id": "sess_1", "deleted": True, "drained": True}
    assert operations.asked == [
        ("page", "5", 20),
        ("here",),
        ("show", "sess_1"),
        ("end", "sess_1"),
        ("delete", "sess_1"),
    ]


@pytest.mark.parametrize("state", ["running", "ending"])
def test_an_end_that_has_not_come_yet_is_accepted(state: str) -> None:
    with client(FakeOperations(state=state)) as http:
        assert http.post("/v1/sessions/sess_1/end").status_code == 202


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SessionUnknown("sess_1"), (404, "session_not_found", None)),
        (StoreTimeout("no answer"), (503, "store_unavailable", "15")),
        (StoreFull("full"), (503, "store_unavailable", "15")),
        (CorruptLog("an item twice"), (500, "session_unreadable", None)),
    ],
)
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_a_failure_says_who_must_act(
    method: str, path: str, error: Exception, told: tuple[int, str, str | None]
) -> None:
    with client(FakeOperations(error)) as http:
        answer = http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers.get("Retry-After")) == told


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        (f"limit={SESSIONS_MAX + 1}", "limit"),
        ("limit=²", "limit"),
        ("limit=" + "1" * 5_000, "limit"),
        ("here=yes", "here"),
        ("tenant=x", "tenant"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(query: str, param: str) -> None:
    operations = FakeOperations()
    with client(operations) as http:
        answer = http.get(f"/v1/sessions?{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"], operations.asked) == (400, "invalid_value", param, [])


def test_a_cursor_of_no_listing_is_named() -> None:
    with client(FakeOperations(CursorRefused())) as http:
        error = http.get("/v1/sessions?cursor=x").json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "cursor")


def test_the_usual_page() -> None:
    assert parse_query({}) == ("", SESSIONS_USUAL, False)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS[2:])
def test_a_large_body_is_refused_before_anything_is_done(method: str, path: str) -> None:
    operations = FakeOperations()
    with client(operations) as http:
        answer = http.request(method, path, content=b"x" * (BODY_BYTES_MAX + 1))
    assert (answer.status_code, answer.json()["error"]["code"], operations.asked) == (413, "body_too_large", [])


def test_more_requests_at_once_than_are_served_are_told_to_come_again() -> None:
    class Slow(FakeOperations):
        async def delete(self, session: str, tenant: str | None = None) -> bool:
            self._ask("delete", session)
            await go_on.wait()
            return True

    go_on, operations = asyncio.Event(), Slow()

    async def scenario() -> None:
        authority = Authority(Config(operator_token=SecretStr(OPERATOR)))
        serve = SessionsEndpoint(operations, authority)._guarded(lambda _request, _tenant: _delete(operations))
        waiting = [asyncio.create_task(_status(serve(_request()))) for _ in range(UNDER_WAY_MAX)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(operations.asked) == UNDER_WAY_MAX
        refused = await serve(_request())
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        go_on.set()
        assert await asyncio.gather(*waiting) == [200] * UNDER_WAY_MAX
        assert (await serve(_request())).status_code == 200

    asyncio.run(scenario())


def test_a_key_is_looked_at_once_the_request_has_come_whole() -> None:
    """One that was begun with a key which is revoked while it comes does nothing, and keeps no place meanwhile."""
    operations, goes_on = FakeOperations(), asyncio.Event()

    def scope(_headers: object) -> str:
        if goes_on.is_set():
            raise UnauthorizedError(Refusal(401, "invalid_token", "this is no key, or it was revoked"))
        return "acme"

    async def slowly() -> Message:
        await goes_on.wait()
        return await _nothing()

    async def scenario() -> None:
        endpoint = SessionsEndpoint(operations, Authority(Config()))
        serve = endpoint._guarded(lambda _request, _tenant: _delete(operations), scope)
        waiting = [asyncio.create_task(_status(serve(_request(slowly)))) for _ in range(UNDER_WAY_MAX)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await serve(_request())).status_code == 200
        goes_on.set()
        assert await asyncio.gather(*waiting) == [401] * UNDER_WAY_MAX
        assert len(operations.asked) == 1

    asyncio.run(scenario())


async def _delete(operations: FakeOperations) -> Response:
    await operations.delete("sess_1")
    return Response()


async def _status(serving: Any) -> int:
    response: Response = await serving
    return response.status_code


def _request(receive: Receive | None = None) -> Request:
    headers = [(b"authorization", f"Bearer {OPERATOR}".encode())]
    scope = {"type": "http", "method": "DELETE", "path": "/", "headers": headers, "query_string": b""}
    return Request(scope, receive or _nothing)


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
