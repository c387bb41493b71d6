"""What the calls of this gateway use of their tenants' quotas: drawn from the store, renewed, given back.

Theory of operation
    A call begins with a *tenancy*: its permission, its tenant's quotas, and what it may still use of them
    (`sessions.quotas.Allowance`). Where the tenant has quotas, the tenancy has a lease in the store, which one task
    renews for all calls; the same task draws what calls want. A tenancy ends with its call, or when its permission is
    taken back.

    A lease is for a session: the one that a call begins, or the one that it comes back to, whose earlier lease may
    still count. A call that takes up an earlier session only later has its lease go over to that.

Rules
* A tenant without quotas costs the store nothing.
* Whoever cannot be entered, because a quota is used up or the store does not answer, is refused at the door.
* While the store is away, calls go on with what they have; who waits for a draw then waits on.
* What was drawn last goes back as well: nothing is asked for a tenancy behind its end.
* Who came in as returning to a session resumes that and no other, and within `RESUME_S_MAX`.
* A lease that was lost while this process stood still, and whose place is another's by now, ends its call.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import ceil

import structlog

from duplex.admission import RefusedError
from duplex.permissions import PERMISSION_REVOKED, Permissions
from duplex.tasks import see_through
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import DEFAULT_TENANT, Permission, Tenant
from sessions.quotas import NO_QUOTAS, Account, Allowance, Amounts, OverQuota
from sessions.store import SessionStore, StoreError

LEASE_TTL_MS = 30_000
RENEWAL_NS = 10_000_000_000  # a third of a lease: two may fail
DRAW_S = 0.25  # who has not been given all that was wanted asks again so soon
IDLE_S = 1.0
RESUME_S_MAX = 5  # a client has its token at hand; until it shows that, it has a place that may not be its own
QUOTA_EXCEEDED = "quota_exceeded"

_log = structlog.get_logger("duplex.tenancies")


class Tenancy:
    """Of one call. `ended` is called, with the reason, when it must end. `new_session`: the id of the session that it
    begins; `returning`: that of the one that it comes back to."""

    def __init__(
        self,
        permission: Permission,
        tenant: Tenant,
        tokens_usual: int,
        wake: Callable[[], None],
        *,
        new_session: str,
        returning: str | None = None,
    ) -> None:
        self.permission = permission
        self.tenant = tenant
        self.new_session = new_session
        self._is_returning = returning is not None
        self._leased_for = returning or new_session
        self._number = secrets.token_hex(8)
        self.allowance = Allowance(tenant.quotas, tokens_usual)
        self.day = 0
        self.renewed_ns = time.monotonic_ns()
        self.asking = asyncio.Lock()  # the store, about its account
        self.reason = ""  # why it has ended
        self._session = returning  # the only one that may be served
        self._wake = wake
        self._on_end: Callable[[str], None] = lambda _reason: None
        self._on_drawn: Callable[[], None] = lambda: None

    @property
    def is_counted(self) -> bool:
        return self.tenant.quotas != NO_QUOTAS

    @property
    def lease(self) -> str:
        """What its lease is called in the store."""
        return f"{self._leased_for}:{self._number}"

    def bind(self, session: str | None) -> None:
        """Only `session` may be served, where it is one. Raises `RefusedError` where that is only another."""
        if session is not None and self._session not in (None, session):
            raise _not_allowed("the token is for another session than the one that the address names")
        self._session = session or self._session

    def check_session(self, session: str | None) -> None:
        """Raises `RefusedError` where `session` may not be served; None: a new one."""
        if self._session is not None and session != self._session:
            raise _not_allowed("the call is for another session: begin with session.resume of that one")

    @asynccontextmanager
    async def first_word(self) -> AsyncIterator[None]:
        """For what the client says first. Who is returning says it in time: raises `RefusedError`."""
        try:
            async with asyncio.timeout(RESUME_S_MAX if self._is_returning else None):
                yield
        except TimeoutError as error:
            if not self._is_returning:
                raise
            message = f"the call was to begin with session.resume within {RESUME_S_MAX} s"
            raise RefusedError("resume_timeout", message, retry_after_s=1) from error

    def goes_on_with(self, session: str) -> bool:
        """Its call has taken up `session`; whether its lease is to go over to that."""
        is_another, self._leased_for = session != self._leased_for, session
        return is_another and self.is_counted

    def attach(self, on_end: Callable[[str], None], on_drawn: Callable[[], None]) -> None:
        """A call has it from now on. Where it has ended already, the call ends at once."""
        self._on_end, self._on_drawn = on_end, on_drawn
        if self.reason:
            on_end(self.reason)

    def end(self, reason: str) -> None:
        """Its call must end."""
        self.reason = self.reason or reason
        self._on_end(reason)

    def look(self) -> None:
        """Something was used: draw where little is left."""
        if self.is_counted and self.allowance.wanted():
            self._wake()

    def drawn(self) -> None:
        """More may be at hand, or it is known that there is none."""
        self._on_drawn()
        if self.allowance.overdrawn:
            _log.info(QUOTA_EXCEEDED, tenant=self.tenant.id, quota=self.allowance.overdrawn)
            self.end(QUOTA_EXCEEDED)


def _not_allowed(message: str) -> RefusedError:
    return RefusedError("session_not_allowed", message, retry_after_s=None, status=403)


class Tenancies:
    """Those of one gateway. `tokens_usual`: of a response that asks for no other number, at most. `new_session` gives
    ids of sessions."""

    def __init__(
        self, store: SessionStore, directory: TenantDirectory, tokens_usual: int, new_session: Callable[[], str]
    ) -> None:
        self._store = store
        self._directory = directory
        self._tokens_usual = tokens_usual
        self._new_session = new_session
        self._present: set[Tenancy] = set()
        self._wanted = asyncio.Event()
        self.permissions = Permissions(directory)

    def default(self) -> Tenancy:
        """For a call that nobody has to answer for."""
        return self._new(Permission(DEFAULT_TENANT), Tenant(DEFAULT_TENANT))

    def _new(self, permission: Permission, tenant: Tenant, returning: str | None = None) -> Tenancy:
        wake, new_session = self._wanted.set, self._new_session()
        return Tenancy(permission, tenant, self._tokens_usual, wake, new_session=new_session, returning=returning)

    @asynccontextmanager
    async def enter(self, permission: Permission, returning: str | None = None) -> AsyncIterator[Tenancy]:
        """For a call with `permission`, which comes back to the session `returning`. Raises `RefusedError`."""
        tenancy = self._new(permission, self._permitted(permission), returning)
        if tenancy.is_counted:
            await self._open(tenancy)
        self._present.add(tenancy)
        try:
            with self.permissions.in_use(permission, partial(tenancy.end, PERMISSION_REVOKED)):
                yield tenancy
        finally:
            self._present.discard(tenancy)
            if tenancy.is_counted:
                await see_through(self._close(tenancy))

    def _permitted(self, permission: Permission) -> Tenant:
        """Whose calls `permission` opens. Raises `RefusedError`: it may have waited at the door since it was given."""
        tenants = self._directory.tenants
        if tenants is None:
            raise RefusedError("permissions_unavailable", "who may call cannot be told now")
        tenant = tenants.find(permission.tenant)
        if tenant is None or not tenants.permits(permission):
            message = "the permission to call was revoked: its tenant, or its key, is no longer named"
            raise RefusedError(PERMISSION_REVOKED, message, retry_after_s=None, status=401)
        return tenant

    async def _open(self, tenancy: Tenancy) -> None:
        wanted, tenant = tenancy.allowance.wanted(), tenancy.tenant
        try:
            opened = await self._store.open_account(tenant.id, tenancy.lease, LEASE_TTL_MS, tenant.quotas, wanted)
        except StoreError as error:
            raise RefusedError("store_unavailable", f"quotas could not be looked at: {error}") from error
        if isinstance(opened, OverQuota):
            _log.info("refused_by_quota", tenant=tenant.id, quota=opened.quota)
            retry_s = max(1, ceil(opened.retry_ms / 1_000))
            message = f"the quota {opened.quota} of this tenant is used up"
            raise RefusedError(QUOTA_EXCEEDED, message, retry_s, status=429)
        tenancy.day = opened.day
        tenancy.allowance.drawn(wanted, opened.given)

    async def _close(self, tenancy: Tenancy) -> None:
        async with tenancy.asking:
            await self._give_back(tenancy)

    async def _give_back(self, tenancy: Tenancy) -> None:
        with suppress(StoreError):  # the lease runs out by itself
            unspent = tenancy.allowance.unspent()
            await self._store.close_account(tenancy.tenant.id, tenancy.lease, tenancy.day, unspent)

    async def go_on_with(self, tenancy: Tenancy, session: str) -> None:
        """The call of `tenancy` has taken up `session`: its place is that of the one that the session had."""
        async with tenancy.asking:
            if tenancy.goes_on_with(session):
                with suppress(StoreError):  # each draw says so
                    await self._draw(tenancy, tenancy.allowance.wanted())

    # ---- meanwhile ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Draw and renew until cancelled."""
        while True:
            self._wanted.clear()
            with suppress(StoreError):  # the store's own watch tells of it
                await self._keep_all()
            with suppress(TimeoutError):
                await asyncio.sleep(DRAW_S if self._wanted.is_set() else 0)
                async with asyncio.timeout(IDLE_S):
                    await self._wanted.wait()

    async def _keep_all(self) -> None:
        """By itself, so that nothing here holds a call between two of its turns."""
        for tenancy in [one for one in self._present if one.is_counted and not one.reason]:
            async with tenancy.asking:
                await self._keep(tenancy)

    async def _keep(self, tenancy: Tenancy) -> None:
        if tenancy not in self._present:
            return  # its call has ended while others were asked for: a draw would take its place again
        wanted = tenancy.allowance.wanted()
        if wanted or time.monotonic_ns() - tenancy.renewed_ns >= RENEWAL_NS:
            await self._draw(tenancy, wanted)

    async def _draw(self, tenancy: Tenancy, wanted: Amounts) -> None:
        tenant, now_ns = tenancy.tenant, time.monotonic_ns()
        drawn = await self._store.draw(tenant.id, tenancy.lease, LEASE_TTL_MS, tenant.quotas, wanted)
        if isinstance(drawn, Account):
            tenancy.renewed_ns = now_ns
            tenancy.allowance.drawn(wanted, drawn.given)
            tenancy.drawn()
        else:
            _log.warning("lease_lost", tenant=tenant.id)
            tenancy.end(QUOTA_EXCEEDED)
