"""Several gateways behind one address: callers spread, one that dies or stands still takes nobody with it, and what
belongs to a call is done by the gateway that has it, whichever was asked."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.live.caller import BROKEN, Caller, Message, calling
from tests.live.rtc_caller import post, rtc_calling
from tests.live.service import EVENT_S_MAX, Reached, Service, serving
from tests.live.stored import wait_until_written

pytestmark = [pytest.mark.live, pytest.mark.slow]

ONE, OTHER = GATEWAYS = ("gateway-1", "gateway-2")
PLACES = 6
REPLY = " ".join(f"word{number}" for number in range(30))
OPERATOR = {"Authorization": "Bearer of-an-operator"}
SETTINGS = {
    "gateways": "2",
    "calls_max": str(PLACES),
    "operator_token": "of-an-operator",
    "scripted_replies": REPLY,
    "max_output_tokens": "200",
    "worker_silence_s": "20",
}
AUDIO = "response.output_audio.delta"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("gateways"), SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(service: Service) -> None:
    for name in GATEWAYS:
        service.alone(name).wait_for_calls(0)


def calls_at(service: Service) -> list[int]:
    return [service.alone(name).get("/readyz").json["calls"] for name in GATEWAYS]


def converse(caller: Caller) -> str:
    """Two typed words and their answer; gives the resume token."""
    caller.type_text("Remember herons.", id="item_herons")
    caller.send("response.create", response={"output_modalities": ["text"]})
    caller.until("response.drained")
    token: str = caller.events[0]["session"]["resume_token"]
    return token


def resume(caller: Caller, token: str) -> list[tuple[str, str]]:
    """Take the session up; gives what was said in it."""
    caller.send("session.resume", token=token)
    items: list[Message] = caller.until("session.resumed")["items"]
    return [(item["role"], item["content"][0].get("text") or item["content"][0]["transcript"]) for item in items]


SAID = [("user", "Remember herons."), ("assistant", REPLY)]


def goes_on(caller: Caller) -> None:
    """Another question gets its answer."""
    caller.type_text("Go on.")
    caller.send("response.create", response={"output_modalities": ["text"]})
    assert caller.until("response.done")["response"]["status"] == "completed"


@contextmanager
def coming_back(service: Reached) -> Iterator[Caller]:
    """As clients do: again where the service says that it can take nobody yet."""
    deadline_s = time.monotonic() + EVENT_S_MAX
    with ExitStack() as call:
        caller = None
        while caller is None:
            assert time.monotonic() < deadline_s, "nobody is taken"
            with suppress(InvalidStatus):
                caller = call.enter_context(calling(service))
        yield caller


def start_reply(caller: Caller) -> str:
    """A long one, of which sound has come."""
    caller.type_text("Tell me everything.")
    caller.send("response.create")
    caller.until(AUDIO)
    name: str = caller.events[-1]["response_id"]
    return name


def ask(service: Reached, method: str, path: str) -> tuple[int, Any]:
    answer = service.send(method, path, b"" if method == "POST" else None, OPERATOR)
    return answer.status, answer.json


# ---- the door -----------------------------------------------------------------------------------------------


def test_callers_spread_over_the_gateways_and_never_are_there_too_many(service: Service) -> None:
    with ExitStack() as calls:
        for _ in range(PLACES):
            calls.enter_context(calling(service))
        assert calls_at(service) == [PLACES // 2] * 2
        for door in (service, *map(service.alone, GATEWAYS)):
            with pytest.raises(InvalidStatus) as refused, calling(door):
                pass
            assert refused.value.response.status_code == 503
            assert json.loads(refused.value.response.body)["error"]["code"] == "capacity_exceeded"


def test_of_all_who_come_at_once_as_many_as_there_are_places_are_let_in(service: Service) -> None:
    with ExitStack() as calls, ThreadPoolExecutor(2 * PLACES) as callers:

        def come(number: int) -> bool:
            try:
                calls.enter_context(calling(service.alone(GATEWAYS[number % 2])))
            except InvalidStatus:
                return False
            return True

        came = list(callers.map(come, range(2 * PLACES)))
        assert came.count(True) == PLACES
        assert sum(calls_at(service)) == PLACES


def test_each_gateway_can_be_asked_alone(service: Service) -> None:
    for name in GATEWAYS:
        alone = service.alone(name)
        assert alone.get("/healthz").json == {"status": "alive"}
        assert alone.get("/readyz").json["gateway"] == name
        info = [sample for sample in alone.metrics() if sample.startswith("duplex_gateway_info")]
        assert len(info) == 1
        assert f'gateway="{name}"' in info[0]


def test_a_secret_that_was_spent_at_one_gateway_is_spent_at_all(service: Service) -> None:
    minted = service.alone(ONE).send("POST", "/v1/realtime/client_secrets", b"", {})
    headers = {"Authorization": f"Bearer {minted.json['value']}"}
    patched = b'{"session": {"type": "realtime", "instructions": "Be brief."}}'
    with calling(service.alone(OTHER), headers=headers) as caller:
        assert caller.session
    minted = service.alone(ONE).send("POST", "/v1/realtime/client_secrets", patched, {})
    headers = {"Authorization": f"Bearer {minted.json['value']}"}
    with (
        calling(service.alone(OTHER), headers=headers) as first,
        calling(service.alone(ONE), headers=headers) as second,
    ):
        begun = [caller.events[0]["session"]["instructions"] for caller in (first, second)]
    assert begun[0] == "Be brief."
    assert begun[1] != "Be brief.", "its settings are for one call"


# ---- deaths -------------------------------------------------------------------------------------------------


def test_the_calls_of_a_killed_gateway_go_on_at_the_other_whose_own_notice_nothing(service: Service) -> None:
    since = len(service.lines)
    with calling(service.alone(ONE)) as caller, calling(service.alone(OTHER)) as neighbour:
        token = converse(caller)
        wait_until_written(service, caller)
        spoken = start_reply(neighbour)
        start_reply(caller)
        service.kill(ONE)
        assert caller.until_closed() == BROKEN
        with calling(service) as again:
            assert resume(again, token)[: len(SAID)] == SAID
            goes_on(again)
            assert service.alone(OTHER).get("/readyz").json["calls"] == 2
        done = neighbour.until("response.done")["response"]
        assert (done["id"], done["status"]) == (spoken, "completed")
        neighbour.until("response.drained")
    service.wait_for_event("child_restarted", since=since, child=ONE)
    with calling(service.alone(ONE)) as caller:
        assert resume(caller, token)[: len(SAID)] == SAID


def test_a_gateway_that_stands_still_holds_up_nobody_and_when_it_goes_on_it_has_no_say(service: Service) -> None:
    since = len(service.lines)
    with calling(service.alone(ONE)) as old:
        token = converse(old)
        wait_until_written(service, old)
        start_reply(old)
        with service.stopped(ONE):
            for _ in range(3):
                with calling(service) as passing:
                    goes_on(passing)
            before = len(old.events)
            with calling(service) as caller:
                said = resume(caller, token)
                goes_on(caller)
                session = caller.session
        assert old.until_closed() == (4001, "session_replaced")
    told = service.wait_for_event("stood_still", since=since, session=session)
    assert told["process"] == ONE
    # What lay in its socket's buffers, and in ours, when it stopped; nothing was made of what came meanwhile.
    assert old.types(since=before).count(AUDIO) < 50
    with calling(service) as again:
        assert resume(again, token)[: len(said)] == said
    assert service.alone(ONE).metric("duplex_undrained_responses") == 0


def test_what_a_client_has_left_behind_at_a_gateway_that_stands_still_takes_nothing(service: Service) -> None:
    with calling(service.alone(OTHER)) as first:
        token = converse(first)
    with ExitStack() as calls:
        left_behind = calls.enter_context(calling(service.alone(ONE)))
        with service.stopped(ONE):
            left_behind.send("session.resume", token=token)
            left_behind.break_off()
            caller = calls.enter_context(calling(service.alone(OTHER)))
            assert resume(caller, token) == SAID
        service.alone(ONE).wait_for_calls(0)
        goes_on(caller)


# ---- what belongs to a call ---------------------------------------------------------------------------------


def test_who_takes_a_session_over_from_another_gateway_has_all_of_it_and_the_former_one_is_told(
    service: Service,
) -> None:
    with calling(service.alone(ONE)) as old, calling(service.alone(OTHER)) as new:
        token = converse(old)
        old.type_text("And egrets.")
        old.until("conversation.item.done")
        assert resume(new, token) == [*SAID, ("user", "And egrets.")]
        assert old.until_closed() == (4001, "session_replaced")
        assert len(old.of_type("session.replaced")) == 1
        goes_on(new)


def test_a_wrong_token_disturbs_nobody_at_another_gateway(service: Service) -> None:
    with calling(service.alone(ONE)) as owner, calling(service.alone(OTHER)) as thief:
        converse(owner)
        thief.send("session.resume", token=f"{owner.session}.guess")
        assert thief.until("error")["error"]["code"] == "session_not_resumable"
        owner.settle()


def test_a_call_is_ended_and_deleted_through_the_other_gateway(service: Service) -> None:
    with calling(service.alone(ONE)) as caller:
        converse(caller)
        _, listed = ask(service.alone(OTHER), "GET", f"/v1/sessions/{caller.session}")
        owners = [sample for sample in service.alone(ONE).metrics() if sample.startswith("duplex_gateway_info")]
        assert f'owner="{listed["owner"]}"' in owners[0]
        status, view = ask(service.alone(OTHER), "POST", f"/v1/sessions/{caller.session}/end")
        assert (status, view["state"], view["owner"]) == (200, "stored", None)
        assert caller.until_closed() == (4002, "ended_by_operator")
    with calling(service.alone(ONE)) as caller:
        converse(caller)
        status, deleted = ask(service.alone(OTHER), "DELETE", f"/v1/sessions/{caller.session}")
        assert (status, deleted["drained"]) == (200, True)
        assert service.alone(ONE).get("/readyz").json["calls"] == 0, "what is drained holds no place"
        assert caller.until_closed() == (4003, "session_deleted")


def test_a_browser_hangs_up_at_any_gateway(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service.alone(ONE)) as caller:
            assert calls_at(service) == [1, 0]
            other = service.alone(OTHER)
            assert (await post(other, f"{caller.location}x/hangup", b"")).status == 404
            assert (await post(other, f"{caller.location}/hangup", b"")).status == 200
            await asyncio.to_thread(service.alone(ONE).wait_for_calls, 0)
            assert (await post(other, f"{caller.location}/hangup", b"")).status == 404
            assert (await post(other, "/v1/realtime/calls/rtc_1/hangup", b"")).status == 404

    asyncio.run(run())


# ---- a rolling restart --------------------------------------------------------------------------------------


def test_gateways_are_replaced_one_after_the_other_and_no_call_is_lost(service: Service) -> None:
    since = len(service.lines)
    pids = [service.pid_of(name) for name in GATEWAYS]
    with (
        calling(service.alone(ONE)) as silent,
        calling(service.alone(ONE)) as talking,
        calling(service.alone(OTHER)) as at_other,
    ):
        tokens = [converse(caller) for caller in (silent, talking, at_other)]
        spoken = start_reply(talking)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_event("workers_replaced", since=since)
        assert silent.until_closed() == (1001, "service_shutdown")
        with coming_back(service) as resumed:
            assert resume(resumed, tokens[0]) == SAID
            assert service.alone(OTHER).get("/readyz").json["calls"] == 2, "the one that leaves takes nobody"
            done = talking.until("response.done")["response"]
            assert (done["id"], done["status"]) == (spoken, "completed"), "it is not cut short"
            assert talking.until_closed() == (1001, "service_shutdown")
            service.wait_for_event("child_restarted", since=since, child=ONE)
            assert at_other.until_closed() == resumed.until_closed() == (1001, "service_shutdown")
        for token in tokens:
            with coming_back(service) as again:
                assert resume(again, token)[: len(SAID)] == SAID
                goes_on(again)
    service.wait_for_event("gateways_replaced", since=since)
    assert not set(pids) & {service.pid_of(name) for name in GATEWAYS}
    assert [line for line in service.lines[since:] if '"child_killed"' in line or '"child_died"' in line] == []
