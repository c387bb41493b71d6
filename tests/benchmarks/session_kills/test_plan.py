"""The plans of kills: as many as asked for, every victim its share, the same for the same seed."""

from __future__ import annotations

from collections import Counter

from benchmarks.session_kills.plan import AFTER_MS_MAX, AFTER_MS_MIN, KILLS_PER_SERVICE, VICTIMS, plan_services


def test_there_are_as_many_kills_as_asked_for_and_no_service_dies_too_often() -> None:
    plans = plan_services(300, seed=1)
    assert sum(len(plan.kills) for plan in plans) == 300
    assert all(len(plan.kills) <= KILLS_PER_SERVICE[plan.gateways] for plan in plans)
    assert {(plan.gateways, plan.tool) for plan in plans} == {(1, True), (1, False), (2, True), (2, False)}
    assert len({plan.seed for plan in plans}) == len(plans)


def test_each_victim_has_its_share_and_gateways_take_turns() -> None:
    plans = plan_services(300, seed=1)
    for plan in (plan for plan in plans if len(plan.kills) == KILLS_PER_SERVICE[2]):
        share = KILLS_PER_SERVICE[2] // len(VICTIMS)
        assert Counter(kill.victim for kill in plan.kills) == dict.fromkeys(VICTIMS, share)
        hit = Counter(kill.gateway for kill in plan.kills if kill.victim == "gateway")
        assert hit == {1: share // 2, 2: share // 2}
    alone = [kill for plan in plans if plan.gateways == 1 for kill in plan.kills]
    assert (len(alone), {(kill.victim, kill.gateway) for kill in alone}) == (15, {("gateway", 1)})


def test_moments_are_drawn_between_their_ends() -> None:
    moments = [kill.after_ms for plan in plan_services(300, seed=1) for kill in plan.kills]
    assert all(AFTER_MS_MIN <= moment < AFTER_MS_MAX for moment in moments)
    assert len(set(moments)) > 200


def test_a_seed_draws_the_same_again() -> None:
    assert plan_services(60, seed=3) == plan_services(60, seed=3)
    assert plan_services(60, seed=3) != plan_services(60, seed=4)


def test_even_two_kills_are_of_both_kinds() -> None:
    assert [(plan.gateways, len(plan.kills)) for plan in plan_services(2, seed=1)] == [(1, 1), (2, 1)]
