"""One browser's call, from its offer until its place is free again.

Theory of operation
    The visit begins a session, answers the offer, and waits until the browser has connected. Then the connection is
    that of a WebSocket, over the data channel, with a medium that carries the sound as packets. What the browser sends
    first may be `session.resume`: the session that was made for it is dropped, and the earlier one served in its place.

    A page may vanish without a word: its tab is closed, its phone loses the network. Once sound has come, a call from
    which neither a packet nor a message comes for `silence_s` is over.

Rules
* Whatever happens, the peer is closed in bounded time, and the place is given back after that. Nothing is said to it
  but where the end of the call, or a limit, ends the saying too: a browser may stop taking messages at any moment.
* A hang-up ends whatever session the call has, or is about to have.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec

from duplex.admission import RefusedError
from duplex.call import Call
from duplex.gateway import Admitted, Gateway, new_id
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.connection import (
    Limits,
    Outbox,
    RealtimeConnection,
    Socket,
    SocketClosedError,
    SocketTakenError,
    created_message,
    resumed_message,
    wire_bytes,
)
from duplex.realtime.dialect import Message, RealtimeDialect, error_message, item_dict
from duplex.tasks import see_through, stop_task
from duplex.tenancies import Tenancy
from duplex.transport import Client, Transport
from duplex.webrtc.aiortc_peer import AiortcPeer
from duplex.webrtc.ears import Ears
from duplex.webrtc.liveness import Liveness
from duplex.webrtc.mouth import Mouth
from duplex.webrtc.opus import DECODED_RATE, OpusEncoder
from duplex.webrtc.rtp import PACKET_NS, OfferError, Peer, ReceivedPacket
from media.audio_format import AudioFormat
from media.rtp_map import Position
from sessions.settings import SessionSettings

# A frame goes out at its own moment: none is sent ahead, and that one is being played. No packet comes back.
TRANSPORT = Transport(PACKET_NS // 1_000_000, AudioFormat("audio/pcm", DECODED_RATE), recalls=False)
MESSAGE_BYTES_MAX = 64 << 10
RTP_HEADER_BYTES = 12  # of a packet, which counts with its payload (RFC 3550, section 5.1)
CONNECT_S_MAX = 15  # ICE on a bad mobile network takes up to ten
FAREWELL_S_MAX = 5  # as long as a WebSocket's close
MINUTE_NS = 60_000_000_000
NS_PER_S = 1_000_000_000

# Nobody is there any more to be told why.
_UNHEARD = {"client_closed", "vanished", "not_connected"}


@dataclass(frozen=True, slots=True)
class Asked:
    """An offer, checked, and what its client wants of the session."""

    offer: str
    settings: SessionSettings
    extensions: bool


class _ResumeAskedError(SocketTakenError):
    """The client goes on with an earlier session."""

    def __init__(self, asked: ask.SessionResume) -> None:
        super().__init__("session.resume")
        self.asked = asked


class _RefusedAtFirstError(SocketTakenError):
    """What the client began with is not what it may."""

    def __init__(self, refusal: RefusedError) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class _Socket:
    """The peer's channel. Its first message may ask for an earlier session, which raises `_ResumeAskedError`; where the
    call is for that alone and it does not, it is refused, which raises `_RefusedAtFirstError`."""

    def __init__(self, peer: Peer, tenancy: Tenancy) -> None:
        self._peer = peer
        self._tenancy = tenancy
        self._is_new = True
        self.last_message_ns = time.monotonic_ns()

    async def receive(self) -> str | bytes:
        text = await (self._first() if self._is_new else self._peer.receive())
        self.last_message_ns = time.monotonic_ns()
        return text

    async def _first(self) -> str | bytes:
        try:
            async with self._tenancy.first_word():
                text = await self._peer.receive()
            self._is_new = False
            if wire_bytes(text) <= MESSAGE_BYTES_MAX:
                self._look_for_resume(text)
            self._tenancy.check_session(None)
        except RefusedError as error:
            raise _RefusedAtFirstError(error) from error
        return text

    @staticmethod
    def _look_for_resume(text: str | bytes) -> None:
        try:
            command = ask.parse(text)
        except ClientEventError:
            return  # the connection parses it again, and answers
        if isinstance(command, ask.SessionResume):
            raise _ResumeAskedError(command)

    async def send(self, text: str) -> None:
        await self._peer.send(text)


class _Medium:
    """Sound as packets, `Medium` of the connection."""

    def __init__(self, peer: Peer, socket: _Socket, ears: Ears, mouth: Mouth, silence_s: int) -> None:
        self._peer = peer
        self._socket = socket
        self._ears = ears
        self._mouth = mouth
        self._liveness = Liveness(silence_s * NS_PER_S)

    @property
    def client(self) -> Client:
        return self._mouth

    @property
    def last_input_ns(self) -> int:
        return self._ears.last_packet_ns or 0

    async def run(self, call: Call) -> str:
        hearing = asyncio.create_task(self._ears.run(call.listening))
        ending = asyncio.create_task(self._peer.over.wait())
        try:
            while not hearing.done() and not ending.done():
                left_ns = self._liveness.left_ns(self._last_sign_ns(), time.monotonic_ns())
                if left_ns <= 0:
                    return "vanished"
                await asyncio.wait({hearing, ending}, timeout=left_ns / NS_PER_S, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                hearing.result()
            return self._peer.fault or "client_closed"
        finally:
            ending.cancel()
            await stop_task(hearing)

    def _last_sign_ns(self) -> int | None:
        """A client that sends no sound at all is not missed for its silence."""
        heard_ns = self._ears.last_packet_ns
        return None if heard_ns is None else max(heard_ns, self._socket.last_message_ns)

    def locate(self, rtp_timestamp: int, age_ms: float, output_latency_ms: float) -> tuple[Position, ...]:
        return self._mouth.locate(rtp_timestamp, age_ms, output_latency_ms)


def new_call_id(gateway: str) -> str:
    """An id that nobody can guess, and that tells which gateway has the call."""
    return f"{new_id('rtc')}.{gateway}"


def gateway_of(call: str) -> str:
    """Which gateway has, or had, the call of this id; empty for what is none."""
    return call.partition(".")[2]


class RtcVisit:
    """`answered` gets the SDP answer, or `OfferError` or `RefusedError`. The place was taken by who makes it, and with
    it the `tenancy`."""

    def __init__(self, gateway: Gateway, asked: Asked, tenancy: Tenancy) -> None:
        self.id = new_call_id(gateway.name)
        self.answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gateway = gateway
        self._asked = asked
        self._tenancy = tenancy
        self._began_ns = time.monotonic_ns()
        self._ears = Ears(self._sound_began, self._packets_unused)
        self._peer: Peer = AiortcPeer(self._packet_came)
        self._socket = _Socket(self._peer, tenancy)
        self._dialect = RealtimeDialect(new_id, extensions=asked.extensions, sound_in_messages=False)
        self._outbox = Outbox(self._dialect, gateway.config.client_stall_s * NS_PER_S)
        mouth = Mouth(self._peer, OpusEncoder(), self._outbox, self._packet_passed)
        self._medium = _Medium(self._peer, self._socket, self._ears, mouth, gateway.config.webrtc_silence_s)
        self._call: Call | None = None
        self._is_hung_up = False

    @property
    def call(self) -> Call | None:
        """The one that it serves now."""
        return self._call

    def hang_up(self) -> None:
        """The client is done."""
        self._is_hung_up = True
        self._end("client_closed")

    def _begin(self, call: Call) -> None:
        self._call = call
        if self._is_hung_up:
            call.end("client_closed")

    async def run(self) -> None:
        """Serve until the call is over. Never raises but by a fault of ours."""
        try:
            await self._serve()
        except (OfferError, RefusedError) as error:
            await self._refuse(error)
        except SocketClosedError:
            self._end("client_closed")
        finally:
            await see_through(self._peer.close())
            self._ears.report()
            if not self.answered.done():
                self.answered.set_exception(RefusedError("internal_error", "the call could not be begun"))

    async def _refuse(self, error: OfferError | RefusedError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)
            return
        kind = "server_error" if getattr(error, "retry_after_s", None) else "invalid_request_error"
        await self._say_at_last(error_message(error.code, str(error), kind=kind))

    async def _serve(self) -> None:
        async with self._gateway.new_call(self._asked.settings, TRANSPORT, self._tenancy) as admitted:
            self._begin(admitted.call)
            self.answered.set_result(await self._peer.answer(self._asked.offer))
            if not await self._has_connected(admitted.call):
                self._end("not_connected")
                return
            self._outbox.post(
                created_message(admitted.call, self._asked.settings, admitted.resume_token, self._dialect)
            )
            asked = await self._converse(admitted)
        if asked is not None:
            await self._gateway.forget(admitted.call.session)
            await self._resume(asked)

    async def _resume(self, asked: ask.SessionResume) -> None:
        self._outbox.clear()
        token, responses = asked.token, asked.responses
        async with self._gateway.resumed_call(
            token,
            TRANSPORT,
            self._tenancy,
            responses=responses,
            epoch=asked.epoch,
            is_there=lambda: not self._peer.over.is_set(),
        ) as admitted:
            self._begin(admitted.call)
            self._dialect.transcription = admitted.call.conversation.settings.transcription
            items = _newest([item_dict(item) for item in admitted.call.conversation.items])
            lost = admitted.history_lost
            resync = None if asked.last_event_seq is None else True
            self._outbox.post(
                resumed_message(admitted.call, admitted.resume_token, items, history_lost=lost, resync=resync)
            )
            await self._converse(admitted)

    async def _converse(self, admitted: Admitted) -> ask.SessionResume | None:
        """Serve the call to its end; what the client asked for, where it wants another session instead."""
        config = self._gateway.config
        limits = Limits(
            config.input_bytes_per_second_max,
            config.call_minutes_max * MINUTE_NS,
            config.idle_minutes_max * MINUTE_NS,
            MESSAGE_BYTES_MAX,
        )
        socket: Socket = self._socket
        connection = RealtimeConnection(socket, admitted.call, self._outbox, self._dialect, limits, medium=self._medium)
        try:
            reason = await connection.serve(None)
        except _ResumeAskedError as resuming:
            self._end("resumed_another")
            return resuming.asked
        except _RefusedAtFirstError as refused:
            self._end("refused")
            raise refused.refusal from refused
        self._end(reason)
        if reason not in _UNHEARD:
            await self._say_at_last(error_message(reason, _FAREWELL.get(reason, reason), kind="server_error"))
        return None

    async def _has_connected(self, call: Call) -> bool:
        opening = asyncio.create_task(self._peer.until_open())
        ending = asyncio.create_task(call.ended.wait())
        try:
            await asyncio.wait({opening, ending}, timeout=CONNECT_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done() or ending.done():
                return False
            opening.result()
        finally:
            for task in (opening, ending):
                task.cancel()
            await asyncio.gather(opening, ending, return_exceptions=True)
        self._measure("channel", time.monotonic_ns())
        return True

    def _end(self, reason: str) -> None:
        if self._call is not None:
            self._call.end(reason)

    # ---- messages and measures ---------------------------------------------------------------------

    async def _say_at_last(self, message: Message) -> None:
        """`message`, and what is still queued: how what was being said has ended."""
        self._outbox.post_first(message)
        try:
            async with asyncio.timeout(FAREWELL_S_MAX):
                while self._outbox.waiting:
                    await self._socket.send(await self._outbox.next())
        except (SocketClosedError, TimeoutError):
            return

    def _packet_came(self, packet: ReceivedPacket) -> None:
        self._ears.put(packet)
        self._packet_passed(len(packet.payload))

    def _packet_passed(self, payload_bytes: int) -> None:
        """It uses what the tenant may send, as a message does."""
        if self._call is not None:
            self._call.message_passed(RTP_HEADER_BYTES + payload_bytes)

    def _sound_began(self, now_ns: int) -> None:
        self._measure("sound", now_ns)

    def _measure(self, until: str, now_ns: int) -> None:
        self._gateway.metrics.webrtc_connect_seconds.labels(until).observe((now_ns - self._began_ns) / NS_PER_S)

    def _packets_unused(self, what: str, count: int) -> None:
        self._gateway.metrics.rtp_packets_unused.labels(what).inc(count)


_FAREWELL = {
    "service_shutdown": "the service stops; connect again and resume",
    "session_replaced": "another connection has taken this session",
    "ended_by_operator": "an operator of the service has ended this call",
    "session_deleted": "the session was deleted; nothing of it is kept",
    "permission_revoked": "the permission to call was revoked",
    "quota_exceeded": "a quota of this tenant is used up",
    "call_too_long": "the call has lasted as long as a call may",
    "answering_machine": "a machine has answered, and calls to machines end",
    "idle": "nothing was said for too long",
    "slow_client": "messages were not read in time",
    "too_many_messages": "messages came faster than they can be answered",
    "too_many_sources": "sound came from more senders than the one that began",
    "store_unavailable": "what is said cannot be stored; try again later",
    "store_full": "there is no room to store what is said; try again later",
    "internal_error": "a fault of the service has ended this call; connect again and resume",
}


def _newest(items: list[Message]) -> list[Message]:
    """The last items that fit into one message of the channel, which takes less than a WebSocket."""
    left, first = MESSAGE_BYTES_MAX // 2, len(items)
    while first and (left := left - len(msgspec.json.encode(items[first - 1]))) >= 0:
        first -= 1
    return items[first:]
