"""A caller's client as far as sound goes: plays what it is sent, says what was heard, and shows what its way is like.

Theory of operation
    What the gateway sends is on its way for a while, waits in the ear's buffer, and is heard. Clients throw away what
    they have not played when they are told that somebody speaks, or that a reply was cancelled or cut; where sound
    comes as packets they have nothing to throw away. Some report where the ear is, ten times a second; some where it
    stopped; some never, and some only for a while. One that lies says anything.

    The gateway learns of the way by its own questions: pings, or the reports by which a receiver of packets answers.

Rules
* What is sent in order arrives in order. Each way has a stream of chance of its own: it changes nothing else.
* Who does not read answers no ping; packets are answered all the same. From one who is gone nothing comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from media.audio_format import FORMATS
from media.chunk import samples_to_ms
from media.heard_estimate import WEBRTC_LATENCY, WEBSOCKET_LATENCY, Path, Probe, path_of
from media.playout import Frame
from sessions.events import Event, ItemTruncated, ReplyAudio, ResponseFinished, ResponseStarted, SpeechStarted
from tests.sim.clock import MS, Clock
from tests.sim.ear import Ear
from tests.sim.plan import Headset

REPORT_MS = 100
ASK_MS = 1_000
PACKETS_GAP_MS_MAX = 500  # from a caller whose packets stop nothing has come since the last
JITTER_SHARE = 3  # of two moments anywhere within a range, the distance is a third of it on average


class Line(Protocol):
    """Its connection. `reads`: what is sent leaves the gateway; `sent_ns`: what was sent by then has left;
    `has_stalled`: it has not read for a while; `interrupts`: speech over a reply is to end it."""

    @property
    def clock(self) -> Clock: ...
    @property
    def reads(self) -> bool: ...
    @property
    def sent_ns(self) -> int: ...
    @property
    def has_stalled(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def interrupts(self) -> bool: ...
    def at_gateway(self, deed: Callable[[], None], /) -> None: ...
    def heard(self, response: str, samples: int, /) -> bool:
        """The call is told so; False where it is over, or knows nothing of that."""

    def truncated(self, item: str, end_ms: int, /) -> bool:
        """The same, of where the client has stopped."""


class Player:
    """`reports_until_ns`: then it falls silent. `told`: how much it has said was heard of each response."""

    def __init__(self, headset: Headset, random: Random, line: Line, reports_until_ns: int) -> None:
        self.headset = headset
        self.ear = Ear()
        self.told: dict[str, int] = {}
        self.report_late_ns = 0  # how long the last report has waited for a gateway that stood still
        self.gone_ns: int | None = None
        self.is_ahead = False  # it has stopped by itself, and what followed sounded before the gateway knew
        self._random = random
        self._line = line
        self._clock = line.clock
        self._reports_until_ns = reports_until_ns
        self._came_ns = self._said_ns = 0  # when the last that was sent to it, and by it, arrives
        self._stopped_ns = 0  # when it is told that no more is to be heard
        self._items: dict[str, str] = {}  # by their responses
        self._rates: dict[str, int] = {}
        self._beside: set[str] = set()  # responses that speech does not interrupt
        self._sounding: list[str] = []
        self._said: dict[str, int] = {}
        self._ticks = False
        self._probe = Probe()
        self._path = self._path_of(None, 0)
        self._asked_ns: int | None = None

    def _way_ns(self, least_ms: int) -> int:
        return int((least_ms + self._random.random() * self.headset.jitter_ms) * MS)

    def _arrival(self) -> int:
        """Of what leaves the gateway now."""
        self._came_ns = max(self._came_ns, self._clock.now_ns + self._way_ns(self.headset.down_ms))
        return self._came_ns

    def response_of(self, item: str) -> str | None:
        """Whose sound it plays, or has played."""
        return next((response for response, own in self._items.items() if own == item), None)

    @property
    def has_stalled(self) -> bool:
        """For a while it was told nothing."""
        return self._line.has_stalled

    @property
    def is_quiet(self) -> bool:
        """All that was sent has been heard, and all that is to be said of it has come."""
        return not self._ticks and self._clock.now_ns > max(self._stopped_ns, self._said_ns, self.ear.quiet_from_ns)

    # ---- what comes --------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """`event` leaves the gateway."""
        match event:
            case ResponseStarted(view) if not view.in_conversation:
                self._beside.add(view.id)
            case ReplyAudio(item=item, frame=frame) if frame.samples:
                self._hear(item, frame, FORMATS[event.format].sample_rate)
            case SpeechStarted() if self._line.interrupts:
                self._stop(None)
            case ResponseFinished(view) if view.status == "cancelled":
                self._stop(view.id)
            case ItemTruncated(item):
                self._stop(self.response_of(item) or "")

    def _hear(self, item: str, frame: Frame, rate: int) -> None:
        response = frame.response
        self._items[response], self._rates[response] = item, rate
        arrival_ns = self._arrival()
        self.ear.take(response, (frame.start_sample, frame.end_sample), rate, self._earliest(arrival_ns))
        if self.headset.reports == "acks" and response not in self._sounding:
            self._sounding.append(response)
        if self._sounding and not self._ticks:
            self._ticks = True
            self._clock.at(arrival_ns, self._tick)

    def _earliest(self, arrival_ns: int) -> int:
        """When what arrives then may be played. A buffer for packets makes all of them equally late, those of silence
        too; any other holds what comes after silence."""
        buffer_ns = self.headset.buffer_ms * MS
        if self.headset.rtp:
            return max(arrival_ns, self._clock.now_ns + self.headset.down_ms * MS + buffer_ns)
        return arrival_ns if arrival_ns <= self.ear.quiet_from_ns else arrival_ns + buffer_ns

    def _stop(self, response: str | None) -> None:
        """It is told that no more is to be heard, of `response` or at all."""
        if self.headset.rtp:
            return
        at_ns = self._stopped_ns = self._arrival()
        for name in self.ear.unplayed(at_ns):
            if name == response or (response is None and name not in self._beside):
                self.ear.flush(name, at_ns)
                self._clock.at(at_ns, self._say_stopped, name)
        self.ear.fall_silent(at_ns)

    def vanish(self) -> None:
        """The caller hangs up, or is out of reach: they hear no more."""
        if self.gone_ns is None:
            self.gone_ns = self._clock.now_ns
            for response in self.ear.unplayed(self.gone_ns):
                self.ear.flush(response, self.gone_ns)
            self.ear.fall_silent(self.gone_ns)

    # ---- what is said of it ------------------------------------------------------------------------

    def _tick(self) -> None:
        """A moment to say where the ear is."""
        now_ns = self._clock.now_ns
        self._ticks = self.gone_ns is None and now_ns < self.ear.quiet_from_ns
        if self._ticks:
            self._clock.at(min(now_ns + REPORT_MS * MS, self.ear.quiet_from_ns), self._tick)
        for response in self._sounding:
            heard = self.ear.heard(response, now_ns)
            if heard > self._said.get(response, 0):
                self._say(response, heard)
        unplayed = self.ear.unplayed(now_ns)
        self._sounding = [response for response in self._sounding if response in unplayed]

    @property
    def lies(self) -> bool:
        """It says anything of what it has played."""
        return self.headset.reports == "lies"

    def report(self) -> bool:
        """Say once more what has been said, as far as it goes now; False where the client says anything."""
        for response in self._said if self.headset.reports == "acks" else ():
            self._say(response, self.ear.heard(response, self._clock.now_ns))
        return not self.lies

    def stop_playing(self, item: str) -> bool:
        """The client stops playing `item` and says where; False where it knows nothing of it, or says anything."""
        response = self.response_of(item)
        if response is None or self.lies:
            return False
        now_ns = self._clock.now_ns
        self.is_ahead |= response in self.ear.unplayed(now_ns)
        self.ear.flush(response, now_ns)
        self.ear.fall_silent(now_ns)
        self._send(response, self.ear.heard(response, now_ns), truncates=True)
        return True

    def _say_stopped(self, response: str) -> None:
        self._say(response, self.ear.heard(response, self._clock.now_ns))

    def _say(self, response: str, heard: int) -> None:
        if self.headset.reports in ("acks", "truncates") and self._clock.now_ns < self._reports_until_ns:
            self._send(response, heard, truncates=self.headset.reports == "truncates")

    def _send(self, response: str, heard: int, *, truncates: bool) -> None:
        if self.gone_ns is not None:
            return
        self._said[response] = heard
        self._said_ns = max(self._said_ns, self._clock.now_ns + self._way_ns(self.headset.up_ms))
        arrive = partial(self._arrive, response, heard, self._said_ns, truncates=truncates)
        self._clock.at(self._said_ns, self._line.at_gateway, arrive)

    def _arrive(self, response: str, heard: int, came_ns: int, *, truncates: bool) -> None:
        """What was said is understood, by a gateway that may have stood still."""
        self.report_late_ns = self._clock.now_ns - came_ns
        item, heard_ms = self._items[response], samples_to_ms(heard, self._rates[response])
        if self._line.truncated(item, heard_ms) if truncates else self._line.heard(response, heard):
            self.told[response] = heard

    # ---- what is seen of the way -------------------------------------------------------------------

    def ask(self) -> None:
        """The gateway wants to know what the way is like, now and then."""
        if self._line.is_over:
            return
        if self._asked_ns is None:
            self._asked_ns = self._clock.now_ns
            if self.headset.rtp or self._line.reads:
                self.answer()
        self._clock.after(ASK_MS, self._line.at_gateway, self.ask)

    def answer(self) -> None:
        """What has been asked, if anything, is on its way there and back."""
        if self._asked_ns is not None:
            came_ns = self._arrival()
            back_ns = came_ns + self._way_ns(self.headset.up_ms)
            answered = partial(self._answered, self._asked_ns, self._line.sent_ns, came_ns)
            self._clock.at(back_ns, self._line.at_gateway, answered)

    def _answered(self, asked_ns: int, sent_ns: int, came_ns: int) -> None:
        """`came_ns`: when the question came, before which all had come that had been sent by `sent_ns`."""
        if self._asked_ns != asked_ns or (self.gone_ns is not None and self.gone_ns < came_ns):
            return
        self._asked_ns = None
        jitter_ns = self.headset.jitter_ms * MS // JITTER_SHARE if self.headset.rtp else 0
        alive_ns = None if self.headset.rtp else asked_ns
        self._probe = Probe(self._clock.now_ns - asked_ns, jitter_ns, sent_ns, alive_ns=alive_ns)
        self._path = self._path_of(None, self._clock.now_ns)

    def path(self, now_ns: int) -> Path:
        """As the transport tells it."""
        asked_ns = self._asked_ns
        if self.headset.rtp:
            asked_ns = None if self.gone_ns is None else self._silent_since(self.gone_ns, now_ns)
        return self._path if asked_ns is None else self._path_of(asked_ns, now_ns)

    def _silent_since(self, gone_ns: int, now_ns: int) -> int | None:
        last_ns = gone_ns + self.headset.up_ms * MS
        return last_ns if now_ns - last_ns > PACKETS_GAP_MS_MAX * MS else None

    def _path_of(self, asked_ns: int | None, now_ns: int) -> Path:
        latency = WEBRTC_LATENCY if self.headset.rtp else WEBSOCKET_LATENCY
        return path_of(latency, replace(self._probe, asked_ns=asked_ns), now_ns)
