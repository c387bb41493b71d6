"""The way out of one call over WebRTC: a packet every 20 ms, of a reply or of silence.

Theory of operation
    Once the peer takes packets, the clock of the call begins; packet `n` is due at its beginning plus `n` times 20 ms.
    The pacer's slot says how many are due by now, and the conversation is asked for a frame at exactly that moment,
    so that the ledger runs on the clock of the packets and no lateness of ours adds up. Where there is no frame, the
    packet is silence: the RTP clock never stops, and the browser's jitter buffer stays as small as it can be.

Rules
* Ticks of packets rise by exactly 960. Only after a stall of `SENDING_PACKETS_MAX` packets some are left out, and the
  ticks with them.
* A stop turns what is not written yet into silence; a reply's sound is never sent after the end of its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from duplex.webrtc.opus import TICKS_PER_SAMPLE
from duplex.webrtc.rtp import CLOCK_RATE, PACKET_NS, PACKET_TICKS, SENDING_PACKETS_MAX, RtpSender, SentPacket
from media.heard_estimate import WEBRTC_LATENCY, Path, Probe, path_of
from media.playout import Frame
from media.rtp_map import Position, RtpMap, unwrap
from sessions.events import Event, ReplyAudio

# From the moment that a browser names, of a sample handed to its track, to the speaker: what it does not count itself.
# Measured in Chromium as 17–22 ms.
DEVICE_MS = 20
PACKETS_GAP_NS_MAX = 500_000_000  # who leaves silence out sends a packet of it every 400 ms (RFC 7587, section 3.1.3)
LATENCY_MS_MAX = 2_000  # Bluetooth has a few hundred
REPORT_AGE_MS_MAX = 2_000  # an older report says nothing of what is heard now


class Encoder(Protocol):
    """What the mouth needs of Opus."""

    lookahead_ticks: int

    def encode(self, pcm: bytes) -> bytes: ...

    def silence(self) -> bytes: ...


class Messages(Protocol):
    """Where events go that are no sound."""

    def pace(self, now_ns: int) -> None: ...

    def tell(self, event: Event) -> None: ...

    def drop_audio(self) -> Position | None: ...


class Mouth:
    """`Client` of the call; `messages` takes the events. `passed`: a packet goes out with so many bytes of sound."""

    def __init__(
        self,
        sender: RtpSender,
        encoder: Encoder,
        messages: Messages,
        passed: Callable[[int], None] = lambda _payload_bytes: None,
    ) -> None:
        self._passed = passed
        self._sender = sender
        self._encoder = encoder
        self._messages = messages
        self._map = RtpMap(TICKS_PER_SAMPLE)
        self._began_ns: int | None = None
        self._next = 0
        self._due = 0

    # ---- the clock ---------------------------------------------------------------------------------

    def pace(self, now_ns: int) -> None:
        """See how many packets are due by now."""
        self._messages.pace(now_ns)
        if not self._sender.is_sending:
            return
        if self._began_ns is None:
            self._began_ns = now_ns
        # To the nearest packet: a slot that comes a little early is still the slot of its packet.
        self._due = (now_ns - self._began_ns + PACKET_NS // 2) // PACKET_NS + 1
        if self._due - self._next > SENDING_PACKETS_MAX:
            self._next = self._due - 1

    def path(self, now_ns: int) -> Path:
        """What the peer's reports show. From a peer that sends no sound, none is missed."""
        report, began_ns, last_ns = self._sender.report, self._began_ns, self._sender.last_packet_ns
        asked_ns = last_ns if last_ns is not None and now_ns - last_ns > PACKETS_GAP_NS_MAX else None
        if report is None or began_ns is None:
            return path_of(WEBRTC_LATENCY, Probe(asked_ns=asked_ns), now_ns)
        arrived_ns = began_ns + (report.tick + PACKET_TICKS) * PACKET_NS // PACKET_TICKS
        probe = Probe(report.round_trip_ns, report.jitter_ns, arrived_ns, asked_ns)
        return path_of(WEBRTC_LATENCY, probe, now_ns)

    def next_frame_ns(self, _now_ns: int) -> int | None:
        """The moment of the next packet that is due and that the peer has room for."""
        if self._began_ns is None or self._next >= self._due or self._sender.waiting >= SENDING_PACKETS_MAX:
            return None
        return self._began_ns + self._next * PACKET_NS

    # ---- packets -----------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        if isinstance(event, ReplyAudio):
            self._speak(event.frame)
        self._messages.tell(event)

    def pad(self) -> bool:
        """No frame is due: send silence in its place."""
        self._put(self._encoder.silence())
        return True

    def drop_audio(self) -> Position | None:
        self._messages.drop_audio()
        waiting = self._sender.take_back()
        for packet in waiting:
            self._sender.put(SentPacket(packet.tick, self._encoder.silence()))
        return self._map.take_back(waiting[0].tick) if waiting else None

    def _speak(self, frame: Frame) -> None:
        self._map.record(self._next * PACKET_TICKS, frame.response, frame.start_sample, frame.samples)
        self._put(self._encoder.encode(frame.pcm))

    def _put(self, payload: bytes) -> None:
        self._sender.put(SentPacket(self._next * PACKET_TICKS, payload))
        self._next += 1
        self._passed(len(payload))

    # ---- reports -----------------------------------------------------------------------------------

    def locate(self, rtp_timestamp: int, age_ms: float, output_latency_ms: float) -> tuple[Position, ...]:
        """What the ear has had by a browser's report: it was at `rtp_timestamp` so long ago, so far from the speaker.

        Of a reply that begins after that it has had nothing. Empty where the report cannot be used.
        """
        origin = self._sender.timestamp_origin
        if origin is None or not 0 <= age_ms <= REPORT_AGE_MS_MAX or not 0 <= output_latency_ms <= LATENCY_MS_MAX:
            return ()
        newest = self._next * PACKET_TICKS
        reported = unwrap(rtp_timestamp - origin, newest)
        played = reported + round((age_ms - output_latency_ms - DEVICE_MS) * CLOCK_RATE / 1_000)
        return self._map.heard_at(min(played, newest) - self._encoder.lookahead_ticks)
