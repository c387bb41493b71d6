"""Callers who come back, with the real processes, while nobody has noticed that their connection has gone: the place
that is taken, of the host or of their tenant's quota, is their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace
from tests.live.caller import BROKEN, Caller, calling
from tests.live.rtc_caller import rtc_calling
from tests.live.service import Reached, Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

ONE, OTHER = GATEWAYS = ("gateway-1", "gateway-2")
MINE, THEIRS = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {OTHER_KEY}"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Two gateways, one place, and a tenant who may have one session, and start three in a minute."""
    file = tmp_path / "tenants.toml"
    replace(file, TWO.replace("sessions = 4", "sessions = 1, starts_per_minute = 3"))
    settings = {"gateways": "2", "calls_max": "1", "tenants_file": str(file)}
    with serving(tmp_path / "data", settings) as running:
        yield running


def back_to(session: str) -> str:
    return f"?extensions=1&resume={session}"


def refusal(service: Reached, headers: dict[str, str], query: str = "?extensions=1") -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, calling(service, query=query, headers=headers):
        pass
    return refused.value.response.status_code, json.loads(refused.value.response.body)["error"]["code"]


def resume(caller: Caller, token: str) -> Any:
    caller.send("session.resume", token=token)
    return caller.until("session.resumed")["session"]["id"]


def calls(service: Service) -> int:
    return sum(service.alone(name).get("/readyz").json["calls"] for name in GATEWAYS)


def goes_on(caller: Caller) -> None:
    """A question gets its answer."""
    caller.type_text("Go on.")
    caller.send("response.create", response={"output_modalities": ["text"]})
    assert caller.until("response.done")["response"]["status"] == "completed"


def test_who_comes_back_goes_on_at_once_where_all_is_taken(service: Service) -> None:
    here, there = service.alone(ONE), service.alone(OTHER)
    with calling(here, headers=MINE) as lost:
        goes_on(lost)
        session, token = lost.session, lost.events[0]["session"]["resume_token"]
        with calling(there, query=back_to(session), headers=MINE) as liar:
            assert refusal(here, THEIRS) == (503, "capacity_exceeded")
            liar.send("session.resume", token=f"{session}.guess")
            assert liar.until_closed() == (1008, "refused")
            assert liar.events[-1]["error"]["code"] == "session_not_resumable"
        there.wait_for_calls(0)
        assert refusal(there, MINE, back_to("sess_of_nobody")) == (503, "capacity_exceeded")
        assert refusal(there, THEIRS, back_to(session)) == (503, "capacity_exceeded")
        goes_on(lost)
        assert "session.replaced" not in lost.types(), "nobody has noticed"
        with calling(there, query=back_to(session), headers=MINE) as back:
            assert resume(back, token) == session
            assert lost.until_closed() == (4001, "session_replaced")
            goes_on(back)
            here.wait_for_calls(0)
            assert calls(service) == 1
            assert refusal(here, THEIRS) == (503, "capacity_exceeded")


def test_who_comes_back_from_a_killed_gateway_goes_on_at_once_at_their_quota(service: Service) -> None:
    here, there = service.alone(ONE), service.alone(OTHER)
    with calling(there, headers=MINE) as caller:
        goes_on(caller)
        session, token = caller.session, caller.events[0]["session"]["resume_token"]
        service.kill(OTHER)
        assert caller.until_closed() == BROKEN
    assert refusal(here, MINE) == (429, "quota_exceeded"), "a newcomer"
    for _ in range(4):  # more often than may be started
        with calling(here, query=back_to(session), headers=MINE) as back:
            assert resume(back, token) == session
            goes_on(back)
        here.wait_for_calls(0)


def test_who_comes_back_to_their_gateway_is_told_how_the_reply_has_ended_meanwhile(service: Service) -> None:
    here = service.alone(ONE)
    with calling(here, headers=MINE) as lost:
        lost.type_text("Tell me everything.")
        lost.send("response.create")
        seen = lost.until("response.output_audio.delta")["server_event_seq"]
        session, token = lost.session, lost.events[0]["session"]["resume_token"]
        lost.break_off()
    here.wait_for_calls(0)
    with calling(here, query=back_to(session), headers=MINE) as back:
        back.send("session.resume", token=token, last_event_seq=seen)
        assert back.until("session.resumed")["resync"] is False
        done = back.until("response.done")
        assert (done["response"]["status"], done["server_event_seq"] > seen) == ("cancelled", True)
        assert back.settle()["server_event_seq"] > done["server_event_seq"]
        goes_on(back)


def test_a_browser_comes_back_at_once_where_all_is_taken(service: Service) -> None:
    async def scenario() -> None:
        here, there = service.alone(ONE), service.alone(OTHER)
        async with rtc_calling(here, **MINE) as lost:
            created = lost.events[0]["session"]
            async with rtc_calling(there, query=back_to(created["id"]), **MINE) as back:
                back.send("session.resume", token=created["resume_token"])
                assert (await back.until("session.resumed"))["session"]["id"] == created["id"]
                assert (await lost.until("error"))["error"]["code"] == "session_replaced"
                await asyncio.to_thread(here.wait_for_calls, 0)
                status, code = await asyncio.to_thread(refusal, here, THEIRS)
                assert (status, code) == (503, "capacity_exceeded")

    asyncio.run(scenario())
