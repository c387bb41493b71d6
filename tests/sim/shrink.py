"""Cuts a plan that breaks a promise down to what it takes to break it.

Theory of operation
    What may go wrong by chance is left out first, then whole callers, then deeds: halves, quarters and so on down to
    single ones, for as long as the promise still breaks at the same place. A smaller plan is a world of its own, so
    what is left may tell another tale than the one it began with; it breaks all the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.sim.plan import BARE, PLAIN, Plan
from tests.sim.world import World

ATTEMPTS_MAX = 600  # each is a world of its own; a plan of a hundred deeds takes about two hundred


def place_of(error: BaseException) -> str:
    """Where a promise broke: the kind of error, and the function that noticed it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {frames[-1].name}" if frames else type(error).__name__


def broken_at(plan: Plan) -> str | None:
    """Where `plan` breaks a promise, or None where it keeps them all."""
    try:
        World(plan).run()
    except Exception as error:  # noqa: BLE001 - whatever a world throws is a broken promise
        return place_of(error)
    return None


def shrink(plan: Plan, breaks: Callable[[Plan], str | None] = broken_at) -> Plan:
    """The smallest plan found that breaks where `plan` does. Raises ValueError where that breaks nowhere."""
    wanted = breaks(plan)
    if wanted is None:
        raise ValueError(f"the plan of seed {plan.seed} breaks no promise")
    attempts = 0
    found = True
    while found:
        found = False
        for smaller in _smaller(plan):
            attempts += 1
            if attempts > ATTEMPTS_MAX:
                return plan
            if breaks(smaller) == wanted:
                plan, found = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with something less, those with much less first."""
    if plan.chances:
        yield replace(plan, chances=())
        for place in range(len(plan.chances)):
            yield replace(plan, chances=plan.chances[:place] + plan.chances[place + 1 :])
    for who in range(plan.sessions if plan.sessions > 1 else 0):
        yield _without(plan, who)
    size = len(plan.deeds)
    while size:
        for start in range(0, len(plan.deeds), size):
            yield replace(plan, deeds=plan.deeds[:start] + plan.deeds[start + size :])
        size //= 2
    for place, count in enumerate(plan.replicas):
        if count > 1:
            yield replace(plan, replicas=(*plan.replicas[:place], 1, *plan.replicas[place + 1 :]))
    if plan.observed:
        yield replace(plan, observed=False)
    if plan.offers != BARE:
        yield replace(plan, offers=BARE)
        yield replace(plan, offers=replace(plan.offers, tenants=False))
        yield replace(plan, offers=replace(plan.offers, tools=False))
        yield replace(plan, offers=replace(plan.offers, places=0))
    if any(headset != PLAIN for headset in plan.headsets):
        yield replace(plan, headsets=(PLAIN,) * plan.sessions)
    last_ms = max((deed.at_ms for deed in plan.deeds), default=0) + 1
    if last_ms < plan.trouble_ms:
        yield replace(plan, trouble_ms=last_ms)


def _without(plan: Plan, who: int) -> Plan:
    """The plan without that caller; those after it move up."""
    deeds = tuple(replace(deed, who=deed.who - (deed.who > who)) for deed in plan.deeds if deed.who != who)
    headsets = plan.headsets[:who] + plan.headsets[who + 1 :]
    return replace(plan, sessions=plan.sessions - 1, deeds=deeds, headsets=headsets)
