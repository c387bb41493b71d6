"""What a pause in the caller's speech says of the end of the turn: by words, by sound, by both; and what that costs.

Theory of operation
    Nothing is played and no time passes: each pause is transcribed and listened to as the service does it, 200 ms after
    the last word (128 ms after the VAD has seen it), and `media.end_of_turn` says how long a silence would end the turn
    there. So every way of ending turns is judged by the same pauses, without the chance of a busy machine.

    Two kinds of callers: the project's own voice, whose whole sentences are broken off at a word, so that the melody
    goes on as it does where a person hesitates; and the turns of `benchmarks.turn_taking`, whose pieces espeak-ng says
    as sentences of their own.

Rules
* The VAD notices a silence about 90 ms late and speech about 30 ms late: a pause of 700 ms is one of 640 to it.
* The sentences for tuning and for testing share none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.turn_taking import corpus
from benchmarks.turn_taking.labels import TURNS, Clip, Kind
from benchmarks.turn_taking.voices import RATE, Voices
from duplex import config
from duplex.pipeline import voice_options
from media.end_of_turn import Eagerness, EndOfTurnSettings, joined, silence_ms, turn_end_probability
from media.pcm import FloatSamples, pcm16_to_float
from media.resample import StreamResampler
from media.smart_turn import SmartTurn
from sessions.settings import INPUT_RATE
from stages.engines.local.say import speak
from stages.engines.local.whisper import Whisper
from stages.engines.registry import build
from stages.weights import locate

Say = Callable[[str], None]

ASKED_AFTER_MS = 200
VAD_LATE_MS = 60
PAUSES_MS = (700, 1_000, 1_500)
LEAD_SAMPLES = 3 * INPUT_RATE // 10  # what the encoder hears from before the onset
FADE_SAMPLES = INPUT_RATE // 100  # no voice stops within a sample
TURN_SEEDS = 12  # of 64 events each
VOICE_CACHE = Path("build/voices")

TUNING = """
I would like to know how long it takes to get to the station.
My brother wants to go to the mountains in the summer.
Could you tell me what I need for a simple apple cake?
I was looking for somebody who could help me with a letter.
Please book a table for two people on Friday evening.
What is the capital of France?
How many days are there in a week?
Can you tell me something about the moon?
My daughter has a fever and I do not know what to do.
I ordered a book last week but it has not arrived yet.
The train that I take every morning leaves at seven thirty.
We could meet on Monday or on Tuesday at nine.
Is there a pharmacy near the railway station?
I think that the red one looks much better.
Turn the light off in the kitchen and close the door.
What should I cook for dinner when my parents visit?
The problem is that my computer does not start any more.
I need a hotel for three nights in the centre of London.
How do I get from the airport to the old town?
My account was charged twice for the same order.
"""
TEST = """
Please remind me to call my sister after the meeting tomorrow.
When does the museum open on Sunday morning?
I have lost the key to my room on the second floor.
Would you play some quiet music while I am reading?
The washing machine makes a strange noise when it starts to spin.
We are looking for a flat with two bedrooms and a small garden.
How much sugar do I have to put into the coffee?
I cannot find the email that you sent me yesterday.
Who wrote the book about the old man and the sea?
Could we move the appointment from Thursday to the week after?
My son is learning to play the piano at school.
Tell me what the weather will be like at the weekend.
I would rather take the bus because it stops at our house.
Is it true that the river was frozen last winter?
Please send the invoice to the address of our office in Berlin.
The doctor told me to drink a lot of water every day.
Where can I buy fresh bread at this time of night?
I forgot the password that I use for the online shop.
Can you explain to me how a refrigerator works?
She said that the plane from Madrid would be two hours late.
What is the difference between a frog and a toad?
I want to cancel the order that I placed this morning.
Our neighbours have a dog that barks the whole night.
Do I need a visa if I travel to Japan for two weeks?
"""


@dataclass(frozen=True, slots=True)
class Pause:
    """`lasts_ms` None: the turn is over. `words` and `sound`: what was understood, and how finished it sounds."""

    turn: int
    kind: str
    lasts_ms: int | None
    words: str
    sound: float


@dataclass(frozen=True, slots=True)
class Way:
    """A way of ending turns."""

    name: str
    settings: EndOfTurnSettings
    by_sound: bool = False

    def silence_ms(self, pause: Pause) -> int:
        return silence_ms(pause.words, self.settings, sound=pause.sound if self.by_sound else None)

    def ends(self, pause: Pause, lasts_ms: int) -> bool:
        """Whether a pause of that length ends the turn."""
        return self.silence_ms(pause) < lasts_ms - VAD_LATE_MS


def ways() -> list[Way]:
    eagerness: tuple[Eagerness, ...] = ("high", "auto", "low")
    found = [Way("`server_vad`, 500 ms", EndOfTurnSettings())]
    for eager in eagerness:
        by_words = Way(f"`semantic_vad`, {eager}, words", EndOfTurnSettings("semantic_vad", eagerness=eager))
        found += [by_words, replace(by_words, name=f"`semantic_vad`, {eager}, words and sound", by_sound=True)]
    return found


async def turn_ends(say: Say) -> bool:
    """Both corpora, all ways; a few minutes."""
    listener = Listener()
    for title, sentences in (("tuning", TUNING), ("test", TEST)):
        say(f"\nOwn voice, {title}")
        _tell_sentences(say, list(broken_off(sentences.strip().splitlines(), listener)))
    say(f"\nespeak-ng, the turns of test seeds {corpus.TEST_SEED_MIN} to {corpus.TEST_SEED_MIN + TURN_SEEDS - 1}")
    _tell_turns(say, list(turns(listener)))
    cpu_ms = np.percentile(listener.cpu_ms, [50, 95])
    say(f"\n{len(listener.cpu_ms)} questions: CPU {cpu_ms[0]:.0f} ms at the median, p95 {cpu_ms[1]:.0f} ms")
    say(f"resident memory of the model: {listener.memory_mib:.0f} MiB")
    return True


# ---- pauses ---------------------------------------------------------------------------------------


class Listener:
    """Hears as the encoder and the model of turn ends do. `cpu_ms`: of each question about the sound."""

    def __init__(self) -> None:
        self._whisper = Whisper(locate("whisper-tiny.en"))
        before = _resident_mib()
        self._model = SmartTurn(locate("smart-turn-v3.2"))
        self._model.probability(np.zeros(INPUT_RATE, dtype=np.float32))
        self.memory_mib = _resident_mib() - before
        self.cpu_ms: list[float] = []

    def pause(self, turn: int, kind: str, said: FloatSamples, lasts_ms: int | None) -> Pause:
        """The pause behind `said`, 16 kHz."""
        silence = np.zeros(ASKED_AFTER_MS * INPUT_RATE // 1_000, dtype=np.float32)
        sound = np.concatenate([np.zeros(LEAD_SAMPLES, dtype=np.float32), said, silence])
        began_ns = time.thread_time_ns()
        probability = self._model.probability(sound)
        self.cpu_ms.append((time.thread_time_ns() - began_ns) / 1e6)
        return Pause(turn, kind, lasts_ms, self._whisper.transcribe(sound).text, probability)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096 / (1 << 20)


def broken_off(sentences: Sequence[str], listener: Listener) -> Iterator[Pause]:
    """Each sentence at its end, and in about four places before."""
    options = voice_options(config.load())
    voice = build("local", "talker", options), build("local", "vocoder", options)
    for turn, text in enumerate(sentences):
        pcm, words = speak(text, *voice, INPUT_RATE)
        sound, count = pcm16_to_float(pcm), len(words)
        for place in sorted({max(2, count // 3), count // 2, 2 * count // 3, count - 2}):
            yield listener.pause(turn, "broken off", _faded(sound[: words[place - 1].end]), PAUSES_MS[0])
        yield listener.pause(turn, "finished", sound, None)


def _faded(sound: FloatSamples) -> FloatSamples:
    faded = sound.copy()
    faded[-FADE_SAMPLES:] *= np.linspace(1, 0, FADE_SAMPLES, dtype=np.float32)
    return faded


def turns(listener: Listener) -> Iterator[Pause]:
    """Each pause, and the end, of each turn of the corpus."""
    voices = Voices(VOICE_CACHE)
    seeds = range(corpus.TEST_SEED_MIN, corpus.TEST_SEED_MIN + TURN_SEEDS)
    plans = [one for seed in seeds for one in corpus.plan(seed, 64) if one.kind in TURNS]
    for turn, one in enumerate(plans):
        clip = corpus.build(one, voices.speak).clip
        sound = StreamResampler(RATE, INPUT_RATE).process(pcm16_to_float(clip.pcm))
        for end, lasts_ms in _ends(clip):
            yield listener.pause(turn, one.kind, sound[: end * INPUT_RATE // RATE], lasts_ms)


def _ends(clip: Clip) -> Iterator[tuple[int, int | None]]:
    for start, end in clip.pauses:
        yield start, (end - start) * 1_000 // RATE
    yield clip.voiced[-1][1], None


# ---- figures --------------------------------------------------------------------------------------


def told_apart(finished: Sequence[float], unfinished: Sequence[float]) -> float:
    """How often a finished one has the higher probability of two: the area under the ROC curve."""
    pairs = [(high > low) + (high == low) / 2 for high in finished for low in unfinished]
    return sum(pairs) / len(pairs)


def _tell_apart(say: Say, pauses: Sequence[Pause]) -> None:
    witnesses: dict[str, Callable[[Pause], float]] = {
        "words": lambda pause: turn_end_probability(pause.words),
        "sound": lambda pause: pause.sound,
        "both": lambda pause: joined(turn_end_probability(pause.words), pause.sound),
    }
    parts = []
    for name, probability in witnesses.items():
        finished = [probability(pause) for pause in pauses if pause.lasts_ms is None]
        unfinished = [probability(pause) for pause in pauses if pause.lasts_ms is not None]
        parts.append(f"{name} {told_apart(finished, unfinished):.2f}")
    say("area under the ROC curve, ends against pauses: " + ", ".join(parts))


def _waits(way: Way, ended: Sequence[Pause]) -> str:
    waits = [way.silence_ms(pause) for pause in ended]
    return f"{np.mean(waits):.0f} / {np.median(waits):.0f} / {np.percentile(waits, 95):.0f}"


def _tell_sentences(say: Say, pauses: Sequence[Pause]) -> None:
    finished = [pause for pause in pauses if pause.lasts_ms is None]
    broken = [pause for pause in pauses if pause.lasts_ms is not None]
    say(f"{len(finished)} finished, {len(broken)} broken off")
    _tell_apart(say, pauses)
    lengths = " | ".join(f"ended by {ms} ms" for ms in PAUSES_MS)
    say(f"| | {lengths} | silence after finished ones, mean / p50 / p95 ms |")
    for way in ways():
        shares = [np.mean([way.ends(pause, ms) for pause in broken]) for ms in PAUSES_MS]
        say(f"| {way.name} | " + " | ".join(f"{share:.2f}" for share in shares) + f" | {_waits(way, finished)} |")


def _tell_turns(say: Say, pauses: Sequence[Pause]) -> None:
    _tell_apart(say, [pause for pause in pauses if pause.kind != Kind.QUESTION])
    say("| | false ends, pauses | false ends, digits | silence after questions | after pauses | after digits |")
    for way in ways():
        early = [_false_ends(way, pauses, kind) for kind in (Kind.PAUSED, Kind.DIGITS)]
        kinds = (Kind.QUESTION, Kind.PAUSED, Kind.DIGITS)
        waits = [_waits(way, [one for one in pauses if one.kind == kind and one.lasts_ms is None]) for kind in kinds]
        say(f"| {way.name} | " + " | ".join([*early, *waits]) + " |")


def _false_ends(way: Way, pauses: Sequence[Pause], kind: Kind) -> str:
    """The share of turns that one of their pauses ends."""
    of_kind = [pause for pause in pauses if pause.kind == kind]
    early = {one.turn for one in of_kind if one.lasts_ms is not None and way.ends(one, one.lasts_ms)}
    count = len({one.turn for one in of_kind})
    return f"{len(early) / count:.2f} of {count}"
