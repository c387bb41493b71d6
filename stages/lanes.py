"""Waiting steps that go together, lane by lane: of which tenant the most urgent one is.

Theory of operation
    The steps of one kind and one batch key are a *group*. A tenant's steps in a group are a *lane*, in the order in
    which they are to be started; and the lanes of a group are in the order of their first steps. So whoever looks for
    the most urgent step of a tenant that may go passes the lanes of those that may not, and looks no further.

Rules
* No lane is empty. Whoever leaves a group empty drops it.
* A group has one lane at most for each account, so no more than `stages.tenant_shares` has accounts.
* No two places are the same, since no two steps arrive together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from stages.tenant_shares import Account

Place = tuple[int, int, str]  # start by, order of arrival, stream


@dataclass(slots=True, eq=False)
class Lane:
    """The steps of one tenant that wait in `group`."""

    account: Account
    group: Group
    places: list[Place]

    @property
    def first_key(self) -> str:
        """The stream of its most urgent step."""
        return self.places[0][2]


def first(lane: Lane) -> Place:
    """Where its most urgent step is."""
    return lane.places[0]


def foremost(lanes: Iterable[Lane], entitled_ns: int) -> Lane | None:
    """The first of `lanes` whose tenant may go, having used no more than `entitled_ns`."""
    return next((lane for lane in lanes if lane.account.used_ns <= entitled_ns), None)


class Group:
    """The steps of `kind` and `batch_key` that wait."""

    def __init__(self, kind: str, batch_key: str) -> None:
        self.kind = kind
        self.batch_key = batch_key
        self._waiting = 0
        self._by_tenant: dict[str, Lane] = {}
        self._lanes: list[Lane] = []

    @property
    def waiting(self) -> int:
        """How many steps wait."""
        return self._waiting

    def lanes(self, until_ns: int | None = None) -> Sequence[Lane]:
        """In their order; with `until_ns`, those with a step that is to be started by then."""
        if until_ns is None:
            return self._lanes
        return list(takewhile(lambda lane: first(lane)[0] <= until_ns, self._lanes))

    def enter(self, account: Account, place: Place) -> Lane:
        """A step of `account` waits. Gives its lane."""
        self._waiting += 1
        lane = self._by_tenant.get(account.tenant)
        if lane is None:
            lane = self._by_tenant[account.tenant] = Lane(account, self, [place])
            insort(self._lanes, lane, key=first)
        elif place < first(lane):
            self._take_out(lane)
            lane.places.insert(0, place)
            insort(self._lanes, lane, key=first)
        else:
            insort(lane.places, place)
        return lane

    def leave(self, lane: Lane, place: Place) -> None:
        """The step at `place` of `lane` waits no more."""
        self._waiting -= 1
        if place != first(lane):
            del lane.places[bisect_left(lane.places, place)]
            return
        self._take_out(lane)
        del lane.places[0]
        if lane.places:
            insort(self._lanes, lane, key=first)
        else:
            del self._by_tenant[lane.account.tenant]

    def _take_out(self, lane: Lane) -> None:
        del self._lanes[bisect_left(self._lanes, first(lane), key=first)]
