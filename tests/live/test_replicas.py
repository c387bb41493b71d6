"""Stages of two workers each: calls spread over them, the loss of one is nothing to the other's, all are replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.live.caller import calling
from tests.live.service import Service, serving
from tests.live.test_faults import start_reply

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 120
REPLY = " ".join(f"word{number}" for number in range(WORDS))
STAGES = ("encoder", "thinker", "talker", "vocoder")
PAIRS = ("thinker", "talker", "vocoder")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "go on", "scripted_replies": REPLY, "max_output_tokens": str(2 * WORDS)}
    settings |= {f"replicas_{stage}": "2" for stage in PAIRS}
    with serving(tmp_path_factory.mktemp("replicas"), settings) as running:
        yield running


@pytest.fixture(autouse=True)
def _usable(service: Service) -> None:
    service.wait_for_calls(0)


def up(service: Service, stage: str, replica: str) -> float:
    return service.metric(f'duplex_stage_up{{replica="{replica}",stage="{stage}"}}')


def test_every_replica_is_there_under_its_own_name(service: Service) -> None:
    assert up(service, "encoder", "encoder") == 1
    for stage in PAIRS:
        assert [up(service, stage, f"{stage}-{number}") for number in (1, 2)] == [1, 1]


@pytest.mark.parametrize("stage", PAIRS)
def test_calls_on_one_replica_do_not_notice_the_death_of_the_other(service: Service, stage: str) -> None:
    since = len(service.lines)
    with calling(service) as one, calling(service) as other:  # the first goes to the first replica
        lost = start_reply(one)
        kept = start_reply(other, max_output_tokens=12)
        service.kill(f"{stage}-1")
        done = one.until("response.done")["response"]
        # At once, and without waiting for the successor: its session goes on at the other replica.
        following = start_reply(one, max_output_tokens=1)
        answered = one.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == following)["response"]
        undisturbed = other.until("response.done")["response"]
    assert (done["id"], done["status"], done["status_details"]["error"]["code"]) == (lost, "failed", "stage_lost")
    assert answered["status"] == "incomplete"
    assert (undisturbed["id"], undisturbed["status"]) == (kept, "incomplete")
    service.wait_for_event("stage_up", since=since, stage=f"{stage}-1")
    assert up(service, stage, f"{stage}-1") == 1


def test_all_workers_are_replaced_while_a_call_goes_on_and_then_its_gateway(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        name = start_reply(caller, max_output_tokens=15)
        service.process.send_signal(signal.SIGHUP)
        done = caller.until("response.done")["response"]
        service.wait_for_event("workers_replaced", since=since)
        assert caller.until_closed() == (1001, "service_shutdown"), "it was told to come back"
    service.wait_for_event("gateways_replaced", since=since)
    with calling(service) as again:
        again.send("session.resume", token=caller.events[0]["session"]["resume_token"])
        again.until("session.resumed")
        following = start_reply(again, max_output_tokens=2)
        answered = again.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == following)["response"]
    assert (done["id"], done["status"], answered["status"]) == (name, "incomplete", "incomplete")
    replaced = [line for line in service.lines[since:] if '"child_restarted"' in line]
    assert len(replaced) == 7 + 1
    assert [line for line in service.lines[since:] if '"child_killed"' in line] == []
