"""The conversation outlives its connection, and the gateway that held it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.live.caller import BROKEN, Caller, Message, calling, utterance
from tests.live.service import Service, open_processes, serving, wait_for_ends
from tests.live.stored import wait_until_written

pytestmark = [pytest.mark.live, pytest.mark.slow]

REPLY = "Yes indeed, my friend."
SYSTEM_WORDS = 3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "good morning", "scripted_replies": REPLY, "instructions": "Be of help."}
    with serving(tmp_path_factory.mktemp("resume"), settings) as running:
        yield running


def converse(caller: Caller) -> str:
    """Two typed words and their answer; gives the resume token."""
    caller.type_text("Remember herons.", id="item_herons")
    caller.send("response.create", response={"output_modalities": ["text"]})
    caller.until("response.drained")
    token: str = caller.events[0]["session"]["resume_token"]
    return token


def resume(caller: Caller, token: str) -> Message:
    caller.send("session.resume", token=token)
    return caller.until("session.resumed")


def prompt_words(caller: Caller) -> int:
    """How long the next response's prompt is, as the scripted Thinker counts it."""
    caller.send("response.create", response={"output_modalities": ["text"]})
    usage: int = caller.until("response.done")["response"]["usage"]["input_tokens"]
    return usage


def texts(items: list[Message]) -> list[tuple[str, str]]:
    return [(item["role"], item["content"][0].get("text") or item["content"][0]["transcript"]) for item in items]


def test_a_killed_gateway_comes_back_and_the_conversation_with_it(service: Service) -> None:
    address, since = service.address, len(service.lines)
    with calling(service) as caller:
        caller.settle(temperature=0.5, audio={"input": {"turn_detection": {"type": "semantic_vad"}}})
        token = converse(caller)
        caller.hear(utterance() + bytes(48_000))
        caller.until("response.drained")
        session = caller.events[0]["session"]["id"]
        wait_until_written(service, caller)
        service.kill("gateway")
        assert caller.until_closed() == BROKEN
    service.wait_for_event("child_restarted", since=since, child="gateway")
    assert service.address == address
    with calling(service) as caller:
        resumed = resume(caller, token)
        words = prompt_words(caller)
    assert resumed["session"]["id"] == session
    assert resumed["session"]["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
    assert texts(resumed["items"]) == [
        ("user", "Remember herons."),
        ("assistant", REPLY),
        ("user", "good morning"),
        ("assistant", REPLY),
    ]
    assert [item["content"][0]["type"] for item in resumed["items"]] == [
        "input_text",
        "output_text",
        "input_audio",
        "output_audio",
    ]
    assert words == SYSTEM_WORDS + 12
    assert resumed["epoch"] >= 2 << 20, "a takeover outdates everything of the owner before"


def test_a_reply_under_way_when_the_gateway_dies_is_not_answered_twice(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        token = converse(caller)
        wait_until_written(service, caller)
        caller.send("response.create")
        caller.until("response.output_audio.delta")
        service.kill("gateway")
    service.wait_for_event("child_restarted", since=since, child="gateway")
    with calling(service) as caller:
        resumed = resume(caller, token)
        caller.type_text("Go on.")
        caller.send("response.create", response={"output_modalities": ["text"]})
        caller.until("response.done")
        assert service.metric("duplex_undrained_responses") == 0
    assert texts(resumed["items"]) == [("user", "Remember herons."), ("assistant", REPLY), ("assistant", "")]
    broken = resumed["items"][2]
    assert (broken["status"], broken["cut"]) == ("incomplete", True)
    assert broken["possibly_heard"] in ("Yes indeed,", REPLY), "as far as it was stored"
    assert len(caller.of_type("response.created")) == 1


def test_a_caller_who_lost_the_connection_takes_the_call_over(service: Service) -> None:
    with calling(service) as old, calling(service) as new:
        token = converse(old)
        resumed = resume(new, token)
        code, reason = old.until_closed()
        words = prompt_words(new)
    assert (code, reason) == (4001, "session_replaced")
    assert len(old.of_type("session.replaced")) == 1
    assert texts(resumed["items"]) == [("user", "Remember herons."), ("assistant", REPLY)]
    assert words == SYSTEM_WORDS + 6


def test_what_was_said_of_a_reply_before_a_takeover_is_kept(service: Service) -> None:
    with calling(service) as old, calling(service) as new:
        token = converse(old)
        old.send("response.create")
        for _ in range(27):  # 540 ms, of which the ear has had 260 at the least: the lead and its player keep the rest
            old.until("response.output_audio.delta")
        resumed = resume(new, token)
    assert texts(resumed["items"])[2:] == [("assistant", "Yes")]
    assert resumed["items"][2]["status"] == "incomplete"


def test_pipecat_3872_what_was_being_said_is_over_though_nothing_may_interrupt_it(service: Service) -> None:
    with calling(service) as old, calling(service) as new:
        old.settle(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}})
        token = converse(old)
        old.send("response.create")
        response = old.until("response.created")["response"]["id"]
        old.until("response.output_audio.delta")
        resume(new, token)
        new.type_text("Go on.")
        new.send("response.create")
        new.until("response.drained")
    assert {event["response_id"] for event in new.of_type("response.output_audio.delta")} == {
        new.of_type("response.created")[0]["response"]["id"]
    }
    assert response not in {event.get("response_id") for event in new.events}


