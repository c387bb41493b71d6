"""Tenants' accounts as a model in memory: the same answers as the scripts of `quota_scripts`, on a clock of the test's
choosing. One contract suite runs against both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sessions.quota_scripts import (
    DAY_MS,
    LEASES_PER_SESSION_MAX,
    MINUTE_MS,
    RETURNS_PER_MINUTE_MAX,
    SESSION_RETRY_MS,
)
from sessions.quotas import KINDS, QUOTA_NAMES, Account, Amounts, OverQuota, Quotas


@dataclass(slots=True)
class _Tenant:
    leases: dict[str, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    returns: list[tuple[str, int]] = field(default_factory=list)
    day: int = -1
    used: Amounts = field(default_factory=dict)


def session_of(lease: str) -> str:
    """The session that a lease is for."""
    return lease.partition(":")[0]


def _by_session(leases: Iterable[str]) -> Counter[str]:
    """How many of these each session has."""
    return Counter(map(session_of, leases))


class MemoryQuotas:
    """`now_ms` gives Unix time in milliseconds."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tenants: dict[str, _Tenant] = {}

    def open(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | OverQuota:
        held, now_ms = self._now_of(tenant), self._now_ms()
        own = self._own(held, lease)
        if own >= LEASES_PER_SESSION_MAX or not self._has_room(held, lease, quotas):
            return OverQuota("sessions", SESSION_RETRY_MS)
        starts_max, is_return = quotas.starts_per_minute, self._comes_back(held, lease)
        if starts_max is not None and not is_return and len(held.starts) >= starts_max:
            return OverQuota("starts_per_minute", held.starts[-starts_max] + MINUTE_MS - now_ms)
        for kind in KINDS:
            limit = quotas.of_day(kind)
            if limit is not None and kind != "tool_calls" and held.used.get(kind, 0) >= limit:
                return OverQuota(QUOTA_NAMES[kind], (held.day + 1) * DAY_MS - now_ms)
        held.leases[lease] = now_ms + ttl_ms
        if is_return:
            held.returns.append((lease, now_ms))
        else:
            held.starts.append(now_ms)
        return Account(held.day, self._draw(held, quotas, wanted))

    def draw(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | None:
        held = self._now_of(tenant)
        former = self._drop(held, lease)
        name = lease if former == lease or self._has_room(held, lease, quotas) else former
        if name is None:
            return None
        held.leases[name] = self._now_ms() + ttl_ms
        return Account(held.day, self._draw(held, quotas, wanted))

    def close(self, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
        held = self._now_of(tenant)
        if self._drop(held, lease) is not None and day == held.day:
            for kind, back in unspent.items():
                held.used[kind] = held.used.get(kind, 0) - back

    @staticmethod
    def _own(held: _Tenant, lease: str) -> int:
        """How many leases the session of `lease` has."""
        return _by_session(held.leases)[session_of(lease)]

    def _has_room(self, held: _Tenant, lease: str, quotas: Quotas) -> bool:
        others = _by_session(held.leases).keys() - {session_of(lease)}
        return quotas.sessions is None or len(others) < quotas.sessions or self._own(held, lease) > 0

    def _comes_back(self, held: _Tenant, lease: str) -> bool:
        """Whether it takes the place of a lease of its session, which has not done so too often."""
        returns = _by_session(name for name, _ in held.returns)[session_of(lease)]
        return self._own(held, lease) > 0 and returns < RETURNS_PER_MINUTE_MAX

    @staticmethod
    def _drop(held: _Tenant, lease: str) -> str | None:
        """Under which name the lease was there, if it was."""
        number = lease.rpartition(":")[2]
        found = next((one for one in held.leases if one.rpartition(":")[2] == number), None)
        if found is not None:
            del held.leases[found]
        return found

    def _now_of(self, tenant: str) -> _Tenant:
        """The account, without what is over."""
        held, now_ms = self._tenants.setdefault(tenant, _Tenant()), self._now_ms()
        held.leases = {lease: until_ms for lease, until_ms in held.leases.items() if until_ms > now_ms}
        held.starts = [at_ms for at_ms in held.starts if at_ms > now_ms - MINUTE_MS]
        held.returns = [(name, at_ms) for name, at_ms in held.returns if at_ms > now_ms - MINUTE_MS]
        if held.day != now_ms // DAY_MS:
            held.day, held.used = now_ms // DAY_MS, {}
        return held

    @staticmethod
    def _draw(held: _Tenant, quotas: Quotas, wanted: Amounts) -> Amounts:
        given: Amounts = {}
        for kind, amount in wanted.items():
            limit = quotas.of_day(kind)
            given[kind] = amount if limit is None else max(0, min(amount, limit - held.used.get(kind, 0)))
            held.used[kind] = held.used.get(kind, 0) + given[kind]
        return given
