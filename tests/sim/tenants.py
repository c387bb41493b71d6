"""Tenants of a simulated world: what each may use, and what the calls of a gateway use of it.

Theory of operation
    As the real tenancies do, a call is entered with the store before it begins, draws what it wants, renews its lease,
    and gives back what is left at its end. While things go wrong each tenant may have one call less than it has
    callers; permissions are taken back, and given again.

Rules
* However many ask at once, the store gives no more than there is, and has leases of no more sessions than are allowed.
* Who comes back to a session is not refused for the place that is that session's own (`tests.sim.store`).
* Nobody calls whose permission was taken back.
* At the end all places are free, and what was used is what calls have used; not less, where a gateway died or an answer
  was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from duplex.usage_meter import UsageMeter
from sessions.quotas import Account, Allowance, Amounts, Kind, OverQuota, Quotas
from sessions.store import StoreError
from tests.sim.clock import MS
from tests.sim.store import LEASE_TTL_MS, StoreLine

if TYPE_CHECKING:
    from tests.sim.call import Call

NAMES = ("ten_a", "ten_b")
TOKENS_PER_DAY = 100_000
TOOL_CALLS_PER_DAY = 2
TOKENS_USUAL = 8  # less than a response may take: the first of each call waits for a draw
DRAW_MS, RENEWAL_MS = 250, LEASE_TTL_MS // 3
REVOKED = "permission_revoked"


@dataclass(slots=True, eq=False)
class Tenancy:
    """Of one call. `session`: the one that its lease is for. `drawn`: all that the store has given so far."""

    tenant: str
    session: str
    number: int
    allowance: Allowance
    meter: UsageMeter
    call: Call | None = None
    day: int = 0
    drawn: Counter[Kind] = field(default_factory=Counter)
    is_asking: bool = False
    has_left: bool = False
    renewed_ns: int = 0
    drawn_ns: int = 0

    @property
    def lease(self) -> str:
        return f"{self.session}:{self.number}"

    def given(self, account: Account, wanted: Amounts) -> None:
        self.day = account.day if not self.day else self.day
        self.allowance.drawn(wanted, account.given)
        self.drawn.update(account.given)


class Tenants:
    """Of all gateways. `callers`: of each tenant; empty: nobody counts."""

    def __init__(self, callers: Counter[str], counts: Counter[str]) -> None:
        self.callers = callers
        self.counts = counts
        self.is_tight = True
        self.revoked: set[str] = set()
        self.days: set[int] = set()
        self.used: dict[str, Counter[Kind]] = {name: Counter() for name in callers}
        self.has_lost = False  # what was drawn may never come back
        self._tools = Counter[str]()
        self._leases = count(1)

    def quotas(self, tenant: str) -> Quotas:
        sessions = max(1, self.callers[tenant] - self.is_tight)
        return Quotas(sessions=sessions, tokens_per_day=TOKENS_PER_DAY, tool_calls_per_day=TOOL_CALLS_PER_DAY)

    def new(self, tenant: str, session: str) -> Tenancy:
        """For a call of `tenant`; of one that nobody counts it may use everything."""
        quotas = self.quotas(tenant) if tenant else Quotas()
        allowance = Allowance(quotas, TOKENS_USUAL)
        return Tenancy(tenant, session, next(self._leases), allowance, UsageMeter(allowance))

    def tool_called(self, tenant: str) -> None:
        if tenant:
            self._tools[tenant] += 1
            most = TOOL_CALLS_PER_DAY * len(self.days)
            assert self._tools[tenant] <= most, f"{tenant} has more tools called than it may"

    def closed(self, tenancy: Tenancy, unspent: Amounts) -> None:
        self.used[tenancy.tenant].update(tenancy.drawn - Counter(unspent))


class Tenancies:
    """Those of one gateway's process; `do` drops what is meant for a dead one."""

    def __init__(self, tenants: Tenants, line: StoreLine, do: Callable[..., None]) -> None:
        self._tenants = tenants
        self._line = line
        self._do = do
        self._present: list[Tenancy] = []

    def enter(
        self, tenant: str, session: str, entered: Callable[[Tenancy], None], refused: Callable[[str], None]
    ) -> None:
        """`entered` gets the tenancy of a call that may begin, or come back to `session`; `refused` why it may not."""
        tenancy, store = self._tenants.new(tenant, session), self._line.store
        if not tenant:
            entered(tenancy)
            return
        wanted, quotas = tenancy.allowance.wanted(), self._tenants.quotas(tenant)

        def answered(result: Account | OverQuota | StoreError) -> None:
            if not isinstance(result, Account):
                why = result.quota if isinstance(result, OverQuota) else type(result).__name__
                self._tenants.has_lost |= isinstance(result, StoreError)
                self._tenants.counts[f"tenants refused {why}"] += 1
                refused(why)
                return
            self._tenants.days.add(result.day)
            tenancy.given(result, wanted)
            self._present.append(tenancy)
            if tenant in self._tenants.revoked:  # it was taken back meanwhile
                self.leave(tenancy)
                refused(REVOKED)
                return
            entered(tenancy)

        self._line.ask(
            lambda: store.open_account(tenant, tenancy.lease, quotas, wanted),
            lambda result: self._do(answered, result),
        )

    def keep(self, now_ns: int) -> None:
        """Renew leases, and draw what is wanted; who has not been given all of that asks again only soon."""
        for tenancy in self._present:
            is_renewal = now_ns >= tenancy.renewed_ns + RENEWAL_MS * MS
            wanted = tenancy.allowance.wanted() if now_ns >= tenancy.drawn_ns + DRAW_MS * MS else {}
            if (wanted or is_renewal) and not tenancy.is_asking:
                tenancy.renewed_ns = tenancy.drawn_ns = now_ns
                self._draw(tenancy, wanted)

    def go_on_with(self, tenancy: Tenancy, session: str) -> None:
        """The call has taken up `session`: its lease goes over to that."""
        is_another, tenancy.session = session != tenancy.session, session
        if is_another and tenancy in self._present and not tenancy.is_asking:
            self._tenants.counts["leases gone over"] += 1
            self._draw(tenancy, tenancy.allowance.wanted())

    def _draw(self, tenancy: Tenancy, wanted: Amounts) -> None:
        store, quotas, lease = self._line.store, self._tenants.quotas(tenancy.tenant), tenancy.lease
        tenancy.is_asking = True

        def answered(result: Account | StoreError | None) -> None:
            tenancy.is_asking = False
            call = tenancy.call
            self._tenants.has_lost |= isinstance(result, StoreError)
            if isinstance(result, Account):
                self._tenants.counts["tenants drawn"] += bool(wanted)
                self._tenants.days.add(result.day)
                tenancy.given(result, wanted)
            if tenancy.has_left:
                self._give_back(tenancy)
            elif isinstance(result, StoreError):
                return
            elif call is not None and not call.end_reason:
                call.drawn(lost=result is None)

        self._line.ask(
            lambda: store.draw(tenancy.tenant, lease, quotas, wanted),
            lambda result: self._do(answered, result),
        )

    def leave(self, tenancy: Tenancy) -> None:
        """Its call is over: its place is free."""
        if tenancy not in self._present:
            return
        self._present.remove(tenancy)
        tenancy.has_left = True
        if not tenancy.is_asking:
            self._give_back(tenancy)

    def _give_back(self, tenancy: Tenancy) -> None:
        store, unspent = self._line.store, tenancy.allowance.unspent()
        self._tenants.closed(tenancy, unspent)

        def answered(result: object) -> None:
            self._tenants.has_lost |= result is not True

        self._line.ask(lambda: store.close_account(tenancy.tenant, tenancy.lease, tenancy.day, unspent), answered)

    def revoke(self, tenant: str) -> None:
        """It may call no more."""
        for tenancy in [each for each in self._present if each.tenant == tenant]:
            if tenancy.call is not None:
                tenancy.call.end(REVOKED)
