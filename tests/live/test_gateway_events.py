"""`/v1/events` of several gateways: whichever is asked tells of all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.caller import Message, calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

ONE, OTHER = GATEWAYS = ("gateway-1", "gateway-2")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("gateway-events"), {"gateways": "2"}) as running:
        yield running


def read(service: Service, door: str, query: str) -> Message:
    answer = service.alone(door).get(f"/v1/events?limit=2000&{query}")
    assert answer.status == 200
    told: Message = answer.json
    return told


def test_all_gateways_tell_of_a_response_each_under_its_name(service: Service) -> None:
    with calling(service.alone(ONE)) as caller:
        caller.type_text("Are you there?")
        caller.send("response.create", response={"output_modalities": ["text"]})
        response = caller.until("response.done")["response"]["id"]
        caller.until("response.drained")
        here, there = (read(service, door, f"response={response}") for door in GATEWAYS)
    assert here["events"] == there["events"]
    assert {event["process"] for event in there["events"]} >= {ONE, "thinker"}
    processes = [log["process"] for log in there["processes"]]
    assert set(GATEWAYS) < set(processes)
    assert len(processes) == len(set(processes)), "each is asked once"
    assert (there["partial"], there["truncated"]) == (False, False)


def test_one_that_stands_still_is_named(service: Service) -> None:
    with service.stopped(ONE):
        told = read(service, OTHER, "")
    faults = {log["process"]: log["fault"] for log in told["processes"] if log["fault"]}
    assert faults == {ONE: "no_answer"}
    assert told["partial"]
