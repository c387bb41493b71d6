"""Calls that the entrance has let in: what may be done with them, and who goes on with which. Its stages are never
there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from duplex.auth import Authority
from duplex.client_secrets import Bounds, ClientSecrets, Grant
from duplex.telephony.carrier import Started
from duplex.telephony.entrance import TELEPHONY, Entrance
from duplex.telephony.media_streams import TELNYX, MediaStreams
from duplex.telephony.phone_call import Line
from duplex.telephony.sockets import MESSAGE_BYTES_MAX
from duplex.tenancies import Tenancy
from duplex.transport import Transport
from sessions.settings import SessionSettings
from tests.duplex.gated_gateway import GatedGateway
from tests.duplex.telephony.test_entrance import Socket

S_MAX = 10
START = json.dumps(
    {"event": "start", "stream_id": "s", "start": {"call_control_id": "c1", "media_format": {"encoding": "PCMU"}}}
)
TOO_LARGE = "x" * (MESSAGE_BYTES_MAX + 1)  # an end of ours: the carrier is to hang up
NUMBER = "+15550100"


class Control:
    def __init__(self) -> None:
        self.hung_up: list[str] = []

    async def transfer(self, call: Started, to: str) -> None:
        raise NotImplementedError

    async def hang_up(self, call: Started) -> None:
        self.hung_up.append(call.call)


class Bench:
    """An entrance, before a gateway that takes every call."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.gated = GatedGateway(folder, monkeypatch, **settings)
        gateway = self.gated.gateway
        self.entrance = Entrance(gateway, Authority(gateway.config, ClientSecrets(gateway.store)))
        self.control = Control()
        self.socket = Socket()

    async def call(self, grant: Grant, *, is_known: bool = False, end: str = TOO_LARGE) -> str | None:
        """The session of a call that says nothing; None where there was none. `end`: empty for a socket that
        closes."""

        async def admit(_started: Started) -> Grant:
            return grant

        self.socket = Socket(START, end) if end else Socket(START)
        with capture_logs() as logs:
            line = Line(self.socket, MediaStreams(TELNYX), self.control)
            await self.entrance.receive(line, admit, is_known=is_known)
        began = [entry["session"] for entry in logs if entry["event"] == "phone_call_began"]
        return began[0] if began else None


def play(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("is_known", "announced", "hung_up"),
    [(True, None, ["c1"]), (False, "c1", ["c1"]), (False, "c2", []), (False, None, []), (False, "", [])],
)
def test_the_operators_means_are_used_on_calls_that_the_carrier_has_brought_or_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_known: bool, announced: str | None, hung_up: list[str]
) -> None:
    async def scenario() -> None:
        one = Bench(tmp_path, monkeypatch)
        assert await one.call(Grant(None, bounds=Bounds(TELEPHONY, call=announced)), is_known=is_known)
        assert one.socket.closed == (1009, "message_too_large")
        assert one.control.hung_up == hung_up

    play(scenario)


def test_a_ticket_for_one_session_begins_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one = Bench(tmp_path, monkeypatch)
        assert await one.call(Grant(None, bounds=Bounds(TELEPHONY, session="sess_1"))) is None
        assert one.socket.closed == (1008, "session_not_allowed")

    play(scenario)


@pytest.mark.parametrize(("end", "is_same"), [("", True), (TOO_LARGE, False)])
def test_only_who_was_cut_off_goes_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, end: str, is_same: bool
) -> None:
    async def scenario() -> None:
        one = Bench(tmp_path, monkeypatch, phone_resume_s=60)
        grant = Grant(None, bounds=Bounds(TELEPHONY, caller=NUMBER))
        first, again = await one.call(grant, end=end), await one.call(grant, end="")
        assert None not in (first, again)
        assert (first == again) is is_same

    play(scenario)


@pytest.mark.parametrize(("idle_s", "idle_ms"), [(0, None), (5, 5_000)])
def test_who_says_nothing_is_spoken_to_after_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, idle_s: int, idle_ms: int | None
) -> None:
    async def scenario() -> None:
        one = Bench(tmp_path, monkeypatch, phone_idle_s=idle_s)
        begun: list[SessionSettings] = []
        gateway, new_call = one.gated.gateway, one.gated.gateway.new_call

        def noted(settings: SessionSettings, transport: Transport, tenancy: Tenancy) -> Any:
            begun.append(settings)
            return new_call(settings, transport, tenancy)

        monkeypatch.setattr(gateway, "new_call", noted)
        assert await one.call(Grant(None))
        (settings,) = begun
        assert settings.turn_detection is not None
        assert settings.turn_detection.idle_timeout_ms == idle_ms

    play(scenario)
