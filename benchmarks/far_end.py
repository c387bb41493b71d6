"""What comes of a line at whose other end is no person: tones, data, music, and machines that greet and beep.

Theory of operation
    No time passes: sounds of `benchmarks.line_sounds`, as mu-law brings them, are heard window by window by the VAD, by
    a detector of turns and by `media.beep`, while the service speaks and while it is silent. Greetings are spoken by
    espeak-ng.

Rules
* Tones and music must hold and interrupt nothing. Where one is taken for a turn in silence, no words are made of it.
* Music with a speaker over it is a speaker: `sessions.far_side` bounds what comes of their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import line_sounds
from benchmarks.echo import LOUD, NS_PER_MS, VOICE_CACHE, resampled, rms
from benchmarks.turn_taking.voices import RATE as VOICE_RATE
from benchmarks.turn_taking.voices import Voice, Voices
from media.beep import Beep, BeepDetector
from media.g711 import MU_LAW, SAMPLE_RATE
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES
from media.turn_detector import TurnDetector
from media.turn_events import SILENT, HeardWindow, Held, Saying, TurnEvent, TurnStarted, Yielded
from media.turn_settings import TurnDetectorSettings
from media.vad import SileroVad, VadState
from media.voice_level import level_db
from stages.weights import locate

Say = Callable[[str], None]

SECONDS = 12
MUSICS = 24
SPEAKING = Saying(is_audible=True)
VOICES = (Voice("en-us", 160, 50), Voice("en-gb", 170, 35), Voice("en-us+f3", 150, 60), Voice("en-us+m3", 180, 40))
GREETINGS = (
    "Hi, you have reached Bob. I am not available right now. Please leave a message after the tone.",
    "Hello, this is Anna. I can't come to the phone. Leave me a message and I will call you back.",
    "The person you are calling is not available. Please record your message after the beep.",
)
BEEPS_HZ = (400, 440, 800, 1_000, 1_400, 2_000)
BEEPS_MS = (200, 300, 500, 1_000, 1_200)
BEEP_LEVELS = (0.03, 0.3)
QUEUE = "Thank you for holding. Your call is important to us. Please stay on the line."
OVER_MUSIC_DB = (10, 0)


@dataclass(frozen=True, slots=True)
class Heard:
    """`loud`: the share of windows that are voice; `events`, and `beeps` with the sample at which each was known."""

    loud: float
    events: tuple[TurnEvent, ...]
    beeps: tuple[tuple[int, Beep], ...]

    def count(self, kind: type[TurnEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class Ear:
    """Hears calls over a telephone."""

    def __init__(self, model: Path | None = None) -> None:
        self._vad = SileroVad(model or locate("silero-vad"))

    def hear(self, sound: FloatSamples, saying: Saying) -> Heard:
        """Float32 at 16 kHz, before the codec."""
        coded = MU_LAW.encode(float_to_pcm16(resampled(sound, VAD_SAMPLE_RATE, SAMPLE_RATE)))
        heard = resampled(pcm16_to_float(MU_LAW.decode(coded)), SAMPLE_RATE, VAD_SAMPLE_RATE)
        state, detector, beeps = VadState(), TurnDetector(TurnDetectorSettings()), BeepDetector()
        events: list[TurnEvent] = []
        found: list[tuple[int, Beep]] = []
        loud = 0
        ends = range(WINDOW_SAMPLES, len(heard) + 1, WINDOW_SAMPLES)
        for end in ends:
            window = heard[end - WINDOW_SAMPLES : end]
            probability = self._vad.probabilities([(state, window)])[0]
            loud += probability >= LOUD
            item = HeardWindow(probability, end, level_db(window))
            events += detector.window(item, saying, end * 1_000 // VAD_SAMPLE_RATE * NS_PER_MS)
            beep = beeps.window(window, end, is_voice=probability >= LOUD)
            found += [(end, beep)] if beep is not None else []
        return Heard(loud / len(ends), tuple(events), tuple(found))


def spoken(voices: Voices, text: str, voice: Voice) -> FloatSamples:
    """`text` at 16 kHz."""
    return resampled(pcm16_to_float(voices.speak(text, voice)), VOICE_RATE, VAD_SAMPLE_RATE)


def over_music(voice: FloatSamples, db: float, seed: int) -> FloatSamples:
    """A speaker who is so much louder than what is played."""
    played = line_sounds.music(len(voice) / VAD_SAMPLE_RATE, seed)
    return voice[: len(played)] + played * np.float32(rms(voice) / rms(played) * 10 ** (-db / 20))


def greetings(voices: Voices) -> Iterator[tuple[int, FloatSamples]]:
    """Each beep behind a greeting: where it ends, and the call."""
    number = 0
    for hz in BEEPS_HZ:
        for ms in BEEPS_MS:
            for level in BEEP_LEVELS:
                greeting = spoken(voices, GREETINGS[number % len(GREETINGS)], VOICES[number % len(VOICES)])
                call = [line_sounds.silence(0.5), greeting, line_sounds.silence(0.4)]
                call.append(line_sounds.tone([hz], ms / 1_000, level))
                number += 1
                yield sum(map(len, call)), np.concatenate([*call, line_sounds.silence(1.5)])


def _tell(say: Say, name: str, ear: Ear, sounds: Sequence[FloatSamples]) -> bool:
    """Whether a reply is said through it."""
    over = [ear.hear(sound, SPEAKING) for sound in sounds]
    silent = [ear.hear(sound, SILENT) for sound in sounds]
    holds, interruptions = (sum(one.count(kind) for one in over) for kind in (Held, Yielded))
    turns = sum(one.count(TurnStarted) for one in silent)
    beeps = sum(len(one.beeps) for one in silent)
    loud = np.mean([one.loud for one in over])
    say(f"| {name} | {len(sounds)} | {loud:.3f} | {holds} | {interruptions} | {turns} | {beeps} |")
    return not holds and not beeps


async def far_end(say: Say) -> bool:
    """All of it, in a minute. Whether replies are said through tones and music, and every beep was known."""
    ear, voices = Ear(), Voices(VOICE_CACHE)
    say(f"| {SECONDS} s each | sounds | voice, share | holds | interruptions | turns | beeps |")
    fine = [_tell(say, name, ear, [sound]) for name, sound in line_sounds.network(SECONDS).items()]
    for drums in (True, False):
        played = [line_sounds.music(SECONDS, seed, drums=drums) for seed in range(MUSICS)]
        fine.append(_tell(say, "music, drums" if drums else "music", ear, played))
    said = [spoken(voices, QUEUE, voice) for voice in VOICES]
    for db in OVER_MUSIC_DB:
        _tell(say, f"a speaker {db:+d} dB over music", ear, [over_music(one, db, at) for at, one in enumerate(said)])
    for name, sound in line_sounds.network(SECONDS).items():
        after = [np.concatenate([one, line_sounds.silence(0.3), sound]) for one in said]
        fine.append(not any(ear.hear(call, SILENT).beeps for call in after))
        if not fine[-1]:
            say(f"{name} behind a voice was taken for a beep")
    calls = [(end, ear.hear(call, SILENT).beeps) for end, call in greetings(voices)]
    known = [[at - end for at, _ in beeps] for end, beeps in calls]
    after_ms = np.median([waits[0] for waits in known if waits]) * 1_000 / VAD_SAMPLE_RATE
    once = sum(len(waits) == 1 for waits in known)
    say(f"{once} of {len(calls)} beeps were known, once each, {after_ms:.0f} ms after their end at the median")
    return all(fine) and once == len(calls)
