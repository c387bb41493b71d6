"""From observations to figures, by the definitions of others where they have some.

Definitions
    tau-voice (sierra-research/tau2-bench, docs/interaction-metrics.md)
        L_R   end of the caller's turn -> first sample of the answer, mean; turns over a reply count where it yielded
        R_R   share of turns that were answered; as above
        L_Y   first voiced sample of an interruption -> the service is silent, mean over those that yielded
        R_Y   share of interruptions after which it was silent within 2.0 s
        I_A   answers that began while the caller was speaking, per turn in silence
        S_BC, S_VT, S_ND   share of backchannels, vocal tics, speech not meant for it that were no error. An error: over
              its own speech it falls silent within 1.0 s of the first voiced sample; in silence it speaks before 2.0 s
              after the last. Silent is what lasts longer than a tick, 200 ms: a pause and going on is an error as well.
    Full-Duplex-Bench v1 and v1.5 (arXiv 2503.04721, 2507.23159)
        TOR   share of samples in which the service takes the turn: it is heard for 1 s, or says more than 3 words.
              Counted after an interruption, after a question, and before the end of a turn with pauses
        latency   end of the caller's turn -> the answer, mean over the turns taken
        stop latency   how long both speak at once after an interruption, mean over those that yielded
    our own, from the first voiced sample
        hold told       -> `turn.held` arrives: the service feeds no more; what has been sent still plays
        hold latency    -> the reply's samples stop at the ear, for `HOLD_NS_MIN` at least
        decision time   -> the service gives the reply up, or goes on with it
        pause inserted  how long a reply that went on stood still, per backchannel
        kept            the same reply went on to be heard, or never stopped
        false holds     per minute of steady noise, of silence; and what stood still before anything happened
        false end of turn   share of turns with pauses that were committed before their last voiced sample

Rules
* A spoilt observation counts for nothing but the number of spoilt ones.
* A rate or mean of fewer than `EVENTS_MIN` events is kept, and not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.turn_taking.labels import TURNS, Kind
from benchmarks.turn_taking.observation import Mark, Observation, Sound

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

YIELD_NS_MAX = 2 * NS_PER_S
ERROR_YIELD_NS = 1 * NS_PER_S
ERROR_ANSWER_NS = 2 * NS_PER_S
TICK_NS = 200 * NS_PER_MS
TAKEN_NS_MIN = 1 * NS_PER_S
TAKEN_WORDS_MIN = 4
EVENTS_MIN = 10
# Three frames of sound: a shorter gap is more likely a machine that was late.
HOLD_NS_MIN = 60 * NS_PER_MS

# The last sound was still being heard when the observation was closed, if it ended within a frame or two of that.
STILL_SOUNDING_NS = HOLD_NS_MIN

WITH_PAUSES = frozenset({Kind.PAUSED, Kind.DIGITS})


@dataclass(frozen=True, slots=True)
class Rate:
    """`value` of `events`; None where there are none."""

    events: int
    value: float | None

    @property
    def shown(self) -> bool:
        return self.events >= EVENTS_MIN


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds; percentiles by nearest rank. None where there are none."""

    events: int
    mean: float | None
    p50: float | None
    p95: float | None

    @property
    def shown(self) -> bool:
        return self.events >= EVENTS_MIN


@dataclass(frozen=True, slots=True)
class Stop:
    """The reply's samples stopped at `at_ns`; None: it did not go on, for as long as was looked."""

    at_ns: int
    again_ns: int | None

    def lasts(self, ns: int) -> bool:
        """Longer than that."""
        return self.again_ns is None or self.again_ns - self.at_ns > ns


# ---- one observation ------------------------------------------------------------------------------


def stops(seen: Observation) -> list[Stop]:
    """Where the reply that was spoken over stood still from the first voiced sample on. Its own end is no stop."""
    sounds = [sound for sound in seen.sounds if sound.response == seen.over]
    found = [Stop(before.end_ns, after.start_ns) for before, after in pairwise(sounds)]
    made = has(seen, Mark.MADE, seen.over) and not has(seen, Mark.YIELDED, seen.over)
    if sounds and not made and sounds[-1].end_ns < seen.closed_ns - STILL_SOUNDING_NS:
        found.append(Stop(sounds[-1].end_ns, None))
    return [stop for stop in found if stop.again_ns is None or stop.again_ns > seen.start_ns]


def has(seen: Observation, mark: Mark, response: str | None) -> bool:
    return any(note.mark is mark and note.response == response for note in seen.notes)


def silent_after_ns(seen: Observation) -> int | None:
    """From the first voiced sample until the reply is silent for more than a tick; 0 where it was already."""
    silent = next((stop for stop in stops(seen) if stop.lasts(TICK_NS)), None)
    return None if silent is None else max(0, silent.at_ns - seen.start_ns)


def hold(seen: Observation) -> Stop | None:
    """The first stop that is long enough to be meant."""
    return next((stop for stop in stops(seen) if stop.lasts(HOLD_NS_MIN)), None)


