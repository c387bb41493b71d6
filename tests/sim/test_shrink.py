"""A plan that breaks a promise is cut down to what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.guards import without
from tests.sim.plan import PLAIN, Deed, Plan, draw
from tests.sim.shrink import ATTEMPTS_MAX, broken_at, place_of, shrink

FAR = replace(PLAIN, down_ms=150)


def plan_of(*kinds: str, sessions: int = 3) -> Plan:
    deeds = tuple(Deed(10 * place, kind, place % sessions, 0.5) for place, kind in enumerate(kinds))
    chances = (("coughs", 0.1), ("slow steps", 0.1))
    return Plan(1, sessions, 1_000, (1, 1, 1, 1), False, True, 120, 12_000, chances, deeds, (FAR,) * sessions)


def test_only_what_it_takes_is_left() -> None:
    def breaks(plan: Plan) -> str | None:
        kinds = [deed.kind for deed in plan.deeds]
        return "there" if "b" in kinds and "g" in kinds else None

    small = shrink(plan_of(*"abcdefghij"), breaks)
    assert [deed.kind for deed in small.deeds] == ["b", "g"]
    assert (small.chances, small.trouble_ms) == ((), 61)
    assert small.headsets == (PLAIN,) * small.sessions


def test_a_caller_who_goes_leaves_the_others_what_is_theirs() -> None:
    def breaks(plan: Plan) -> str | None:
        return "there" if any(deed.kind == "c" and deed.who == plan.sessions - 1 for deed in plan.deeds) else None

    small = shrink(plan_of("a", "b", "c"), breaks)
    assert small.sessions == 1
    assert small.deeds == (Deed(20, "c", 0, 0.5),)


def test_what_breaks_elsewhere_is_another_matter() -> None:
    def breaks(plan: Plan) -> str | None:
        return "there" if len(plan.deeds) > 3 else "elsewhere"

    assert len(shrink(plan_of(*"abcdefgh"), breaks).deeds) == 4


def test_a_plan_that_breaks_nothing_cannot_be_cut_down() -> None:
    with pytest.raises(ValueError, match="breaks no promise"):
        shrink(plan_of("a"), lambda plan: None)


def test_attempts_are_bounded() -> None:
    attempts = 0

    def breaks(plan: Plan) -> str | None:
        nonlocal attempts
        attempts += 1
        return "there" if len(plan.deeds) >= 900 - attempts else None

    shrink(plan_of(*["a"] * 900), breaks)
    assert attempts <= ATTEMPTS_MAX + 1


def test_a_broken_product_is_cut_down_to_a_short_script() -> None:
    with without("staleness"):
        small = shrink(draw(4))
        assert broken_at(small) is not None
    assert len(small.deeds) <= 3
    assert len(small.script().splitlines()) == 2 + small.sessions + len(small.deeds)
    assert broken_at(small) is None


def test_the_place_of_a_break() -> None:
    def gives_way() -> None:
        raise AssertionError("by chance")

    with pytest.raises(AssertionError) as caught:
        gives_way()
    assert place_of(caught.value) == "AssertionError in gives_way"
    assert place_of(AssertionError("never raised")) == "AssertionError"
