"""Whose turn it is where several things are short at once: weighted shares, accounted by each tenant's dominant one.

Theory of operation
    A stream takes one of each stage's places, and with it a window on each of the edges that leave it. A tenant's share
    of a stage is what it has there of what there is; its *dominant* share is the largest of these, by its weight
    (dominant resource fairness, Ghodsi et al., NSDI 2011). What becomes free goes to whoever waits for it and has the
    least dominant share: a tenant that holds much of one stage has no more of another for that, and one that holds
    nothing is served next, however many of the others wait.

Rules
* Shares are compared exactly, as fractions. A tenant whose weight rises waits no longer for it.
* Nothing is kept of a tenant that holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

NOTHING = Fraction(0)


class DominantShares:
    """`weights` by tenant; who is not in it weighs 1."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._weights = weights or {}
        self._held: dict[str, dict[str, int]] = {}
        self._capacities: dict[str, int] = {}

    def offer(self, resource: str, capacity: int) -> None:
        """There are so many of `resource`."""
        self._capacities[resource] = capacity

    def take(self, tenant: str, resource: str) -> None:
        """`tenant` has one more of `resource`."""
        held = self._held.setdefault(tenant, {})
        held[resource] = held.get(resource, 0) + 1

    def give_back(self, tenant: str, resource: str) -> None:
        """`tenant` has one less."""
        held = self._held[tenant]
        held[resource] -= 1
        assert held[resource] >= 0, "what is given back was taken"
        if not any(held.values()):
            del self._held[tenant]

    def of(self, tenant: str) -> Fraction:
        """The dominant share of `tenant`, by its weight."""
        held = self._held.get(tenant, {})
        parts = (Fraction(count, self._capacities[resource]) for resource, count in held.items())
        return max(parts, default=NOTHING) / self.weight_of(tenant)

    def weight_of(self, tenant: str) -> int:
        return self._weights.get(tenant, 1)
