"""What a carrier's own API is asked, and what of its answers and of the machine's settings is not followed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from duplex.telephony.carrier import MU_LAW_LINE, Started
from duplex.telephony.control import ControlError, PbxControl, TelnyxControl, TwilioControl

S_MAX = 10
CALL = Started("st/1", "c/1", MU_LAW_LINE, "AC1")
PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class Api:
    """Answers each request with `status` and `headers`."""

    def __init__(self, status: int = 200, headers: str = "") -> None:
        self._answer = f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n{headers}\r\n"
        self.asked: list[str] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self.url

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.asked.append(head + (await reader.readexactly(length)).decode())
        writer.write(self._answer.encode())
        await writer.drain()
        writer.close()


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario()

    asyncio.run(run())


def test_each_carrier_is_asked_in_its_own_words() -> None:
    async def scenario() -> None:
        api = Api()
        async with api.serving() as url:
            await TwilioControl(f"{url}/", "word").transfer(CALL, "+15550199")
            await TwilioControl(url, "word").hang_up(CALL)
            await TelnyxControl(url, "key").transfer(CALL, "+15550199")
            await TelnyxControl(url, "key").hang_up(CALL)
            await PbxControl(f"{url}/pbx", ("pbx", "word")).transfer(CALL, "sip:a@b")
            await PbxControl(f"{url}/pbx", None).hang_up(CALL)
        firsts = [asked.splitlines()[0] for asked in api.asked]
        assert firsts == [
            *["POST /2010-04-01/Accounts/AC1/Calls/c%2F1.json HTTP/1.1"] * 2,
            "POST /v2/calls/c%2F1/actions/transfer HTTP/1.1",
            "POST /v2/calls/c%2F1/actions/hangup HTTP/1.1",
            *["POST /pbx HTTP/1.1"] * 2,
        ]
        assert f"Basic {base64.b64encode(b'AC1:word').decode()}" in api.asked[0]
        assert "Bearer key" in api.asked[2]
        assert '"connection_id":"st/1","to":"sip:a@b"' in api.asked[4]
        assert "uthorization" not in api.asked[5]

    play(scenario)


@pytest.mark.parametrize(("status", "is_refused"), [(404, True), (503, False), (302, False), (307, False)])
def test_an_answer_that_is_no_success_is_none(*, status: int, is_refused: bool) -> None:
    async def scenario() -> None:
        async with Api(status).serving() as url:
            with pytest.raises(ControlError) as failed:
                await TelnyxControl(url, "key").hang_up(CALL)
        assert failed.value.is_refused is is_refused
        assert "key" not in str(failed.value)

    play(scenario)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    async def scenario() -> None:
        other = Api()
        async with other.serving() as elsewhere:
            api = Api(status, f"location: {elsewhere}/there\r\n")
            async with api.serving() as url:
                with pytest.raises(ControlError):
                    await TelnyxControl(url, "key").hang_up(CALL)
        assert (len(api.asked), other.asked) == (1, [])

    play(scenario)


def test_no_proxy_of_the_machines_settings_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        api, proxy = Api(), Api()
        async with api.serving() as url, proxy.serving() as way:
            for name in PROXIES:
                monkeypatch.setenv(name, way)
            for name in ("NO_PROXY", "no_proxy"):
                monkeypatch.delenv(name, raising=False)
            await TelnyxControl(url, "key").hang_up(CALL)
        assert (len(api.asked), proxy.asked) == (1, [])

    play(scenario)


def test_a_carrier_that_does_not_answer_may_have_done_it() -> None:
    async def scenario() -> None:
        async with Api().serving() as url:
            pass
        with pytest.raises(ControlError) as failed:
            await TelnyxControl(url, "key").hang_up(CALL)
        assert not failed.value.is_refused

    play(scenario)
