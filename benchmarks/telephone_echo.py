"""Our own voice as a telephone line sends it back: does it interrupt, and is a caller noticed over it?

Theory of operation
    Where two wires become four, a hybrid sends some of what it is given back: limited to the band of a telephone,
    spread over a few milliseconds, late by the way there and back, coded once more. Each delay meets each loss here.
    Calls are played as in `benchmarks.echo`, on a virtual clock, with the echo listened for and holds that change
    nothing.

Rules
* An echo of so many dB is so much below what was sent; a caller's level is given against what was sent, too.
* The idle noise of a line is white, at `NOISE_DB` of full scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.echo import (
    DOUBLE_TALK_MS,
    LOUD,
    SEEDS,
    SENTENCES,
    TAIL_MS,
    Room,
    Studio,
    Trial,
    rms,
)
from benchmarks.turn_taking.voices import RATE
from media.pcm import FloatSamples

Say = Callable[[str], None]

DELAYS_MS = (20, 60, 150, 300, 500, 700)
GAINS_DB = (-10, -20, -30, -40)
CALLERS_DB = (0, -6, -12)
CALLERS_GAINS_DB = (-10, -20, -30)
NOISE_DB = -60.0
BAND_HZ = (300.0, 3_400.0)
HYBRID_MS = 6
SOON_MS = 1_000


def hybrid(dice: np.random.Generator) -> FloatSamples:
    """The response of one, float32[n] at 24 kHz, of unit power: a band, and a tail that is half as strong."""
    count = 2 * HYBRID_MS * RATE // 1_000
    place = np.arange(count) - count // 2
    low, high = (2 * hz / RATE for hz in BAND_HZ)
    band = (high * np.sinc(high * place) - low * np.sinc(low * place)) * np.hanning(count)
    tail = dice.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail *= 0.5 / np.sqrt(np.sum(tail**2))
    tail[0] += 1
    response = np.convolve(band, tail)
    response /= np.sqrt(np.sum(response**2))
    hybrid_response: FloatSamples = response.astype(np.float32)
    return hybrid_response


def come_back(sound: FloatSamples, delay_ms: int, gain_db: float, dice: np.random.Generator) -> FloatSamples:
    """What the line makes of `sound`, float32 at 24 kHz, and its own noise."""
    spread = np.convolve(sound, hybrid(dice))[: len(sound) + TAIL_MS * RATE // 1_000]
    spread *= 10 ** (gain_db / 20) * rms(sound) / rms(spread)
    silence = np.zeros(delay_ms * RATE // 1_000)
    echoed = np.concatenate([silence, spread])
    noise = dice.standard_normal(len(echoed)) * 10 ** (NOISE_DB / 20)
    return (echoed + noise).astype(np.float32)


def echoes(room: Room, seeds: Sequence[int]) -> Iterator[tuple[int, int, Trial]]:
    """Delay, dB and what came of it, nobody speaking."""
    for seed in seeds:
        studio = Studio(seed)
        for delay_ms in DELAYS_MS:
            for gain_db in GAINS_DB:
                reply = studio.said(SENTENCES)[0]
                heard = come_back(reply, delay_ms, gain_db, studio.dice)
                yield delay_ms, gain_db, room.play(reply, heard, is_telephone=True)


def callers(room: Room, seeds: Sequence[int], gain_db: int, caller_db: int) -> Iterator[Trial]:
    """Callers who begin to speak over an echo of `gain_db`, at `caller_db`; each seed has each delay."""
    for seed in seeds:
        studio = Studio(seed)
        for delay_ms in DELAYS_MS:
            reply = studio.said(SENTENCES)[0]
            heard = come_back(reply, delay_ms, gain_db, studio.dice)
            voice = np.concatenate([studio.caller() for _ in range(2)])
            start = DOUBLE_TALK_MS * RATE // 1_000
            voice = voice[: len(heard) - start] * np.float32(rms(reply) / rms(voice) * 10 ** (caller_db / 20))
            heard[start : start + len(voice)] += voice
            yield room.play(reply, heard, is_telephone=True)


def _tell_echoes(say: Say, name: str, trials: Sequence[Trial]) -> None:
    voiced = np.mean([sum(probability >= LOUD for probability, _ in trial.windows) * 32 for trial in trials])
    interrupted = np.mean([trial.is_interrupted for trial in trials])
    turns = np.mean([trial.has_turn for trial in trials])
    held = np.mean([trial.held_ms for trial in trials])
    say(f"| {name} | {len(trials)} | {voiced:.0f} | {interrupted:.2f} | {turns:.2f} | {held:.0f} |")


def _tell_callers(say: Say, name: str, trials: Sequence[Trial]) -> None:
    stops = [trial.first_stop_ms for trial in trials]
    early = np.mean([ms is not None and ms <= DOUBLE_TALK_MS for ms in stops])
    waits = [ms - DOUBLE_TALK_MS for ms in stops if ms is not None and ms > DOUBLE_TALK_MS]
    noticed = len(waits) / len(stops)
    soon = sum(ms <= SOON_MS for ms in waits) / len(stops)
    median = f"{np.median(waits):.0f}" if waits else "-"
    say(f"| {name} | {len(trials)} | {noticed:.2f} | {soon:.2f} | {median} | {early:.2f} |")


async def telephone_echo(say: Say, seeds: Sequence[int] = SEEDS) -> bool:
    """All of it; some minutes. Whether no echo interrupted, or became a turn."""
    room = Room()
    say(f"seeds {seeds[0]} to {seeds[-1]}")
    say("| echo | calls | taken for voice, ms | interrupted | a turn | held, ms |")
    found = list(echoes(room, seeds))
    _tell_echoes(say, "all", [trial for _, _, trial in found])
    for gain_db in GAINS_DB:
        _tell_echoes(say, f"{gain_db} dB", [trial for _, gain, trial in found if gain == gain_db])
    for delay_ms in DELAYS_MS:
        _tell_echoes(say, f"{delay_ms} ms", [trial for delay, _, trial in found if delay == delay_ms])
    say("| caller over an echo | calls | noticed | within 1 s | after, median ms | before they spoke |")
    for gain_db in CALLERS_GAINS_DB:
        for caller_db in CALLERS_DB:
            trials = list(callers(room, seeds, gain_db, caller_db))
            _tell_callers(say, f"{caller_db:+d} dB over {gain_db} dB", trials)
    return not any(trial.is_interrupted or trial.has_turn for _, _, trial in found)
