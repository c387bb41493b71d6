"""The WebSocket endpoint of the Realtime API: admission, handshake, the connection's life, and its close code.

Rule
* Whoever waits for the client, be it to speak or only to take what is sent, stops waiting when the call ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from starlette.websockets import WebSocket

from duplex.admission import RefusedError
from duplex.auth import Authority, UnauthorizedError
from duplex.call import INTERNAL_ERROR, Call
from duplex.claims import CLIENT_GONE
from duplex.client_secrets import Grant, TransportName
from duplex.gateway import Admitted, Gateway, new_id
from duplex.presence import until_seen
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.connection import (
    Outbox,
    RealtimeConnection,
    SocketClosedError,
    created_message,
    resumed_message,
    write_next,
)
from duplex.realtime.dialect import Message, RealtimeDialect, error_message, item_dict
from duplex.realtime.replay import KEPT_S, Replays
from duplex.realtime.session_config import NAME_CHARACTERS_MAX, apply_patch
from duplex.realtime.sockets import CLOSE_CODES, StarletteSocket, deny, limits_of, refuse, say_goodbye, subprotocol_of
from duplex.session_watch import SESSION_DELETED, SESSION_REPLACED
from duplex.tenancies import Tenancy
from media.heard_estimate import Probe
from sessions.settings import SessionSettings, TurnDetection
from stages.contracts import EPOCHS_PER_FENCE

TRANSPORT: TransportName = "websocket"
PROBE_EXTENSION = "duplex.probe"  # of the ASGI scope: what the server's pings show of the path
PRESENCE_EXTENSION = "duplex.presence"  # of the same: whether the client has hung up, of which we may read only later
NS_PER_S = 1_000_000_000

_log = structlog.get_logger("duplex.realtime")


class RealtimeEndpoint:
    def __init__(self, gateway: Gateway, authority: Authority) -> None:
        self._gateway = gateway
        self._authority = authority
        self._replays = Replays()
        gateway.deleted.append(self._replays.drop)
        gateway.metrics.replay_bytes.set_function(lambda: self._replays.ended_bytes)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection from handshake to close."""
        try:
            permission = await self._authority.permit(websocket.headers, TRANSPORT)
            async with self._gateway.place(permission, websocket.query_params.get("resume")) as tenancy:
                grant = await self._authority.spend(websocket.headers, TRANSPORT)
                tenancy.bind(grant.bounds.session)
                await websocket.accept(subprotocol=subprotocol_of(websocket))
                await _Visit(self._gateway, websocket, grant, tenancy, self._replays).serve()
        except RefusedError as error:
            await deny(websocket, error.status, error.code, str(error), error.retry_after_s)
        except UnauthorizedError as error:
            await refuse(websocket, error.refusal)


