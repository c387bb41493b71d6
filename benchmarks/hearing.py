"""What the encoder hears, and whether an independent recogniser hears what the service claims to have said."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pocketsphinx

from benchmarks.service import running_service
from benchmarks.speech import QUESTIONS, utterance, with_noise, word_errors, words
from loadtest.caller import Call, MonotonicClock
from loadtest.realtime_client import Target
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.timeline import CallPlan
from loadtest.turns import Utterance
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler

Say = Callable[[str], None]

SNR_DB = 20.0
LONG_SECONDS = 45
RECOGNISER_RATE = 16_000


async def hearing(say: Say) -> bool:
    """Word errors on ten sentences, clean and noisy, and one utterance of 45 s; then what was said, recognised."""
    clean = tuple(utterance(text) for text in QUESTIONS)
    noisy = tuple(Utterance.from_pcm(said.label, with_noise(said.pcm, SNR_DB, seed)) for seed, said in enumerate(clean))
    async with running_service() as service:
        target = Target.parse(service.url)
        for name, said in (("clean", clean), (f"{SNR_DB:.0f} dB SNR", noisy), ("45 s at once", (_long(),))):
            call = Call(target, CallPlan(said), MonotonicClock())
            await call.run()
            turns = call.result().turns
            wrong = sum(word_errors(words(turn.utterance), words(turn.caller_text)) for turn in turns)
            total = sum(len(words(turn.utterance)) for turn in turns)
            say(f"heard, {name}: {wrong} of {total} words wrong")
            if name == "clean":
                say_what_was_said(say, [turn.reply_text for turn in turns], call.recording.pcm)
    return True


def say_what_was_said(say: Say, claimed: list[str], recording: bytes) -> None:
    """Does an independent recogniser hear in the recording what the transcripts claim? The floor is what it makes of
    the same texts, spoken by the same voice without the service."""
    wanted = words(" ".join(claimed))
    errors = word_errors(wanted, words(recognise(recording)))
    offline = b"".join(utterance(text).pcm + bytes(3 * SAMPLE_RATE) for text in claimed)
    floor = word_errors(wanted, words(recognise(offline)))
    say(f"said: an independent recogniser differs from the transcript in {errors} of {len(wanted)} words")
    say(f"    the same texts spoken without the service: {floor}; ratio {errors / max(1, floor):.2f}")


def _long() -> Utterance:
    """Sentences joined with pauses shorter than the end of a turn, until 45 s are full."""
    pause = bytes(2 * SAMPLE_RATE * 3 // 10)
    texts: list[str] = []
    pcm = b""
    while len(pcm) < 2 * SAMPLE_RATE * LONG_SECONDS:
        text = QUESTIONS[len(texts) % len(QUESTIONS)]
        texts.append(text)
        pcm += utterance(text).pcm + pause
    return Utterance.from_pcm(" ".join(texts), pcm)


def recognise(pcm: bytes) -> str:
    """`pcm` (24 kHz) through pocketsphinx, in stretches between silences."""
    resampler = StreamResampler(SAMPLE_RATE, RECOGNISER_RATE)
    sound = pcm16_to_float(pcm)
    narrow = float_to_pcm16(np.concatenate([resampler.process(sound), resampler.flush()]))
    decoder = pocketsphinx.Decoder(samprate=RECOGNISER_RATE, loglevel="FATAL")
    texts = []
    for stretch in _stretches(narrow):
        decoder.start_utt()
        decoder.process_raw(stretch, full_utt=True)
        decoder.end_utt()
        if decoder.hyp() is not None:
            texts.append(decoder.hyp().hypstr)
    return " ".join(texts)


def _stretches(pcm: bytes) -> list[bytes]:
    """Runs of sound, cut where it is silent for a second."""
    frame = RECOGNISER_RATE // 50 * 2
    stretches, current, quiet = [], bytearray(), 0
    for start in range(0, len(pcm), frame):
        piece = pcm[start : start + frame]
        loud = max(map(abs, struct.unpack(f"<{len(piece) // 2}h", piece)), default=0) > 300
        quiet = 0 if loud else quiet + 1
        if loud or current:
            current += piece
        if quiet > 50 and current:
            stretches.append(bytes(current))
            current = bytearray()
    return [*stretches, bytes(current)] if current else stretches


def recognise_file(path: Path) -> str:
    """The words in a WAV file at 24 kHz."""
    from media.wav import read_wav

    return recognise(read_wav(path, SAMPLE_RATE))
