"""A caller's timeline and the fake server's core, joined by a link without delay, on a virtual clock."""

from __future__ import annotations

import json
from collections.abc import Callable

from loadtest import realtime_wire as wire
from loadtest.errors import ConnectionLost
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.timeline import CallPlan, CallTimeline
from loadtest.turns import CallResult, Utterance
from media.chunk import ms_to_samples
from tests.loadtest.fake_realtime_server import LOUD, Event, FakeConversation, Script, Vanish

FRAMES_MAX = 5_000
START_NS = 1_000_000_000


def tone(ms: int, lead_ms: int = 0, tail_ms: int = 0) -> bytes:
    """PCM16 at 24 kHz: silence, an audible constant, silence."""
    silence = b"\0\0"
    parts = ((silence, lead_ms), (LOUD, ms), (silence, tail_ms))
    return b"".join(sample * ms_to_samples(length, SAMPLE_RATE) for sample, length in parts)


def utterances(*lengths_ms: int) -> tuple[Utterance, ...]:
    return tuple(Utterance.from_pcm(f"clip {ms}", tone(ms)) for ms in lengths_ms)


class Link:
    """Plays one call to its end. `sent` is what the caller said besides audio; `notes` what a person would see."""

    def __init__(self, plan: CallPlan, script: Script) -> None:
        self.timeline = CallTimeline(plan)
        self.server = FakeConversation(script)
        self.script = script
        self.notes: list[str] = []
        self.now_ns = START_NS
        self.frames = 0

    def play(self, until: Callable[[CallTimeline], bool] = lambda timeline: timeline.finished) -> CallResult:
        self.timeline.begin(self.now_ns, "sess_1", self.script.resume_token)
        self._deliver(self.server.greet())
        self._deliver(self.server.on_message({"type": "session.update"}))
        while not until(self.timeline):
            assert self.frames < FRAMES_MAX
            self.now_ns = self.timeline.deadline_ns(self.frames)
            self._send(self.timeline.frame(self.frames, self.now_ns))
            self.notes += self.timeline.take_notes()
            self.frames += 1
        return self.timeline.result()

    @property
    def sent(self) -> list[Event]:
        return self.server.received[1:]

    def _send(self, messages: list[wire.ClientMessage]) -> None:
        for message in messages:
            try:
                self._deliver(self.server.on_message(json.loads(wire.encode(message))))
            except Vanish as vanish:
                self._deliver(vanish.events)
                self.timeline.fail(ConnectionLost(1006, ""), self.now_ns)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self._send(self.timeline.on_event(wire.decode(json.dumps(event).encode()), self.now_ns))


def play(plan: CallPlan, script: Script | None = None) -> CallResult:
    return Link(plan, script or Script()).play()
