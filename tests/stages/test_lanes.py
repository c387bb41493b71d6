"""The lanes of a group are in the order of their first steps, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.lanes import Group, Lane, first, foremost
from stages.tenant_shares import Account

A, B, C = (Account(tenant, 1) for tenant in "abc")


def tenants(group: Group, until_ns: int | None = None) -> str:
    return "".join(lane.account.tenant for lane in group.lanes(until_ns))


def three() -> tuple[Group, Lane, Lane, Lane]:
    """Of `c` the first step is to be started at 10, of `a` at 20, of `b` at 30."""
    group = Group("chunk", "t")
    a, b, c = (group.enter(account, (at_ns, at_ns, f"s{at_ns}")) for account, at_ns in ((A, 20), (B, 30), (C, 10)))
    return group, a, b, c


def test_lanes_are_in_the_order_of_their_first_steps() -> None:
    group, a, _, c = three()
    assert tenants(group) == "cab"
    assert (first(c), c.first_key, c.group) == ((10, 10, "s10"), "s10", group)
    assert group.enter(A, (5, 40, "s5")) is a
    assert tenants(group) == "acb"
    assert group.enter(C, (50, 41, "s50")) is c
    assert tenants(group) == "acb", "its first step is another"
    assert group.waiting == 5


def test_equals_are_in_the_order_in_which_they_came() -> None:
    group = Group("chunk", "t")
    for order, account in enumerate((B, A, C)):
        group.enter(account, (10, order, account.tenant))
    assert tenants(group) == "bac"


def test_a_lane_goes_back_when_its_first_step_leaves_and_goes_with_its_last() -> None:
    group, a, b, c = three()
    group.enter(C, (25, 40, "s25"))
    group.leave(c, (10, 10, "s10"))
    assert tenants(group) == "acb"
    group.leave(c, (25, 40, "s25"))
    assert tenants(group) == "ab"
    assert group.enter(C, (15, 41, "s15")) is not c
    group.leave(a, (20, 20, "s20"))
    group.leave(b, (30, 30, "s30"))
    assert (tenants(group), group.waiting) == ("c", 1)


def test_a_step_that_is_not_the_first_leaves_the_order_as_it_is() -> None:
    group, a, _, _ = three()
    group.enter(A, (40, 40, "s40"))
    group.leave(a, (40, 40, "s40"))
    assert (tenants(group), a.places) == ("cab", [(20, 20, "s20")])


def test_lanes_can_be_those_that_are_to_begin_by_a_moment() -> None:
    group, *_ = three()
    assert [tenants(group, until_ns) for until_ns in (9, 10, 20, 30)] == ["", "c", "ca", "cab"]


def test_the_foremost_is_the_first_whose_tenant_may_go() -> None:
    lanes = [Lane(Account(str(used_ns), 1, used_ns), Group("chunk", ""), [(0, 0, "")]) for used_ns in (7, 5, 4)]
    assert [foremost(lanes, entitled_ns) for entitled_ns in (7, 6, 4, 3)] == [lanes[0], lanes[1], lanes[2], None]


@given(st.lists(st.tuples(st.sampled_from((A, B, C)), st.integers(0, 9)), max_size=20))
def test_whatever_comes_and_goes_each_step_is_in_its_lane_and_all_is_in_order(
    steps: list[tuple[Account, int]],
) -> None:
    group = Group("chunk", "t")
    known = []
    for order, (account, at_ns) in enumerate(steps):
        place = (at_ns, order, "")
        known.append((group.enter(account, place), place))
        if order % 3 == 2:
            gone = known.pop(at_ns % len(known))
            group.leave(*gone)
        assert group.waiting == len(known)
        firsts = [first(lane) for lane in group.lanes()]
        assert firsts == sorted(firsts)
        of_lanes = [place for lane in group.lanes() for place in lane.places]
        assert sorted(of_lanes) == sorted(place for _, place in known)
        assert all(lane.places == sorted(lane.places) for lane in group.lanes())
        assert all(place in lane.places for lane, place in known)
