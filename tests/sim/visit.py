"""A caller's connection to a gateway, or the attempt at one.

Rules
* A client that does not read is sent two frames at most, and so many messages that its connection is given up.
* What was queued of an ended epoch is never read.
* A caller who leaves without a word is noticed by the gateway only later: until then their call goes on, and perhaps
  beside the one that they have by then elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from media.heard_estimate import Path
from media.rtp_map import Position
from sessions.events import CallFinished, Event, ReplyAudio, ReplyText
from sessions.items import Item
from sessions.sounding import FRAME_MS
from stages.contracts import OUT_OF_BAND
from tests.sim.call import Call
from tests.sim.clock import MS, Clock
from tests.sim.gateway import Gateway
from tests.sim.plan import Headset
from tests.sim.player import Player

AUDIO_WAITING_MAX = 2
PACKET_NS = FRAME_MS * MS
CAUGHT_UP_PACKETS_MAX = 10  # of a gateway that stood still
MESSAGES_WAITING_MAX = 32  # fewer than a real client is granted, so that it happens


class Visitor(Protocol):
    """Whose connection it is."""

    @property
    def clock(self) -> Clock: ...
    @property
    def is_traced(self) -> bool: ...
    @property
    def tenant(self) -> str: ...
    def note(self, what: str, /) -> None: ...
    def count(self, what: str, /) -> None: ...
    def connected(self, visit: Visit, /) -> None: ...
    def disconnected(self, visit: Visit, code: str, /) -> None: ...
    def called(self, item: Item, /) -> None: ...
    def forget_speech(self, visit: Visit, /) -> None: ...


class Visit:
    def __init__(self, visitor: Visitor, gateway: Gateway, headset: Headset, random: Random, until_ns: int) -> None:
        self.gateway = gateway
        self.call: Call | None = None
        self.is_gone = False
        self.reads = True
        self._visitor = visitor
        self.is_over = self.has_stalled = False
        self._waiting: deque[Event] = deque()
        self._waiting_ns: int | None = None  # since when sound waits
        self._audio = 0
        self._packet_ns = visitor.clock.now_ns  # of the next packet
        self.player = Player(headset, random, self, until_ns)

    @property
    def tenant(self) -> str:
        return self._visitor.tenant

    # ---- at the gateway ----------------------------------------------------------------------------

    def admitted(self, call: Call) -> None:
        self.call = call
        self.player.ask()
        if self.is_gone:
            call.end("connection_closed")
        else:
            self._visitor.connected(self)

    def refused(self, code: str) -> None:
        self.is_over = True
        self._visitor.note(f"refused: {code}")
        self._leave_silently()
        self._visitor.disconnected(self, code)

    def ended(self, reason: str) -> None:
        assert self.call is not None, "a call ends that was begun"
        assert reason != "store_refused", "the store is asked for nothing that it has to refuse"
        self._visitor.count(f"call ended {reason}")
        self.gateway.leave(self.call)
        self.is_over = True
        self._leave_silently()
        self._visitor.disconnected(self, reason)

    def reset_gate(self) -> None:
        self._visitor.forget_speech(self)

    def next_frame_ns(self, now_ns: int) -> int | None:
        """The moment of the next frame that there is room for; packets have a clock of their own."""
        if self._audio >= AUDIO_WAITING_MAX or now_ns < self._packet_ns:
            return None
        if not self.player.headset.rtp:
            return now_ns
        missed = (now_ns - self._packet_ns) // PACKET_NS
        self._packet_ns += PACKET_NS * missed if missed >= CAUGHT_UP_PACKETS_MAX else 0
        return self._packet_ns

    def pad(self) -> bool:
        """No frame is due: where packets go out all the time, silence is sent up to now."""
        if not self.player.headset.rtp:
            return False
        self._packet_ns += PACKET_NS * ((self.clock.now_ns - self._packet_ns) // PACKET_NS + 1)
        return True

    def tell(self, event: Event) -> None:
        if isinstance(event, ReplyAudio) and self.player.headset.rtp:
            self._packet_ns += PACKET_NS
        if self._visitor.is_traced and not isinstance(event, ReplyAudio | ReplyText):
            self._visitor.note(f"told: {event}")
        if self.reads:
            self._read(event)
        elif len(self._waiting) >= MESSAGES_WAITING_MAX:
            # As of the real queue: the connection's task ends the call when the loop gets to it.
            self._visitor.clock.after(0, self.gateway.do, self._end, "client_too_slow")
        else:
            self._waiting.append(event)
            if isinstance(event, ReplyAudio):
                self._audio += 1
                self._waiting_ns = self.clock.now_ns if self._waiting_ns is None else self._waiting_ns

    def drop_audio(self) -> Position | None:
        dropped = [event for event in self._waiting if isinstance(event, ReplyAudio) and event.epoch != OUT_OF_BAND]
        self._waiting = deque(event for event in self._waiting if event not in dropped)
        self._audio = sum(isinstance(event, ReplyAudio) for event in self._waiting)
        self._waiting_ns = self._waiting_ns if self._audio else None
        if not dropped:
            return None
        last = dropped[-1].frame.response
        left = min(event.frame.start_sample for event in dropped if event.frame.response == last)
        return Position(last, left, left)

    def path(self, now_ns: int) -> Path:
        return self.player.path(now_ns)

    @property
    def lies(self) -> bool:
        return self.player.lies

    @property
    def is_heard(self) -> bool:
        """A microphone sends all the time."""
        return not self.is_gone

    def report(self) -> bool:
        return self.player.report()

    def stop_playing(self, item: str) -> bool:
        return self.player.stop_playing(item)

    def _end(self, reason: str) -> None:
        if self.call is not None:
            self.call.end(reason)

    # ---- the way -----------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._visitor.clock

    @property
    def sent_ns(self) -> int:
        """What was sent by then has left the gateway."""
        return self.clock.now_ns if self._waiting_ns is None else self._waiting_ns

    @property
    def interrupts(self) -> bool:
        """Speech over a reply is to end it."""
        return self.call is not None and self.call.core.settings.speech_interrupts

    def at_gateway(self, deed: Callable[[], None], /) -> None:
        self.gateway.do(deed)

    def heard(self, response: str, samples: int, /) -> bool:
        """The client reports; False where nobody listens."""
        call, now_ns = self.call, self.clock.now_ns
        if call is None or call.end_reason or call.core.speaking.sent_of(response, now_ns) is None:
            return False
        call.carry_out(call.core.heard(response, samples, now_ns))
        return True

    def truncated(self, item: str, end_ms: int, /) -> bool:
        """The client has stopped playing `item`; False where nobody listens."""
        if self.call is None or self.call.end_reason:
            return False
        self.call.carry_out(self.call.core.truncate_item(item, end_ms, self.clock.now_ns))
        return True

    # ---- at the caller -----------------------------------------------------------------------------

    def _read(self, event: Event) -> None:
        if isinstance(event, ReplyAudio) and self.call is not None:
            assert event.epoch in (OUT_OF_BAND, self.call.core.epoch), "no sample of an ended epoch is read"
        if self.is_gone:
            return
        if isinstance(event, CallFinished) and event.item.status == "completed":
            self._visitor.called(event.item)
        self.player.take(event)

    def stop_reading(self) -> None:
        self.reads, self.has_stalled = False, True

    def read_again(self) -> None:
        self.reads = True
        self._audio = 0
        self._waiting_ns = None
        while self._waiting:
            self._read(self._waiting.popleft())
        self.player.answer()
        if self.call is not None and not self.call.end_reason:
            self.call.send_due()

    def leave(self, notice_ms: float) -> None:
        """The connection is gone, which the gateway notices in `notice_ms`."""
        self._leave_silently()
        self._visitor.clock.after(notice_ms, self.gateway.do, self._end, "connection_closed")

    def _leave_silently(self) -> None:
        """To whoever still speaks to it, it takes everything."""
        self.is_gone = True
        self.player.vanish()
        self.reads = True
        self._waiting.clear()
        self._audio = 0
        self._waiting_ns = None
