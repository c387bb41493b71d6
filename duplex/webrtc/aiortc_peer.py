"""`Peer` by aiortc. Everything that knows aiortc, and its private parts, is here.

Theory of operation
    aiortc does ICE, DTLS, SRTP and SCTP. Its own media path is not used: outgoing packets are ready-made, and incoming
    ones are taken off where its jitter buffer would stand, which leaves its decoder, its queue and their delay without
    work. What stays of the receiver are its RTCP reports.

Rules
* No server is asked for addresses: with none configured aiortc would ask a public one.
* One sender's packets are taken, the first one's. A peer that goes on with others, each of which costs memory in three
  tables, is let go.
* Closing is bounded, and each mended fault of aiortc is named beside its mending.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from fractions import Fraction
from typing import Any

import av
import structlog
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCRtpSender,
    RTCSessionDescription,
    rtcrtpreceiver,
)
from aiortc.rtp import RTP_HISTORY_SIZE, AnyRtcpPacket, RtcpReceiverInfo, RtcpRrPacket, RtcpSrPacket, RtpPacket

from duplex.realtime.connection import SocketClosedError, wire_bytes
from duplex.webrtc.rtp import (
    CHANNEL_LABEL,
    CLOCK_RATE,
    SENDING_PACKETS_MAX,
    OfferError,
    ReceivedPacket,
    ReceiverReport,
    SentPacket,
    Sink,
)
from media.rtp_map import unwrap

ANSWER_S_MAX = 5
CLOSE_S_MAX = 5
FLUSH_S_MAX = 1
MESSAGES_WAITING_MAX = 256
MESSAGES_BYTES_MAX = 1 << 20
SEND_BUFFER_BYTES_MAX = 64 << 10
FOREIGN_PACKETS_MAX = 100
ROUND_TRIP_S_MAX = 2
SEQUENCE_MODULUS = 1 << 16
NS_PER_S = 1_000_000_000
JITTER_MAX = (1 << 32) - 1  # RFC 3550, section 6.4.1: the field has 32 bits

_TIME_BASE = Fraction(1, CLOCK_RATE)
_log = structlog.get_logger("duplex.webrtc")


class _BoundedStatistics(rtcrtpreceiver.StreamStatistics):
    """A peer's timestamps can drive the jitter beyond its field; the report's task then dies, and `close` hangs."""

    @property
    def jitter(self) -> int:
        return min(super().jitter, JITTER_MAX)


rtcrtpreceiver.StreamStatistics = _BoundedStatistics  # type: ignore[misc]


class _Outgoing(MediaStreamTrack):
    """Ready-made packets, which aiortc sends as they are. Its `recv` waits for the pacer."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._packets: deque[SentPacket] = deque()
        self._wake = asyncio.Event()
        self._last_tick: int | None = None
        self.sender: RTCRtpSender | None = None
        self.is_asked = False
        self.timestamp_origin: int | None = None
        self.report: ReceiverReport | None = None

    def put(self, packet: SentPacket) -> None:
        assert len(self._packets) < SENDING_PACKETS_MAX, "who puts has asked for room"
        self._packets.append(packet)
        self._wake.set()

    @property
    def waiting(self) -> int:
        return len(self._packets)

    def take_back(self) -> list[SentPacket]:
        packets = list(self._packets)
        self._packets.clear()
        return packets

    async def recv(self) -> av.Packet[Any]:
        self.is_asked = True
        self._learn_origin()
        while not self._packets:
            self._wake.clear()
            await self._wake.wait()
        sent = self._packets.popleft()
        self._last_tick = sent.tick
        packet = av.Packet(sent.payload)
        packet.pts, packet.time_base = sent.tick, _TIME_BASE
        return packet

    def _learn_origin(self) -> None:
        """aiortc draws the origin in a local variable; the timestamp that it keeps of the last packet gives it away."""
        if self.timestamp_origin is None and self._last_tick is not None and self.sender is not None:
            last: int = self.sender._RTCRtpSender__rtp_timestamp  # type: ignore[attr-defined]
            self.timestamp_origin = (last - self._last_tick) % (1 << 32)

    def watch_reports(self, sender: RTCRtpSender) -> None:
        """aiortc keeps all of a report but the packet that it is about."""
        private: Any = sender
        handle = sender._handle_rtcp_packet
        assert hasattr(private, "_RTCRtpSender__rtp_history"), "another aiortc than this was written for"

        async def handle_and_note(packet: AnyRtcpPacket) -> None:
            await handle(packet)
            if isinstance(packet, RtcpRrPacket | RtcpSrPacket):
                for report in packet.reports:
                    if report.ssrc == sender._ssrc:
                        self._note(report, private)

        self.sender, private._handle_rtcp_packet = sender, handle_and_note

    def _note(self, report: RtcpReceiverInfo, sender: Any) -> None:
        """Of a packet that is not remembered any more, nothing is noted."""
        sequence = report.highest_sequence % SEQUENCE_MODULUS
        sent = sender._RTCRtpSender__rtp_history.get(sequence % RTP_HISTORY_SIZE)
        if self.timestamp_origin is None or self._last_tick is None or sent is None:
            return
        if sent.sequence_number != sequence:
            return
        tick = unwrap(sent.timestamp - self.timestamp_origin, self._last_tick)
        # It is measured by the wall clock: a step of that may spoil it for a while.
        round_trip_s: float | None = sender._RTCRtpSender__rtt
        round_trip_ns = None if round_trip_s is None else int(min(max(round_trip_s, 0), ROUND_TRIP_S_MAX) * NS_PER_S)
        self.report = ReceiverReport(tick, report.jitter * NS_PER_S // CLOCK_RATE, round_trip_ns)


class _PacketsOnly:
    """Stands where aiortc's jitter buffer does: hands each packet on, and never has a frame to decode."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.last_packet_ns: int | None = None

    def add(self, packet: RtpPacket) -> tuple[bool, None]:
        self.last_packet_ns = time.monotonic_ns()
        self._sink(ReceivedPacket(packet.sequence_number, packet.timestamp, packet.payload, self.last_packet_ns))
        return False, None


class AiortcPeer:
    """`sink` gets every packet of the caller's sound."""

    def __init__(self, sink: Sink) -> None:
        self.over = asyncio.Event()
        self.fault = ""
        self._is_closed = False
        self._packets = _PacketsOnly(sink)
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connection.on("datachannel", self._channel_announced)
        self._outgoing = _Outgoing()
        self._channel: RTCDataChannel | None = None
        self._messages: deque[str | bytes] = deque()
        self._message_bytes = 0
        # One waits for messages and one for room; both look again at whatever happens to the channel.
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._source: int | None = None
        self._foreign = 0

    # ---- life --------------------------------------------------------------------------------------

    async def answer(self, offer: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self._answer(offer)
        except TimeoutError as error:
            raise OfferError("answer_timeout", "no answer could be made in time", status=503) from error

    async def _answer(self, offer: str) -> str:
        connection = self._connection
        transceiver = connection.addTransceiver(self._outgoing, direction="sendrecv")
        opus = [codec for codec in RTCRtpSender.getCapabilities("audio").codecs if codec.mimeType == "audio/opus"]
        transceiver.setCodecPreferences(opus)
        self._outgoing.watch_reports(transceiver.sender)
        self._take_packets_of(transceiver.receiver)
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            await connection.setLocalDescription(await connection.createAnswer())
        except Exception as error:
            # Its parser fails in a dozen ways, assertions among them.
            raise OfferError("invalid_sdp", f"the offer cannot be used ({type(error).__name__})") from error
        return str(connection.localDescription.sdp)

    def _state_changed(self) -> None:
        if self._connection.connectionState in ("closed", "failed"):
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self.over.set()
        self._changed.set()
        self._room.set()

    def _refuse(self, fault: str) -> None:
        """It does what nobody may. What it has sent is dropped; whoever serves it says why, and closes."""
        self.fault = self.fault or fault
        self._messages.clear()
        self._message_bytes = 0
        self.over.set()

    async def close(self) -> None:
        await self._flush()
        self._end()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._connection.close()
        except TimeoutError:
            _log.error("peer_close_timeout")
            await self._tear_down()
        self._outgoing.stop()

    async def _flush(self) -> None:
        """What was said last is worth a moment, where somebody may still read it."""
        channel = self._channel
        if self._is_closed or channel is None or channel.readyState != "open":
            return
        try:
            async with asyncio.timeout(FLUSH_S_MAX):
                await self._until_room(channel, 0)
        except (TimeoutError, SocketClosedError):
            return

    async def _tear_down(self) -> None:
        """`close` has hung in a task that does not end (aiortc#1103): end the thread, free the sockets."""
        for transceiver in self._connection.getTransceivers():
            receiver: Any = transceiver.receiver
            receiver._RTCRtpReceiver__decoder_queue.put(None)
            transport = receiver.transport
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await transport.stop()
                    await transport.transport.stop()
            except TimeoutError:
                _log.error("peer_transport_not_closed")

    # ---- sound out ---------------------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        return self._outgoing.is_asked and not self._is_closed

    @property
    def waiting(self) -> int:
        return self._outgoing.waiting

    @property
    def timestamp_origin(self) -> int | None:
        return self._outgoing.timestamp_origin

    @property
    def report(self) -> ReceiverReport | None:
        return self._outgoing.report

    @property
    def last_packet_ns(self) -> int | None:
        return self._packets.last_packet_ns

    def put(self, packet: SentPacket) -> None:
        self._outgoing.put(packet)

    def take_back(self) -> list[SentPacket]:
        return self._outgoing.take_back()

    # ---- sound in ----------------------------------------------------------------------------------

    def _take_packets_of(self, receiver: RTCRtpReceiver) -> None:
        private: Any = receiver
        assert hasattr(private, "_RTCRtpReceiver__jitter_buffer"), "another aiortc than this was written for"
        private._RTCRtpReceiver__jitter_buffer = self._packets
        handle = receiver._handle_rtp_packet

        async def handle_of_one_source(packet: RtpPacket, arrival_time_ms: int) -> None:
            if self._source is None:
                self._source = packet.ssrc
            if packet.ssrc == self._source:
                await handle(packet, arrival_time_ms)
            else:
                self._foreign += 1
                if self._foreign > FOREIGN_PACKETS_MAX:
                    self._refuse("too_many_sources")

        private._handle_rtp_packet = handle_of_one_source

    # ---- messages ----------------------------------------------------------------------------------

    def _channel_announced(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL_LABEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = SEND_BUFFER_BYTES_MAX // 2
        channel.on("message", self._message)
        channel.on("bufferedamountlow", self._room.set)
        channel.on("close", self._end)
        self._changed.set()

    def _message(self, message: str | bytes) -> None:
        if self.fault:
            return
        self._message_bytes += wire_bytes(message)
        if len(self._messages) >= MESSAGES_WAITING_MAX or self._message_bytes > MESSAGES_BYTES_MAX:
            # SCTP as it is here cannot be told to wait.
            self._refuse("too_many_messages")
            return
        self._messages.append(message)
        self._changed.set()

    async def until_open(self) -> None:
        while self._channel is None:
            await self._until_changed()

    async def receive(self) -> str | bytes:
        while not self._messages:
            await self._until_changed()
        message = self._messages.popleft()
        self._message_bytes -= wire_bytes(message)
        return message

    async def _until_changed(self) -> None:
        if self._is_closed:
            raise SocketClosedError
        self._changed.clear()
        await self._changed.wait()

    async def send(self, text: str) -> None:
        channel = self._channel
        assert channel is not None, "who sends has waited until it was open"
        await self._until_room(channel, SEND_BUFFER_BYTES_MAX)
        try:
            channel.send(text)
        except (ValueError, ConnectionError) as error:  # larger than the peer says it takes
            raise SocketClosedError from error

    async def _until_room(self, channel: RTCDataChannel, buffered_max: int) -> None:
        while channel.bufferedAmount > buffered_max:
            if self._is_closed:
                raise SocketClosedError
            channel.bufferedAmountLowThreshold = buffered_max // 2
            self._room.clear()
            await self._room.wait()
        if self._is_closed or channel.readyState != "open":
            raise SocketClosedError
