"""A call whose windows come in real time, for the tests of its turn detector."""

from __future__ import annotations

from dataclasses import replace

from media.echo import UNLIKE, Kinship, Likeness
from media.speech_gate import WINDOW_MS, WINDOW_SAMPLES
from media.turn_detector import NS_PER_MS, TurnDetector
from media.turn_events import HeardWindow, Held, Resumed, Saying, TurnEvent, TurnPaused
from media.turn_settings import TurnDetectorSettings

LOUD, UNCLEAR, UNEVEN, FAINT, QUIET = 0.95, 0.79, 0.6, 0.4, 0.05
NEAR_DB, FAR_AWAY_DB = -26.0, -38.0
WINDOW_NS = WINDOW_MS * NS_PER_MS
SPEAKING = Saying(is_audible=True, words="The weather in Paris will be sunny on Tuesday, with a light wind")
UNINTERRUPTIBLE = replace(SPEAKING, is_interruptible=False)
SETTINGS = TurnDetectorSettings()


def at(windows: int) -> int:
    return windows * WINDOW_SAMPLES


class Call:
    """A detector whose windows come in real time; each call returns what it said."""

    def __init__(self, settings: TurnDetectorSettings = SETTINGS) -> None:
        self.detector = TurnDetector(settings)
        self.now_ns = 10_000_000_000
        self.windows = 0

    @property
    def now_ms(self) -> int:
        """Since the first sample."""
        return self.windows * WINDOW_MS

    def hear(
        self,
        ms: int,
        probability: float = LOUD,
        saying: Saying = SPEAKING,
        db: float = NEAR_DB,
        echo: Likeness = UNLIKE,
    ) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for _ in range(ms // WINDOW_MS):
            self.windows += 1
            self.now_ns += WINDOW_NS
            heard = HeardWindow(probability, at(self.windows), db, echo)
            events += self.detector.window(heard, saying, self.now_ns)
        return events

    def echo(self, ms: int, saying: Saying = SPEAKING, since: int = 0) -> list[TurnEvent]:
        """Our own sound comes back, all of it since sample `since`."""
        return self.hear(ms, saying=saying, echo=Likeness(Kinship.OURS, since))

    def quiet(self, ms: int, saying: Saying = SPEAKING) -> list[TurnEvent]:
        return self.hear(ms, QUIET, saying)

    def say(self, text: str, *, settled: bool = False) -> list[TurnEvent]:
        return list(self.detector.transcript(text, settled, self.now_ns))

    def alert(self, saying: Saying = SPEAKING) -> list[TurnEvent]:
        return list(self.detector.alert(saying, self.now_ns))

    def sound(self, pause: int, probability: float) -> list[TurnEvent]:
        return list(self.detector.sounded(pause, probability, self.now_ns))

    def wait(self, ms: int) -> list[TurnEvent]:
        """No sound comes for `ms`; deadlines are kept."""
        end_ns = self.now_ns + ms * NS_PER_MS
        events: list[TurnEvent] = []
        while (deadline_ns := self.detector.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            events += self.detector.tick(self.now_ns)
        self.now_ns = end_ns
        return events


def held(call: Call) -> Call:
    """After a hold by the second window of a voice that begins with the first sample."""
    assert call.hear(32, UNCLEAR) + call.hear(32) == [Held(0)]
    return call


def doubted(call: Call) -> Call:
    """After a burst of 320 ms that has ended."""
    held(call)
    assert call.hear(256) == []
    assert call.quiet(128) == [TurnPaused(at(10)), Resumed("short")]
    return call
