"""What is permitted here at present, and who is told when it is taken back.

Theory of operation
    A key is looked at when something begins: a call, a second connection to one. Whatever then lasts has its permission
    *in use* for as long, and hears of it when the key, or its tenant, is no longer named.

Rules
* Between the look at a key and the use of its permission somebody may have waited at the door: it is looked at again.
* While it is not known what is permitted, nothing counts as taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from duplex.tenant_directory import TenantDirectory
from duplex.tenants import Permission, Tenants

PERMISSION_REVOKED = "permission_revoked"

_log = structlog.get_logger("duplex.permissions")


@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    permission: Permission
    on_revoked: Callable[[], object]


class Permissions:
    """Those in use at one gateway; `directory` says what is permitted."""

    def __init__(self, directory: TenantDirectory) -> None:
        self._directory = directory
        self._uses: set[_Use] = set()
        directory.changed = self._changed

    @contextmanager
    def in_use(self, permission: Permission, on_revoked: Callable[[], object]) -> Iterator[None]:
        """`on_revoked` is called once where `permission` is taken back meanwhile, or is already."""
        use = _Use(permission, on_revoked)
        self._uses.add(use)
        try:
            self._look(use)
            yield
        finally:
            self._uses.discard(use)

    def _changed(self, _tenants: Tenants) -> None:
        for use in list(self._uses):
            self._look(use)

    def _look(self, use: _Use) -> None:
        tenants = self._directory.tenants
        if tenants is not None and not tenants.permits(use.permission):
            _log.warning(PERMISSION_REVOKED, tenant=use.permission.tenant)
            self._uses.discard(use)
            use.on_revoked()
