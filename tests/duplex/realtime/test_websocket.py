"""A WebSocket's call from its handshake to its close, with a client that hangs wherever a test wants it to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket
from structlog.testing import capture_logs

from duplex import presence, tenancies
from duplex.auth import Authority
from duplex.listening import Listening
from duplex.realtime import client_events as ask
from duplex.realtime import sockets, websocket
from duplex.realtime.websocket import PRESENCE_EXTENSION, PROBE_EXTENSION, RealtimeEndpoint
from duplex.waiting_room import ROOM_S_MAX
from media.heard_estimate import Probe
from sessions.settings import SessionSettings
from tests.duplex.gated_gateway import Gate, GatedGateway

S_MAX = 10
MESSAGES_MAX = 8


class FakeClient:
    """The ASGI end of a connection. `reading` shut: it takes nothing more. `resume`: the session that it names."""

    def __init__(self, resume: str = "") -> None:
        self._query = f"extensions=1&resume={resume}" if resume else "extensions=1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.reading = Gate()
        self.has_hung_up = False  # of which there is more to read before
        self.probe: Callable[[], Probe] = Probe
        self.sent: list[Message] = []
        self._took = asyncio.Event()
        self._coming: asyncio.Queue[Message] = asyncio.Queue(MESSAGES_MAX)
        self._coming.put_nowait({"type": "websocket.connect"})

    @property
    def socket(self) -> WebSocket:
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "query_string": self._query.encode(),
            "headers": self.headers,
            "subprotocols": [],
            "extensions": {
                "websocket.http.response": {},
                PRESENCE_EXTENSION: lambda: not self.has_hung_up,
                PROBE_EXTENSION: self.probe,
            },
        }
        return WebSocket(scope, self._coming.get, self._send)

    async def _send(self, message: Message) -> None:
        await self.reading.passage()
        self.sent.append(message)
        self._took.set()

    def say(self, kind: str, **fields: Any) -> None:
        self._coming.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": kind, **fields})})

    def vanish(self) -> None:
        self._coming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    def events(self) -> list[str]:
        return [json.loads(message["text"])["type"] for message in self.sent if message["type"] == "websocket.send"]

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(message["text"]) for message in self.sent if message["type"] == "websocket.send"]

    async def until_told(self, kind: str) -> None:
        while kind not in self.events():
            self._took.clear()
            await self._took.wait()

    @property
    def created(self) -> Any:
        """The session that was begun for the connection."""
        first = next(message for message in self.sent if message["type"] == "websocket.send")
        return json.loads(first["text"])["session"]

    @property
    def close(self) -> tuple[int, str]:
        closed = next(message for message in self.sent if message["type"] == "websocket.close")
        return closed["code"], closed["reason"]


class Bench(GatedGateway):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.endpoint = RealtimeEndpoint(self.gateway, Authority(self.gateway.config))
        self.client = FakeClient()

    def connect(self, client: FakeClient | None = None) -> asyncio.Task[None]:
        return asyncio.create_task(self.endpoint.serve((client or self.client).socket))

    async def another_session(self) -> str:
        """The token of one that nobody is using."""
        async with self.gateway.new_call(SessionSettings()) as admitted:
            return admitted.resume_token


Scenario = Callable[[Bench], Coroutine[Any, Any, None]]
Phase = Callable[[Bench], Coroutine[Any, Any, asyncio.Task[None]]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(sockets, "CLOSE_S_MAX", 0.001)

    def run(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(S_MAX):
                one = Bench(tmp_path, monkeypatch)
                await scenario(one)
                one.assert_nothing_is_left()

        asyncio.run(bounded())

    return run


async def amid_the_store(one: Bench) -> asyncio.Task[None]:
    one.store.gates["create"].shut()
    serving = one.connect()
    await one.store.gates["create"].reached.wait()
    return serving


async def amid_the_greeting(one: Bench) -> asyncio.Task[None]:
    """It has shaken hands, and reads nothing."""
    one.store.gates["create"].shut()
    serving = one.connect()
    await one.store.gates["create"].reached.wait()
    one.client.reading.shut()
    one.store.gates["create"].open.set()
    await one.client.reading.reached.wait()
    return serving


async def before_the_first_command(one: Bench) -> asyncio.Task[None]:
    serving = one.connect()
    await one.client.until_told("session.created")
    return serving


async def amid_a_resumption(one: Bench) -> asyncio.Task[None]:
    token = await one.another_session()
    one.store.gates["acquire"].shut()
    serving = one.connect()
    one.client.say("session.resume", token=token)
    await one.store.gates["acquire"].reached.wait()
    return serving


async def amid_its_greeting(one: Bench) -> asyncio.Task[None]:
    serving = await amid_a_resumption(one)
    one.client.reading.shut()
    one.store.gates["acquire"].open.set()
    await one.client.reading.reached.wait()
    return serving


async def amid_the_conversation(one: Bench) -> asyncio.Task[None]:
    serving = await before_the_first_command(one)
    one.client.say("session.update", session={"type": "realtime"})
    await one.client.until_told("session.updated")
    return serving


PHASES = (
    amid_the_store,
    amid_the_greeting,
    before_the_first_command,
    amid_a_resumption,
    amid_its_greeting,
    amid_the_conversation,
)


@pytest.mark.parametrize("phase", PHASES)
def test_pipecat_4276_a_client_that_vanishes_in_any_phase_gives_its_place_back(play: Play, phase: Phase) -> None:
    async def scenario(one: Bench) -> None:
        serving = await phase(one)
        one.client.vanish()
        one.client.reading.open.set()  # what is sent to who has gone returns
        for gate in one.store.gates.values():
            gate.open.set()  # it has a deadline of its own
        await serving

    play(scenario)


@pytest.mark.parametrize("phase", PHASES)
def test_pipecat_4276_a_call_can_be_ended_in_every_phase_of_its_beginning(play: Play, phase: Phase) -> None:
    """Also while its client takes nothing."""

    async def scenario(one: Bench) -> None:
        serving = await phase(one)
        draining = asyncio.create_task(one.gateway.drain())
        await asyncio.sleep(0)
        for gate in one.store.gates.values():
            gate.open.set()
        await serving
        await draining
        if one.client.reading.open.is_set():
            assert one.client.close == (1001, "service_shutdown")

    play(scenario)


def test_livekit_agents_3202_the_door_answers_whatever_the_store_is_doing(play: Play) -> None:
    """The places are counted here: who is refused has waited for one to become free at most, and not for long."""
    assert ROOM_S_MAX < 0.2

    async def scenario(one: Bench) -> None:
        serving = await amid_the_store(one)
        one.gateway.admit()
        refused = FakeClient()
        await one.endpoint.serve(refused.socket)
        start, body = refused.sent
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"15")
        assert json.loads(body["body"])["error"]["code"] == "capacity_exceeded"
        one.gateway.leave()
        one.store.gates["create"].open.set()
        one.client.vanish()
        await serving

    play(scenario)


def test_a_session_that_is_refused_is_told_so_for_a_bounded_time(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving = one.connect()
        await one.client.until_told("session.created")
        one.client.reading.shut()
        one.client.say("session.resume", token="sess_other.guess")
        await serving

    play(scenario)


def test_a_session_that_is_refused_is_closed_with_the_reason(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving = one.connect()
        one.client.say("session.resume", token="sess_other.guess", event_id="mine")
        await serving
        error = json.loads(one.client.sent[-2]["text"])["error"]
        assert (error["code"], error["event_id"]) == ("session_not_resumable", "mine")
        assert one.client.close == (1008, "refused")

    play(scenario)


@pytest.mark.parametrize("phase", [before_the_first_command, amid_the_conversation])
def test_who_says_goodbye_is_closed_as_asked(play: Play, phase: Phase) -> None:
    async def scenario(one: Bench) -> None:
        serving = await phase(one)
        one.client.say("bye")
        await serving
        assert one.client.close == (1000, "client_closed")

    play(scenario)


def test_who_is_gone_is_told_no_close(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving = await amid_the_conversation(one)
        one.client.vanish()
        await serving
        assert all(message["type"] != "websocket.close" for message in one.client.sent)

    play(scenario)


def at_fault(*_args: object) -> NoReturn:
    raise ZeroDivisionError


def test_a_fault_of_ours_ends_what_is_open_and_then_the_connection(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listening, "alert", at_fault)

    async def scenario(one: Bench) -> None:
        serving = await amid_the_conversation(one)
        one.client.say("response.create")
        one.client.say("turn.hold")
        await serving
        assert one.client.events()[2:4] == ["response.created", "response.output_item.added"]
        assert one.client.events()[-2:] == ["response.done", "conversation.item.deleted"]
        assert one.client.close == (1011, "internal_error")

    play(scenario)


def test_a_fault_of_ours_before_the_conversation_is_told_too(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "parse", at_fault)

    async def scenario(one: Bench) -> None:
        serving = await before_the_first_command(one)
        one.client.say("response.create")
        with capture_logs() as logs:
            await serving
        assert one.client.close == (1011, "internal_error")
        assert [type(log["exc_info"]) for log in logs if log["event"] == "connection_failed"] == [ZeroDivisionError]

    play(scenario)


# ---- what was missed ---------------------------------------------------------------------------------------


async def one_who_was_away(one: Bench) -> FakeClient:
    """The bench's client was told of three items, and its network is gone; another one comes back for it."""
    serving = await before_the_first_command(one)
    for number in range(3):
        text = {"type": "input_text", "text": "hello"}
        item = {"type": "message", "id": f"item_{number}", "role": "user", "content": [text]}
        one.client.say("conversation.item.create", item=item)
    one.client.say("session.update", session={"type": "realtime"})
    await one.client.until_told("session.updated")
    one.client.vanish()
    await serving
    return FakeClient()


