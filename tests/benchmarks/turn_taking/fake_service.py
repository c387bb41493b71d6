"""A service in a few lines, for the caller who examines: it answers, and treats sound over its replies as told.

Theory of operation
    It hears by loudness, frame by frame, on the clock of the frames. A question that is typed, or a turn that was
    spoken and ended by silence, gets a reply of `reply_ms`, paced one frame ahead. What it does with sound over a reply
    is `Manner`: give up, hold and go on, or talk on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from benchmarks.turn_taking.examiner import Examiner
from benchmarks.turn_taking.labels import Event
from loadtest import realtime_wire as wire
from media.chunk import BYTES_PER_SAMPLE

FRAME_MS = 20
FRAME_SAMPLES = wire.SAMPLE_RATE * FRAME_MS // 1_000
FRAME_NS = FRAME_MS * 1_000_000
START_NS = 7_000_000_000
FRAMES_MAX = 60_000
LOUD = 200


class Manner(Enum):
    """What sound over a reply does to it."""

    GIVE_UP = "give up"
    HOLD = "hold"
    TALK_ON = "talk on"


@dataclass(frozen=True, slots=True)
class Habits:
    """Times in ms. `reply_ms` take turns; `notice_ms`: how long sound lasts before it is noticed. `mute`: typed
    questions get no reply. `obeys`: a response ends when it is cancelled."""

    manner: Manner = Manner.GIVE_UP
    reply_ms: tuple[int, ...] = (8_000,)
    notice_ms: int = 160
    hold_ms: int = 300
    silence_ms: int = 500
    answers: bool = True
    mute: bool = False
    obeys: bool = True


class FakeService:
    """Takes what the caller sends in one frame; gives the events of that frame."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._lengths = itertools.cycle(habits.reply_ms)
        self._ids = itertools.count(1)
        self._response = ""
        self._left_frames = 0
        self._sent_samples = 0
        self._loud_ms = 0
        self._quiet_ms = 0
        self._hold_ms = 0
        self._in_turn = False
        self.deleted: list[str] = []
        self.created: list[str] = []
        self.acknowledged: list[tuple[str, int]] = []

    def frame(self, messages: list[wire.ClientMessage]) -> list[wire.ServerEvent]:
        events: list[wire.ServerEvent] = []
        for message in messages:
            events += self._take(message)
        return [*events, *self._speak()]

    def _take(self, message: wire.ClientMessage) -> Iterator[wire.ServerEvent]:
        match message:
            case wire.AppendAudio(audio):
                yield from self._hear(bool(np.abs(np.frombuffer(audio, "<i2").astype(int)).max() > LOUD))
            case wire.CreateItem(item):
                self.created.append(item.id)
            case wire.DeleteItem(item_id):
                self.deleted.append(item_id)
            case wire.CreateResponse() if not self._habits.mute:
                yield from self._begin()
            case wire.CancelResponse(response) if response == self._response and self._habits.obeys:
                yield self._end("cancelled", "client_cancelled")
            case wire.PlaybackAck(response, _, samples):
                self.acknowledged.append((response, samples))

    def _hear(self, loud: bool) -> Iterator[wire.ServerEvent]:
        self._loud_ms = self._loud_ms + FRAME_MS if loud else 0
        self._quiet_ms = 0 if loud else self._quiet_ms + FRAME_MS
        if self._loud_ms == self._habits.notice_ms:
            yield from self._notice()
        if self._in_turn and self._quiet_ms >= self._habits.silence_ms:
            self._in_turn = False
            yield wire.InputCommitted(item_id=f"turn_{next(self._ids)}")
            if self._habits.answers:
                yield from self._begin()

    def _notice(self) -> Iterator[wire.ServerEvent]:
        if not self._response:
            self._in_turn = True
        elif self._habits.manner is Manner.GIVE_UP:
            self._in_turn = True
            yield wire.SpeechStarted(item_id="speech")
            yield self._end("cancelled", "turn_detected")
        elif self._habits.manner is Manner.HOLD and not self._hold_ms:
            self._hold_ms = self._habits.hold_ms
            yield wire.TurnHeld()

    def _begin(self) -> Iterator[wire.ServerEvent]:
        self._response = f"resp_{next(self._ids)}"
        self._left_frames, self._sent_samples = next(self._lengths) // FRAME_MS, 0
        yield wire.ResponseCreated(response=wire.CreatedResponse(self._response))
        yield wire.TranscriptDelta(response_id=self._response, delta="many words of no meaning")

    def _speak(self) -> Iterator[wire.ServerEvent]:
        if self._hold_ms:
            self._hold_ms -= FRAME_MS
            if not self._hold_ms:
                yield wire.TurnResumed()
            return
        if not self._response:
            return
        item = f"item_of_{self._response}"
        pcm = bytes(FRAME_SAMPLES * BYTES_PER_SAMPLE)
        place = {"start_sample": self._sent_samples, "samples": FRAME_SAMPLES}
        yield wire.AudioDelta(response_id=self._response, item_id=item, delta=pcm, **place)
        self._sent_samples += FRAME_SAMPLES
        self._left_frames -= 1
        if not self._left_frames:
            yield self._end("completed", None)

    def _end(self, status: str, reason: str | None) -> wire.ResponseDone:
        response, self._response, self._hold_ms = self._response, "", 0
        details = None if reason is None else wire.StatusDetails(reason)
        return wire.ResponseDone(response=wire.FinishedResponse(response, status, details))


def examine(events: list[Event], habits: Habits) -> tuple[Examiner, FakeService]:
    """All of it, joined by a link without delay, in no time."""
    examiner, service = Examiner(events), FakeService(habits)
    service.frame(examiner.begin(START_NS))
    for index in range(FRAMES_MAX):
        now_ns = examiner.deadline_ns(index)
        for event in service.frame(examiner.frame(index, now_ns)):
            examiner.on_event(event, now_ns)
        if examiner.finished:
            return examiner, service
    raise AssertionError("the examination did not end")
