"""Each guard of the product is missed by some seed when it is taken away."""

from __future__ import annotations

import pytest

from tests.sim.guards import GUARDS, missed_at, without
from tests.sim.plan import draw
from tests.sim.shrink import broken_at

SEEDS = 200  # a tenth of what CI plays


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_taken_away_is_missed(guard: str) -> None:
    missed = missed_at(guard, SEEDS)
    assert missed is not None


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_is_put_back(guard: str) -> None:
    owner, name, _ = GUARDS[guard]
    kept = getattr(owner, name)
    with without(guard):
        assert getattr(owner, name) is not kept
    assert getattr(owner, name) is kept


def test_with_all_guards_nothing_is_missed() -> None:
    assert broken_at(draw(0)) is None
