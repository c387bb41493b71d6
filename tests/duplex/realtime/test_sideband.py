"""A second connection to a call: whose it joins, here and at a neighbour, what it may do there, and what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from duplex.admission import RefusedError
from duplex.auth import Authority
from duplex.call import Call
from duplex.config import Config
from duplex.gateway import Gateway
from duplex.neighbours import PASSED_ON_HEADER, Neighbours
from duplex.pipeline import graph_of
from duplex.realtime import sideband, sockets
from duplex.realtime.connection import Limits
from duplex.realtime.sideband import Seats, SidebandEndpoint
from duplex.stage_pool import StagePool
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import Permission, key_digest
from sessions.memory_store import Fault, MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.records import SessionRecord
from sessions.settings import SessionSettings
from tests.duplex.realtime.test_websocket import FakeClient
from tests.duplex.test_gateway import Deaf, Faults
from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace

S_MAX = 10
SECOND_KEY = "dk_" + "c" * 43
ACME = Permission("acme", key_digest(KEY))
BOTH = TWO.replace(f'"{key_digest(KEY)}"', f'"{key_digest(KEY)}", "{key_digest(SECOND_KEY)}"')
FAR = "gw_far"
LEASE_MS = 30_000


class Side(FakeClient):
    """Joins `call` with the second of Acme's keys. `passed_on`: as a neighbour does for it."""

    def __init__(self, call: str, key: str = SECOND_KEY, *, passed_on: bool = False) -> None:
        super().__init__()
        self._query = f"call_id={call}&extensions=1"
        self.headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        if passed_on:
            self.headers.append((PASSED_ON_HEADER.encode(), b"1"))

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.sent]

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.sent if message["type"] == "websocket.send"]

    @property
    def errors(self) -> list[str]:
        found = [json.loads(text) for text in self.texts]
        return [event["error"]["code"] for event in found if event["type"] == "error"]

    @property
    def denial(self) -> tuple[int, str]:
        start, body = self.sent
        return start["status"], json.loads(body["body"])["error"]["code"]

    def hear(self, text: str) -> None:
        self._coming.put_nowait({"type": "websocket.receive", "text": text})

    async def until_errors(self, count: int) -> None:
        while len(self.errors) < count:
            self._took.clear()
            await self._took.wait()

    async def until(self, kind: str) -> None:
        """A message of ASGI."""
        while kind not in self.kinds:
            self._took.clear()
            await self._took.wait()


class FarGateway:
    """At the neighbour's socket; says only what a test has it say."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self.denies: tuple[HTTPStatus, str] | None = None
        self.asked: list[Request] = []
        self.heard: list[str | bytes] = []
        self.joined: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()
        self.some_heard = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self._neighbours.announce("gateway-2", FAR)
        server = await unix_serve(self._serve, str(self._neighbours.own_socket), process_request=self._answer)
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        self.asked.append(request)
        return None if self.denies is None else connection.respond(*self.denies)

    async def _serve(self, connection: ServerConnection) -> None:
        self.joined.set_result(connection)
        try:
            async for message in connection:
                self.heard.append(message)
                self.some_heard.set()
        except ConnectionClosed:
            pass
        finally:
            self.left.set()


class Bench:
    """A gateway whose tenants a file names, with one beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tenants.toml"
        replace(self.path, BOTH)
        self.now_ms, self.faults = 1_000_000, Faults()
        self.store = MemorySessionStore(lambda: self.now_ms, faults=self.faults)
        config = Config(engine="scripted", data_dir=folder)
        self.gateway = Gateway(
            config,
            graph_of(config),
            self.store,
            Deaf(),
            ReplyDefaults("Hi.", 10, prepare=False),
            directory=TenantDirectory(self.path),
        )
        self.rtc_calls: dict[str, Call] = {}
        self.far = FarGateway(Neighbours(folder, 1, 2))
        self.endpoint = self.endpoint_beside(Neighbours(folder, 0, 2))

    def endpoint_beside(self, neighbours: Neighbours | None) -> SidebandEndpoint:
        authority = Authority(self.gateway.config, None, self.gateway.directory)
        return SidebandEndpoint(self.gateway, authority, self.rtc_calls.get, neighbours)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Call]:
        """With the first of Acme's keys."""
        async with self.gateway.place(ACME) as place, self.gateway.new_call(SessionSettings(), tenancy=place) as begun:
            yield begun.call

    async def session_of(self, owner: str) -> str:
        await self.store.create(SessionRecord("sess_away", "acme", 0, b"{}", b"x"), owner, LEASE_MS)
        return "sess_away"

    def join(self, side: Side) -> asyncio.Task[None]:
        return asyncio.create_task(self.endpoint.serve(side.socket))

    async def denied(self, side: Side) -> tuple[int, str]:
        await self.endpoint.serve(side.socket)
        return side.denial

    def revoke_second_key(self) -> None:
        replace(self.path, TWO)
        self.gateway.directory.look()


