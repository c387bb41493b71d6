"""Who is killed and when, drawn from a seed.

Rules
* A process that dies often is started again ever later: a service lives for few kills, in which each victim has an
  equal share. With a single gateway only that is killed.
* Every other service has the scripted Thinker, which calls a tool; the other the synthetic one, which takes time over
  its words.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Victim = Literal["gateway", "thinker", "store"]
VICTIMS: tuple[Victim, ...] = ("gateway", "thinker", "store")

KILLS_PER_SERVICE = {1: 3, 2: 12}
LONE_SHARE = 0.05  # of all kills, with a single gateway: each takes some seconds
AFTER_MS_MIN, AFTER_MS_MAX = 400, 1_800  # a turn takes about 2 s


@dataclass(frozen=True, slots=True)
class Kill:
    """`after_ms`: since what was killed before has been replaced. `gateway`: which of several, from 1."""

    victim: Victim
    after_ms: int
    gateway: int


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The life of one service. `tool`: its Thinker calls one."""

    gateways: int
    tool: bool
    seed: int
    kills: tuple[Kill, ...]


def plan_services(kills: int, seed: int) -> list[ServicePlan]:
    """`kills` in all."""
    lone = max(1, round(kills * LONE_SHARE))
    return [*_services(1, lone, seed), *_services(2, kills - lone, seed)]


def _services(gateways: int, kills: int, seed: int) -> list[ServicePlan]:
    per_service = KILLS_PER_SERVICE[gateways]
    plans = []
    for number, first in enumerate(range(0, kills, per_service)):
        own_seed = seed * 1_000 + gateways * 500 + number
        own = _kills(gateways, min(per_service, kills - first), random.Random(own_seed))
        plans.append(ServicePlan(gateways, number % 2 == 0, own_seed, own))
    return plans


def _kills(gateways: int, count: int, dice: random.Random) -> tuple[Kill, ...]:
    order = dice.sample(VICTIMS, len(VICTIMS))
    victims: list[Victim] = [order[n % len(order)] if gateways > 1 else "gateway" for n in range(count)]
    dice.shuffle(victims)
    turns, kills = 0, []
    for victim in victims:
        turns += victim == "gateway"
        kills.append(Kill(victim, dice.randrange(AFTER_MS_MIN, AFTER_MS_MAX), turns % gateways + 1))
    return tuple(kills)