UNKNOWN = ["", "x", "sess_ffffffffffffffffffffffff.secret", "a b.c", "." * 1_000, "sess_\u0000.x"]


def store_errors(service: Service) -> float:
    return sum(value for name, value in service.metrics().items() if name.startswith("duplex_store_errors_total"))


@pytest.mark.parametrize("token", UNKNOWN)
def test_a_token_of_no_session_is_refused(service: Service, token: str) -> None:
    troubles = store_errors(service)
    with calling(service) as caller:
        caller.send("session.resume", token=token, event_id="mine")
        error = caller.until("error")["error"]
        code, _ = caller.until_closed()
    assert (error["type"], error["code"]) == ("invalid_request_error", "session_not_resumable")
    assert error["event_id"] == "mine"
    assert code == 1008
    assert store_errors(service) == troubles, "a client's fault is no trouble"


def test_a_wrong_token_is_refused_and_disturbs_nobody(service: Service) -> None:
    with calling(service) as owner:
        converse(owner)
        session = owner.events[0]["session"]["id"]
        with calling(service) as thief:
            thief.send("session.resume", token=f"{session}.guess")
            error = thief.until("error")["error"]
            assert thief.until_closed()[0] == 1008
        owner.settle()
    assert error["code"] == "session_not_resumable"


def test_a_session_is_resumed_again_and_again(service: Service) -> None:
    with calling(service) as caller:
        token = converse(caller)
    for number in range(4):
        service.wait_for_calls(0)
        with calling(service) as caller:
            resumed = resume(caller, token)
            caller.type_text(f"Line {number}.")
            caller.settle()
    assert len(resumed["items"]) == 2 + 3


def test_deleted_items_stay_deleted(service: Service) -> None:
    with calling(service) as caller:
        token = converse(caller)
        caller.send("conversation.item.delete", item_id="item_herons")
        caller.until("conversation.item.deleted")
    service.wait_for_calls(0)
    with calling(service) as caller:
        assert texts(resume(caller, token)["items"]) == [("assistant", REPLY)]


def test_a_killed_store_comes_back_and_nothing_is_lost(service: Service) -> None:
    since = len(service.lines)
    with calling(service) as caller:
        token = converse(caller)
        wait_until_written(service, caller)
        store = service.pid_of("store")
        with open_processes([store]) as processes:
            os.kill(store, signal.SIGKILL)
            wait_for_ends(processes)
        service.wait_for_event("store_died", since=since)
        caller.type_text("And storks.")
        caller.settle()
        caller.send("response.create", response={"output_modalities": ["text"]})
        caller.until("response.done")
    service.wait_for_calls(0)
    with calling(service) as caller:
        resumed = resume(caller, token)
    assert texts(resumed["items"])[2:] == [("user", "And storks."), ("assistant", REPLY)]
