"""Pieces of the gateway process that need no process: its socket, and what it makes of the configuration."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from websockets.asyncio.client import connect

from duplex import config as configuration
from duplex import door, gateway_process
from duplex.config import Config
from media.heard_estimate import ROUND_TRIP_NS_UNKNOWN, Probe
from media.vad import VadState
from sessions.far_side import REPEATS_MAX, MachinePolicy
from sessions.return_policy import RESUME_QUESTION, ReturnPolicy
from stages.engines.local import persona
from tests.duplex.gated_gateway import GatedGateway

S_MAX = 10
# RFC 6455, section 1.2.
HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_small_messages_go_without_waiting_for_the_acknowledgement_of_others() -> None:
    async def scenario() -> None:
        accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

        class Serving(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport)

        with door.bound_socket("127.0.0.1", 0) as listener:
            server = await asyncio.get_running_loop().create_server(Serving, sock=listener)
            with socket.create_connection(listener.getsockname()):
                transport = await accepted
                connection = transport.get_extra_info("socket")
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                transport.close()
            server.close()

    asyncio.run(scenario())


def test_a_bad_configuration_is_said_and_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUPLEX_PORT", "many")
    assert gateway_process.main() == 2
    assert capsys.readouterr().err.startswith("gateway: port: ")


def test_the_scripted_ear_hears_what_is_loud() -> None:
    model = gateway_process._vad_model(Config(engine="scripted"))
    quiet, loud = np.full(512, 0.01, np.float32), np.full(512, -0.2, np.float32)
    assert model.probabilities([(VadState(), quiet), (VadState(), loud)]) == [0.0, 1.0]


@pytest.mark.parametrize(("engine", "repeats_max"), [("local", REPEATS_MAX), ("scripted", None), ("synthetic", None)])
def test_words_that_are_made_up_are_no_loop(
    engine: Literal["local", "scripted", "synthetic"], repeats_max: int
) -> None:
    config = Config(engine=engine, answering_machine="leave_message", machine_message=" Please call back. ")
    policy = MachinePolicy("leave_message", "Please call back.", repeats_max)
    assert gateway_process._defaults(config, ()).machines == policy


def test_what_is_said_to_who_comes_back_is_a_setting() -> None:
    assert gateway_process._defaults(Config(), ()).returns == ReturnPolicy("wait", RESUME_QUESTION)
    config = Config(after_resume="ask", resume_question="Hello again?")
    assert gateway_process._defaults(config, ()).returns == ReturnPolicy("ask", "Hello again?")


@pytest.mark.parametrize(
    ("settings", "listens"),
    [
        ({}, True),
        ({"turn_end_by_sound": "false"}, False),
        ({"engine": "scripted"}, False),
        ({"engine": "synthetic"}, False),
    ],
)
def test_who_has_models_listens_to_the_ends_of_turns(settings: dict[str, object], listens: bool) -> None:
    assert (gateway_process._turn_sound_loader(configuration.load({}, **settings)) is not None) is listens


@pytest.mark.models
@pytest.mark.slow
def test_the_model_of_turn_ends_is_installed() -> None:
    load = gateway_process._turn_sound_loader(Config())
    assert load is not None
    assert 0.0 <= load().probability(np.zeros(16_000, np.float32)) <= 1.0


@pytest.mark.parametrize(
    ("settings", "examples"),
    [
        ({}, persona.EXAMPLES),
        ({"engine": "scripted"}, ()),
        ({"thinker_gguf": Path("/m/a.gguf")}, ()),
        ({"thinker": "openai", "openai_base_url": "http://h/v1", "openai_model": "m"}, ()),
    ],
)
def test_examples_are_for_the_small_model_alone(settings: dict[str, object], examples: tuple[object, ...]) -> None:
    defaults = gateway_process._defaults(configuration.load({}, **settings), ())
    assert defaults.examples == examples
    assert defaults.instructions == persona.SYSTEM_PROMPT


def test_instructions_come_from_the_configuration() -> None:
    defaults = gateway_process._defaults(Config(instructions="Be brief.", max_output_tokens=7, temperature=0.5), ())
    assert (defaults.instructions, defaults.max_output_tokens, defaults.temperature) == ("Be brief.", 7, 0.5)


@pytest.mark.slow
def test_vllm_omni_4271_a_client_that_is_gone_without_a_word_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end of the connection stays open, and answers no ping."""
    monkeypatch.setattr(gateway_process, "PING_S", 0.05)
    monkeypatch.setattr(gateway_process, "PONG_S", 0.05)

    async def scenario() -> None:
        one = GatedGateway(tmp_path, monkeypatch)
        async with asyncio.timeout(S_MAX):
            await call_and_vanish(one)
        one.assert_nothing_is_left()

    async def call_and_vanish(one: GatedGateway) -> None:
        server = gateway_process._web_server(one.gateway, one.gateway.config, None)
        with door.bound_socket("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(HANDSHAKE)
            await reader.readuntil(b"session.created")
            assert one.gateway.calls == 1
            await one.gateway._room.until_empty()
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(scenario())


def test_pings_tell_a_call_how_far_its_client_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one = GatedGateway(tmp_path, monkeypatch)
        server = gateway_process._web_server(one.gateway, one.gateway.config, None)
        with door.bound_socket("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            host, port = listener.getsockname()
            async with asyncio.timeout(S_MAX), connect(f"ws://{host}:{port}/v1/realtime") as client:
                await client.recv()
                await client.send('{"type": "input_audio_buffer.clear"}')
                await client.recv()
                (call,) = one.gateway._calls.values()
                while call._path is None or not call._path.arrived_ns:
                    await asyncio.sleep(0)
                    call.pace(time.monotonic_ns())
                assert call._path.report_ns_max != ROUND_TRIP_NS_UNKNOWN
                assert call._path.arrived_ns <= time.monotonic_ns()
            server.should_exit = True
            await serving

    asyncio.run(scenario())


def test_a_ping_without_an_answer_counts_from_when_it_was_sent() -> None:
    protocol = gateway_process._RealtimeProtocol.__new__(gateway_process._RealtimeProtocol)
    protocol.pending_ping_payload, protocol.ping_sent_at, protocol.last_ping_rtt = None, 0.0, 0.0
    assert protocol._probe() == Probe()
    protocol.pending_ping_payload, protocol.ping_sent_at = b"ping", 2.5
    assert protocol._probe() == Probe(asked_ns=2_500_000_000)
    protocol._arrived_ns, protocol.last_ping_rtt = 1_500_000_000, 0.25
    answered = Probe(250_000_000, arrived_ns=1_500_000_000, asked_ns=2_500_000_000, alive_ns=1_500_000_000)
    assert protocol._probe() == answered, "who has read nothing since the last answer has had nothing since"


# ---- the door -----------------------------------------------------------------------------------------------

GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@asynccontextmanager
async def served(one: GatedGateway) -> AsyncIterator[tuple[gateway_process._Server, socket.socket]]:
    """A server that has started, and where it lets in whoever comes."""
    server = gateway_process._web_server(one.gateway, one.gateway.config, None)
    board = door.LoadBoard(one.gateway.config.data_dir, 1)
    with door.bound_socket("127.0.0.1", 0) as listener:
        entry = door.Door(listener, board, 0, lambda: 0)
        serving = asyncio.create_task(server.serve([]))
        await server.has_started.wait()
        entry.open(server.let_in)
        yield server, listener
        entry.close()
        server.should_exit = True
        await serving
    board.close()


def test_a_gateway_that_leaves_closes_what_carries_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one = GatedGateway(tmp_path, monkeypatch)
        async with asyncio.timeout(S_MAX), served(one) as (server, listener):
            host, port = listener.getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            async with connect(f"ws://{host}:{port}/v1/realtime") as client:
                await client.recv()
                writer.write(GET)
                assert b"alive" in await reader.readuntil(b"}")
                server.let_requests_end()
                assert await reader.read() == b"", "its next request goes elsewhere"
                await client.send('{"type": "input_audio_buffer.clear"}')
                assert "cleared" in str(await client.recv())
            writer.close()

    asyncio.run(scenario())


class Steps:
    """A gateway, its door and its server, as those who open and leave see them."""

    def __init__(self, *, is_alone: bool, is_ready: bool = True) -> None:
        self.is_alone = is_alone
        self.done: list[str] = []
        self.has_started = asyncio.Event()
        self.has_started.set()
        self.ready = asyncio.Event()
        if is_ready:
            self.ready.set()

    async def until_ready(self) -> None:
        await self.ready.wait()
        self.done.append("ready")

    def open(self, _serve: object) -> None:
        self.done.append("open")

    def close(self) -> None:
        self.done.append("close")

    def let_in(self) -> None: ...

    def let_requests_end(self) -> None:
        self.done.append("requests end")

    async def retire(self) -> None:
        self.done.append("retire")


def opening(steps: Steps) -> Coroutine[None, None, None]:
    what: Any = steps
    return gateway_process._open_when_ready(what, what, what)


def test_a_door_is_opened_when_a_call_can_be_taken(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        steps = Steps(is_alone=False)
        await opening(steps)
        assert steps.done == ["ready", "ready", "open"]

    asyncio.run(scenario())
    assert capsys.readouterr().out == "ready\n"


@pytest.mark.parametrize("is_alone", [True, False])
def test_who_waits_long_is_told_why_where_nobody_else_can_take_them(
    monkeypatch: pytest.MonkeyPatch, *, is_alone: bool
) -> None:
    monkeypatch.setattr(gateway_process, "AT_THE_DOOR_S_MAX", 0)

    async def scenario() -> None:
        steps = Steps(is_alone=is_alone, is_ready=False)
        task = asyncio.create_task(opening(steps))
        for _ in range(10):
            await asyncio.sleep(0)
        assert steps.done == ["open"] * is_alone
        steps.ready.set()
        await task
        assert steps.done[-2:] == ["ready", "open"]

    asyncio.run(scenario())


def test_a_gateway_leaves_when_it_is_told_and_others_could_take_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        steps: Any = Steps(is_alone=False, is_ready=False)
        told = asyncio.Event()
        leaving = asyncio.create_task(gateway_process._leave_when_told(told, steps, steps, steps))
        told.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert steps.done == []
        steps.ready.set()
        await leaving
        assert steps.done == ["ready", "close", "requests end", "retire"]
        monkeypatch.setattr(gateway_process, "STAGES_S_MAX", 0)
        steps.ready.clear()
        steps.done.clear()
        await gateway_process._leave_when_told(told, steps, steps, steps)
        assert steps.done == ["close", "requests end", "retire"], "stages that stay away hold up no restart"

    asyncio.run(scenario())
