"""Tools that the service carries out itself, through the real service and over real HTTP: called, waited for,
interrupted, and found again when the gateway has died."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.duplex.tool_server import SECRET, ToolServer, gate, tool_server
from tests.live.caller import BROKEN, Caller, Message, audio_of, calling, interruption, utterance
from tests.live.service import Service, serving
from tests.live.stored import wait_until_written

pytestmark = [pytest.mark.live, pytest.mark.slow]

TOOLS = """
hosts = ["{host}"]

[[tools]]
name = "get_weather"
description = "The weather of a city."
url = "http://{host}/weather"
secret_env = "TOOL_SECRET"
safe = true
time_limit_s = 20
parameters = {{ type = "object", properties = {{ city = {{ type = "string" }} }}, required = ["city"] }}

[[tools]]
name = "book"
description = "Books a table."
url = "http://{host}/book"
secret_env = "TOOL_SECRET"
time_limit_s = 20
filler = "Just a second."
"""
ARGUMENTS = '{"city": "Paris"}'
SPOKEN = 0.01  # louder than any silence of a voice
THEN = "It is @result now."
WEATHER, BOOK = f"Let me look. @get_weather {ARGUMENTS}", "@book {}"


@contextmanager
def offering(
    tmp_path: Path, reply: str, *, engine: str = "scripted", **settings: str
) -> Iterator[tuple[Service, ToolServer]]:
    """A service whose scripted model says `reply` first, and what came of that next."""
    with tool_server() as server:
        file = tmp_path / "tools.toml"
        file.write_text(TOOLS.format(host=server.host))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOL_SECRET", SECRET)
            given = {"tools_file": str(file), "scripted_replies": f"{reply}|{THEN}", **settings}
            with serving(tmp_path / "data", given, engine=engine) as service:
                yield service, server


def said(response: Message) -> str:
    items = [item for item in response["output"] if item["type"] == "message"]
    return " ".join(item["content"][0]["transcript"] for item in items)


def is_output(message: Message) -> bool:
    is_added: bool = message["type"] == "conversation.item.added"
    return is_added and bool(message["item"]["type"] == "function_call_output")


def call_of(caller: Caller) -> Message:
    """The call that the caller was told of."""
    items: list[Message] = [event["item"] for event in caller.of_type("conversation.item.added")]
    return next(item for item in items if item["type"] == "function_call")


def done(caller: Caller) -> Message:
    response: Message = caller.until("response.done")["response"]
    return response


def test_a_tool_is_called_and_what_it_says_is_said(tmp_path: Path) -> None:
    with offering(tmp_path, WEATHER) as (service, server), calling(service) as caller:
        shown = caller.settle()["session"]
        assert (shown["service_tools"], shown["tools"]) == (["get_weather", "book"], [])
        caller.hear(utterance())
        assert [item["type"] for item in done(caller)["output"]] == ["message"], "no client carries it out"
        assert said(done(caller)) == "It is sunny now."
        (asked,) = server.asked
        call = call_of(caller)
        output = next(event["item"] for event in caller.events if is_output(event))
        assert (call["name"], call["arguments"], output["output"]) == ("get_weather", ARGUMENTS, "sunny")
        assert call["call_id"] == output["call_id"] == asked.key == asked.body["call_id"]
        assert (asked.path, asked.body["tool"]) == ("/weather", "get_weather")
        assert asked.body["arguments"] == {"city": "Paris"}
        assert not [kind for kind in caller.types() if kind.startswith("response.function_call")]
        assert caller.of_type("error") == []


def test_names_of_the_service_are_taken(tmp_path: Path) -> None:
    with offering(tmp_path, WEATHER) as (service, _), calling(service) as caller:
        caller.send("session.update", session={"type": "realtime", "tools": [{"type": "function", "name": "book"}]})
        error = caller.until("error")["error"]
        assert (error["code"], error["param"]) == ("tool_name_taken", "session.tools[0].name")
        caller.settle(tools=[{"type": "function", "name": "look"}], tool_choice={"type": "function", "name": "book"})


def test_who_is_kept_waiting_is_told_once(tmp_path: Path) -> None:
    held = gate()
    with offering(tmp_path, BOOK) as (service, server), calling(service) as caller:
        server.answer = held.then(b"booked")
        caller.hear(utterance())
        assert said(done(caller)) == ""
        filler = done(caller)
        assert said(filler) == "Just a second."
        assert any(
            e["type"] == "response.output_audio.delta" and e["response_id"] == filler["id"] for e in caller.events
        )
        drained = caller.find(lambda e: e["type"] == "response.drained" and e["response_id"] == filler["id"])
        assert drained["status"] == "complete"
        held.open()
        assert said(done(caller)) == "It is booked now."
        assert len(caller.of_type("response.done")) == 3
        caller.find(lambda e: e["type"] == "response.drained" and e["response_id"] != filler["id"])
        metrics = service.metrics()
        held_back = [name for name in metrics if name.startswith("duplex_audit_found_total")]
        assert not any(metrics[name] for name in held_back)
        assert metrics["duplex_credit_in_use_samples"] == 0


@pytest.mark.parametrize(("reply", "is_safe"), [(WEATHER, True), (BOOK, False)])
def test_who_goes_on_speaking_cancels_what_is_safe(tmp_path: Path, reply: str, is_safe: bool) -> None:
    held = gate()
    with (
        offering(tmp_path, reply, scripted_heard="hello|and then what?") as (service, server),
        calling(service) as caller,
    ):
        server.answer = held.then(b"done")
        caller.hear(utterance())
        server.until_asked()
        done(caller)
        caller.hear(interruption())
        if is_safe:
            output = caller.until(is_output)["item"]
            assert json.loads(output["output"])["error"] == "cancelled"
            held.open()
        else:
            caller.until("conversation.item.input_audio_transcription.completed")
            held.open()
            output = caller.find(is_output)["item"]
            assert output["output"] == "done"
        assert all(asked.key == output["call_id"] for asked in server.asked[:1])
        server.until(lambda: not is_safe or server.done[output["call_id"]] == 1)
        assert max(Counter(asked.key for asked in server.asked).values()) == 1


@pytest.mark.models
def test_the_small_model_keeps_to_the_form_of_a_call_that_it_must_make(tmp_path: Path) -> None:
    """And the real voice says what is said meanwhile."""
    held = gate()
    with offering(tmp_path, WEATHER, engine="local") as (service, server), calling(service) as caller:
        server.answer = held.then(b"sunny, 20 degrees")
        caller.type_text("What is the weather like in Paris?")
        named = {"type": "function", "name": "get_weather"}
        caller.send("response.create", response={"tool_choice": named, "max_output_tokens": 100})
        assert done(caller)["status"] == "completed"
        call = call_of(caller)
        arguments = json.loads(call["arguments"])
        assert list(arguments) == ["city"]
        assert isinstance(arguments["city"], str)
        server.until_asked()
        assert server.asked[0].body["arguments"] == arguments
        filler = done(caller)
        assert (filler["status"], said(filler)) == ("completed", "One moment, please.")
        assert loudness(audio_of(caller.events, filler["id"])) > SPOKEN
        held.open()
        caller.until("response.created")
        assert caller.of_type("error") == []


def loudness(pcm: bytes) -> float:
    """Of all of it, as a part of full scale."""
    return float(np.sqrt(np.mean(np.square(np.frombuffer(pcm, "<i2") / 32_768))))


def history(caller: Caller, token: str) -> list[Message]:
    caller.send("session.resume", token=token)
    items: list[Message] = caller.until("session.resumed")["items"]
    return items


def serving_at(service: Service) -> str:
    """Which of two gateways has the call."""
    return next(name for name in ("gateway-1", "gateway-2") if service.alone(name).get("/readyz").json["calls"])


@pytest.mark.parametrize("gateways", ["1", "2"])
@pytest.mark.parametrize(("reply", "is_safe"), [(WEATHER, True), (BOOK, False)])
def test_a_gateway_that_dies_repeats_no_side_effect(tmp_path: Path, reply: str, is_safe: bool, gateways: str) -> None:
    """Between the request and its answer."""
    held = gate()
    with offering(tmp_path, reply, gateways=gateways, calls_max="4") as (service, server):
        server.answer = held.then(b"sunny")
        with calling(service) as caller:
            caller.settle()
            token = caller.of_type("session.created")[0]["session"]["resume_token"]
            caller.hear(utterance())
            server.until_asked()
            part = "gateway" if gateways == "1" else serving_at(service)
            since = len(service.lines)
            service.kill(part)
            assert caller.until_closed() == BROKEN
        if gateways == "1":
            service.wait_for_event("child_restarted", since=since, child=part)
        with calling(service) as caller:
            history(caller, token)
            if is_safe:
                server.until_asked(2)
                held.open()
                assert caller.until(is_output)["item"]["output"] == "sunny"
                assert len({asked.key for asked in server.asked}) == 1, "under the same key"
                assert said(done(caller)) == "It is sunny now."
            else:
                output = caller.until(is_output)["item"]
                assert json.loads(output["output"])["error"] == "lost"
                assert caller.until("service_tool.outcome_unknown")["call_id"] == output["call_id"]
                held.open()
                server.until(lambda: sum(server.done.values()) == 1)
                done(caller)
                wait_until_written(service, caller)
                assert list(server.done.values()) == [1]
                assert len(server.asked) == 1
