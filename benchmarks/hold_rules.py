"""When a caller who speaks over a reply is noticed, and what is taken for one, rule by rule, also on a telephone.

Theory of operation
    Nothing is played and no time passes: the callers of `benchmarks.turn_taking` are heard at 24 kHz, and over a
    telephone (8 kHz, mu-law). The latter goes to the network as it is, at 8 kHz, or resampled to 16 kHz, as the service
    does. Each rule says in which window it would hold a reply.

Rules
* A time is from the first voiced sample to the end of the window that decides. The way to the service is not in it.
* Sound begins at a chance place of a window, since no caller knows where windows begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.turn_taking import corpus
from benchmarks.turn_taking.labels import Event, Kind
from benchmarks.turn_taking.voices import RATE, Voices
from media.g711 import MU_LAW, SAMPLE_RATE
from media.onnx_model import open_model
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS
from media.vad import MODEL_INPUTS, STATE_SHAPE
from stages.weights import locate

Say = Callable[[str], None]

VOICE_CACHE = Path("build/voices")
SEEDS = range(corpus.TEST_SEED_MIN, corpus.TEST_SEED_MIN + 12)
EVENTS = 64
LEAD_MS, TAIL_MS = 1_000, 500
LOUD = 0.5
# The network's context, an eighth of a window at either rate (github.com/snakers4/silero-vad, the ONNX wrapper).
CONTEXT_SHARE = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """`windows` in a row that are loud, of the mean `mean`, or one of the probability `clear`."""

    windows: int
    mean: float = 0.0
    clear: float = math.inf

    def __str__(self) -> str:
        mean = f", mean {self.mean:g}" if self.mean else ""
        clear = f"one window from {self.clear:g}, or " if math.isfinite(self.clear) else ""
        return f"{clear}{self.windows} windows from {LOUD:g}{mean}"

    def holds_after(self, probabilities: NDArray[np.float32]) -> int | None:
        """In which window, counted from 1; None: in none."""
        for end in range(1, len(probabilities) + 1):
            if probabilities[end - 1] >= self.clear:
                return end
            last = probabilities[max(0, end - self.windows) : end]
            if len(last) == self.windows and last.min() >= LOUD and last.mean() >= self.mean:
                return end
        return None


@dataclass(frozen=True, slots=True)
class Listener:
    """The network at `rate`, for sound that came over a telephone or not."""

    name: str
    rate: int
    by_telephone: bool


OURS = Rule(5, clear=0.8)
RULES = (OURS, Rule(5, clear=0.9), Rule(2), Rule(2, mean=0.8), Rule(3))
LISTENERS = (
    Listener("24 kHz", VAD_SAMPLE_RATE, by_telephone=False),
    Listener("telephone, heard at 16 kHz", VAD_SAMPLE_RATE, by_telephone=True),
    Listener("telephone, heard at 8 kHz", SAMPLE_RATE, by_telephone=True),
)
GROUPS: dict[str, Callable[[Event], bool]] = {
    "interruptions": lambda event: event.kind is Kind.INTERRUPTION,
    "backchannels": lambda event: event.kind is Kind.BACKCHANNEL,
    "coughs": lambda event: event.clip.label == "cough",
    "clicks and doors": lambda event: event.kind is Kind.BURST,
    "steady noise": lambda event: event.kind is Kind.NOISE,
}
TIMED = ("interruptions", "backchannels")


async def hold_rules(say: Say) -> bool:
    """All listeners and rules over the test corpus; about a minute."""
    voices, dice = Voices(VOICE_CACHE), np.random.default_rng(1)
    plans = [one for seed in SEEDS for one in corpus.plan(seed, EVENTS)]
    events = [corpus.build(one, voices.speak) for one in plans]
    chosen = [event for event in events if any(belongs(event) for belongs in GROUPS.values())]
    leads = [LEAD_MS * RATE // 1000 + int(dice.integers(WINDOW_MS * RATE // 1000)) for _ in chosen]
    sounds = [_framed(event, lead) for event, lead in zip(chosen, leads, strict=True)]
    say(f"{len(chosen)} events of seeds {SEEDS[0]} to {SEEDS[-1]}; ms from the first voiced sample: median / p95 / p99")
    network = _Network()
    for listener in LISTENERS:
        heard = [network.probabilities(_received(sound, listener), listener.rate) for sound in sounds]
        for rule in RULES:
            say(f"{listener.name}, {rule}")
            _tell(say, rule, chosen, leads, heard)
    return True


def _tell(
    say: Say, rule: Rule, events: Sequence[Event], leads: Sequence[int], heard: Sequence[NDArray[np.float32]]
) -> None:
    for group, belongs in GROUPS.items():
        places = [place for place, event in enumerate(events) if belongs(event)]
        held = [(place, rule.holds_after(heard[place])) for place in places]
        late_ms = sorted(end * WINDOW_MS - leads[place] * 1000 / RATE for place, end in held if end is not None)
        times = " / ".join(f"{late_ms[_rank(late_ms, percent)]:.0f}" for percent in (50, 95, 99)) if late_ms else "-"
        timed = f", after {times} ms" if group in TIMED else ""
        say(f"    {group} ({len(places)}): held {len(late_ms) / len(places):.2f}{timed}")


def _rank(ordered: Sequence[float], percent: int) -> int:
    return -(-len(ordered) * percent // 100) - 1


def _framed(event: Event, lead: int) -> FloatSamples:
    """The event with silence around it, at 24 kHz."""
    tail = np.zeros(TAIL_MS * RATE // 1000, dtype=np.float32)
    return np.concatenate((np.zeros(lead, dtype=np.float32), pcm16_to_float(event.clip.pcm), tail))


def _received(sound: FloatSamples, listener: Listener) -> FloatSamples:
    if not listener.by_telephone:
        return _resampled(sound, RATE, listener.rate)
    coded = MU_LAW.encode(float_to_pcm16(_resampled(sound, RATE, SAMPLE_RATE)))
    return _resampled(pcm16_to_float(MU_LAW.decode(coded)), SAMPLE_RATE, listener.rate)


def _resampled(sound: FloatSamples, from_rate: int, to_rate: int) -> FloatSamples:
    resampler = StreamResampler(from_rate, to_rate)
    return np.concatenate((resampler.process(sound), resampler.flush()))


class _Network:
    """Silero at either of its rates; `media.vad` knows only the one that the service uses."""

    def __init__(self) -> None:
        self._model = open_model(locate("silero-vad"), MODEL_INPUTS)

    def probabilities(self, sound: FloatSamples, rate: int) -> NDArray[np.float32]:
        """Of each whole window."""
        window = WINDOW_MS * rate // 1000
        hidden = np.zeros((STATE_SHAPE[0], 1, STATE_SHAPE[1]), dtype=np.float32)
        context = np.zeros(window // CONTEXT_SHARE, dtype=np.float32)
        found = np.zeros(len(sound) // window, dtype=np.float32)
        for place in range(len(found)):
            piece = np.concatenate((context, sound[place * window : (place + 1) * window]))
            output, hidden = self._model.run(
                None, {"input": piece[None], "state": hidden, "sr": np.array(rate, dtype=np.int64)}
            )
            found[place], context = output[0, 0], piece[-len(context) :]
        return found
