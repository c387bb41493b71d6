"""From a cancel to the empty ledger, beside the least that it can take, and what thousands of cancels leave behind.

Theory of operation
    The synthetic engine's steps take 20 to 40 ms, cannot be interrupted and cost no CPU, as a pass on a GPU does not;
    so two cores carry fifty replies. What a stage has begun when a cancel comes must run to its end, so a drain can
    take as long as one step. The floor is that step and a bare echo over the same WebSocket (a ping that the protocol
    answers), measured between the cancels, under the same load.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import figures
from benchmarks.turns import Say
from tests.live.cancelling import CancellingCaller, cancelling
from tests.live.deeds import BETWEEN_CALLS_S
from tests.live.service import Service, serving

CALLERS = 50
SEED = 20261129
STEP_MS_MIN, STEP_MS_MAX = 20, 40
DRAIN_MS_MAX = 50  # what may come on top of a step
CANCELS = 1_000
REPLY_WORDS = 20  # 4 s of speech: longer than any cancel waits
# Of a reply's beginning, where all stages work; and of all of it, where most of the time they wait for the ear.
AFTER_ALONE_S, AFTER_S = 0.6, 3.0

STEP = f'{{kind = "uniform", low = {STEP_MS_MIN}, high = {STEP_MS_MAX}}}'
PROFILE = f"""
[encoder]
interruptible = false
[thinker]
interruptible = false
prefill_ms_per_token = 1
word_ms = {STEP}
reply_words = {REPLY_WORDS}
[talker]
concurrency = {CALLERS}
interruptible = false
clause_ms = {STEP}
word_ms = 0
[vocoder]
concurrency = {CALLERS}
interruptible = false
first_chunk_ms = {STEP}
chunk_ms = {STEP}
"""


@contextmanager
def drained_service() -> Iterator[Service]:
    """A service with that engine, and room for the callers and for calls that are still being cleared away."""
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        profile = Path(folder, "profile.toml")
        profile.write_text(PROFILE)
        settings = {"synthetic_profile": str(profile), "calls_max": str(2 * CALLERS), "log_level": "warning"}
        with serving(Path(folder, "data"), settings, engine="synthetic") as service:
            yield service


@dataclass(frozen=True, slots=True)
class _Cancelled:
    """Of one cancel, in ms since it was sent. `lag_ms`: from done to drained, as the server tells."""

    status: str
    done_ms: float
    drained_ms: float
    lag_ms: float


@dataclass(slots=True)
class _Measured:
    cancels: list[_Cancelled] = field(default_factory=list)
    echo_ms: list[float] = field(default_factory=list)


async def drain(say: Say, *, cancels: int) -> bool:
    """`cancels` in one call, then as many in `CALLERS` calls at once."""
    with drained_service() as service:
        alone = await _measure(service, 1, cancels, AFTER_ALONE_S)
        good = _report(say, "one call", alone, service)
        together = await _measure(service, CALLERS, cancels, AFTER_S)
        return _report(say, f"{CALLERS} responses at once", together, service) and good


async def _measure(service: Service, callers: int, cancels: int, after_s: float) -> _Measured:
    measured = _Measured()
    left = iter(range(cancels))
    calls = (_call(service.address, number, after_s, left, measured) for number in range(callers))
    await asyncio.gather(*calls)
    return measured


async def _call(address: str, number: int, after_s: float, left: Iterator[int], measured: _Measured) -> None:
    dice = random.Random(SEED + number)
    await asyncio.sleep(number * BETWEEN_CALLS_S)
    async with cancelling(address) as caller:
        for _ in left:
            measured.cancels.append(await _one(caller, dice.uniform(0, after_s)))
            measured.echo_ms.append(await caller.echo_ns() / 1e6)


async def _one(caller: CancellingCaller, after_s: float) -> _Cancelled:
    await caller.ask(REPLY_WORDS)
    response = await caller.started()
    await caller.listen(after_s)
    sent_ns = await caller.cancel()
    told = await caller.drained(response)
    done_ms, drained_ms = (told.done_ns - sent_ns) / 1e6, (told.drained_ns - sent_ns) / 1e6
    return _Cancelled(told.status, done_ms, drained_ms, told.drained["lag_ms"])


def _report(say: Say, name: str, measured: _Measured, service: Service) -> bool:
    """The figures. False where the target was missed, or a reply was not cancelled."""
    cancelled = [one for one in measured.cancels if one.status == "cancelled"]
    drained_ms = [one.drained_ms for one in cancelled]
    steps_ms = {stage: 1_000 * _step_s(service, stage) for stage in ("thinker", "talker", "vocoder")}
    step_ms, echo_ms = max(steps_ms.values()), figures.percentile(measured.echo_ms, 0.95)
    p95_ms = figures.percentile(drained_ms, 0.95)
    say(f"{name}: {len(cancelled)} of {len(measured.cancels)} replies cancelled")
    say(figures.line("cancel to response.done", [one.done_ms for one in cancelled]))
    say(figures.line("cancel to response.drained", drained_ms))
    say(figures.line("done to drained, the server's word", [one.lag_ms for one in cancelled]))
    say(figures.line("floor: a bare echo, under the same load", measured.echo_ms))
    steps = ", ".join(f"{stage} {ms:.1f}" for stage, ms in steps_ms.items())
    say(f"floor: a step that has begun runs to its end, mean ms: {steps}; at most {STEP_MS_MAX}")
    say(f"p95 of the floor {step_ms + echo_ms:.1f} ms; ratio {p95_ms / (step_ms + echo_ms):.2f}")
    say(f"target: p95 at most a step and {DRAIN_MS_MAX} ms, {step_ms + DRAIN_MS_MAX:.1f}: {p95_ms:.1f}")
    return p95_ms <= step_ms + DRAIN_MS_MAX and len(cancelled) == len(measured.cancels)


def _step_s(service: Service, stage: str) -> float:
    """What a step of the stage's most frequent kind took, on average."""
    kind = {"thinker": "word", "talker": "clause", "vocoder": "chunk"}[stage]
    labels = f'{{kind="{kind}",replica="{stage}",stage="{stage}"}}'
    return service.metric(f"duplex_scheduler_service_mean_seconds{labels}")
