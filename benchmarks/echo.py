"""Is our own echo known by its sound, soon enough, and is no caller taken for it? Also where both sound at once.

Theory of operation
    No time passes: replies in the service's own voice go out on a virtual clock, come back from a room over a line, and
    are heard window by window by the VAD, by `media.echo` and by a detector of turns that is told no words. It holds
    nothing back: the echo goes on as if each hold came too late, which is the worst that can be.

    Callers are those of `benchmarks.turn_taking` (espeak-ng), and the service's own voice saying something else, which
    is as like it as another voice can be.

Rules
* Seeds below 1,000 are for tuning: sentences, voices and rooms; those from there on for testing share none of them.
* The callers of one call are louder or softer than its echo by so many dB, as root mean squares while they sound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.speech import utterance
from benchmarks.turn_ends import TEST, TUNING
from benchmarks.turn_taking import corpus
from benchmarks.turn_taking.labels import Kind
from benchmarks.turn_taking.voices import RATE, Voices
from media.echo import PIECE_SAMPLES_MAX, UNLIKE, Echo, Likeness
from media.g711 import MU_LAW, SAMPLE_RATE
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS, WINDOW_SAMPLES
from media.turn_detector import TurnDetector
from media.turn_events import SILENT, HeardWindow, Held, Resumed, Saying, TurnEvent, TurnStarted, Yielded
from media.turn_settings import TurnDetectorSettings
from media.vad import SileroVad, VadState
from media.voice_level import level_db
from stages.weights import locate

Say = Callable[[str], None]

VOICE_CACHE = Path("build/voices")
SEEDS = range(corpus.TEST_SEED_MIN, corpus.TEST_SEED_MIN + 8)
ECHOES_PER_SEED = 12
CALLERS_PER_SEED = 6
GAINS = (0.05, 0.1, 0.2, 0.5, 0.7, 1.0)
DELAYS_MS = (0, 60, 150, 300, 600, 1_000)
LEVELS_DB = (-6, 0, 6)
KNOWN_MS = (200, 400, 640)
SENTENCES = 3
GAP_MS = 150
FRAME_MS = 20
LEAD_MS = 160  # frames are sent so far ahead over a WebSocket
TAIL_MS = 400
NS_PER_MS = 1_000_000
LOUD = TurnDetectorSettings().threshold
BURST_GAP_WINDOWS = 3
ROOMS = ("none", "room", "hall")
NOISES_DB = (None, 20, 10)
DOUBLE_TALK_MS = 2_500  # when a caller begins to speak over an echo, which is known by then
EPOCH_MS = 1_000_000  # no moment of a call is the clock's beginning


@dataclass(frozen=True, slots=True)
class Line:
    """From our mouth to our ear. `noise_db`: so far below the echo; None: none."""

    gain: float
    delay_ms: int
    room: str
    is_telephone: bool
    noise_db: int | None


@dataclass(slots=True)
class Trial:
    """What was made of one call: of each window its probability and likeness, and what the detector said."""

    windows: list[tuple[float, Likeness]] = field(default_factory=list)
    events: list[tuple[int, TurnEvent]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def is_interrupted(self) -> bool:
        return any(isinstance(event, Yielded) for _, event in self.events)

    @property
    def has_turn(self) -> bool:
        return any(isinstance(event, TurnStarted) for _, event in self.events)

    @property
    def first_stop_ms(self) -> int | None:
        """When the first interruption was one."""
        return next((ms for ms, event in self.events if isinstance(event, Yielded | TurnStarted)), None)

    @property
    def held_ms(self) -> int:
        """For how long replies stood still in all."""
        held, since = 0, None
        for ms, event in self.events:
            if isinstance(event, Held) and since is None:
                since = ms
            elif isinstance(event, Resumed | Yielded) and since is not None:
                held, since = held + ms - since, None
        return held

    def bursts(self) -> Iterator[list[Likeness]]:
        """The loud windows of each piece of voice."""
        burst: list[Likeness] = []
        quiet = 0
        for probability, likeness in self.windows:
            if probability >= LOUD:
                burst.append(likeness)
                quiet = 0
            elif burst and (quiet := quiet + 1) > BURST_GAP_WINDOWS:
                yield burst
                burst = []
        if burst:
            yield burst


class Studio:
    """Makes the sound of a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)
        is_test = corpus.part_of(seed) == "test"
        self._sentences = (TEST if is_test else TUNING).strip().splitlines()
        kinds = (Kind.INTERRUPTION, Kind.QUESTION, Kind.PAUSED)
        self._plans = [one for one in corpus.plan(seed, 64) if one.kind in kinds]
        self._voices = Voices(VOICE_CACHE)

    def said(self, count: int) -> tuple[FloatSamples, FloatSamples]:
        """Two texts in our voice that share no sentence, of `count` sentences each, 24 kHz."""
        order = self.dice.permutation(len(self._sentences))
        return self._speak(order[:count].tolist()), self._speak(order[count : 2 * count].tolist())

    def _speak(self, places: Sequence[int]) -> FloatSamples:
        gap = np.zeros(GAP_MS * RATE // 1_000, dtype=np.float32)
        pieces = [pcm16_to_float(utterance(self._sentences[place]).pcm) for place in places]
        return np.concatenate([part for piece in pieces for part in (piece, gap)])

    def caller(self) -> FloatSamples:
        """Somebody else, 24 kHz."""
        plan = self._plans[int(self.dice.integers(len(self._plans)))]
        return pcm16_to_float(corpus.build(plan, self._voices.speak).clip.pcm)

    def line(self) -> Line:
        dice = self.dice
        noise = NOISES_DB[int(dice.integers(len(NOISES_DB)))]
        room = ROOMS[int(dice.integers(len(ROOMS)))]
        return Line(float(dice.choice(GAINS)), int(dice.choice(DELAYS_MS)), room, bool(dice.random() < 0.4), noise)

    def echo(self, reply: FloatSamples, line: Line) -> FloatSamples:
        """What comes back of `reply`, 24 kHz."""
        sound = _convolved(reply, self._reflections(line.room)) * line.gain
        silence = np.zeros(line.delay_ms * RATE // 1_000, dtype=np.float32)
        tail = np.zeros(TAIL_MS * RATE // 1_000, dtype=np.float32)
        sound = np.concatenate([silence, sound, tail])
        if line.noise_db is not None:
            noise = self.dice.standard_normal(len(sound)) * rms(sound) / 10 ** (line.noise_db / 20)
            sound = sound + noise
        return sound.astype(np.float32)

    def _reflections(self, room: str) -> FloatSamples:
        """A room answers with half, a hall with twice the power of what comes straight."""
        if room == "none":
            return np.ones(1, dtype=np.float32)
        decay_ms, power = (250, 0.5) if room == "room" else (450, 2.0)
        count = decay_ms * RATE // 1_000
        tail = self.dice.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
        tail[: 3 * RATE // 1_000] = 0
        tail *= np.sqrt(power / np.sum(tail**2))
        tail[0] = 1
        response: FloatSamples = (tail / np.sqrt(1 + power)).astype(np.float32)
        return response


def _convolved(sound: FloatSamples, response: FloatSamples) -> FloatSamples:
    if len(response) == 1:
        return sound
    size = len(sound) + len(response) - 1
    product = np.fft.rfft(sound, size) * np.fft.rfft(response, size)
    convolved: FloatSamples = np.fft.irfft(product, size).astype(np.float32)
    return convolved


def rms(sound: FloatSamples) -> float:
    """Where it sounds at all."""
    loud = np.abs(sound) > 0.02 * np.abs(sound).max()
    return float(np.sqrt(np.mean(sound[loud] ** 2)))


def resampled(sound: FloatSamples, from_rate: int, to_rate: int) -> FloatSamples:
    resampler = StreamResampler(from_rate, to_rate)
    return np.concatenate((resampler.process(sound), resampler.flush()))


def over_telephone(sound: FloatSamples) -> FloatSamples:
    """24 kHz as it comes out of a telephone's mu-law, 24 kHz."""
    coded = MU_LAW.encode(float_to_pcm16(resampled(sound, RATE, SAMPLE_RATE)))
    return resampled(pcm16_to_float(MU_LAW.decode(coded)), SAMPLE_RATE, RATE)


class Room:
    """Plays calls."""

    def __init__(self) -> None:
        self._vad = SileroVad(locate("silero-vad"))

    def play(self, reply: FloatSamples, heard: FloatSamples, *, is_telephone: bool, knows_echo: bool = True) -> Trial:
        """`reply` goes out from time 0 on, and `heard` comes in; both 24 kHz."""
        rate = SAMPLE_RATE if is_telephone else RATE
        out = float_to_pcm16(resampled(reply, RATE, rate))
        if is_telephone:
            out, heard = MU_LAW.decode(MU_LAW.encode(out)), over_telephone(heard)
        ear = resampled(heard, RATE, VAD_SAMPLE_RATE)
        trial, detector, echo, state = Trial(), TurnDetector(TurnDetectorSettings()), Echo(), VadState()
        frame_bytes, sent, total_ms = 2 * rate * FRAME_MS // 1_000, 0, len(out) // 2 * 1_000 // rate
        for end in range(WINDOW_SAMPLES, len(ear) + 1, WINDOW_SAMPLES):
            now_ms = end * 1_000 // VAD_SAMPLE_RATE
            while sent * FRAME_MS < min(now_ms + LEAD_MS, total_ms):
                pcm = out[sent * frame_bytes : (sent + 1) * frame_bytes]
                echo.sent(pcm, rate, (EPOCH_MS + sent * FRAME_MS) * NS_PER_MS)
                sent += 1
            window = ear[end - WINDOW_SAMPLES : end]
            probability = self._vad.probabilities([(state, window)])[0]
            likeness, now_ns = UNLIKE, (EPOCH_MS + now_ms) * NS_PER_MS
            if probability >= LOUD and knows_echo:
                began_ns = time.thread_time_ns()
                likeness = echo.judge(ear[max(0, end - PIECE_SAMPLES_MAX) : end], end, now_ns)
                trial.cpu_ms.append((time.thread_time_ns() - began_ns) / NS_PER_MS)
            trial.windows.append((probability, likeness))
            saying = Saying(is_audible=True) if now_ms < total_ms else SILENT
            item = HeardWindow(probability, end, level_db(window), likeness)
            trial.events += [(now_ms, event) for event in detector.window(item, saying, now_ns)]
        return trial


# ---- what is asked --------------------------------------------------------------------------------


def echoes(room: Room, seeds: Sequence[int], *, knows_echo: bool = True) -> list[tuple[Line, Trial]]:
    """Replies that come back, and nobody speaks."""
    trials = []
    for seed in seeds:
        studio = Studio(seed)
        for _ in range(ECHOES_PER_SEED):
            reply, line = studio.said(SENTENCES)[0], studio.line()
            heard = studio.echo(reply, line)
            trials.append((line, room.play(reply, heard, is_telephone=line.is_telephone, knows_echo=knows_echo)))
    return trials


def callers(room: Room, seeds: Sequence[int], *, same_voice: bool) -> list[Trial]:
    """Callers over replies of which nothing comes back."""
    trials = []
    for seed in seeds:
        studio = Studio(seed)
        for number in range(CALLERS_PER_SEED):
            reply, other = studio.said(SENTENCES)
            heard = other if same_voice else np.concatenate([studio.caller() for _ in range(2)])
            trials.append(room.play(reply, heard[: len(reply)], is_telephone=number % 3 == 0))
    return trials


def double_talk(room: Room, seeds: Sequence[int], level_db_over: int, *, same_voice: bool) -> list[Trial]:
    """A caller who begins to speak over an echo."""
    trials = []
    for seed in seeds:
        studio = Studio(seed)
        for _ in range(CALLERS_PER_SEED):
            (reply, other), line = studio.said(SENTENCES), studio.line()
            voice = other if same_voice else np.concatenate([studio.caller() for _ in range(2)])
            heard = studio.echo(reply, line)
            start = (DOUBLE_TALK_MS + line.delay_ms) * RATE // 1_000
            voice = voice[: len(heard) - start] * np.float32(rms(heard) / rms(voice) * 10 ** (level_db_over / 20))
            heard[start : start + len(voice)] += voice
            trials.append(room.play(reply, heard, is_telephone=line.is_telephone))
    return trials


def known_after_ms(burst: Sequence[Likeness]) -> int | None:
    """How much voice of an echo it took to know it; None: it was not known."""
    return next((at * WINDOW_MS for at, likeness in enumerate(burst, 1) if likeness.is_ours), None)


def _share(flags: Sequence[bool]) -> str:
    return f"{np.mean(flags):.3f}" if flags else "-"


def _tell_echoes(say: Say, name: str, trials: Sequence[Trial]) -> None:
    first = [burst for trial in trials for burst in list(trial.bursts())[:1]]
    later = [burst for trial in trials for burst in list(trial.bursts())[1:]]
    shares = []
    for bursts in (first, later):
        for limit in KNOWN_MS:
            lasting = [burst for burst in bursts if len(burst) * WINDOW_MS >= limit]
            known = [(known_after_ms(burst) or limit + 1) <= limit for burst in lasting]
            shares.append(_share(known))
    ended = [_share([trial.is_interrupted for trial in trials]), _share([trial.has_turn for trial in trials])]
    held = f"{np.mean([trial.held_ms for trial in trials]):.0f}"
    say(f"| {name} | {len(trials)} | " + " | ".join([*shares, *ended, held]) + " |")


def _tell_callers(say: Say, name: str, trials: Sequence[Trial]) -> None:
    windows = [likeness for trial in trials for probability, likeness in trial.windows if probability >= LOUD]
    bursts = [burst for trial in trials for burst in trial.bursts() if len(burst) * WINDOW_MS >= KNOWN_MS[0]]
    taken = [sum(likeness.is_ours for likeness in burst) * 2 > len(burst) for burst in bursts]
    ours = [likeness.is_ours for likeness in windows]
    stops = [trial.first_stop_ms for trial in trials]
    got = [ms for ms in stops if ms is not None]
    say(f"| {name} | {len(trials)} | {_share(ours)} | {_share(taken)} | {len(got) / len(stops):.2f} |")


def _tell_double(say: Say, name: str, trials: Sequence[Trial]) -> None:
    after = [trial.first_stop_ms for trial in trials]
    in_time = [ms is not None and ms > DOUBLE_TALK_MS for ms in after]
    early = [ms is not None and ms <= DOUBLE_TALK_MS for ms in after]
    times = [ms - DOUBLE_TALK_MS for ms in after if ms is not None and ms > DOUBLE_TALK_MS]
    median = f"{np.median(times):.0f}" if times else "-"
    say(f"| {name} | {len(trials)} | {_share(in_time)} | {median} | {_share(early)} |")


async def echo(say: Say, seeds: Sequence[int] = SEEDS) -> bool:
    """All of it; some minutes."""
    room = Room()
    say(f"seeds {seeds[0]} to {seeds[-1]}")
    found = echoes(room, seeds)
    say("| echo | calls | first burst known by 200 ms | 400 | 640 | later ones | 400 | 640 | stops | turns | held ms |")
    _tell_echoes(say, "all", [trial for _, trial in found])
    for name in ROOMS:
        _tell_echoes(say, name, [trial for line, trial in found if line.room == name])
    for noise in NOISES_DB:
        _tell_echoes(say, f"noise {noise}", [trial for line, trial in found if line.noise_db == noise])
    _tell_echoes(say, "telephone", [trial for line, trial in found if line.is_telephone])
    cpu_ms = [ms for _, trial in found for ms in trial.cpu_ms]
    say(f"{len(cpu_ms)} windows were judged, in {np.median(cpu_ms):.2f} ms of CPU at the median")
    _tell_echoes(say, "not listened for", [trial for _, trial in echoes(room, seeds[:4], knows_echo=False)])
    say("| caller | calls | windows taken for echo | bursts | interrupts |")
    _tell_callers(say, "espeak-ng", callers(room, seeds, same_voice=False))
    _tell_callers(say, "our own voice", callers(room, seeds, same_voice=True))
    say("| over an echo | calls | noticed by sound | after ms | before it was there |")
    for level in LEVELS_DB:
        _tell_double(say, f"espeak-ng, {level:+d} dB", double_talk(room, seeds, level, same_voice=False))
        _tell_double(say, f"our own voice, {level:+d} dB", double_talk(room, seeds, level, same_voice=True))
    return True
