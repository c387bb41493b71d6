"""A browser's call from its offer to its end, with a peer that hangs wherever a test wants it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from duplex import tenancies
from duplex.call import Call
from duplex.listening import Listening
from duplex.realtime.connection import SocketClosedError
from duplex.tenants import DEFAULT_TENANT, Permission, Tenant
from duplex.webrtc import visit
from duplex.webrtc.rtp import OfferError, ReceivedPacket, ReceiverReport, SentPacket, Sink
from duplex.webrtc.visit import Asked, RtcVisit
from sessions.settings import SessionSettings
from tests.duplex.gated_gateway import Gate, GatedGateway

S_MAX = 10


class FakePeer:
    """A browser that answers as soon as its gates are open, and keeps what it is told."""

    def __init__(self, _sink: Sink) -> None:
        self.over = asyncio.Event()
        self.fault = ""
        self.is_sending = False
        self.waiting = 0
        self.timestamp_origin: int | None = None
        self.report: ReceiverReport | None = None
        self.last_packet_ns: int | None = None
        self.answering, self.opening, self.reading, self.closing = Gate(), Gate(), Gate(), Gate()
        self.refusal: OfferError | None = None
        self.told: list[dict[str, Any]] = []
        self.took = asyncio.Event()
        self.says: asyncio.Queue[str | None] = asyncio.Queue(8)
        self.is_closed = False

    async def answer(self, offer: str) -> str:
        await self.answering.passage()
        if self.refusal is not None:
            raise self.refusal
        return f"answer to {offer}"

    async def until_open(self) -> None:
        await self.opening.passage()

    async def receive(self) -> str:
        text = await self.says.get()
        if text is None:
            raise SocketClosedError
        return text

    async def send(self, text: str) -> None:
        await self.reading.passage()
        self.told.append(json.loads(text))
        self.took.set()

    async def close(self) -> None:
        await self.closing.passage()
        self.is_closed = True

    def put(self, packet: SentPacket) -> None:
        raise AssertionError("nothing is due while it takes no packets")

    def take_back(self) -> list[SentPacket]:
        return []


class Bench(GatedGateway):
    """`begin` makes a call, whose peer is `peer`."""

    peer: FakePeer
    visit: RtcVisit

    def begin(self, returning: str | None = None) -> asyncio.Task[None]:
        self.gateway.admit()
        tenancy = self.gateway.tenancies._new(Permission(DEFAULT_TENANT), Tenant(DEFAULT_TENANT), returning)
        self.visit = RtcVisit(self.gateway, Asked("offer", SessionSettings(), extensions=True), tenancy)
        peer = self.visit._peer
        assert isinstance(peer, FakePeer)
        self.peer = peer
        running = asyncio.create_task(self.visit.run())
        running.add_done_callback(lambda _done: self.gateway.leave())
        return running

    async def talk(self, returning: str | None = None) -> asyncio.Task[None]:
        """A call whose client has been greeted."""
        running = self.begin(returning)
        await self.until_told("session.created")
        return running

    async def until_told(self, kind: str) -> dict[str, Any]:
        while not (found := [one for one in self.peer.told if one["type"] == kind]):
            self.peer.took.clear()
            await self.peer.took.wait()
        return found[0]


Scenario = Callable[[Bench], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(visit, "AiortcPeer", FakePeer)
    monkeypatch.setattr(visit, "FAREWELL_S_MAX", 0.001)

    def run(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(S_MAX):
                one = Bench(tmp_path, monkeypatch)
                await scenario(one)
                assert one.peer.is_closed
                one.assert_nothing_is_left()

        asyncio.run(bounded())

    return run


def test_a_call_begins_with_its_session_and_ends_without_a_word(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = await one.talk()
        assert await one.visit.answered == "answer to offer"
        one.visit.hang_up()
        await running
        assert [message["type"] for message in one.peer.told] == ["session.created"]

    play(scenario)


def test_a_page_that_vanishes_as_the_call_begins(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = await one.talk()
        one.peer.says.put_nowait(None)
        await running

    play(scenario)


@pytest.mark.parametrize("phase", ["answering", "opening", "reading"])
@pytest.mark.parametrize("end", ["hang_up", "drain"])
def test_pipecat_4276_a_call_can_be_ended_in_every_phase_of_its_beginning(play: Play, phase: str, end: str) -> None:
    """In the last one the client has connected, and takes nothing."""

    async def scenario(one: Bench) -> None:
        running = one.begin()
        gate: Gate = getattr(one.peer, phase)
        gate.shut()
        await gate.reached.wait()
        draining = asyncio.create_task(one.gateway.drain()) if end == "drain" else None
        if draining is None:
            one.visit.hang_up()
        else:
            await asyncio.sleep(0)
        if phase == "answering":
            gate.open.set()  # the peer bounds it by itself
        await running
        if draining is not None:
            await draining

    play(scenario)


def test_a_browser_that_never_connects_is_let_go(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "CONNECT_S_MAX", 0.001)

    async def scenario(one: Bench) -> None:
        running = one.begin()
        one.peer.opening.shut()
        await running

    play(scenario)


def test_who_is_cancelled_while_the_peer_closes_closes_it_first(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = await one.talk()
        one.peer.closing.shut()
        one.visit.hang_up()
        await one.peer.closing.reached.wait()
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        assert not running.done()
        one.peer.closing.open.set()
        await asyncio.wait({running})
        assert running.cancelled()

    play(scenario)


def test_an_offer_that_cannot_be_used_is_told_to_who_made_it(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = one.begin()
        one.peer.refusal = OfferError("invalid_sdp", "it cannot be used")
        await running
        with pytest.raises(OfferError):
            await one.visit.answered

    play(scenario)


def test_pipecat_5211_a_client_that_takes_nothing_any_more_is_told_why_for_a_bounded_time(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = await one.talk()
        one.peer.reading.shut()
        await one.gateway.drain()
        await running

    play(scenario)


def test_who_still_reads_is_told_why_the_call_ends(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        running = await one.talk()
        draining = asyncio.create_task(one.gateway.drain())
        error = await one.until_told("error")
        await running
        await draining
        assert error["error"]["code"] == "service_shutdown"

    play(scenario)


def test_a_fault_of_ours_is_told_and_how_what_was_open_has_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_fault(*_args: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(Listening, "alert", at_fault)

    async def scenario(one: Bench) -> None:
        running = await one.talk()
        one.peer.says.put_nowait(json.dumps({"type": "response.create"}))
        await one.until_told("response.content_part.added")
        one.peer.says.put_nowait(json.dumps({"type": "turn.hold"}))
        await running
        told = [message["type"] for message in one.peer.told]
        assert told.index("response.content_part.added") < told.index("error") < told.index("response.done")
        assert (await one.until_told("error"))["error"]["code"] == "internal_error"
        assert [message["server_event_seq"] for message in one.peer.told] == list(range(1, len(told) + 1))

    play(scenario)


def test_aplisay_llm_agent_181_a_hang_up_while_another_session_is_taken_up_ends_the_call(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as earlier:
            token = earlier.resume_token
        running = await one.talk()
        one.store.gates["acquire"].shut()
        one.peer.says.put_nowait(json.dumps({"type": "session.resume", "token": token}))
        await one.store.gates["acquire"].reached.wait()
        one.visit.hang_up()
        one.visit.hang_up()
        one.store.gates["acquire"].open.set()
        await running

    play(scenario)


def test_for_a_browser_that_is_gone_no_session_is_taken_up(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as earlier:
            running = await one.talk()
            one.peer.says.put_nowait(
                json.dumps({"type": "session.resume", "token": earlier.resume_token}),
            )
            one.peer.over.set()
            await running
            assert earlier.call.end_reason is None

    play(scenario)


def test_packets_use_what_the_tenant_may_send(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []

    async def scenario(one: Bench) -> None:
        running = one.begin()
        one.visit._packet_came(ReceivedPacket(1, 0, b"before the call", 0))
        await one.until_told("session.created")
        passed.clear()
        one.visit._packet_came(ReceivedPacket(2, 960, bytes(60), 0))
        one.visit._packet_passed(3)
        assert passed == [72, 15], "with the header of 12 bytes, each way"
        one.visit.hang_up()
        await running

    monkeypatch.setattr(Call, "message_passed", lambda _call, wire_bytes: passed.append(wire_bytes))
    play(scenario)


def test_who_comes_back_goes_on_with_the_session_that_they_have_named(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as earlier:
            session, token = earlier.call.session, earlier.resume_token
        running = await one.talk(session)
        one.peer.says.put_nowait(json.dumps({"type": "session.resume", "token": token, "last_event_seq": 7}))
        assert (await one.until_told("session.resumed"))["resync"] is True
        assert one.visit.call is not None
        assert one.visit.call.session == session
        one.visit.hang_up()
        await running

    play(scenario)


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ({"type": "session.resume", "token": "sess_mine.guess"}, "session_not_resumable"),
        ({"type": "session.resume", "token": "sess_another.guess"}, "session_not_allowed"),
        ({"type": "response.create"}, "session_not_allowed"),
        (None, "resume_timeout"),
    ],
)
def test_who_cannot_show_the_token_of_the_session_that_they_name_is_told_why_and_let_go(
    play: Play, monkeypatch: pytest.MonkeyPatch, says: dict[str, str] | None, code: str
) -> None:
    monkeypatch.setattr(tenancies, "RESUME_S_MAX", S_MAX if says else 0.001)
    monkeypatch.setattr(visit, "FAREWELL_S_MAX", S_MAX)

    async def scenario(one: Bench) -> None:
        with capture_logs() as logs:
            running = await one.talk("sess_mine")
            if says is not None:
                one.peer.says.put_nowait(json.dumps(says))
            await running
        assert (await one.until_told("error"))["error"]["code"] == code
        assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [], "it is no fault of ours"
        begun = (await one.until_told("session.created"))["session"]["id"]
        assert await one.store.describe([begun]) == ()

    play(scenario)
