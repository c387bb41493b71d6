"""`GET /v1/events`: for whom, of what, how much; and the page of text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from duplex.auth import Authority
from duplex.config import Config
from duplex.event_reader import EventReader, ProcessLog, ReaderBusyError, ReadEvent, Reading, Wanted
from duplex.events_endpoint import EVENTS_USUAL, BadParameterError, EventsEndpoint, parse_query, timeline
from stages.event_log import EventKind, EventLog

TOKEN = "a-token-of-ours"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOGS = (ProcessLog("gateway", 0, "", 4, 0), ProcessLog("talker", 3, "rev", 2, 0))


class Busy(EventReader):
    async def read(self, wanted: Wanted, *, own_only: bool = False) -> Reading:
        raise ReaderBusyError("4 readings are under way")


def client(reader: EventReader | None = None) -> TestClient:
    log = EventLog()
    for at_ns, response in ((1_000_000, "resp_1"), (2_500_000, "resp_2"), (2_500_000, "resp_1")):
        log.at(at_ns)
        log.of("sess_1", response, "acme").add(EventKind.CREDIT_TAKEN, 480, "gateway", "audio")
    authority = Authority(Config(token=SecretStr(TOKEN)))
    endpoint = EventsEndpoint(reader or EventReader(log, []), authority)
    return TestClient(Starlette(routes=[Route("/v1/events", endpoint.read)]), headers=BEARER)


def test_it_is_for_those_with_the_token() -> None:
    with client() as http:
        for headers, code in (
            ({"Authorization": ""}, "missing_token"),
            ({"Authorization": "Bearer x"}, "invalid_token"),
        ):
            answer = http.get("/v1/events", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
        page = http.get("/v1/events", headers={"Origin": "https://evil.example"})
        assert (page.status_code, page.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert http.get("/v1/events").status_code == 200


def test_the_events_of_a_response_as_json() -> None:
    with client() as http:
        answer = http.get("/v1/events?response=resp_2").json()
    event = {"at_ns": 2_500_000, "process": "gateway", "kind": "credit_taken", "session": "sess_1", "stream": "resp_2"}
    assert answer == {
        "object": "events",
        "partial": False,
        "truncated": False,
        "processes": [
            {
                "process": "gateway",
                "incarnation": 0,
                "revision": "",
                "recorded": 3,
                "overwritten": 0,
                "fault": "",
                "since_ns": 1_000_000,
            }
        ],
        "events": [event | {"tenant": "acme", "value": 480, "link": "gateway", "state": "audio"}],
    }


def test_so_many_as_are_asked_for() -> None:
    with client() as http:
        answer = http.get("/v1/events?session=sess_1&limit=2").json()
    assert ([event["stream"] for event in answer["events"]], answer["truncated"]) == (["resp_2", "resp_1"], True)


def test_the_same_as_text() -> None:
    with client() as http:
        answer = http.get("/v1/events?response=resp_1&format=text")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = [line.split() for line in answer.text.splitlines()]
    assert lines == [
        ["0.000", "+0.000", "gateway", "credit_taken", "480", "gateway", "audio", "resp_1"],
        ["1.500", "+1.500", "gateway", "credit_taken", "480", "gateway", "audio", "resp_1"],
    ]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"respone": "r"}, "respone: there is no such parameter"),
        ({"session": "s" * 65}, "session: no id"),
        ({"response": "r" * 65}, "response: no id"),
        *(
            ({"limit": limit}, "limit: a number from 1 to 2000")
            for limit in ("0", "2001", "-1", "x", "", "1" * 5_000, "٣")
        ),
        ({"format": "xml"}, "format: one of json, text"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(query: dict[str, str], named: str) -> None:
    with pytest.raises(BadParameterError, match=named):
        parse_query(query)
    with client() as http:
        answer = http.get("/v1/events", params=query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "wanted", "as_text"),
    [
        ({}, Wanted(events_max=EVENTS_USUAL), False),
        ({"session": "s", "response": "r", "limit": "7", "format": "text"}, Wanted("s", "r", 7), True),
    ],
)
def test_what_can_be_asked(query: dict[str, str], wanted: Wanted, as_text: bool) -> None:
    assert parse_query(query) == (wanted, as_text)


def test_whoever_comes_when_too_many_read_is_told_to_come_back() -> None:
    with client(Busy(EventLog(), [])) as http:
        answer = http.get("/v1/events")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["code"] == "busy"


def read_event(at_ns: int, process: str, kind: str, value: int, **names: Any) -> ReadEvent:
    return ReadEvent(at_ns, process, kind, "sess_1", value=value, **names)


def test_a_timeline_tells_when_who_what_and_of_which_stream() -> None:
    events = (
        read_event(5_000_000, "gateway", "asked", 0, stream="resp_1", link="talker"),
        read_event(5_250_000, "talker", "computed", 1_500_000, stream="resp_1#1", state="clause"),
        read_event(6_000_000, "talker", "stale", 1, state="end_epoch"),
    )
    assert timeline(Reading(False, False, LOGS, events)).splitlines() == [
        "      0.000     +0.000  gateway  asked                      0  talker                       resp_1",
        "      0.250     +0.250  talker   computed            1.500 ms  clause                       resp_1#1",
        "      1.000     +0.750  talker   stale                      1  end_epoch                    sess_1",
    ]


def test_a_timeline_says_what_it_lacks() -> None:
    logs = (ProcessLog("gateway", 0, "", 9_000, 808), ProcessLog("talker", 3, "rev", 0, 0, "away"))
    assert timeline(Reading(True, True, logs, ())).splitlines() == [
        "# there are, or were, more events than these",
        "# gateway has recorded 9000 events, of which the oldest 808 are gone",
        "# not all of talker: away",
    ]
    reborn = ProcessLog("talker", 4, "rev", 0, 0, since_ns=3_500_000)
    event = read_event(1_000_000, "gateway", "accepted", 1, stream="resp_1")
    assert timeline(Reading(False, True, (reborn,), (event,))).splitlines()[1] == (
        "# talker tells nothing of the time before 2.500 ms"
    )


def test_a_timeline_of_nothing_is_empty() -> None:
    assert timeline(asyncio.run(EventReader(EventLog(), []).read(Wanted()))) == ""