def held_ns(seen: Observation) -> int | None:
    """From the first voiced sample to the service's word that it holds the reply; None where it never says so."""
    told = (note.at_ns for note in seen.notes if note.mark is Mark.HELD and note.at_ns >= seen.start_ns)
    first_ns = next(told, None)
    return None if first_ns is None else first_ns - seen.start_ns


def decision_ns(seen: Observation) -> int | None:
    """From the first voiced sample to the decision what it was; None where nothing was to be decided."""
    first = hold(seen)
    told = [note.at_ns for note in seen.notes if note.mark in (Mark.YIELDED, Mark.RESUMED)]
    heard = [first.again_ns] if first is not None and first.again_ns is not None else []
    decided = [at_ns for at_ns in told + heard if at_ns >= seen.start_ns]
    return min(decided) - seen.start_ns if decided else None


def kept(seen: Observation) -> bool:
    """Whether the reply was still the service's own to finish."""
    return not has(seen, Mark.YIELDED, seen.over) and all(stop.again_ns is not None for stop in stops(seen))


def pause_ns(seen: Observation) -> int:
    """How long the reply stood still and went on."""
    halts = [stop.again_ns - stop.at_ns for stop in stops(seen) if stop.again_ns is not None]
    return sum(ns for ns in halts if ns > HOLD_NS_MIN)


def answers(seen: Observation) -> list[Sound]:
    """The first sound of each other response that began after the first voiced sample."""
    firsts: dict[str, Sound] = {}
    for sound in seen.sounds:
        if sound.response != seen.over:
            firsts.setdefault(sound.response, sound)
    return [sound for sound in firsts.values() if sound.start_ns >= seen.start_ns]


def answer(seen: Observation) -> Sound | None:
    """The one to the whole of what was said."""
    return next((sound for sound in answers(seen) if sound.start_ns >= seen.end_ns), None)


def answer_ns(seen: Observation) -> int | None:
    """From the last voiced sample to the answer."""
    first = answer(seen)
    return None if first is None else first.start_ns - seen.end_ns


def takes_turn(seen: Observation, response: str) -> bool:
    """Full-Duplex-Bench's rule, for what was heard of the response."""
    heard_ns = sum(sound.end_ns - sound.start_ns for sound in seen.sounds if sound.response == response)
    return heard_ns >= TAKEN_NS_MIN or (heard_ns > 0 and seen.words.get(response, 0) >= TAKEN_WORDS_MIN)


def takes_over(seen: Observation) -> bool:
    """It speaks after the end of what was said, and takes the turn."""
    first = answer(seen)
    return first is not None and takes_turn(seen, first.response)


def takes_early(seen: Observation) -> bool:
    """It takes the turn before the end of what was said."""
    return any(takes_turn(seen, sound.response) for sound in answers(seen) if sound.start_ns < seen.end_ns)


def errs(seen: Observation) -> bool:
    """tau-voice's error for what was not meant for the service."""
    if seen.over is None:
        return any(sound.start_ns <= seen.end_ns + ERROR_ANSWER_NS for sound in answers(seen))
    silent_ns = silent_after_ns(seen)
    return silent_ns is not None and silent_ns <= ERROR_YIELD_NS


def yields(seen: Observation) -> bool:
    """tau-voice's yield to an interruption."""
    silent_ns = silent_after_ns(seen)
    return silent_ns is not None and silent_ns <= YIELD_NS_MAX


def overlap_ns(seen: Observation) -> int:
    """How long both spoke, from the first voiced sample to the stop or to the end of the interruption."""
    return min(silent_after_ns(seen) or 0, seen.end_ns - seen.start_ns)


def talks_over(seen: Observation) -> int:
    """How many answers began while the caller was speaking."""
    return sum(any(start <= sound.start_ns < end for start, end in seen.voiced) for sound in answers(seen))


def ends_early(seen: Observation) -> bool:
    """The turn was committed before its last voiced sample."""
    marks = [note for note in seen.notes if note.mark is Mark.COMMITTED]
    return any(seen.start_ns <= note.at_ns < seen.end_ns for note in marks)


def false_holds(seen: Observation) -> int:
    """How often a reply stopped or was reported as held while there was noise."""
    heard = sum(stop.lasts(HOLD_NS_MIN) and stop.at_ns < seen.end_ns for stop in stops(seen))
    told = sum(note.mark is Mark.HELD and seen.start_ns <= note.at_ns < seen.end_ns for note in seen.notes)
    return max(heard, told)


# ---- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scores:
    """All figures of an evaluation."""

    counts: dict[str, int]
    spoilt: dict[str, int]
    l_r: Times
    r_r: Rate
    l_y: Times
    r_y: Rate
    i_a: Rate
    s_bc: Rate
    s_vt: Rate
    s_nd: Rate
    tor_interruption: Rate
    tor_interruption_latency: Times
    tor_question: Rate
    tor_question_latency: Times
    tor_pause: Rate
    stop_latency: Times
    held_interruption: Times
    held_backchannel: Times
    hold_latency_interruption: Times
    hold_latency_backchannel: Times
    decision_interruption: Times
    decision_backchannel: Times
    pause_backchannel: Times
    kept_backchannel: Rate
    kept_tic: Rate
    kept_side_talk: Rate
    kept_burst: Rate
    false_holds_noise: Rate
    false_holds_silence: Rate
    halts_undisturbed: Rate
    false_end_of_turn: Rate
    response_latency: Times


