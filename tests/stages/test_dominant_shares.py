"""Shares of tenants in several things that may be short."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from stages.dominant_shares import DominantShares
from stages.pool import WAITING_MAX, Begin, Pool, PoolLimits, Refuse

LIMITS = PoolLimits(works_max=4, wait_ns_max=1_000_000)


def begun(effects: object) -> list[str]:
    return [one.work for one in effects if isinstance(one, Begin)]  # type: ignore[attr-defined]


def test_the_largest_part_of_anything_counts_by_weight() -> None:
    one = DominantShares({"b": 2})
    one.offer("talker", 4)
    one.offer("thinker", 10)
    assert one.of("a") == 0
    for tenant in ("a", "b"):
        for resource in ("talker", "thinker", "thinker", "thinker"):
            one.take(tenant, resource)
    assert (one.of("a"), one.of("b")) == (Fraction(3, 10), Fraction(3, 20))
    one.take("a", "talker")
    assert one.of("a") == Fraction(1, 2)
    one.give_back("a", "talker")
    one.give_back("a", "talker")
    assert one.of("a") == Fraction(3, 10)
    for _ in range(3):
        one.give_back("a", "thinker")
    assert one.of("a") == 0
    assert (one.weight_of("a"), one.weight_of("b")) == (1, 2)


def crowded(weights: dict[str, int], tenants: str, waiting: int) -> Pool:
    """A pool that "noisy" fills, and behind whose works `waiting` of each tenant wait."""
    pool = Pool(["r"], LIMITS, DominantShares(weights), "talker")
    pool.up("r", 1, 0)
    for tenant in ("noisy", *tenants):
        pool.enter(tenant)
    for number in range(4):
        assert begun(pool.begin("noisy", f"noisy-{number}", 0, "noisy"))
    for number in range(waiting):
        for tenant in tenants:
            pool.begin(tenant, f"{tenant}-{number}", 0, tenant)
    return pool


def test_whoever_holds_nothing_is_next_however_many_wait_before() -> None:
    pool = crowded({}, "", 0)
    pool.enter("victim")
    for number in range(20):
        pool.begin("noisy", f"waits-{number}", 0, "noisy")
    pool.begin("victim", "mine", 0, "victim")
    assert begun(pool.end("noisy-0", 1)) == ["mine"]
    assert begun(pool.end("noisy-1", 1)) == ["waits-0"], "of one tenant in the order of asking"


def test_where_no_more_may_wait_the_newest_of_the_most_is_refused() -> None:
    pool = crowded({}, "", 0)
    pool.enter("victim")
    for number in range(WAITING_MAX):
        pool.begin("noisy", f"waits-{number}", 0, "noisy")
    refused = [one for one in pool.begin("victim", "mine", 0, "victim") if isinstance(one, Refuse)]
    assert [one.work for one in refused] == [f"waits-{WAITING_MAX - 1}"]
    assert pool.holds("mine")
    assert [type(one) for one in pool.begin("noisy", "one more", 0, "noisy")] == [Refuse]


def served(weights: dict[str, int], releases: int) -> dict[str, int]:
    """How many works of each tenant were begun, each of which lasts until four others were begun after it."""
    pool = crowded(weights, "abc", 40)
    running, count = [f"noisy-{number}" for number in range(4)], dict.fromkeys("abc", 0)
    for _ in range(releases):
        for work in begun(pool.end(running.pop(0), 1)):
            running.append(work)
            count[work[0]] += 1
    return count


@given(st.lists(st.integers(1, 20), min_size=3, max_size=3), st.integers(1, 20), st.integers(1, 40))
def test_throughput_never_falls_as_a_weight_rises(weights: list[int], more: int, releases: int) -> None:
    of = dict(zip("abc", weights, strict=True))
    assert served(of | {"a": of["a"] + more}, releases)["a"] >= served(of, releases)["a"]


def test_equal_weights_share_evenly() -> None:
    assert served({}, 36) == {"a": 12, "b": 12, "c": 12}
