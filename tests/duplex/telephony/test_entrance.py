"""Who needs no ticket, and how many may wait for theirs."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import pytest

from duplex.admission import RefusedError
from duplex.auth import Authority, UnauthorizedError
from duplex.client_secrets import Bounds, ClientSecrets, Grant
from duplex.config import Config
from duplex.gateway import Gateway
from duplex.pipeline import graph_of
from duplex.realtime.connection import SocketClosedError
from duplex.telephony.carrier import CarrierError, Message, Started
from duplex.telephony.carrier_faults import FAULTS_MAX
from duplex.telephony.entrance import KNOWN_MAX, STRANGERS_MAX, Entrance, from_number
from duplex.telephony.media_streams import TWILIO, MediaStreams
from duplex.telephony.phone_call import Line
from duplex.telephony.sockets import MESSAGE_BYTES_MAX, checked
from sessions.memory_store import MemorySessionStore
from sessions.planner import ReplyDefaults
from tests.duplex.test_gateway import Deaf

HERE = {"host": "127.0.0.1:8080"}


def entrance(folder: Path, **settings: object) -> Entrance:
    config = Config(engine="scripted", data_dir=folder, **settings)  # type: ignore[arg-type]
    store = MemorySessionStore(lambda: 0)
    gateway = Gateway(config, graph_of(config), store, Deaf(), ReplyDefaults("Hi.", 10))
    return Entrance(gateway, Authority(config, ClientSecrets(store)))


class Socket:
    """Says what it is given, then nothing more."""

    def __init__(self, *messages: Message) -> None:
        self._messages = deque(messages)
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> Message:
        if not self._messages:
            raise SocketClosedError
        return checked(self._messages.popleft())

    async def send(self, message: Message) -> None:
        raise NotImplementedError

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080"])
def test_a_program_of_this_machine_comes_from_here(tmp_path: Path, host: str) -> None:
    assert entrance(tmp_path).is_from_here({"host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "voice.example.com"},
        {**HERE, "x-forwarded-for": "192.0.2.1"},
        {**HERE, "forwarded": "for=192.0.2.1"},
    ],
)
def test_who_comes_through_a_tunnel_does_not(tmp_path: Path, headers: dict[str, str]) -> None:
    assert not entrance(tmp_path).is_from_here(headers)


def test_where_callers_have_a_token_nobody_comes_from_here(tmp_path: Path) -> None:
    assert not entrance(tmp_path, token="right").is_from_here(HERE)


def test_a_ticket_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = entrance(tmp_path)
        assert (await one.grant("", needed=False)).permission == one.permission
        for ticket, code in (("", "missing_ticket"), ("guess", "invalid_ticket")):
            with pytest.raises(UnauthorizedError) as refused:
                await one.grant(ticket, needed=True)
            assert refused.value.refusal.code == code

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("is_known", "most", "code"),
    [(False, STRANGERS_MAX, "too_many_strangers"), (True, KNOWN_MAX, "too_many_beginnings")],
)
def test_so_many_begin_at_once_and_take_no_room_of_the_others(
    tmp_path: Path, *, is_known: bool, most: int, code: str
) -> None:
    one = entrance(tmp_path)
    with ExitStack() as waiting:
        for _ in range(most):
            waiting.enter_context(one.waiting(is_known=is_known))
        with pytest.raises(RefusedError) as refused, one.waiting(is_known=is_known):
            pass
        assert refused.value.code == code
        with one.waiting(is_known=not is_known):
            pass
    with one.waiting(is_known=is_known):
        pass


@pytest.mark.parametrize(("is_known", "reason"), [(True, "no_stream"), (False, "too_many_strangers")])
def test_strangers_keep_no_carrier_out(tmp_path: Path, *, is_known: bool, reason: str) -> None:
    async def scenario() -> None:
        one, socket = entrance(tmp_path), Socket('{"event":"start","start":{}}')
        with ExitStack() as waiting:
            for _ in range(STRANGERS_MAX):
                waiting.enter_context(one.waiting(is_known=False))
            await one.receive(Line(socket, MediaStreams(TWILIO)), nobody, is_known=is_known)
        assert socket.closed == (1008, reason)

    asyncio.run(scenario())


async def nobody(_started: Started) -> Grant:
    raise AssertionError("nobody has started")


def test_a_number_is_the_one_that_is_said(tmp_path: Path) -> None:
    grant = Grant(None, bounds=Bounds("telephony"))
    assert from_number(grant, "+15550100").bounds == Bounds("telephony", caller="+15550100")
    assert from_number(grant, "").bounds == Bounds("telephony")


@pytest.mark.parametrize(
    ("messages", "closed"),
    [
        ((), None),
        (('{"event":"media"}',), None),
        (('{"event":"media"}',) * (FAULTS_MAX + 1), (1008, "too_many_faults")),
        (("x" * (MESSAGE_BYTES_MAX + 1),), (1009, "message_too_large")),
        (('{"event":"start","start":{}}',), (1008, "no_stream")),
    ],
)
def test_what_begins_no_call_is_closed_with_the_reason(
    tmp_path: Path, messages: tuple[str, ...], closed: tuple[int, str] | None
) -> None:
    async def scenario() -> None:
        socket = Socket(*messages)
        await entrance(tmp_path).receive(Line(socket, MediaStreams(TWILIO)), nobody)
        assert socket.closed == closed

    asyncio.run(scenario())


def test_a_message_is_at_most_so_large() -> None:
    assert checked("x" * MESSAGE_BYTES_MAX)
    with pytest.raises(CarrierError) as refused:
        checked(bytes(MESSAGE_BYTES_MAX + 1))
    assert refused.value.fatal
