"""Each guard of the product is missed by some seed when it is taken away."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from functools import partial

import pytest

from tests.sim.guards import GUARDS, missed_at, without
from tests.sim.plan import draw
from tests.sim.shrink import broken_at

SEEDS = 600  # a part of what CI plays


@pytest.fixture(scope="module")
def missed() -> dict[str, tuple[int, str] | None]:
    """By which seed each guard is, and where, on every core that there is."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return dict(zip(GUARDS, pool.map(partial(missed_at, seeds=SEEDS), GUARDS, chunksize=1), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_taken_away_is_missed(guard: str, missed: dict[str, tuple[int, str] | None]) -> None:
    found = missed[guard]
    assert found is not None
    assert found[1].startswith("AssertionError"), "by a promise, and not by its stand-in"


@pytest.mark.parametrize("guard", GUARDS)
def test_a_stand_in_is_called_as_its_guard_is(guard: str) -> None:
    owner, name, stand_in = GUARDS[guard]
    kept, taken = (list(inspect.signature(one).parameters.values()) for one in (getattr(owner, name), stand_in))
    assert [one.kind for one in kept] == [one.kind for one in taken]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_is_put_back(guard: str) -> None:
    owner, name, _ = GUARDS[guard]
    kept = getattr(owner, name)
    with without(guard):
        assert getattr(owner, name) is not kept
    assert getattr(owner, name) is kept


def test_with_all_guards_nothing_is_missed() -> None:
    assert broken_at(draw(0)) is None
