"""Processes that are paused in the middle of things: they are found, killed and replaced, and the call goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.caller import BROKEN, calling, silence, tone
from tests.live.service import Service, open_processes, serving
from tests.live.test_faults import AUDIO, start_reply

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 120
REPLY = " ".join(f"word{number}" for number in range(WORDS))
SILENCE_S = "1.0"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {
        "scripted_heard": "go on",
        "scripted_replies": REPLY,
        "max_output_tokens": str(2 * WORDS),
        "worker_silence_s": SILENCE_S,
    }
    with serving(tmp_path_factory.mktemp("hangs"), settings) as running:
        yield running


@pytest.fixture(autouse=True)
def _usable(service: Service) -> None:
    service.wait_for_calls(0)


@contextmanager
def paused(service: Service, part: str) -> Iterator[None]:
    """`part` is stopped; when the block has ended it must be dead, so that letting it go on wakes nobody."""
    pid, since = service.pid_of(part), len(service.lines)
    with open_processes([pid]) as (process,):
        os.kill(pid, signal.SIGSTOP)
        yield
        service.wait_for_event("child_died", since=since, child=part)
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGCONT)


def replica_figure(service: Service, name: str, stage: str) -> float:
    return service.metric(f'duplex_replica_{name}{{replica="{stage}",stage="{stage}"}}')


@pytest.mark.parametrize("stage", ["thinker", "talker", "vocoder"])
def test_a_worker_that_is_paused_during_a_reply_is_replaced(service: Service, stage: str) -> None:
    since, hangs_before = len(service.lines), replica_figure(service, "hangs", stage)
    with calling(service) as caller:
        lost = start_reply(caller)
        with paused(service, stage):
            done = caller.until("response.done")["response"]
            hangs = service.wait_for_event("child_hangs", since=since, child=stage)
        drained = caller.find(lambda event: event["type"] == "response.drained" and event["response_id"] == lost)
        following = start_reply(caller, max_output_tokens=2)
        answered = caller.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == following)["response"]
        restarted = service.wait_for_event("child_restarted", since=since, child=stage)
        incarnation = replica_figure(service, "incarnation", stage)
    assert hangs["why"] == "silence"
    assert (done["id"], done["status"], done["status_details"]["error"]["code"]) == (lost, "failed", "stage_lost")
    assert (drained["status"], drained["released"][f"{stage}.process_exit"]) == ("complete", 1)
    assert answered["status"] == "incomplete"
    assert restarted["incarnation"] == incarnation
    assert replica_figure(service, "hangs", stage) == hangs_before + 1
    end = next(n for n, e in enumerate(caller.events) if e["type"] == "response.done" and e["response"]["id"] == lost)
    assert [e for e in caller.events[end:] if e["type"] == AUDIO and e["response_id"] == lost] == []


def test_an_encoder_that_is_paused_while_the_caller_speaks_is_replaced_and_hears_it_all(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        caller.hear(silence(300) + tone(500))
        caller.until("input_audio_buffer.speech_started")
        with paused(service, "encoder"):
            caller.hear(tone(300) + silence(800))
            heard = caller.until("conversation.item.input_audio_transcription.completed")
        caller.until("response.created")
    assert heard["transcript"] == "go on"
    service.wait_for_event("child_hangs", since=since, child="encoder")
    assert "conversation.item.input_audio_transcription.failed" not in caller.types()


@pytest.mark.parametrize("stage", ["encoder", "thinker"])
def test_livekit_agents_3841_a_worker_that_hangs_while_nobody_needs_it_costs_the_next_call_nothing(
    service: Service, stage: str
) -> None:
    since = len(service.lines)
    with paused(service, stage):
        pass
    service.wait_for_event("stage_up", since=since, stage=stage)
    with calling(service) as caller:
        caller.settle()
        caller.hear(silence(300) + tone(500) + silence(800))
        name = caller.until("response.created")["response"]["id"]
        assert caller.until(AUDIO)["response_id"] == name


@pytest.mark.parametrize("stage", ["talker", "vocoder"])
def test_a_reply_of_which_nothing_was_said_is_made_by_the_successor(service: Service, stage: str) -> None:
    with calling(service) as caller:
        caller.settle()
        with paused(service, stage):
            name = start_reply(caller, max_output_tokens=2)
        done = caller.until("response.done")["response"]
        drained = caller.until("response.drained")
    assert (done["id"], done["status"]) == (name, "incomplete")
    assert (drained["response_id"], drained["status"]) == (name, "complete")
    assert len(caller.of_type("response.created")) == 1


def test_stages_that_die_under_a_reply_that_has_not_begun_cost_it_nothing_but_time(service: Service) -> None:
    retried = service.metric("duplex_responses_retried_total")
    with calling(service) as caller:
        caller.settle()
        with paused(service, "thinker"):  # the other stages are open, and the head has not answered
            caller.type_text("Tell me everything.")
            caller.send("response.create", response={"max_output_tokens": 2})
            name = caller.until("response.created")["response"]["id"]
            caller.settle()
            service.kill("vocoder")
            done = caller.until("response.done")["response"]
    assert (done["id"], done["status"]) == (name, "incomplete")
    # One for each stage that was lost, unless both were away at once; on a busy machine one is lost again as it comes.
    assert service.metric("duplex_responses_retried_total") - retried in (1, 2, 3)
    assert service.metric("duplex_undrained_responses") == 0


def test_a_gateway_that_is_paused_is_replaced_and_its_client_resumes(service: Service) -> None:
    address, since = service.address, len(service.lines)
    with calling(service) as caller:
        token = caller.events[0]["session"]["resume_token"]
        caller.type_text("Remember herons.")
        start_reply(caller)
        with paused(service, "gateway"):
            assert caller.until_closed() == BROKEN
    service.wait_for_event("child_hangs", since=since, child="gateway")
    service.wait_for_event("child_restarted", since=since, child="gateway")
    assert service.address == address
    with calling(service) as caller:
        caller.send("session.resume", token=token)
        resumed = caller.until("session.resumed")
        following = start_reply(caller, max_output_tokens=2)
        assert caller.until("response.done")["response"]["id"] == following
    assert resumed["items"][0]["content"][0]["text"] == "Remember herons."
    assert resumed["epoch"] >= 2 << 20


def test_a_supervisor_that_was_paused_itself_blames_nobody(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        name = start_reply(caller, max_output_tokens=20)
        service.process.send_signal(signal.SIGSTOP)
        # Twice the silence that would be a hang: the reply is paced in real time, 200 ms a word.
        done = caller.until("response.done")["response"]
        service.process.send_signal(signal.SIGCONT)
        following = start_reply(caller, max_output_tokens=10)
        assert caller.until("response.done")["response"]["id"] == following
    assert (done["id"], done["status"]) == (name, "incomplete")
    assert [line for line in service.lines[since:] if '"child_hangs"' in line] == []
