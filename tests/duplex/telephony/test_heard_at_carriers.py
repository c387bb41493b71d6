"""What is believed to be heard on a telephone, and what has left the queue of an emulated carrier by then: calls on a
virtual clock in which anything happens at any moment.

Rules
* Where the carrier counts its queue, nothing is ever believed to be heard that has not left it; and once it has said
  where a reply was cut, that is where history ends.
* Where it sends marks alone, that holds to a frame, unless sound was held up on its way for longer than is
  common: then to the distance of marks as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pytest

from benchmarks.phone_drift import CALLS, FRAME_MS, NS_PER_MS, PER_FRAME, RATE, VirtualCall
from duplex.telephony.carrier import Message, Started
from duplex.telephony.line import MARK_FRAMES
from loadtest.carriers import frame_queue
from loadtest.carriers.effects import Accepted, Cleared, Effect
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.unruly_line import Fault, Habits
from loadtest.playout_model import Heard as HeardAtCarrier
from media.chunk import AudioChunk
from sessions.events import ReplyAudio, SpeechStarted, TurnHeld, TurnResumed
from sessions.heard import Heard
from sessions.reply import Reply

pytestmark = pytest.mark.slow

CALL_MS = 6_000
WAY_MS_MAX = 60  # each way
STALL_MS_MAX = 25  # of those that are common
MARK_MS = MARK_FRAMES * FRAME_MS
CALLS_MADE = 25
SETTLED_NS = 1_000 * NS_PER_MS  # by then a carrier has said where it was interrupted


class AtCarrier:
    """What has left the queue of an emulated carrier: `left` samples of the line, those that were flushed counted."""

    def __init__(self) -> None:
        self._coming: deque[int] = deque()  # where sound on its way ends
        self._queue: deque[tuple[int, int]] = deque()  # where each frame begins and ends

    def sent(self, end: int) -> None:
        self._coming.append(end)

    def take(self, effect: Effect) -> int | None:
        """Up to where sound has left with `effect`, if any has."""
        match effect:
            case Accepted(pcm):
                end = self._coming.popleft()
                self._queue.append((end - len(pcm) // 2, end))
            case HeardAtCarrier(pcm=pcm):
                begin, end = self._queue.popleft()
                left = begin + len(pcm) // 2
                if left < end:
                    self._queue.appendleft((left, end))
                return left
            case Cleared(samples):
                assert samples == sum(end - begin for begin, end in self._queue)
                self._queue.clear()
        return None


class Talk(VirtualCall):
    """A call in which the service speaks, and the caller interrupts, holds and hangs up when the dice say so. Up to
    `error_ms` too much may be believed; `believed` tells of more."""

    def __init__(self, carrier: str, seed: int, *, stall_ms_max: int, error_ms: int) -> None:
        self._dice = dice = Random(seed)
        core, codec = CALLS[carrier]()
        stalls = {Fault.STALL: dice.choice((0.0, 0.01, 0.1))}
        habits = Habits(stalls, (10, stall_ms_max), faults_max=1 << 30)
        super().__init__(core, codec, dice.choice((-200, 0, 200)), habits, way_ms=dice.randrange(WAY_MS_MAX), seed=seed)
        self.believed: list[str] = []
        self._error_ms = error_ms
        self._at_carrier = AtCarrier()
        self._had: dict[str, int] = {}  # samples of each response
        self._ends: dict[int, tuple[Message, int]] = {}
        self._epoch = 1
        self._active: str | None = None
        self._sounding: list[str] = []  # what was said and not interrupted
        self._next_ns = 0
        self._held_until_ns: int | None = None
        self.errors_ms: dict[str, float] = {}  # of what history has of each reply, below what had left
        self._interrupted: dict[str, int] = {}  # and when
        self._hangs_up_ns = dice.randrange(500, CALL_MS) * NS_PER_MS

    def _begin(self, started: Started) -> None:
        super()._begin(started)
        self._history = Heard(self._playout, recalls=True)
        make = self._carrier.audio

        def audio(epoch: int, offset: int, coded: bytes) -> Message:
            message = make(epoch, offset, coded)
            self._ends[id(message)] = message, offset + PER_FRAME
            return message

        self._carrier.audio = audio  # type: ignore[method-assign]

    # ---- the carrier -----------------------------------------------------------------------------

    def _taken(self) -> Message:
        message = super()._taken()
        if id(message) in self._ends:
            self._at_carrier.sent(self._ends.pop(id(message))[1])
        return message

    def _perform(self, effects: Sequence[Effect]) -> None:
        super()._perform(effects)
        for effect in effects:
            left = self._at_carrier.take(effect)
            place = None if left is None or self._line is None else self._line._sound.locate(left - 1)
            if place is not None:
                self._had[place.response] = place.samples + 1

    # ---- the service -----------------------------------------------------------------------------

    def _heard(self, response: str, samples: int) -> None:
        self._check("reported", response, samples)
        self._history.report(response, samples, self._now_ns)

    def _check(self, what: str, response: str, samples: int) -> None:
        if isinstance(self._core, MediaStream):
            self._perform(self._core._advance(self._carrier_ns))  # it plays between its ticks as well
        too_much_ms = (samples - self._had.get(response, 0)) * 1_000 / RATE
        if too_much_ms > self._error_ms:
            self.believed.append(f"{self._now_ns // NS_PER_MS} ms: {what} {too_much_ms} ms too much of {response}")

    def _pace(self) -> None:
        if self._line is None or self._core.is_over:
            return
        self._act()
        self._line.pace(self._now_ns)
        self._history.go_by(self._line.path(self._now_ns), self._now_ns)
        while (frame_ns := self._line.next_frame_ns(self._now_ns)) is not None:
            frame = self._playout.due(frame_ns)
            if frame is None:
                break
            self._line.tell(ReplyAudio("item", self._epoch, frame, frame.end_sample, "audio/pcmu"))
            if frame.final:
                self._ended(whole=True)
        if self._dice.random() < 0.9:  # the socket is not always taken from at once
            self._write()
        for response in self._sounding:
            self._check("believed", response, self._playout.view(response, self._now_ns).heard)

    def _act(self) -> None:
        now_ns, chance = self._now_ns, self._dice.random()
        if now_ns >= self._hangs_up_ns:
            self._hang_up()
        elif self._held_until_ns is not None:
            if now_ns >= self._held_until_ns:
                self._resume() if chance < 0.5 else self._interrupt()
        elif chance < 0.005:
            self._hold()
        elif chance < 0.01:
            self._interrupt()
        elif self._active is None and now_ns >= self._next_ns:
            self._reply()

    def _reply(self) -> None:
        self._active, self._replies = f"reply_{self._replies}", self._replies + 1
        self._playout.open(self._active)
        self._sounding.append(self._active)
        sound = bytes(2 * self._dice.randrange(1, 2 * RATE))
        self._playout.push(self._active, AudioChunk(0, RATE, 0, sound, final=True))

    def _ended(self, *, whole: bool, gone: bool = False) -> None:
        if self._active is None:
            return
        name, self._active = self._active, None
        reply, now_ns = Reply(RATE), self._now_ns
        self._history.ended(name, name, reply, whole=whole, recalled=True, now_ns=now_ns, gone=gone)
        self._next_ns = now_ns + self._dice.randrange(1_500) * NS_PER_MS

    def _hold(self) -> None:
        assert self._line is not None
        self._held_until_ns = self._now_ns + self._dice.randrange(1_500) * NS_PER_MS
        self._playout.hold()
        self._line.tell(TurnHeld(0))

    def _resume(self) -> None:
        assert self._line is not None
        self._held_until_ns = None
        self._playout.resume()
        self._line.tell(TurnResumed("short"))

    def _interrupt(self) -> None:
        assert self._line is not None
        self._held_until_ns = None
        self._playout.resume()
        is_cut = self._active is not None
        self._ended(whole=False)
        self._history.stop(self._now_ns)
        self._interrupted |= dict.fromkeys(self._sounding, self._now_ns)
        self._sounding.clear()
        if not is_cut and self._dice.random() < 0.5:
            self._line.tell(SpeechStarted("item", 0))
            return
        self._epoch += 1
        written = self._line.drop_audio()
        if written is not None:
            self._history.written(written.response, written.samples)

    def _hang_up(self) -> None:
        self._perform(self._core.hang_up(self._carrier_ns))
        self._ended(whole=False, gone=True)
        self._history.stop(self._now_ns, gone=True)

    def _account(self) -> None:
        for name in [f"reply_{number}" for number in range(self._replies)]:
            cut = self._history.cut_of(name)
            if cut is not None:
                self._check("history has", name, cut.samples)
                if self._hangs_up_ns - self._interrupted.get(name, self._hangs_up_ns) > SETTLED_NS:
                    self.errors_ms[name] = (self._had.get(name, 0) - cut.samples) * 1_000 / RATE


def talked(carrier: str, *, stall_ms_max: int, error_ms: int) -> list[Talk]:
    calls = [Talk(carrier, seed, stall_ms_max=stall_ms_max, error_ms=error_ms) for seed in range(CALLS_MADE)]
    for call in calls:
        call.run(CALL_MS / 60_000)
    return calls


def errors_ms(calls: list[Talk]) -> list[float]:
    return [ms for call in calls for ms in call.errors_ms.values()]


@pytest.mark.parametrize("full_at", [2, frame_queue.XOFF_LEVEL], ids=["fills up", "has room"])
def test_of_a_carrier_that_counts_its_queue_nothing_is_believed_that_is_not_so(
    monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    monkeypatch.setattr(frame_queue, "XOFF_LEVEL", full_at)
    monkeypatch.setattr(frame_queue, "XON_LEVEL", full_at - 1)
    calls = talked("asterisk", stall_ms_max=250, error_ms=0)
    assert [call.believed for call in calls if call.believed] == []
    assert len(errors_ms(calls)) > CALLS_MADE
    assert max(errors_ms(calls)) < 1, "it has told where each reply was cut"


def test_of_a_carrier_with_marks_alone_no_more_than_a_frame_is_believed_too_soon() -> None:
    calls = talked("twilio", stall_ms_max=STALL_MS_MAX, error_ms=FRAME_MS)
    assert [call.believed for call in calls if call.believed] == []
    assert len(errors_ms(calls)) > CALLS_MADE
    assert max(errors_ms(calls)) < MARK_MS + 2 * (WAY_MS_MAX + STALL_MS_MAX), "nor is much left out"


def test_nor_more_than_up_to_the_next_mark_where_its_queue_runs_dry() -> None:
    calls = talked("twilio", stall_ms_max=250, error_ms=FRAME_MS + MARK_MS)
    assert [call.believed for call in calls if call.believed] == []