def score(observations: Sequence[Observation]) -> Scores:
    """The figures. `counts` and `spoilt` are by kind."""
    good = [seen for seen in observations if not seen.spoilt]
    interruptions, backchannels = _of(good, Kind.INTERRUPTION), _of(good, Kind.BACKCHANNEL)
    yielded = [seen for seen in interruptions if yields(seen)]
    turns, wanted = _of(good, *TURNS), [seen for seen in interruptions if seen.wants_answer]
    resolved = turns + [seen for seen in wanted if yields(seen)]
    questions, paused = _of(good, Kind.QUESTION), _of(good, *WITH_PAUSES)
    return Scores(
        counts={kind: len(_of(good, kind)) for kind in Kind},
        spoilt={kind: len(_of(observations, kind)) - len(_of(good, kind)) for kind in Kind},
        l_r=times(map(answer_ns, resolved)),
        r_r=rate(resolved, lambda seen: answer(seen) is not None),
        l_y=times(map(silent_after_ns, yielded)),
        r_y=rate(interruptions, yields),
        i_a=rate(turns, talks_over),
        s_bc=rate(backchannels, lambda seen: not errs(seen)),
        s_vt=rate(_of(good, Kind.TIC), lambda seen: not errs(seen)),
        s_nd=rate(_of(good, Kind.SIDE_TALK), lambda seen: not errs(seen)),
        tor_interruption=rate(wanted, takes_over),
        tor_interruption_latency=times(answer_ns(seen) for seen in wanted if takes_over(seen)),
        tor_question=rate(questions, takes_over),
        tor_question_latency=times(answer_ns(seen) for seen in questions if takes_over(seen)),
        tor_pause=rate(paused, takes_early),
        stop_latency=times(map(overlap_ns, yielded)),
        held_interruption=times(map(held_ns, interruptions)),
        held_backchannel=times(map(held_ns, backchannels)),
        hold_latency_interruption=times(map(_hold_latency_ns, interruptions)),
        hold_latency_backchannel=times(map(_hold_latency_ns, backchannels)),
        decision_interruption=times(map(decision_ns, interruptions)),
        decision_backchannel=times(map(decision_ns, backchannels)),
        pause_backchannel=times(pause_ns(seen) for seen in backchannels if kept(seen)),
        kept_backchannel=rate(backchannels, kept),
        kept_tic=rate(_spoken_over(_of(good, Kind.TIC)), kept),
        kept_side_talk=rate(_spoken_over(_of(good, Kind.SIDE_TALK)), kept),
        kept_burst=rate(_of(good, Kind.BURST), kept),
        false_holds_noise=per_minute(_of(good, Kind.NOISE)),
        false_holds_silence=per_minute(_of(good, Kind.SILENCE)),
        halts_undisturbed=halts_undisturbed(_spoken_over(good)),
        false_end_of_turn=rate(paused, ends_early),
        response_latency=times(map(answer_ns, turns)),
    )


def rate(seen: Collection[Observation], is_so: Callable[[Observation], bool | int]) -> Rate:
    """How many, or how much, of each."""
    return Rate(len(seen), sum(map(is_so, seen)) / len(seen) if seen else None)


def per_minute(seen: Collection[Observation]) -> Rate:
    """False holds per minute of the events' sound."""
    minutes = sum(one.end_ns - one.start_ns for one in seen) / (60 * NS_PER_S)
    return Rate(len(seen), sum(map(false_holds, seen)) / minutes if seen else None)


def halts_undisturbed(seen: Collection[Observation]) -> Rate:
    """Per minute of replies before anything happened in them: what the machine, and not the service, interrupts."""
    halts, heard_ns = 0, 0
    for one in seen:
        before = [sound for sound in one.sounds if sound.response == one.over and sound.end_ns < one.start_ns]
        halts += sum(after.start_ns - sound.end_ns > HOLD_NS_MIN for sound, after in pairwise(before))
        heard_ns += sum(sound.end_ns - sound.start_ns for sound in before)
    return Rate(len(seen), halts * 60 * NS_PER_S / heard_ns if heard_ns else None)


def times(values_ns: Iterable[int | None]) -> Times:
    """Of those that there are."""
    ordered = sorted(ns / NS_PER_MS for ns in values_ns if ns is not None)
    if not ordered:
        return Times(0, None, None, None)
    mean = sum(ordered) / len(ordered)
    return Times(len(ordered), *(round(ms, 1) for ms in (mean, _rank(ordered, 50), _rank(ordered, 95))))


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _of(seen: Iterable[Observation], *kinds: Kind) -> list[Observation]:
    return [one for one in seen if one.kind in kinds]


def _spoken_over(seen: Iterable[Observation]) -> list[Observation]:
    return [one for one in seen if one.over is not None]


def _hold_latency_ns(seen: Observation) -> int | None:
    first = hold(seen)
    return None if first is None else max(0, first.at_ns - seen.start_ns)