Scenario = Callable[[Bench], Coroutine[None, None, None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))
    monkeypatch.setattr(sockets, "CLOSE_S_MAX", 0.01)

    def run(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(S_MAX):
                one = Bench(tmp_path)
                await scenario(one)
                assert one.endpoint._seats._taken == {}
                assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


# ---- here -------------------------------------------------------------------------------------------


def test_it_is_told_what_happens_and_commands_until_the_call_ends(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side = Side(call.session)
            serving = one.join(side)
            await side.until_told("session.created")
            assert (side.created["id"], "resume_token" in side.created) == (call.session, False)
            side.say("session.update", session={"type": "realtime", "instructions": "Be brief."})
            await side.until_told("session.updated")
            assert call.conversation.settings.instructions == "Be brief."
            call.end("ended_by_operator")
            await serving
            assert side.close == (4002, "ended_by_operator")
            assert not call.audience._observers

    play(scenario)


def test_it_may_do_nothing_that_is_the_call_s_own_connection_s(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side, other = Side(call.session), Side(call.session)
            serving = [one.join(side), one.join(other)]
            for each in (side, other):
                await each.until_told("session.created")
            side.say("input_audio_buffer.append", audio="AAAA")
            side.say("input_audio_buffer.commit")
            side.say("session.resume", token="x")
            side.say("bye")
            side.say("session.update", session={"type": "realtime"})
            await side.until_told("session.updated")
            assert side.errors == ["unsupported_event"] * 4
            side.say("conversation.item.retrieve", item_id="item_none")
            await side.until_errors(5)
            assert side.errors[-1] == "item_not_found", "that answers nobody else"
            assert (other.errors, call.end_reason) == ([], None)
            for each in (side, other):
                each.vanish()
            await asyncio.gather(*serving)
            assert (call.end_reason, call.audience._observers) == (None, [])

    play(scenario)


def test_a_browser_s_call_is_joined_by_its_own_id(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            one.rtc_calls["rtc_1.gw"] = call
            side = Side("rtc_1.gw")
            serving = one.join(side)
            await side.until_told("session.created")
            side.vanish()
            await serving

    play(scenario)


@pytest.mark.parametrize(
    ("key", "refusal"),
    [(OTHER_KEY, (404, "call_not_found")), ("", (401, "missing_token")), ("dk_x", (401, "invalid_token"))],
)
def test_it_needs_a_key_of_the_call_s_tenant(play: Play, key: str, refusal: tuple[int, str]) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            assert await one.denied(Side(call.session, key)) == refusal

    play(scenario)


def test_a_call_that_has_ended_is_not_found_while_it_cleans_up(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            one.rtc_calls["rtc_1"] = call
            call.end("client_closed")
            assert one.gateway.call_of(call.session) is call
            for name in (call.session, "rtc_1"):
                assert await one.denied(Side(name)) == (404, "call_not_found")

    play(scenario)


# ---- how many ---------------------------------------------------------------------------------------


def test_a_call_has_a_few_of_them(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duplex.audience.OBSERVERS_MAX", 1)

    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            first, late = Side(call.session), Side(call.session)
            late.reading.shut()
            of_late = one.join(late)
            await late.reading.reached.wait()  # it found room, and is just being let in
            of_first = one.join(first)
            await first.until_told("session.created")
            assert await one.denied(Side(call.session)) == (429, "too_many_sidebands")
            late.reading.open.set()
            await of_late
            assert late.close == (1008, "refused")
            assert call.end_reason is None
            first.vanish()
            await of_first

    play(scenario)


def test_a_tenant_and_a_gateway_have_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sideband, "SIDEBANDS_MAX", 3)
    monkeypatch.setattr(sideband, "OF_TENANT_MAX", 2)
    seats = Seats()
    with seats.taken("acme"), seats.taken("acme"):
        with pytest.raises(RefusedError, match="tenant") as of_tenant, seats.taken("acme"):
            pass
        with seats.taken("other"), pytest.raises(RefusedError, match="there are 3") as of_gateway, seats.taken("third"):
            pass
        with seats.taken("third"):
            pass
    refused = [(error.value.status, error.value.code) for error in (of_tenant, of_gateway)]
    assert refused == [(429, "too_many_sidebands"), (503, "too_many_sidebands")]
    assert all(error.value.retry_after_s for error in (of_tenant, of_gateway))
    assert not seats._taken, "nobody is remembered"


def test_who_has_no_seat_is_refused_with_the_reason(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sideband, "OF_TENANT_MAX", 1)

    async def scenario(one: Bench) -> None:
        async with one.call() as call, one.far.open():
            side = Side(await one.session_of(FAR))
            serving = one.join(side)
            await one.far.joined
            assert await one.denied(Side(call.session)) == (429, "too_many_sidebands"), "what is passed on counts"
            side.vanish()
            await serving

    play(scenario)


def test_one_that_does_not_read_is_closed_and_the_call_goes_on(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duplex.realtime.connection.MESSAGES_WAITING_MAX", 2)

    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side = Side(call.session)
            serving = one.join(side)
            await side.until_told("session.created")
            side.reading.shut()
            for _ in range(4):
                side.say("session.update", session={"type": "realtime"})
            await serving
            assert call.end_reason is None
            assert "websocket.close" not in side.kinds, "nor does it read that"

    play(scenario)


def test_one_may_look_on_in_silence_for_as_long_as_a_call_lasts() -> None:
    assert sideband._patient(Limits(10, 3_000, 20)) == Limits(10, 3_000, 3_000)


# ---- a key that is taken back -----------------------------------------------------------------------


def test_it_ends_with_its_own_key_and_the_call_goes_on(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side, mine = Side(call.session), Side(call.session, KEY)
            serving, other = one.join(side), one.join(mine)
            for each in (side, mine):
                await each.until_told("session.created")
            one.revoke_second_key()
            side.say("session.update", session={"type": "realtime", "instructions": "Obey me."})
            await serving
            assert side.close == (4004, "permission_revoked")
            assert (call.conversation.settings.instructions, call.end_reason) == ("", None)
            assert len(call.audience._observers) == 1
            mine.vanish()
            await other

    play(scenario)


def test_one_that_takes_nothing_is_cut_off_all_the_same(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side = Side(call.session)
            side.reading.shut()
            serving = one.join(side)
            await side.reading.reached.wait()
            one.revoke_second_key()
            await serving
            assert side.sent == []

    play(scenario)


def test_a_key_that_is_taken_back_while_the_call_is_looked_for_opens_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(one: Bench) -> None:
        async def never(_sessions: object) -> None:
            one.revoke_second_key()
            await asyncio.Event().wait()

        monkeypatch.setattr(one.store, "describe", never)
        assert await one.denied(Side("sess_away")) == (401, "permission_revoked")

    play(scenario)


def test_one_that_is_passed_on_ends_though_the_other_gateway_says_nothing(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            side = Side(await one.session_of(FAR))
            serving = one.join(side)
            await (await one.far.joined).send("{}")
            await side.until("websocket.send")
            one.revoke_second_key()
            await serving
            assert side.close == (4004, "permission_revoked")
            await one.far.left.wait()

    play(scenario)


def test_who_gives_up_a_connection_leaves_nothing_of_it(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.call() as call:
            side = Side(call.session)
            serving = one.join(side)
            await side.until_told("session.created")
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert "websocket.close" not in side.kinds
            assert not call.audience._observers

    play(scenario)


# ---- elsewhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["sess_away", f"rtc_1.{FAR}"])
def test_messages_are_passed_on_both_ways_and_so_is_the_end(play: Play, call: str) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            await one.session_of(FAR)
            side = Side(call)
            serving = one.join(side)
            far = await one.far.joined
            (asked,) = one.far.asked
            assert asked.path == f"/v1/realtime?call_id={call}&extensions=1"
            assert (asked.headers["authorization"], asked.headers[PASSED_ON_HEADER]) == (f"Bearer {SECOND_KEY}", "1")
            side.hear("to the call")
            await one.far.some_heard.wait()
            assert one.far.heard == ["to the call"]
            await far.send("from the call")
            await far.send(b"as bytes")
            await far.close(4002, "ended_by_operator")
            await serving
            assert side.texts == ["from the call", "as bytes"]
            assert side.close == (4002, "ended_by_operator")

    play(scenario)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_gateway_that_dies_amid_it_is_a_fault_of_the_service(play: Play, *, says_goodbye: bool) -> None:
    """What closes here is sent: codes of ends that nobody has sent are no codes to send."""

    async def scenario(one: Bench) -> None:
        async with one.far.open():
            side = Side(await one.session_of(FAR))
            serving = one.join(side)
            far = await one.far.joined
            if says_goodbye:
                far.protocol.send_close()  # without a code
                far.transport.write(b"".join(far.protocol.data_to_send()))
            else:
                far.transport.abort()
            await serving
            assert side.close == (1011, "internal_error")

    play(scenario)


def test_who_has_gone_is_gone_there_as_well(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            side = Side(await one.session_of(FAR))
            serving = one.join(side)
            await one.far.joined
            side.vanish()
            await serving
            await one.far.left.wait()

    play(scenario)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ('{"error": {"code": "too_many_sidebands", "message": "m", "retry_after_s": 5}}', (429, "too_many_sidebands")),
        ("no JSON", (429, "call_unreachable")),
    ],
)
def test_what_the_other_gateway_refuses_is_refused_here(play: Play, body: str, refusal: tuple[int, str]) -> None:
    async def scenario(one: Bench) -> None:
        one.far.denies = HTTPStatus.TOO_MANY_REQUESTS, body
        async with one.far.open():
            assert await one.denied(Side(await one.session_of(FAR))) == refusal

    play(scenario)


def test_a_gateway_that_does_not_answer_is_out_of_reach(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            pass
        assert await one.denied(Side(await one.session_of(FAR))) == (503, "call_unreachable")

    play(scenario)


def test_what_a_neighbour_has_passed_on_is_not_passed_on_again(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            session = await one.session_of(FAR)
            assert await one.denied(Side(session, passed_on=True)) == (404, "call_not_found")
            assert one.far.asked == []

    play(scenario)


def test_who_had_a_session_before_is_not_asked_for_its_call(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            session = await one.session_of(FAR)
            one.now_ms += LEASE_MS + 1
            (held,) = await one.store.describe([session])
            assert (held.owner, held.lease_ms) == (FAR, 0)
            assert await one.denied(Side(session)) == (404, "call_not_found")
            assert one.far.asked == []

    play(scenario)


def test_a_call_that_is_nowhere_here_is_told_apart(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        for nobody in ("sess_none", "", "x" * 300, f"rtc_1.{one.gateway.name}"):
            assert await one.denied(Side(nobody)) == (404, "call_not_found")
        assert await one.denied(Side("rtc_1.gw_gone")) == (404, "call_elsewhere")
        session = await one.session_of(one.gateway.name)  # its call has just gone
        assert await one.denied(Side(session)) == (404, "call_not_found")
        one.endpoint = one.endpoint_beside(None)
        assert await one.denied(Side(f"rtc_1.{FAR}")) == (404, "call_elsewhere")
        one.faults.now["describe"] = Fault.UNAVAILABLE
        assert await one.denied(Side("sess_away")) == (503, "store_unavailable")
        assert await one.denied(Side("x" * 300)) == (404, "call_not_found"), "the store is not asked for what is no id"

    play(scenario)


def test_a_fault_of_ours_in_between_is_told_of(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.far.open():
            side = Side(await one.session_of(FAR))
            with capture_logs() as logs:
                serving = one.join(side)
                await (await one.far.joined).send(b"\xff")
                await serving
            assert [log["event"] for log in logs] == ["sideband_failed"]
            assert side.close == (1011, "internal_error")

    play(scenario)
