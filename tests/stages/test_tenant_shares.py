"""Accounts of engine time: what is charged, who may go, and what is forgotten."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tenant_shares import (
    CHARGE_NS_MIN,
    DEBT_NS_MAX,
    SHARE_LEAD_NS,
    TENANTS_MAX,
    Account,
    TenantService,
    TenantShares,
)

MS = 1_000_000


def serve(shares: TenantShares, account: Account, predicted_ns: int, service_ns: int) -> None:
    """A waiting step of `account` runs, alone."""
    shares.begin([account])
    charged_ns = shares.charge(account, predicted_ns)
    shares.settle(account, charged_ns, service_ns)
    shares.leave(account)


def test_a_step_is_charged_with_what_is_expected_and_then_with_what_it_took() -> None:
    shares = TenantShares({})
    account = shares.enter("a")
    shares.begin([account])
    charged_ns = shares.charge(account, 20 * MS)
    assert (charged_ns, account.used_ns) == (20 * MS, 20 * MS)
    shares.settle(account, charged_ns, 50 * MS)
    shares.leave(account)
    assert account.used_ns == 50 * MS
    assert shares.statistics() == (TenantService("a", 1, 50 * MS),)


def test_a_weight_divides_what_is_charged_and_not_what_is_told() -> None:
    shares = TenantShares({"a": 4})
    account = shares.enter("a")
    shares.begin([account])
    charged_ns = shares.charge(account, 40 * MS)
    assert (charged_ns, account.used_ns) == (10 * MS, 10 * MS), "also what is only expected yet"
    shares.settle(account, charged_ns, 20 * MS)
    assert account.used_ns == 5 * MS
    assert shares.statistics() == (TenantService("a", 1, 20 * MS),)
    with pytest.raises(AssertionError, match="at least 1"):
        TenantShares({"a": 0})


def test_the_shortest_step_moves_its_account() -> None:
    shares = TenantShares({})
    account = shares.enter("a")
    serve(shares, account, 0, 0)
    assert account.used_ns == CHARGE_NS_MIN


def test_who_is_about_even_with_the_least_served_may_go() -> None:
    shares = TenantShares({})
    least, other = shares.enter("least"), shares.enter("other")
    assert shares.begin([least, other]) == shares.entitled_ns([least, other]) == SHARE_LEAD_NS
    shares.charge(other, SHARE_LEAD_NS)
    assert other.used_ns == shares.entitled_ns([least, other])
    shares.charge(other, 1)
    assert other.used_ns > shares.entitled_ns([least, other])
    assert other.used_ns <= shares.entitled_ns([other])


def test_idle_time_is_not_saved_up() -> None:
    shares = TenantShares({})
    busy, idle = shares.enter("busy"), shares.enter("idle")
    shares.leave(idle)
    for _ in range(10):
        shares.enter("busy")
        serve(shares, busy, 0, 100 * MS)
    assert shares.enter("idle") is idle
    assert idle.used_ns == busy.used_ns - 100 * MS
    shares.enter("idle")
    assert idle.used_ns == busy.used_ns - 100 * MS


def test_what_a_busy_tenant_is_owed_is_not_taken_from_it() -> None:
    """One with a step that waits or runs is not lifted to the floor."""
    shares = TenantShares({})
    owed, other = shares.enter("owed"), shares.enter("other")
    serve(shares, other, 0, 100 * MS)
    serve(shares, shares.enter("other"), 0, 100 * MS)
    assert shares.enter("owed") is owed
    assert owed.used_ns == 0


def test_when_nothing_waits_or_runs_all_are_even() -> None:
    shares = TenantShares({})
    ahead, other = shares.enter("ahead"), shares.enter("other")
    shares.leave(other)
    serve(shares, ahead, 0, 500 * MS)
    assert shares.enter("other").used_ns == ahead.used_ns == 500 * MS


def test_debt_has_a_limit_however_much_rides_along() -> None:
    shares = TenantShares({})
    waiting, rider = shares.enter("waiting"), shares.enter("rider")
    shares.begin([waiting, rider])
    charged_ns = shares.charge(rider, 3 * DEBT_NS_MAX)
    assert rider.used_ns == charged_ns == DEBT_NS_MAX
    shares.settle(rider, charged_ns, 3 * DEBT_NS_MAX)
    assert rider.used_ns == DEBT_NS_MAX
    assert shares.statistics() == (TenantService("rider", 1, 3 * DEBT_NS_MAX),)


def test_accounts_of_the_idle_make_room_and_those_beyond_the_limit_share_one() -> None:
    shares = TenantShares({})
    held = [shares.enter(f"t{number}") for number in range(TENANTS_MAX)]
    first, second = shares.enter("x"), shares.enter("y")
    assert first is second
    assert (first.tenant, first.active) == ("*", 2)
    serve(shares, first, 0, MS)
    assert shares.statistics() == (TenantService("*", 1, MS),)
    shares.leave(held[0])
    assert shares.enter("z").tenant == "z"
    assert shares.enter("t0") is first


def test_who_is_ahead_is_remembered_while_others_wait() -> None:
    shares = TenantShares({})
    waiting = shares.enter("waiting")
    ahead = [shares.enter(f"t{number}") for number in range(TENANTS_MAX - 1)]
    shares.begin([waiting])
    for account in ahead:
        shares.settle(account, shares.charge(account, 5 * MS), 5 * MS)
        shares.leave(account)
    assert shares.enter("new").tenant == "*"
    assert shares.enter("t0") is ahead[0]


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5)))
def test_whoever_always_waits_gets_his_share(seed: int, weights: dict[str, int]) -> None:
    """Any of those that may go goes, whichever it is."""
    random, shares, longest_ns = Random(seed), TenantShares(weights), 100 * MS
    accounts = [shares.enter(tenant) for tenant in "abcd"]
    for _ in range(500):
        shares.begin(accounts)
        entitled_ns = shares.entitled_ns(accounts)
        account = random.choice([one for one in accounts if one.used_ns <= entitled_ns])
        shares.settle(account, shares.charge(account, random.randint(0, longest_ns)), random.randint(MS, longest_ns))
    by_weight = [one.service_ns / weights.get(one.tenant, 1) for one in shares.statistics()]
    assert len(by_weight) == 4
    assert max(by_weight) - min(by_weight) <= SHARE_LEAD_NS + longest_ns + 500


def served_ns(weights: dict[str, int], step_ns: int) -> dict[str, int]:
    """What each of three tenants that always wait has had after 200 steps, of `step_ns` each."""
    shares = TenantShares(weights)
    accounts = [shares.enter(tenant) for tenant in "abc"]
    for _ in range(200):
        shares.begin(accounts)
        account = min(accounts, key=lambda one: one.used_ns)
        shares.settle(account, shares.charge(account, step_ns), step_ns)
    return {one.tenant: one.service_ns for one in accounts}


@settings(max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=3, max_size=3), st.integers(1, 20), st.integers(MS, 100 * MS))
def test_what_a_tenant_is_served_never_falls_as_its_weight_rises(weights: list[int], more: int, step_ns: int) -> None:
    of = dict(zip("abc", weights, strict=True))
    assert served_ns(of | {"a": of["a"] + more}, step_ns)["a"] >= served_ns(of, step_ns)["a"]
