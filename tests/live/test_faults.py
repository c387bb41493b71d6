"""Workers die in the middle of things: the caller is told plainly, and the next turn works."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.live.caller import Caller, calling, silence, tone
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 120
REPLY = " ".join(f"word{number}" for number in range(WORDS))
AUDIO = "response.output_audio.delta"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "go on", "scripted_replies": REPLY, "max_output_tokens": str(2 * WORDS)}
    with serving(tmp_path_factory.mktemp("faults"), settings) as running:
        yield running


@pytest.fixture(autouse=True)
def _usable(service: Service) -> None:
    service.wait_for_calls(0)


def start_reply(caller: Caller, **response: object) -> str:
    caller.type_text("Tell me everything.")
    caller.send("response.create", response=response)
    name: str = caller.until("response.created")["response"]["id"]
    heard = caller.until(lambda event: event["type"] in {AUDIO, "response.done"})
    assert heard["type"] == AUDIO, heard
    return name


@pytest.mark.parametrize("stage", ["thinker", "talker", "vocoder"])
def test_a_stage_that_dies_during_a_reply_fails_it_and_serves_the_next(service: Service, stage: str) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        lost = start_reply(caller)
        service.kill(stage)
        done = caller.until("response.done")["response"]
        service.wait_for_event("stage_down", since=since, stage=stage)
        # Asked for at once: it waits for the worker to be back.
        following = start_reply(caller, max_output_tokens=2)
        answered = caller.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == following)["response"]
        drained = [event for event in caller.of_type("response.drained") if event["response_id"] == lost]
    assert (done["id"], done["status"]) == (lost, "failed")
    assert done["status_details"]["error"]["type"] == "server_error"
    assert done["status_details"]["error"]["code"] == "stage_lost"
    assert answered["status"] == "incomplete"
    assert [(event["status"], event["released"][f"{stage}.process_exit"]) for event in drained] == [("complete", 1)]
    restarted = service.wait_for_event("child_restarted", since=since, child=stage)
    assert restarted["incarnation"] > 1
    ended = place_of_done(caller, lost)
    assert AUDIO not in [e["type"] for e in caller.events[ended:] if e.get("response_id") == lost]


def place_of_done(caller: Caller, response: str) -> int:
    events = enumerate(caller.events)
    return next(at for at, e in events if e["type"] == "response.done" and e["response"]["id"] == response)


def test_an_encoder_that_dies_while_the_caller_speaks_hears_it_again(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        caller.hear(silence(300) + tone(500))
        caller.until("input_audio_buffer.speech_started")
        service.kill("encoder")
        caller.hear(tone(300) + silence(800))
        heard = caller.until("conversation.item.input_audio_transcription.completed")
        caller.until("response.created")
    assert heard["transcript"] == "go on"
    service.wait_for_event("child_restarted", since=since, child="encoder")
    assert "conversation.item.input_audio_transcription.failed" not in caller.types()


def test_an_encoder_that_dies_leaves_a_reply_alone(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        name = start_reply(caller, max_output_tokens=8)
        service.kill("encoder")
        done = caller.until("response.done")["response"]
    assert (done["id"], done["status"]) == (name, "incomplete")
    service.wait_for_event("stage_up", since=since, stage="encoder")


def test_all_calls_survive_the_death_of_a_stage(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as one, calling(service) as other:
        lost = start_reply(one)
        service.kill("vocoder")
        assert one.until("response.done")["response"]["id"] == lost
        service.wait_for_event("stage_down", since=since, stage="vocoder")
        for caller in (one, other):
            name = start_reply(caller, max_output_tokens=2)
            assert caller.until("response.done")["response"]["id"] == name
        assert service.metric("duplex_undrained_responses") == 0
    service.wait_for_event("child_restarted", since=since, child="vocoder")


def test_a_call_that_ends_while_a_stage_is_away_leaves_nothing_there(service: Service) -> None:
    for _ in range(2):
        since = len(service.lines)
        with calling(service) as one, calling(service) as two, calling(service) as three, calling(service) as four:
            for caller in (one, two, three, four):
                start_reply(caller)
            service.kill("thinker")
            for caller in (one, two, three, four):
                caller.socket.socket.shutdown(socket.SHUT_RDWR)
        service.wait_for_event("stage_up", since=since, stage="thinker")
        service.wait_for_calls(0)
    # The Thinker has places for four sessions: one left open there would refuse the fourth of these.
    with calling(service) as one, calling(service) as two, calling(service) as three, calling(service) as four:
        for caller in (one, two, three, four):
            start_reply(caller, max_output_tokens=1)
            assert caller.until("response.done")["response"]["status"] == "incomplete"


def test_readiness_follows_the_stages(service: Service) -> None:
    since = len(service.lines)
    service.kill("talker")
    service.wait_for_event("stage_down", since=since, stage="talker")
    service.wait_for_event("child_restarted", since=since, child="talker")
    service.wait_for_calls(0)
    assert service.get("/readyz").json["status"] == "ready"
    assert service.metric('duplex_stage_up{replica="talker",stage="talker"}') == 1
