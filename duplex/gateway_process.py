"""A gateway process: store, VAD, stage links and the web server, until its supervisor lets go.

`python -m duplex.gateway_process SPEC`. The listening sockets are its supervisor's, which hands them down: the public
one, behind which it stands with all other gateways (`duplex.door`), and where there are others one of its own, at which
it alone can be asked. Its standard input is held open by the supervisor; when that ends, for whatever reason, so does
the gateway: calls are ended and written down, then it exits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt
import structlog
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame as WebSocketFrame

from duplex import config as configuration
from duplex import logs
from duplex.app import build_app
from duplex.config import LOOPBACK_HOSTS, Config, ConfigError
from duplex.door import Door, LoadBoard
from duplex.garbage import set_aside_what_stays
from duplex.gateway import Gateway
from duplex.gateway_spec import GatewaySpec
from duplex.http_protocol import HttpProtocol
from duplex.neighbours import Neighbours
from duplex.pipeline import graph_of, voices_of
from duplex.places import SharedPlaces
from duplex.presence import is_connected
from duplex.probe_server import ProbeServer
from duplex.realtime.websocket import PRESENCE_EXTENSION, PROBE_EXTENSION
from duplex.service_tools import HttpTool, service_tools
from duplex.tasks import stop_task
from duplex.telephony.routes import PHONE_PATHS
from duplex.telephony.sockets import MESSAGE_BYTES_MAX
from duplex.tenant_directory import TenantDirectory
from duplex.tls_dev import DevelopmentTls, development_tls
from duplex.turn_sound_service import TurnSoundModel
from duplex.vad_service import SpeechModel
from duplex.webrtc.loopback import offer_loopback
from media.heard_estimate import NS_PER_S, Probe
from media.smart_turn import SmartTurn
from media.vad import SileroVad, VadState
from sessions.far_side import REPEATS_MAX, MachinePolicy
from sessions.planner import ReplyDefaults
from sessions.redis_store import RedisSessionStore
from sessions.return_policy import ReturnPolicy
from sessions.store import StoreError
from stages import weights
from stages.contracts import Message
from stages.engines.local import persona
from stages.graph import address_of
from stages.link import LinkError

# Two frames of audio as base64 in their JSON: what may wait in our write buffer for a client that reads slowly.
WRITE_BUFFER_BYTES_MAX = 2 * 1_536
# Linux: how much the kernel takes beyond what the peer has acknowledged. Without it a slow reader's socket holds
# megabytes of sound that a stop can no longer recall.
TCP_NOTSENT_LOWAT = 25
PING_S = 1.0  # pings tell how long the way to the client is, and that it is there
PONG_S = 20.0  # a client that has gone without a word, or reads nothing, is let go after that
HANDSHAKE_BYTES_MAX = 16 << 10
# Carriers send far less, and whoever connects there may have yet to say who they are. The calls refuse what is over a
# quarter of it in their own way.
PHONE_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
AT_THE_DOOR_S_MAX = 5
STAGES_S_MAX = 10  # a worker that was started anew is linked to within a second or two

_log = structlog.get_logger("duplex.gateway_process")


class _RealtimeProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with write buffers that hold no more than two frames, and with an end. Its
    scope tells what its pings show of the path, and whether its client has hung up."""

    _arrived_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        connection = stream.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX and sys.platform == "linux":
            connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, WRITE_BUFFER_BYTES_MAX)

    async def run_asgi(self) -> None:
        extensions = cast("dict[str, object]", self.scope["extensions"])
        extensions[PROBE_EXTENSION] = self._probe
        extensions[PRESENCE_EXTENSION] = partial(is_connected, self.transport)
        if self.scope["path"].startswith(PHONE_PATHS):
            self.conn.max_size = PHONE_BYTES_MAX
        await super().run_asgi()

    def start_keepalive(self) -> None:
        self.send_keepalive_ping()

    def handle_pong(self, event: WebSocketFrame) -> None:
        asked = self.pending_ping_payload
        super().handle_pong(event)
        if asked is not None and self.pending_ping_payload is None:
            self._arrived_ns = self._ping_sent_ns

    @property
    def _ping_sent_ns(self) -> int:
        return int(self.ping_sent_at * NS_PER_S)

    def _probe(self) -> Probe:
        round_trip_ns = int(self.last_ping_rtt * NS_PER_S) if self._arrived_ns else None
        asked_ns = None if self.pending_ping_payload is None else self._ping_sent_ns
        alive_ns = self._arrived_ns or None  # a client may have stopped reading right after its last answer
        return Probe(round_trip_ns, arrived_ns=self._arrived_ns, asked_ns=asked_ns, alive_ns=alive_ns)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # A refused handshake is complete; uvicorn would report it as one that was never answered.
            self.handshake_complete = True

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        # A client that reads nothing would keep its socket for ever, with what is still to be written.
        self.loop.call_later(self.close_timeout, self.transport.abort)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, as the supervisor decides when this process ends; and with a door besides
    its own listening sockets."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def let_in(self, connection: socket.socket) -> None:
        """Serve whoever is at the other end of `connection`."""
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection, ssl=self.config.ssl)

    async def let_neighbours_in(self, path: Path) -> asyncio.Server:
        """Serve whoever connects there; it is in a folder that only this service can enter."""
        return await asyncio.get_running_loop().create_unix_server(self._protocol, path)

    def let_requests_end(self) -> None:
        """Close each connection that carries no call once it is idle: its client's next request goes elsewhere."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, self.config.http_protocol_class):
                connection.shutdown()

    def _protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


class _LoudnessModel:
    """The VAD of engines without models: what is louder than a whisper is speech."""

    def probabilities(self, batch: Sequence[tuple[VadState, npt.NDArray[np.float32]]]) -> list[float]:
        return [1.0 if float(np.abs(window).max()) > 0.05 else 0.0 for _, window in batch]


def _vad_model(config: Config) -> SpeechModel:
    if config.engine in ("scripted", "synthetic"):
        return _LoudnessModel()
    return SileroVad(weights.locate("silero-vad"))


def _turn_sound_loader(config: Config) -> Callable[[], TurnSoundModel] | None:
    """None where words alone end turns."""
    if config.engine != "local" or not config.turn_end_by_sound:
        return None
    return lambda: SmartTurn(weights.locate("smart-turn-v3.2"))


def _defaults(config: Config, tools: Sequence[HttpTool]) -> ReplyDefaults:
    examples: tuple[Message, ...] = ()
    if config.engine == "local" and config.thinker == "local" and config.thinker_gguf is None:
        examples = persona.EXAMPLES
    return ReplyDefaults(
        config.instructions or persona.SYSTEM_PROMPT,
        config.max_output_tokens,
        config.temperature,
        examples,
        config.prepare_replies,
        config.context_characters,
        voices_of(config),
        tuple(tool.served for tool in tools),
        config.filler,
        _machine_policy(config),
        ReturnPolicy(config.after_resume, config.resume_question),
    )


def _machine_policy(config: Config) -> MachinePolicy:
    """Engines without models hear the same words whatever is said: those are no loop."""
    repeats_max = REPEATS_MAX if config.engine == "local" else None
    return MachinePolicy(config.answering_machine, config.machine_message.strip(), repeats_max)


def _web_server(
    gateway: Gateway, config: Config, tls: DevelopmentTls | None, neighbours: Neighbours | None = None
) -> _Server:
    return _Server(
        uvicorn.Config(
            build_app(gateway, neighbours),
            http=HttpProtocol,
            ws=_RealtimeProtocol,
            ws_max_size=config.message_bytes_max,
            ws_per_message_deflate=False,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PONG_S,
            h11_max_incomplete_event_size=HANDSHAKE_BYTES_MAX,
            timeout_graceful_shutdown=2,
            log_config=None,
            access_log=False,
            server_header=False,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
    )


async def _serve(config: Config, spec: GatewaySpec) -> None:
    assert config.redis_url, "the supervisor has started a store where none was configured"
    store = RedisSessionStore(config.redis_url, retention_ms=config.retention_hours * 3_600_000)
    await store.verify()
    tools = service_tools(config)
    vad, defaults, load_turn_sound = _vad_model(config), _defaults(config, tools), _turn_sound_loader(config)
    places = SharedPlaces(config.run_dir, config.calls_max)
    directory = TenantDirectory(config.tenants_file)
    weights = directory.tenants.weights if directory.tenants else {}
    gateway = Gateway(
        config,
        graph_of(config, weights),
        store,
        vad,
        defaults,
        load_turn_sound=load_turn_sound,
        places=places,
        replica=spec.replica,
        tools=tools,
        directory=directory,
    )
    if config.host in LOOPBACK_HOSTS:
        offer_loopback()
    tls = development_tls(config.data_dir / "tls", datetime.now(UTC)) if config.tls_dev else None
    board = LoadBoard(config.run_dir, config.gateways)
    door = Door(socket.socket(fileno=spec.listener), board, spec.number, lambda: gateway.calls)
    gateway.on_calls = door.note_calls
    neighbours = Neighbours(config.run_dir, spec.number, config.gateways)
    server = _web_server(gateway, config, tls, neighbours)
    retiring = asyncio.Event()
    probes = ProbeServer(gateway.report, retiring.set)
    probing = await probes.listen(address_of(config.run_dir, spec.replica))
    running = asyncio.create_task(gateway.run())
    opening = asyncio.create_task(_open_when_ready(gateway, door, server))
    serving = asyncio.create_task(server.serve(_own_listeners(spec)))
    knocking = asyncio.create_task(_open_to(neighbours, gateway, server))
    leaving = asyncio.create_task(_leave_when_told(retiring, gateway, door, server))
    try:
        await _until_one_ends(serving, running, leaving)
        await gateway.drain()
        door.close()
        server.should_exit = True
        await serving
    finally:
        for task in (opening, leaving, knocking):
            task.cancel()
        probing.close()
        probes.close()
        try:
            await stop_task(running)
        finally:
            places.close()
            await store.close()


async def _open_to(neighbours: Neighbours, gateway: Gateway, server: _Server) -> None:
    """Let the other gateways of the host ask this one, where there are any."""
    if not neighbours.are_there:
        return
    await server.has_started.wait()
    neighbours.announce(gateway.replica, gateway.name)
    server.servers.append(await server.let_neighbours_in(neighbours.own_socket))


def _own_listeners(spec: GatewaySpec) -> list[socket.socket]:
    return [] if spec.own_listener is None else [socket.socket(fileno=spec.own_listener)]


async def _open_when_ready(gateway: Gateway, door: Door, server: _Server) -> None:
    """Let callers in, and say `ready`, which means that a call can be taken. Where that takes long, and no other
    gateway is there, those who come before that are told so."""
    await server.has_started.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(AT_THE_DOOR_S_MAX):
            await gateway.until_ready()
    if door.is_alone:
        door.open(server.let_in)
    await gateway.until_ready()
    set_aside_what_stays()
    door.open(server.let_in)
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def _leave_when_told(retiring: asyncio.Event, gateway: Gateway, door: Door, server: _Server) -> None:
    """Leave the callers to other gateways, or to the next one, and return when none is left.

    Where stages are away, the others, which have the same ones, could take nobody: they are waited for.
    """
    await retiring.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(STAGES_S_MAX):
            await gateway.until_ready()
    door.close()
    server.let_requests_end()
    await gateway.retire()


async def _until_one_ends(*lasting: asyncio.Task[None]) -> None:
    """Come back when this process is told to stop, or when one of `lasting` has ended."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_reader(sys.stdin.fileno(), _stdin_readable, loop, told)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({waiting, *lasting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _stdin_readable(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        told.set()


def main() -> int:
    """Entry point of the child process; the configuration comes by environment, what is this gateway's own by SPEC."""
    try:
        config = configuration.load()
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    spec = msgspec.json.decode(sys.argv[1], type=GatewaySpec)
    logs.configure(config.log_level, spec.replica)
    try:
        asyncio.run(_serve(config, spec))
    except StoreError as error:
        sys.stderr.write(f"gateway: the store (DUPLEX_REDIS_URL) cannot be used: {error}\n")
        return 1
    except (LinkError, OSError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