async def told_again(one: Bench, client: FakeClient, **asked: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What `session.resumed` said to `client`, which comes back, and what it was told behind that."""
    resuming = one.connect(client)
    client.say("session.resume", token=one.client.created["resume_token"], **asked)
    client.say("conversation.item.retrieve", item_id="item_2")
    await client.until_told("conversation.item.retrieved")
    client.say("bye")
    await resuming
    _, resumed, *behind = client.messages()
    return resumed, behind


def test_who_comes_back_is_told_what_they_have_missed(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        again = await one_who_was_away(one)
        before = one.client.messages()
        resumed, behind = await told_again(one, again, last_event_seq=3)
        assert (resumed["resync"], resumed["server_event_seq"]) == (False, 2)
        *missed, retrieved = behind
        assert missed == before[3:]
        assert len(missed) == 5
        assert retrieved["server_event_seq"] == before[-1]["server_event_seq"] + 1

    play(scenario)


@pytest.mark.parametrize("seen", [0, 9], ids=["before the first", "never sent"])
def test_where_not_all_is_known_the_client_is_told_so(play: Play, seen: int) -> None:
    async def scenario(one: Bench) -> None:
        again = await one_who_was_away(one)
        resumed, behind = await told_again(one, again, last_event_seq=seen)
        assert resumed["resync"] is True
        assert [item["id"] for item in resumed["items"]] == ["item_0", "item_1", "item_2"]
        assert [(message["type"], message["server_event_seq"]) for message in behind] == [
            ("conversation.item.retrieved", 3)
        ]

    play(scenario)


def test_a_metric_tells_what_is_kept_of_who_has_gone(play: Play) -> None:
    def kept_bytes(one: Bench) -> float:
        text = one.gateway.render_metrics().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("duplex_replay_bytes "))

    async def scenario(one: Bench) -> None:
        assert kept_bytes(one) == 0
        await one_who_was_away(one)
        assert kept_bytes(one) == one.endpoint._replays.ended_bytes > 0
        one.endpoint._replays.expire(time.monotonic_ns())
        assert kept_bytes(one) == 0

    play(scenario)


def test_what_was_told_is_forgotten_after_a_while(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "KEPT_S", 0.0)

    async def scenario(one: Bench) -> None:
        again = await one_who_was_away(one)
        resumed, _ = await told_again(one, again, last_event_seq=3)
        assert resumed["resync"] is True

    play(scenario)


def test_who_does_not_ask_is_told_nothing_again(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        again = await one_who_was_away(one)
        resumed, behind = await told_again(one, again)
        assert "resync" not in resumed
        assert [message["type"] for message in behind] == ["conversation.item.retrieved"]

    play(scenario)


@pytest.mark.parametrize(
    ("message", "is_left_out"),
    [
        ({"type": "response.done", "response": {"id": "a"}}, True),
        ({"type": "response.done", "response": {"id": "b"}}, False),
        ({"type": "response.drained", "response_id": "a"}, True),
        ({"type": "response.drained", "response_id": "b"}, False),
        ({"type": "response.output_item.done", "response_id": "a"}, False),
    ],
)
def test_the_end_of_a_response_that_is_named_comes_once(message: dict[str, Any], is_left_out: bool) -> None:
    assert websocket._ends(message, ["a"]) == is_left_out


def test_of_a_session_that_is_deleted_when_its_client_has_gone_nothing_is_kept(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        await one_who_was_away(one)
        (forget,) = one.gateway.deleted
        forget("sess_of_others")
        assert one.endpoint._replays.ended_bytes > 0
        forget(one.client.created["id"])
        assert one.endpoint._replays.ended_bytes == 0

    play(scenario)


def test_of_a_session_that_was_deleted_nothing_is_kept(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving = await amid_the_conversation(one)
        call = one.gateway.call_of(one.client.created["id"])
        assert call is not None
        call.end("session_deleted")
        await serving
        assert one.endpoint._replays.take(call.session, 2) is None

    play(scenario)


# ---- who comes back ----------------------------------------------------------------------------------------


async def while_it_is_full(one: Bench) -> tuple[asyncio.Task[None], FakeClient]:
    """The conversation of the bench's client, and another client, who says that they are that one."""
    serving = await before_the_first_command(one)
    one.gateway.admit()
    return serving, FakeClient(resume=one.client.created["id"])


def test_who_comes_back_goes_on_where_all_places_are_taken(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving, again = await while_it_is_full(one)
        resuming = one.connect(again)
        again.say("session.resume", token=one.client.created["resume_token"])
        await again.until_told("session.resumed")
        await serving
        assert one.client.close == (4001, "session_replaced")
        one.gateway.leave()
        again.say("bye")
        await resuming
        assert again.close == (1000, "client_closed")

    play(scenario)


def test_a_request_to_resume_whose_client_has_hung_up_disturbs_nobody(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as present:
            one.client.say("session.resume", token=present.resume_token)
            one.client.has_hung_up = True
            await one.connect()
            assert present.call.end_reason is None
        assert one.client.events() == ["session.created", "error"]

    play(scenario)


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_client_that_was_not_seen_for_a_while_has_to_answer_a_ping_before_it_takes_a_session(
    play: Play, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    monkeypatch.setattr(presence, "LOOK_S", 0)

    async def scenario(one: Bench) -> None:
        unseen = [Probe(alive_ns=time.monotonic_ns() - presence.UNSEEN_NS_MAX)] * (presence.LOOKS_MAX - is_answered)
        looks = iter(unseen)
        one.client.probe = lambda: next(looks, Probe(alive_ns=time.monotonic_ns()))
        token = await one.another_session()
        serving = one.connect()
        one.client.say("session.resume", token=token)
        if is_answered:
            await one.client.until_told("session.resumed")
            one.client.vanish()
        await serving
        assert one.client.events()[1] == ("session.resumed" if is_answered else "error")
        assert is_answered or one.client.close == (1013, "client_gone")

    play(scenario)


@pytest.mark.parametrize(
    ("says", "code"),
    [
        (("session.resume", "{session}.guess"), "session_not_resumable"),
        (("session.resume", "sess_another.guess"), "session_not_allowed"),
        (("session.update", None), "session_not_allowed"),
        (None, "resume_timeout"),
    ],
)
def test_who_cannot_show_the_token_of_the_session_that_they_name_has_no_place_for_long(
    play: Play, monkeypatch: pytest.MonkeyPatch, says: tuple[str, str | None] | None, code: str
) -> None:
    monkeypatch.setattr(tenancies, "RESUME_S_MAX", S_MAX if says else 0.001)

    async def scenario(one: Bench) -> None:
        serving, liar = await while_it_is_full(one)
        session = one.client.created["id"]
        lying = one.connect(liar)
        if says is not None:
            kind, token = says
            fields = {"token": token.format(session=session)} if token else {"session": {"type": "realtime"}}
            liar.say(kind, **fields)
        await lying
        assert json.loads(liar.sent[-2]["text"])["error"]["code"] == code
        assert liar.close == (1008, "refused")
        assert await one.store.describe([liar.created["id"]]) == ()
        assert not serving.done()
        assert one.client.events() == ["session.created"], "nobody notices"
        one.gateway.leave()
        one.client.vanish()
        await serving

    play(scenario)


def test_who_comes_back_as_the_service_stops_is_told_that(play: Play) -> None:
    async def scenario(one: Bench) -> None:
        serving, again = await while_it_is_full(one)
        resuming = one.connect(again)
        await again.until_told("session.created")
        one.gateway.leave()
        await one.gateway.drain()
        await asyncio.gather(serving, resuming)
        assert again.close == (1001, "service_shutdown")

    play(scenario)
