"""How much of a stage each tenant has had, and whose turn it is: weighted fair shares of engine time.

Theory of operation
    Each tenant has an account of the engine time that it was given, divided by its weight. Among those that wait, the
    one with the least may always go; who is at most `SHARE_LEAD_NS` ahead of it may go too, so that urgency decides
    between tenants that are about even. A step is charged with what it is expected to take when it starts, and with
    what it took once that is known.

    Idle time is not saved up: a tenant that begins to wait again stands no lower than the floor, which is where the
    least served of those that waited stood when a batch was last chosen. When nothing waits or runs, all are even.

Rules
* Only a tenant that may go heads a batch. Others may ride along where a batch has room; that too is charged, but
  nobody gets further than `DEBT_NS_MAX` above the floor, and so nobody waits longer than for that much service of
  each other tenant, by weight.
* Every step is charged at least `CHARGE_NS_MIN`, so accounts always move.
* There are at most `TENANTS_MAX` accounts; tenants beyond them share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHARE_LEAD_NS = 150_000_000  # one step of the longest kind: less would let shares overrule deadlines at every step
DEBT_NS_MAX = 1_000_000_000  # above any bounded step, so that shares stay exact; what a tenant waits for at most
CHARGE_NS_MIN = 1_000_000
TENANT_WEIGHT_MAX = 1_000  # beyond it, others would wait for seconds before shares are even
TENANTS_MAX = 64  # far more than are active at one stage; accounts of the idle are forgotten when room is needed


@dataclass(frozen=True, slots=True)
class TenantService:
    """`started` steps have taken `service_ns` of engine time, a batch's time being divided among its steps. The name
    of those who share an account is `*`."""

    tenant: str
    started: int
    service_ns: int


@dataclass(slots=True)
class Account:
    """`used_ns` is service divided by weight; `active` counts steps that wait or run."""

    tenant: str
    weight: int
    used_ns: int = 0
    active: int = 0
    started: int = 0
    service_ns: int = 0


class TenantShares:
    """`weights` by tenant; who is not in it weighs 1."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        assert all(weight >= 1 for weight in weights.values()), "a weight is at least 1"
        self._weights = weights
        self._accounts: dict[str, Account] = {}
        self._others = Account("*", 1)
        self._active = 0
        self._floor_ns = 0
        self._used_ns_max = 0

    def enter(self, tenant: str) -> Account:
        """A step of `tenant` begins to wait."""
        account = self._account(tenant)
        if not account.active:
            account.used_ns = max(account.used_ns, self._floor_ns)
        account.active += 1
        self._active += 1
        return account

    def leave(self, account: Account) -> None:
        """A step of `account` has gone, computed or not."""
        account.active -= 1
        self._active -= 1
        if not self._active:
            self._floor_ns = self._used_ns_max

    def entitled_ns(self, waiting: Iterable[Account]) -> int:
        """Of the accounts `waiting`, those that have used no more than this may go."""
        return min(account.used_ns for account in waiting) + SHARE_LEAD_NS

    def begin(self, waiting: Iterable[Account]) -> int:
        """A batch is chosen among steps of the accounts `waiting`. Gives their `entitled_ns`."""
        entitled_ns = self.entitled_ns(waiting)
        self._floor_ns = max(self._floor_ns, entitled_ns - SHARE_LEAD_NS)
        return entitled_ns

    def charge(self, account: Account, predicted_ns: int) -> int:
        """A step starts that is expected to take `predicted_ns`. Gives what `settle` is to be told."""
        account.started += 1
        return self._add(account, max(predicted_ns, CHARGE_NS_MIN) // account.weight)

    def settle(self, account: Account, charged_ns: int, service_ns: int) -> None:
        """The step took `service_ns`, and `charged_ns` were entered for it when it started."""
        account.service_ns += service_ns
        self._add(account, max(service_ns, CHARGE_NS_MIN) // account.weight - charged_ns)

    def _add(self, account: Account, used_ns: int) -> int:
        before_ns = account.used_ns
        account.used_ns = min(before_ns + used_ns, self._floor_ns + DEBT_NS_MAX)
        self._used_ns_max = max(self._used_ns_max, account.used_ns)
        return account.used_ns - before_ns

    def _account(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= TENANTS_MAX:
                self._forget_the_idle()
            if len(self._accounts) >= TENANTS_MAX:
                return self._others
            account = self._accounts[tenant] = Account(tenant, self._weights.get(tenant, 1))
        return account

    def _forget_the_idle(self) -> None:
        """Forget accounts that a new one would not differ from."""
        self._accounts = {
            tenant: one for tenant, one in self._accounts.items() if one.active or one.used_ns > self._floor_ns
        }

    def statistics(self) -> tuple[TenantService, ...]:
        """Of the tenants that are remembered."""
        accounts = (*self._accounts.values(), self._others)
        return tuple(TenantService(one.tenant, one.started, one.service_ns) for one in accounts if one.started)
