"""What the event logs of the real processes tell of a reply that finished, and of one that was cancelled."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.live.caller import Caller, Message, calling, utterance
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

HEARD, REPLY = "good morning", " ".join(f"word{number}" for number in range(40))
SAMPLES_PER_WORD = 4_800
STAGES = ("thinker", "talker", "vocoder")
TOKEN = "a-token-of-ours"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": HEARD, "scripted_replies": REPLY, "token": TOKEN}
    with serving(tmp_path_factory.mktemp("events"), settings) as running:
        yield running


def start_reply(caller: Caller, **response: object) -> str:
    caller.type_text("Are you there?")
    caller.send("response.create", response=response)
    name: str = caller.until("response.created")["response"]["id"]
    return name


def read(service: Service, query: str) -> Message:
    answer = service.get(f"/v1/events?limit=2000&{query}", **BEARER)
    assert answer.status == 200
    reading: Message = answer.json
    assert (reading["partial"], reading["truncated"]) == (False, False)
    return reading


def events_of(service: Service, response: str) -> list[Message]:
    events: list[Message] = read(service, f"response={response}")["events"]
    assert {event["stream"] for event in events} == {response}
    assert len({event["session"] for event in events}) == 1
    return events


def place(events: list[Message], process: str, kind: str, **names: object) -> int:
    """Where the first event is that `process` left of that kind."""
    wanted = {"process": process, "kind": kind, **names}
    found = [number for number, event in enumerate(events) if event | wanted == event]
    assert found, f"{wanted} is not in the log"
    return found[0]


def times(events: list[Message], kind: str, process: str = "gateway") -> int:
    return sum((event["process"], event["kind"]) == (process, kind) for event in events)


def check_line(events: list[Message]) -> None:
    """What holds of every reply: one line, in order, each stage within it, and all credit back."""
    assert [event["at_ns"] for event in events] == sorted(event["at_ns"] for event in events)
    for kind in ("accepted", "admitted", "terminal", "drained"):
        assert times(events, kind) == 1
    for stage in STAGES:
        assert times(events, "opened", stage) == times(events, "closed", stage) == 1
        order = [
            place(events, "gateway", "asked", link=stage),
            place(events, stage, "opened"),
            place(events, "gateway", "opened", link=stage),
            place(events, "gateway", "closed", link=stage),
            place(events, "gateway", "drained"),
        ]
        assert order == sorted(order)
        assert (
            place(events, stage, "opened")
            < place(events, stage, "closed")
            < place(events, "gateway", "closed", link=stage)
        )
        assert times(events, "queued", stage) == times(events, "started", stage) + times(events, "unqueued", stage)
        assert times(events, "started", stage) == times(events, "computed", stage)
    credit: Counter[tuple[str, str]] = Counter()
    for event in events:
        sign = {"credit_taken": 1, "credit_returned": -1}.get(event["kind"], 0)
        credit[event["process"], event.get("link", "")] += sign * event.get("value", 0)
        assert credit[event["process"], event.get("link", "")] >= 0
    assert not any(credit.values())


def samples(events: list[Message], kind: str, process: str) -> int:
    return sum(event.get("value", 0) for event in events if (event["process"], event["kind"]) == (process, kind))


def test_a_reply_that_finished_is_told_from_its_acceptance_to_the_last_credit(service: Service) -> None:
    with calling(service, headers=BEARER) as caller:
        response = start_reply(caller, max_output_tokens=3)
        caller.until("response.drained")
    events = events_of(service, response)
    check_line(events)
    terminal = events[place(events, "gateway", "terminal")]
    whole = 3 * SAMPLES_PER_WORD
    assert (terminal["state"], terminal["cause"], terminal["value"]) == ("succeeded", "max_output_tokens", whole)
    assert samples(events, "sent", "gateway") == samples(events, "published", "vocoder") == whole
    assert {event["cause"] for event in events if event["kind"] == "closed" and event["process"] in STAGES} == {
        "finished"
    }
    assert times(events, "cancelled") == 0
    order = [
        place(events, "thinker", "credit_taken", link="talker"),
        place(events, "talker", "credit_taken", link="vocoder"),
        place(events, "vocoder", "published", state="audio"),
        place(events, "gateway", "received", state="audio"),
        place(events, "gateway", "sent"),
        place(events, "gateway", "terminal"),
    ]
    assert order == sorted(order)


def test_a_reply_that_was_cancelled_makes_nothing_more_and_drains(service: Service) -> None:
    with calling(service, headers=BEARER) as caller:
        response = start_reply(caller)
        caller.until("response.output_audio.delta")
        caller.send("response.cancel")
        caller.until("response.drained")
    events = events_of(service, response)
    check_line(events)
    terminal = place(events, "gateway", "terminal")
    assert (events[terminal]["state"], events[terminal]["cause"]) == ("cancelled", "client_cancelled")
    assert place(events, "gateway", "cancelled", link="vocoder") < terminal
    stopped = place(events, "vocoder", "cancelled")
    assert events[stopped]["cause"] == "cancelled"
    late = {event["kind"] for event in events[stopped:] if event["process"] == "vocoder"}
    assert late <= {"cancelled", "unqueued", "computed", "credit_returned", "closed", "stale"}
    late = {event["kind"] for event in events[terminal + 1 :] if event["process"] == "gateway"}
    assert late <= {"received", "closed", "drained", "stale", "audited"}
    audits = [(event["link"], event.get("value", 0)) for event in events if event["kind"] == "audited"]
    assert set(audits) == {(stage, 0) for stage in ("thinker", "talker", "vocoder")}
    received = [event["state"] for event in events[terminal + 1 :] if event["kind"] == "received"]
    assert set(received) <= {"word_times"}, "where its words lie may still become known"
    assert samples(events, "sent", "gateway") == events[terminal]["value"]


def test_the_timeline_reads_well_and_holds_nothing_that_was_said(service: Service) -> None:
    with calling(service, headers=BEARER) as caller:
        session = caller.events[0]["session"]["id"]
        caller.settle(instructions="Speak of herons.")
        caller.hear(utterance())
        response = caller.until("response.created")["response"]["id"]
        caller.send("response.cancel")
        caller.until("response.drained")
    text = service.get(f"/v1/events?response={response}&format=text", **BEARER).body.decode()
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][:4] == ["0.000", "+0.000", "gateway", "accepted"]
    assert "drained" in [line[3] for line in lines]
    everything = service.get(f"/v1/events?limit=2000&session={session}", **BEARER).body.decode()
    assert {event["process"] for event in read(service, f"session={session}")["events"]} == {
        "gateway",
        "encoder",
        *STAGES,
    }
    for secret in (HEARD, "morning", "word1", "herons", "Speak"):
        assert secret not in everything


def test_only_whoever_may_read_the_figures_reads_it(service: Service) -> None:
    assert service.get("/v1/events").status == 401
    refused = service.get("/v1/events?limit=none", **BEARER)
    assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_value")


def log_of(reading: Message, process: str) -> Message:
    found: Message = next(log for log in reading["processes"] if log["process"] == process)
    return found


def test_a_worker_that_does_not_answer_makes_the_answer_partial(service: Service) -> None:
    pid = service.pid_of("talker")
    os.kill(pid, signal.SIGSTOP)
    try:
        reading = service.get("/v1/events", **BEARER).json
    finally:
        os.kill(pid, signal.SIGCONT)
    assert reading["partial"]
    assert [log["process"] for log in reading["processes"] if log["fault"]] == ["talker"]
    assert log_of(reading, "talker")["fault"] == "no_answer"
    assert log_of(read(service, "session=nobody"), "talker")["fault"] == ""


def test_the_successor_of_a_worker_begins_a_log_of_its_own(service: Service) -> None:
    since = len(service.lines)
    service.kill("talker")
    service.wait_for_event("stage_up", since=since, stage="talker")
    service.wait_for_calls(0)  # the Thinker has found it too
    with calling(service, headers=BEARER) as caller:
        response = start_reply(caller, max_output_tokens=1)
        caller.until("response.drained")
    check_line(events_of(service, response))
    log = log_of(read(service, f"response={response}"), "talker")
    assert log["incarnation"] == 2
    metric = service.get("/metrics", **BEARER).body.decode()
    assert f'duplex_events_recorded{{process="talker"}} {log["recorded"]}.0' in metric
    assert 'duplex_events_overwritten{process="talker"} 0.0' in metric