class _Visit:
    """One accepted connection: which session it serves, and how it ends."""

    def __init__(
        self, gateway: Gateway, websocket: WebSocket, grant: Grant, tenancy: Tenancy, replays: Replays
    ) -> None:
        self._gateway = gateway
        self._replays = replays
        self._grant = grant
        self._tenancy = tenancy
        self._websocket = websocket
        self._socket = StarletteSocket(websocket)
        self._dialect = RealtimeDialect(new_id, extensions=websocket.query_params.get("extensions") == "1")
        config = gateway.config
        self._probe: Callable[[], Probe] = websocket.scope.get("extensions", {}).get(PROBE_EXTENSION, Probe)
        self._outbox = Outbox(self._dialect, config.client_stall_s * NS_PER_S, self._probe)
        self._limits = limits_of(config)

    async def serve(self) -> None:
        try:
            await self._serve()
        except RefusedError as error:
            kind = "server_error" if error.retry_after_s else "invalid_request_error"
            reason = error.code if error.code in CLOSE_CODES else "refused"
            self._outbox.post(error_message(error.code, str(error), kind=kind, event_id=self._dialect.answered))
            await self._close(reason)
        except ClientEventError as error:  # what came with its secret is not what the service can do by now
            self._outbox.post(error_message(error.code, str(error), param=error.param))
            await self._close("refused")
        except SocketClosedError:
            pass
        except TimeoutError:
            await self._close("idle")
        except Exception as error:  # noqa: BLE001 - or the client would be left without a word of why
            _log.error("connection_failed", exc_info=error)
            await self._close(INTERNAL_ERROR)

    async def _serve(self) -> None:
        config = self._gateway.config
        settings = SessionSettings(
            model=self._websocket.query_params.get("model", "")[:NAME_CHARACTERS_MAX],
            turn_detection=TurnDetection(silence_duration_ms=config.silence_ms),
        )
        if self._grant.session is not None:
            settings = apply_patch(settings, self._grant.session, self._gateway.tools.tools)
        async with self._gateway.new_call(settings, tenancy=self._tenancy) as admitted:
            created = created_message(admitted.call, settings, admitted.resume_token, self._dialect)
            async with self._tenancy.first_word():
                first = await self._first_command(admitted.call, created)
            if not isinstance(first, ask.SessionResume):
                if first is not None:
                    self._tenancy.check_session(None)
                await self._converse(admitted, first)
                return
        await self._gateway.forget(admitted.call.session)
        self._dialect.answered = first.event_id
        if not await until_seen(self._probe):
            raise RefusedError(CLIENT_GONE, "no ping was answered since the request was sent", retry_after_s=1)
        async with self._gateway.resumed_call(
            first.token,
            tenancy=self._tenancy,
            responses=first.responses,
            epoch=first.epoch,
            is_there=self._websocket.scope.get("extensions", {}).get(PRESENCE_EXTENSION, lambda: True),
        ) as admitted:
            self._dialect.answered = None
            self._dialect.transcription = admitted.call.conversation.settings.transcription
            self._tell_resumed(admitted, first)
            await self._converse(admitted, None)

    def _tell_resumed(self, admitted: Admitted, asked: ask.SessionResume) -> None:
        """And what its client has missed, where that is known and it wants to be told."""
        call, seen, lost = admitted.call, asked.last_event_seq, admitted.history_lost
        sent = None if seen is None or lost else self._replays.take(call.session, _fence(call))
        missed = None if sent is None or seen is None else sent.since(seen)
        resync = None if seen is None else missed is None
        items = [item_dict(item) for item in call.conversation.items]
        resumed = resumed_message(call, admitted.resume_token, items, history_lost=lost, resync=resync)
        self._outbox.post(self._dialect.stamp(resumed))
        if sent is not None and missed is not None:
            self._outbox.go_on_from(sent, [message for message in missed if not _ends(message, asked.responses)])

    async def _first_command(self, call: Call, created: Message) -> ask.Command | None:
        """What answers `created` and is a command, or None where `call` ended before that came. Raises TimeoutError."""
        reading = asyncio.create_task(self._read_first(call, created))
        ending = asyncio.create_task(call.ended.wait())
        try:
            async with asyncio.timeout(self._limits.idle_ns_max / 1e9):
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)

    async def _read_first(self, call: Call, created: Message) -> ask.Command:
        """What is no command is answered and passed over."""
        await self._send_now(created)
        while True:
            text = await self._socket.receive()
            try:
                return ask.parse(text)
            except ClientEventError as error:
                call.client_failed(error.code)
                refusal = error_message(error.code, str(error), param=error.param, event_id=error.event_id)
                await self._send_now(refusal)

    async def _converse(self, admitted: Admitted, first: ask.Command | None) -> None:
        call, connection = admitted.call, self._connection(admitted.call)
        if self._dialect.extensions:
            self._outbox.keep_sent()
            self._replays.hold(call.session, _fence(call), self._outbox)
        try:
            reason = await connection.serve(first)
            call.end(reason)
            if reason == SESSION_DELETED:
                self._replays.forget(call.session, self._outbox)
            await self._close(reason)
        finally:
            self._keep_told(call)

    def _keep_told(self, call: Call) -> None:
        """What the connection, which is over, was told, for a while."""
        now_ns = time.monotonic_ns()
        self._replays.ended(call.session, self._outbox, now_ns)
        asyncio.get_running_loop().call_later(KEPT_S, self._replays.expire, now_ns)

    def _connection(self, call: Call) -> RealtimeConnection:
        return RealtimeConnection(self._socket, call, self._outbox, self._dialect, self._limits)

    async def _send_now(self, message: Message) -> None:
        self._outbox.post(message)
        await write_next(self._outbox, self._socket)

    async def _close(self, reason: str) -> None:
        """Say why, and where the session went, unless the client is gone."""
        if reason == SESSION_REPLACED and self._dialect.extensions:
            self._outbox.post({"type": "session.replaced"})
        await say_goodbye(self._websocket, self._outbox, reason)


def _fence(call: Call) -> int:
    """That of its owner."""
    return call.conversation.epoch // EPOCHS_PER_FENCE


def _ends(message: Message, responses: list[str]) -> bool:
    """It is the end of one of `responses`, which is told anew."""
    if message["type"] == "response.done":
        return message["response"]["id"] in responses
    return message["type"] == "response.drained" and message["response_id"] in responses
