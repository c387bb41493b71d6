"""Tenants' accounts as a model in memory: the same answers as the scripts of `quota_scripts`, on a clock of the test's
choosing. One contract suite runs against both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sessions.quota_scripts import DAY_MS, MINUTE_MS, SESSION_RETRY_MS
from sessions.quotas import KINDS, QUOTA_NAMES, Account, Amounts, OverQuota, Quotas


@dataclass(slots=True)
class _Tenant:
    leases: dict[str, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    day: int = -1
    used: Amounts = field(default_factory=dict)


class MemoryQuotas:
    """`now_ms` gives Unix time in milliseconds."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tenants: dict[str, _Tenant] = {}

    def open(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | OverQuota:
        held, now_ms = self._now_of(tenant), self._now_ms()
        if quotas.sessions is not None and len(held.leases) >= quotas.sessions:
            return OverQuota("sessions", SESSION_RETRY_MS)
        starts_max = quotas.starts_per_minute
        if starts_max is not None and len(held.starts) >= starts_max:
            return OverQuota("starts_per_minute", held.starts[-starts_max] + MINUTE_MS - now_ms)
        for kind in KINDS:
            limit = quotas.of_day(kind)
            if limit is not None and kind != "tool_calls" and held.used.get(kind, 0) >= limit:
                return OverQuota(QUOTA_NAMES[kind], (held.day + 1) * DAY_MS - now_ms)
        held.leases[lease] = now_ms + ttl_ms
        held.starts.append(now_ms)
        return Account(held.day, self._draw(held, quotas, wanted))

    def draw(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | None:
        held = self._now_of(tenant)
        is_full = quotas.sessions is not None and len(held.leases) >= quotas.sessions
        if lease not in held.leases and is_full:
            return None
        held.leases[lease] = self._now_ms() + ttl_ms
        return Account(held.day, self._draw(held, quotas, wanted))

    def close(self, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
        held = self._now_of(tenant)
        if held.leases.pop(lease, None) is not None and day == held.day:
            for kind, back in unspent.items():
                held.used[kind] = held.used.get(kind, 0) - back

    def _now_of(self, tenant: str) -> _Tenant:
        """The account, without what is over."""
        held, now_ms = self._tenants.setdefault(tenant, _Tenant()), self._now_ms()
        held.leases = {lease: until_ms for lease, until_ms in held.leases.items() if until_ms > now_ms}
        held.starts = [at_ms for at_ms in held.starts if at_ms > now_ms - MINUTE_MS]
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
