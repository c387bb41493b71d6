"""A second connection sees a call and commands it, at whichever of several gateways it comes in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from duplex.audience import OBSERVERS_MAX
from duplex.tenants import key_digest
from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace
from tests.live.caller import Caller, calling
from tests.live.rtc_caller import rtc_calling
from tests.live.service import Reached, Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

ONE, OTHER = GATEWAYS = ("gateway-1", "gateway-2")
REPLY = " ".join(f"word{number}" for number in range(30))
JSON = {"Content-Type": "application/json"}
SECOND_KEY = "dk_" + "c" * 43
ONE_KEY = TWO.replace("sessions = 4, tokens_per_day = 1000", "sessions = 100, tokens_per_day = 100000")
TWO_KEYS = ONE_KEY.replace(f'"{key_digest(KEY)}"', f'"{key_digest(KEY)}", "{key_digest(SECOND_KEY)}"')


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants") / "tenants.toml"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tenants: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("sidebands")
    replace(tenants, TWO_KEYS)
    settings = {"gateways": "2", "tenants_file": str(tenants), "scripted_replies": REPLY, "max_output_tokens": "200"}
    with serving(folder / "data", settings) as running:
        yield running


def mine(service: Reached) -> Any:
    return calling(service, headers=bearer(KEY))


def joining(service: Reached, call: str, key: str = KEY) -> Any:
    return calling(service, query=f"?call_id={call}&extensions=1", headers=bearer(key))


def refusal(service: Reached, call: str, **how: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, calling(service, query=f"?call_id={call}", **how):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["code"]


def kinds(caller: Caller) -> set[str]:
    return {event["type"] for event in caller.events}


@pytest.mark.parametrize("door", GATEWAYS)
def test_it_sees_what_happens_and_commands_it(service: Service, door: str) -> None:
    with mine(service.alone(ONE)) as caller, joining(service.alone(door), caller.session) as side:
        assert side.session == caller.session
        assert "resume_token" not in side.events[0]["session"]
        caller.settle()  # until its first event a client may still want another session, and is told nothing
        side.settle(instructions="Be brief.")
        caller.until(
            lambda event: event["type"] == "session.updated" and event["session"]["instructions"] == "Be brief."
        )
        side.type_text("Say it all.", id="item_side")
        assert caller.until("conversation.item.done")["item"]["id"] == "item_side"
        side.send("response.create")
        caller.until("response.output_audio.delta")
        side.until("output_audio_buffer.started")
        side.send("response.cancel")
        for one in (caller, side):
            assert one.until("response.done")["response"]["status"] == "cancelled"
            one.until("response.drained")
        assert "response.output_audio.delta" not in kinds(side)
        numbers = [event["server_event_seq"] for event in side.events]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("door", GATEWAYS)
def test_what_answers_a_command_is_for_who_gave_it(service: Service, door: str) -> None:
    with mine(service.alone(ONE)) as caller, joining(service.alone(door), caller.session) as side:
        side.send("conversation.item.retrieve", item_id="item_none", event_id="of-mine")
        assert side.until("error")["error"]["event_id"] == "of-mine"
        for kind in ("input_audio_buffer.append", "session.resume", "playback.ack", "turn.hold", "bye"):
            fields = {"audio": "AAAA", "token": "x"}
            side.send(kind, **fields)
            assert side.until("error")["error"]["code"] == "unsupported_event"
        caller.settle()
        assert "error" not in kinds(caller)


@pytest.mark.parametrize("door", GATEWAYS)
def test_it_ends_with_the_call_and_ends_nothing(service: Service, door: str) -> None:
    with mine(service.alone(ONE)) as caller:
        with joining(service.alone(door), caller.session):
            pass
        caller.settle()
        with joining(service.alone(door), caller.session) as side:
            path = f"/v1/realtime/calls/{caller.session}/hangup"
            assert service.alone(OTHER).send("POST", path, b"", bearer(OTHER_KEY)).status == 404
            assert service.alone(OTHER).send("POST", path, b"", {}).status == 401
            assert service.alone(OTHER).send("POST", path, b"", bearer(KEY)).status == 200
            assert caller.until_closed() == side.until_closed() == (4002, "ended_by_operator")
        assert refusal(service.alone(door), caller.session, headers=bearer(KEY)) == (404, "call_not_found")


@pytest.mark.parametrize("door", GATEWAYS)
def test_only_a_key_of_the_tenant_opens_it(service: Service, door: str) -> None:
    at = service.alone(door)
    with mine(service.alone(ONE)) as caller:
        secret = at.send("POST", "/v1/realtime/client_secrets", b"{}", bearer(KEY) | JSON).json["value"]
        assert refusal(at, caller.session, headers=bearer(OTHER_KEY)) == (404, "call_not_found")
        assert refusal(at, caller.session, headers=bearer(secret)) == (401, "invalid_token")
        assert refusal(at, caller.session) == (401, "missing_token")
        for nobody in ("sess_none", "rtc_1.gw_none", "x" * 300, ""):
            status, code = refusal(at, nobody, headers=bearer(KEY))
            assert (status, code) in [(404, "call_not_found"), (404, "call_elsewhere")]


def test_it_ends_with_its_own_key_at_whichever_gateway(service: Service, tenants: Path) -> None:
    with mine(service.alone(ONE)) as caller, ExitStack() as sides:
        one, other = (
            sides.enter_context(joining(service.alone(door), caller.session, SECOND_KEY)) for door in GATEWAYS
        )
        of_mine = sides.enter_context(joining(service.alone(OTHER), caller.session))
        try:
            replace(tenants, ONE_KEY)
            assert one.until_closed() == other.until_closed() == (4004, "permission_revoked")
        finally:
            replace(tenants, TWO_KEYS)
        caller.settle()
        of_mine.until("session.updated")


def test_there_are_a_few_of_them_and_their_places_come_back(service: Service) -> None:
    with mine(service.alone(ONE)) as caller, ExitStack() as sides:
        for number in range(OBSERVERS_MAX):
            sides.enter_context(joining(service.alone(GATEWAYS[number % 2]), caller.session))
        for door in GATEWAYS:
            at = service.alone(door)
            assert refusal(at, caller.session, headers=bearer(KEY)) == (429, "too_many_sidebands")
        assert service.alone(ONE).get("/readyz").json["calls"] == 1, "they take no place of a call"


@pytest.mark.parametrize("door", GATEWAYS)
def test_a_browser_s_call_is_joined_by_its_id(service: Service, door: str) -> None:
    async def run() -> None:
        async with rtc_calling(service.alone(ONE), **bearer(KEY)) as browser:
            call = browser.location.rpartition("/")[2]
            await asyncio.to_thread(look, call)
            assert (await browser.until("response.done"))["response"]["status"] == "completed"

    def look(call: str) -> None:
        with joining(service.alone(door), call) as side:
            side.type_text("Are you there?")
            side.send("response.create", response={"output_modalities": ["text"]})
            side.until("response.done")

    asyncio.run(run())


def test_a_gateway_that_stands_still_is_said_to_be_out_of_reach(service: Service) -> None:
    with mine(service.alone(ONE)) as caller:
        session = caller.session
        with service.stopped(ONE):
            status, code = refusal(service.alone(OTHER), session, headers=bearer(KEY))
    assert (status, code) == (503, "call_unreachable")
