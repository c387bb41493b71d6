"""All the ways in which callers end replies, drawn from a seed; and what a service holds when they have gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.cancelling import CancellingCaller, cancelling
from tests.live.service import EVENT_S_MAX, Service

WORDS = 20  # 4 s of speech: no caller waits for its end
WORDS_SHORT = 4
BETWEEN_CALLS_S = 0.05  # on average, when they begin: callers do not come all in one moment
PARTS = ("gateway", "encoder", "thinker", "talker", "vocoder")
# What stays in flight where nothing moves: a reader gives bytes back in pieces of a quarter of the window.
BYTES_MAX = 256 << 10

LEDGERS = (
    *("duplex_calls", "duplex_undrained_responses", "duplex_credit_in_use_samples"),
    *("duplex_encoder_credit_out_samples", "duplex_stage_streams", "duplex_stage_sessions", "duplex_room_waiting"),
    *("duplex_edge_credit_out", "duplex_arena_blocks_used", "duplex_arena_blocks_orphaned"),
    *("duplex_scheduler_waiting", "duplex_scheduler_running", "duplex_alert", "duplex_audit_found_total"),
)


@dataclass(slots=True)
class Ended:
    """What callers did, and how replies ended by it."""

    deeds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    drains: Counter[str] = field(default_factory=Counter)
    cancels: int = 0


class _Deeds:
    """One caller's, who listens for up to `after_s_max`. Each deed gives False where the caller is gone by it."""

    def __init__(self, caller: CancellingCaller, dice: random.Random, ended: Ended, after_s_max: float) -> None:
        self._caller = caller
        self._dice = dice
        self._ended = ended
        self._after_s_max = after_s_max

    async def at_some_point(self) -> bool:
        response = await self._begun()
        await self._cancel()
        return await self._over(response)

    async def before_anything(self) -> bool:
        await self._caller.ask(WORDS)
        await self._cancel()
        return await self._over(await self._caller.started())

    async def after_all_text(self) -> bool:
        await self._caller.ask(WORDS_SHORT)
        response = await self._caller.started()
        told = self._caller.responses[response]
        await self._caller.until(lambda: told.words == WORDS_SHORT or bool(told.drained))
        await self._cancel()
        return await self._over(response)

    async def twice(self) -> bool:
        response = await self._begun()
        await self._cancel()
        await self._cancel()
        return await self._over(response)

    async def and_ask_again_at_once(self) -> bool:
        response = await self._begun()
        await self._cancel()
        await self._caller.ask(WORDS)
        await self._over(response)
        another = await self._caller.started()
        await self._caller.listen(self._dice.uniform(0, self._after_s_max))
        await self._cancel()
        return await self._over(another)

    async def hang_up(self) -> bool:
        await self._begun()
        return False

    async def vanish(self) -> bool:
        await self._begun()
        self._caller.vanish()
        return False

    async def _begun(self) -> str:
        """A reply that has come to some point."""
        await self._caller.ask(WORDS)
        response = await self._caller.started()
        await self._caller.listen(self._dice.uniform(0, self._after_s_max))
        return response

    async def _cancel(self) -> None:
        self._ended.cancels += 1
        await self._caller.cancel()

    async def _over(self, response: str) -> bool:
        told = await self._caller.drained(response)
        self._ended.statuses[told.status] += 1
        self._ended.drains[told.drained["status"]] += 1
        return True


_WAYS: dict[str, Callable[[_Deeds], Awaitable[bool]]] = {
    "at some point": _Deeds.at_some_point,
    "before anything": _Deeds.before_anything,
    "after all text": _Deeds.after_all_text,
    "twice": _Deeds.twice,
    "and ask again at once": _Deeds.and_ask_again_at_once,
    "hang up": _Deeds.hang_up,
    "vanish": _Deeds.vanish,
}
_WEIGHTS = {
    "at some point": 8,
    "before anything": 3,
    "after all text": 3,
    "twice": 3,
    "and ask again at once": 3,
    "hang up": 1,
    "vanish": 1,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`callers` at once end replies until there have been `cancels` in all, each after at most `after_s_max`."""

    callers: int
    cancels: int
    after_s_max: float
    seed: int


async def end_replies(address: str, plan: Plan) -> Ended:
    ended = Ended()
    dice = (random.Random(plan.seed + number) for number in range(plan.callers))
    await asyncio.gather(*(_live(address, plan, one, ended) for one in dice))
    return ended


async def _live(address: str, plan: Plan, dice: random.Random, ended: Ended) -> None:
    names, weights = zip(*_WEIGHTS.items(), strict=True)
    await asyncio.sleep(dice.uniform(0, plan.callers * BETWEEN_CALLS_S))
    while ended.cancels < plan.cancels:
        async with cancelling(address) as caller:
            deeds = _Deeds(caller, dice, ended, plan.after_s_max)
            is_there = True
            while is_there and ended.cancels < plan.cancels:
                (name,) = dice.choices(names, weights)
                ended.deeds[name] += 1
                is_there = await _WAYS[name](deeds)


# ---- what is left ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a service holds: what of `LEDGERS` is not 0, tasks of the gateway, and of each process its descriptors,
    threads and memory (resident bytes)."""

    ledgers: dict[str, float]
    tasks: float
    descriptors: dict[str, int]
    threads: dict[str, int]
    memory: dict[str, int]


async def holdings_at_rest(service: Service) -> Holdings:
    """What is held once all calls are over; what then does not become 0 within `EVENT_S_MAX` never will."""
    deadline_s = time.monotonic() + EVENT_S_MAX
    while (held := await asyncio.to_thread(holdings, service)).ledgers and time.monotonic() < deadline_s:
        continue
    return held


def holdings(service: Service) -> Holdings:
    samples = _samples(service.get("/metrics").body.decode())
    held = {name: value for name, value in samples.items() if value and name.partition("{")[0] in LEDGERS}
    held |= {
        name: value
        for name, value in samples.items()
        if name.startswith("duplex_edge_bytes_in_flight{") and value >= BYTES_MAX
    }
    pids = {part: service.pid_of(part) for part in PARTS}
    return Holdings(
        held,
        samples["duplex_tasks"],
        {part: len(list(Path(f"/proc/{pid}/fd").iterdir())) for part, pid in pids.items()},
        {part: len(list(Path(f"/proc/{pid}/task").iterdir())) for part, pid in pids.items()},
        {part: _resident(pid) for part, pid in pids.items()},
    )


def _samples(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
