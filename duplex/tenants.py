"""Tenants: who may use the service, with what weight, how much of it, and how their keys are known.

Theory of operation
    A file names them. Of a key it has the SHA-256 alone: keys are random, so their digest tells nothing of them, and
    whoever reads the file can call nobody. A key opens calls of its tenant and shows its tenant's sessions. What a call
    has been begun with is its *permission*; it lasts while its tenant and its key are named.

Rules
* Ids and key digests are each named once.
* A quota that is not set has no end.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated

import msgspec

from sessions.quotas import NO_QUOTAS, Quotas
from stages.tenant_shares import TENANT_WEIGHT_MAX, TENANTS_MAX

DEFAULT_TENANT = "default"  # whose all calls are where no tenants are named
KEY_PREFIX = "dk_"
KEY_BYTES = 32
KEYS_MAX = 16  # of a tenant: an old one and a new one of each of its services
RETENTION_HOURS_MAX = 24 * 365

TenantId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
KeyDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]

_KEY = re.compile(KEY_PREFIX + r"[A-Za-z0-9_-]{43}")


class TenantsError(ValueError):
    """The file of tenants cannot be used; the text says where and why, and repeats nothing that is in it."""


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weight`: of its shares, 1 is the usual. `allowed_origins`: beside those of the service, pages that may connect
    with this tenant's keys. `retention_hours` None: the service's."""

    id: TenantId
    key_hashes: Annotated[tuple[KeyDigest, ...], msgspec.Meta(max_length=KEYS_MAX)] = ()
    weight: Annotated[int, msgspec.Meta(ge=1, le=TENANT_WEIGHT_MAX)] = 1
    quotas: Quotas = NO_QUOTAS
    allowed_origins: tuple[str, ...] = ()
    retention_hours: Annotated[int, msgspec.Meta(ge=1, le=RETENTION_HOURS_MAX)] | None = None

    @property
    def retention_ms(self) -> int | None:
        return None if self.retention_hours is None else self.retention_hours * 3_600_000


class Permission(msgspec.Struct, frozen=True):
    """What a call was begun with. `key`: the digest of the key; empty where none was needed."""

    tenant: str
    key: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: Annotated[tuple[Tenant, ...], msgspec.Meta(max_length=TENANTS_MAX)] = ()


class Tenants:
    """Those of a service. Raises `TenantsError` where an id or a digest is named twice."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._by_id = {tenant.id: tenant for tenant in tenants}
        self._by_key = {digest: tenant for tenant in tenants for digest in tenant.key_hashes}
        if len(self._by_id) < len(tenants):
            raise TenantsError("two tenants have the same id: give each its own")
        if len(self._by_key) < sum(len(tenant.key_hashes) for tenant in tenants):
            raise TenantsError("a key hash is named twice: make each tenant a key of its own")

    def find(self, tenant: str) -> Tenant | None:
        """The tenant of this id."""
        return self._by_id.get(tenant)

    def permission_of(self, key: str) -> Permission | None:
        """What `key` permits. It is looked up by its digest, of which no timing tells anything about the key."""
        digest = key_digest(key)
        tenant = self._by_key.get(digest)
        return None if tenant is None else Permission(tenant.id, digest)

    def permits(self, permission: Permission) -> bool:
        """`permission` is still given."""
        tenant = self._by_id.get(permission.tenant)
        return tenant is not None and (not permission.key or permission.key in tenant.key_hashes)

    def origins_of(self, permission: Permission | None) -> frozenset[str]:
        """Pages that may connect with what `permission` permits; None: those of any tenant."""
        if permission is None:
            return frozenset(origin for tenant in self._by_id.values() for origin in tenant.allowed_origins)
        tenant = self._by_id.get(permission.tenant)
        return frozenset(tenant.allowed_origins if tenant else ())

    @property
    def weights(self) -> Mapping[str, int]:
        """Of those who do not weigh 1."""
        return {tenant.id: tenant.weight for tenant in self._by_id.values() if tenant.weight != 1}


def key_digest(key: str) -> str:
    """SHA-256 of a key, in hexadecimal digits, as the file of tenants has it."""
    return hashlib.sha256(key.encode()).hexdigest()


def tenants_from_toml(text: str) -> Tenants:
    """What a file of tenants says. Raises `TenantsError`."""
    if _KEY.search(text):
        raise TenantsError("it has a key: name its hash instead, which `duplex tenant-key` prints beside it")
    try:
        return Tenants(msgspec.convert(tomllib.loads(text), _File).tenants)
    except tomllib.TOMLDecodeError as error:
        raise TenantsError(f"not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise TenantsError(str(error)) from error


def single_tenant(retention_hours: int | None = None) -> Tenants:
    """One whose calls are all calls."""
    return Tenants((Tenant(DEFAULT_TENANT, retention_hours=retention_hours),))
