"""Voice to voice, barge-in, cancel and recovery, over the public WebSocket."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from benchmarks import figures
from benchmarks.service import Service, running_service
from benchmarks.speech import QUESTIONS, utterance, word_errors, words
from loadtest.caller import Call, MonotonicClock
from loadtest.realtime_client import Target
from loadtest.timeline import CallPlan
from loadtest.turns import CallResult, TurnResult, add_faults

SILENCE_MS = 500
PARTS = ("end_of_turn_wait", "encoder", "thinker", "talker", "vocoder", "playout")
BARGE_IN_MS_MIN, BARGE_IN_MS_MAX = 50, 1_200  # nearly every reply is longer
SEED = 20261129

Say = Callable[[str], None]


def _plan(turns: int, **settings: object) -> CallPlan:
    said = tuple(utterance(text) for text in islice(cycle(QUESTIONS), turns))
    return CallPlan(said, silence_ms=SILENCE_MS, **settings)  # type: ignore[arg-type]


async def _call(service: Service, plan: CallPlan) -> CallResult:
    call = Call(Target.parse(service.url), plan, MonotonicClock())
    await call.run()
    return call.result()


async def voice_to_voice(say: Say, *, turns: int, calls: int) -> bool:
    """`calls` at once share `turns`; figures from the last loud sample of the caller to the first reply sample."""
    plan = _plan(turns // calls)
    async with running_service() as service:
        results = await asyncio.gather(*(_call(service, plan) for _ in range(calls)))
    said = [turn for result in results for turn in result.turns]
    answered = [turn for turn in said if turn.ttfa_ms is not None and not turn.ttfa_censored]
    say(f"voice to voice: {calls} call(s), {len(answered)} of {len(said)} turns answered, silence {SILENCE_MS} ms")
    totals = [turn.ttfa_ms for turn in answered if turn.ttfa_ms is not None]
    say(figures.line("last loud sample to first reply sample", totals))
    say(figures.line("the same beyond the configured silence", [total - SILENCE_MS for total in totals]))
    _say_parts(say, [turn for turn in answered if turn.timings])
    lateness = max(result.lateness.p99_ms for result in results)
    say(f"the caller's own lateness, p99: {lateness:.1f} ms")
    wrong = sum(word_errors(words(turn.utterance), words(turn.caller_text)) for turn in said)
    say(f"words heard wrong: {wrong} of {sum(len(words(turn.utterance)) for turn in said)}")
    return len(answered) == len(said)


def _say_parts(say: Say, turns: Sequence[TurnResult]) -> None:
    """Each part's share of the critical path; `voice activity` is what the VAD took to see the end of speech."""
    if not turns:
        return
    means = {part: statistics.fmean(turn.timings.get(part) or 0.0 for turn in turns) for part in PARTS}
    total = statistics.fmean(turn.ttfa_ms or 0.0 for turn in turns)
    server = sum(means.values())
    rows = {"voice activity and transport": total - server, **means}
    for name, mean in rows.items():
        say(f"    {name:<32} {mean:7.1f} ms  {100 * mean / total:5.1f} %")
    say(f"    {'sum':<32} {total:7.1f} ms")


async def barge_in(say: Say, *, times: int) -> bool:
    """Interruptions at random points of the reply, by the caller's voice."""
    dice = random.Random(SEED)
    after = tuple(dice.randrange(BARGE_IN_MS_MIN, BARGE_IN_MS_MAX) for _ in range(times + 1))
    async with running_service() as service:
        result = await _call(service, _plan(times + 1, barge_in_after_ms=after))
        quiet = await _call(service, _plan(len(QUESTIONS)))
    interrupted = [turn for turn in result.turns if turn.yielded]
    say(f"barge-in: {len(interrupted)} replies interrupted and yielded of {len(result.turns)} turns")
    stops = [turn.barge_in_received_ms for turn in interrupted if turn.barge_in_received_ms is not None]
    say(figures.line("first interrupting sample to last old sample", stops))
    say(figures.line("done to drained, the server's word", _lags(interrupted)))
    say(figures.line("done to drained, at the caller", _client_lags(interrupted)))
    _say_faults(say, result)
    first = _first_words([turn for before, turn in zip(result.turns, result.turns[1:], strict=False) if before.yielded])
    over_silence = _first_words(list(quiet.turns))
    say(f"first word right over our own speech: {first[0]} of {first[1]}")
    say(f"first word right over silence: {over_silence[0]} of {over_silence[1]}")
    return all(turn.faults.total == 0 for turn in result.turns)


async def cancel(say: Say, *, times: int) -> bool:
    """`response.cancel` at random points of the reply."""
    dice = random.Random(SEED)
    after = tuple(dice.randrange(BARGE_IN_MS_MIN, BARGE_IN_MS_MAX) for _ in range(times))
    async with running_service() as service:
        result = await _call(service, _plan(times, cancel_after_ms=after))
    cancelled = [turn for turn in result.turns if turn.status == "cancelled"]
    say(f"cancel: {len(cancelled)} replies cancelled of {len(result.turns)}")
    stops = [turn.cancel_received_ms for turn in cancelled if turn.cancel_received_ms is not None]
    say(figures.line("response.cancel to last old sample", stops))
    say(figures.line("done to drained, the server's word", _lags(cancelled)))
    say(figures.line("done to drained, at the caller", _client_lags(cancelled)))
    _say_faults(say, result)
    return all(turn.faults.total == 0 for turn in result.turns)


def _lags(turns: Sequence[TurnResult]) -> list[float]:
    return [turn.drain_lag_ms for turn in turns if turn.drain_lag_ms is not None]


def _client_lags(turns: Sequence[TurnResult]) -> list[float]:
    return [turn.drain_lag_client_ms for turn in turns if turn.drain_lag_client_ms is not None]


def _say_faults(say: Say, result: CallResult) -> None:
    faults = add_faults([turn.faults for turn in result.turns]).counts()
    say(f"faults of the sound: {', '.join(f'{name} {count}' for name, count in faults.items())}")


def _first_words(turns: Sequence[TurnResult]) -> tuple[int, int]:
    right = sum(words(turn.caller_text)[:1] == words(turn.utterance)[:1] for turn in turns)
    return right, len(turns)


async def recovery(say: Say) -> bool:
    """kill -9 of each stage's worker during a reply; then the next turns of the same call."""
    good = True
    async with running_service() as service:
        for stage in ("vocoder", "talker", "thinker", "encoder"):
            plan = _plan(3, think_ms=1_500)
            call = Call(Target.parse(service.url), plan, MonotonicClock(), _killer(service, stage))
            await call.run()
            turns = call.result().turns
            shown = ", ".join(f"{turn.status} ({turn.outcome}, drained {turn.drain_status})" for turn in turns)
            good &= turns[-1].status == "completed"
            say(f"kill -9 {stage}: {shown}")
    return good


def _killer(service: Service, stage: str) -> Callable[[str], None]:
    """Kills the worker of `stage` when the first reply begins."""
    waiting = [stage]

    def progress(event: str) -> None:
        if waiting and "reply begins" in event:
            service.kill(waiting.pop())

    return progress
