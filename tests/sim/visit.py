"""A caller's connection to a gateway, or the attempt at one.

Rules
* A client that does not read is sent two frames at most, and so many messages that its connection is given up.
* What was queued of an ended epoch is never read.
* A caller who leaves without a word is noticed by the gateway only later: until then their call goes on, and perhaps
  beside the one that they have by then elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from sessions.events import Event, ReplyAudio, ReplyText
from stages.contracts import OUT_OF_BAND
from tests.sim.call import Call
from tests.sim.clock import Clock
from tests.sim.gateway import Gateway

AUDIO_WAITING_MAX = 2
MESSAGES_WAITING_MAX = 32  # fewer than a real client is granted, so that it happens


class Visitor(Protocol):
    """Whose connection it is."""

    @property
    def clock(self) -> Clock: ...
    @property
    def is_traced(self) -> bool: ...
    def note(self, what: str, /) -> None: ...
    def count(self, what: str, /) -> None: ...
    def connected(self, visit: Visit, /) -> None: ...
    def disconnected(self, visit: Visit, /) -> None: ...
    def forget_speech(self, visit: Visit, /) -> None: ...


class Visit:
    def __init__(self, visitor: Visitor, gateway: Gateway) -> None:
        self.gateway = gateway
        self.call: Call | None = None
        self.is_gone = False
        self._visitor = visitor
        self._reads = True
        self._waiting: deque[Event] = deque()
        self._audio = 0

    # ---- at the gateway ----------------------------------------------------------------------------

    def admitted(self, call: Call) -> None:
        self.call = call
        if self.is_gone:
            call.end("connection_closed")
        else:
            self._visitor.connected(self)

    def refused(self, code: str) -> None:
        self._visitor.note(f"refused: {code}")
        self._leave_silently()
        self._visitor.disconnected(self)

    def ended(self, reason: str) -> None:
        assert self.call is not None, "a call ends that was begun"
        self._visitor.count(f"call ended {reason}")
        self.gateway.leave(self.call)
        self._leave_silently()
        self._visitor.disconnected(self)

    def reset_gate(self) -> None:
        self._visitor.forget_speech(self)

    @property
    def has_room(self) -> bool:
        return self._audio < AUDIO_WAITING_MAX

    def tell(self, event: Event) -> None:
        if self._visitor.is_traced and not isinstance(event, ReplyAudio | ReplyText):
            self._visitor.note(f"told: {event}")
        if self._reads:
            self._read(event)
        elif len(self._waiting) >= MESSAGES_WAITING_MAX:
            # As of the real queue: the connection's task ends the call when the loop gets to it.
            self._visitor.clock.after(0, self.gateway.do, self._end, "client_too_slow")
        else:
            self._waiting.append(event)
            self._audio += isinstance(event, ReplyAudio)

    def drop_audio(self) -> None:
        self._waiting = deque(
            event for event in self._waiting if not isinstance(event, ReplyAudio) or event.epoch == OUT_OF_BAND
        )
        self._audio = sum(isinstance(event, ReplyAudio) for event in self._waiting)

    def _end(self, reason: str) -> None:
        if self.call is not None:
            self.call.end(reason)

    # ---- at the caller -----------------------------------------------------------------------------

    def _read(self, event: Event) -> None:
        if isinstance(event, ReplyAudio) and self.call is not None:
            assert event.epoch in (OUT_OF_BAND, self.call.core.epoch), "no sample of an ended epoch is read"

    def stop_reading(self) -> None:
        self._reads = False

    def read_again(self) -> None:
        self._reads = True
        self._audio = 0
        while self._waiting:
            self._read(self._waiting.popleft())
        if self.call is not None and not self.call.end_reason:
            self.call.send_due()

    def leave(self, notice_ms: float) -> None:
        """The connection is gone, which the gateway notices in `notice_ms`."""
        self._leave_silently()
        self._visitor.clock.after(notice_ms, self.gateway.do, self._end, "connection_closed")

    def _leave_silently(self) -> None:
        """To whoever still speaks to it, it takes everything."""
        self.is_gone = True
        self._reads = True
        self._waiting.clear()
        self._audio = 0
