"""Whole calls through every door of the emulated carriers, signed in as they are, before the real service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loadtest.caller import MonotonicClock
from loadtest.carriers.asterisk_channel import ChannelCall
from loadtest.carriers.doors import AsteriskDoor, AsteriskSwitch, TelnyxDoor, TwilioDoor
from loadtest.carriers.phone_call import Door, PhoneCall, PhonePlan
from loadtest.carriers.stream_dialects import WIDE
from loadtest.errors import ConnectError, Unauthorised
from loadtest.timeline import CallPlan
from loadtest.turns import CallResult, Utterance
from tests.live.phone import speaking
from tests.live.service import Service, serving
from tests.live.test_telephony_doors import begin, free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]

SECRET = "carriers-own"
RATE = 24_000


@pytest.fixture(scope="module")
def pbx_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, pbx_port: int) -> Iterator[Service]:
    folder, port = tmp_path_factory.mktemp("doors"), free_port()
    secret = folder / "secret"
    secret.write_text(SECRET, encoding="utf-8")
    names = ("twilio_auth_token_file", "telnyx_token_file", "asterisk_password_file")
    settings = dict.fromkeys(names, str(secret)) | {"asterisk_user": "pbx"}
    settings |= {"public_url": f"http://127.0.0.1:{port}", "asterisk_urls": f"ws://127.0.0.1:{pbx_port}"}
    with serving(folder / "data", settings, port=port, engine="synthetic") as running:
        yield running


def plan() -> PhonePlan:
    said = Utterance.from_pcm("a tone", speaking((0, 700))(0, 700 * RATE // 1_000, RATE))
    return PhonePlan(CallPlan((said,), lead_ms=300, turn_timeout_ms=8_000))


async def placed(door: Door) -> CallResult:
    call = PhoneCall(door, plan(), MonotonicClock())
    await call.run()
    return call.result()


def doors(service: Service, secret: str) -> list[Door]:
    http, ws = f"http://{service.address}", f"ws://{service.address}"
    return [
        TwilioDoor(http, secret),
        TelnyxDoor(ws, secret),
        TelnyxDoor(ws, secret, sound=WIDE),
        AsteriskDoor(ws, f"pbx:{secret}"),
    ]


def test_who_is_known_is_let_in_and_answered(service: Service) -> None:
    async def all_at_once() -> list[CallResult]:
        return await asyncio.gather(*(placed(door) for door in doors(service, SECRET)))

    assert [result.went_well for result in asyncio.run(all_at_once())] == [True] * 4


def test_who_is_not_known_is_refused(service: Service) -> None:
    async def refused(door: Door) -> type[Exception] | str:
        try:
            return (await placed(door)).detail
        except ConnectError as error:
            return type(error)

    async def all_at_once() -> list[type[Exception] | str]:
        return await asyncio.gather(*(refused(door) for door in doors(service, "another")))

    assert asyncio.run(all_at_once()) == [Unauthorised] * 4
    assert "missing_ticket" in str(asyncio.run(refused(TwilioDoor(f"ws://{service.address}"))))


def test_a_channel_that_waits_is_connected_to_and_answered(service: Service, pbx_port: int) -> None:
    async def run() -> CallResult:
        async with AsteriskSwitch(f"pbx:{SECRET}", port=pbx_port) as switch:
            call = ChannelCall("conn1", format_name="slin16")
            waiting = asyncio.create_task(placed(lambda: switch.door(call)))
            answer = await asyncio.to_thread(begin, service, f"{switch.url}/media/conn1")
            assert answer.status == 201
            return await waiting

    assert asyncio.run(run()).went_well
