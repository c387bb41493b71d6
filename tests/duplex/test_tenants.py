"""What a file of tenants says, and what a key of theirs permits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from duplex.tenant_directory import TenantDirectory, read_tenants
from duplex.tenants import (
    DEFAULT_TENANT,
    KEY_PREFIX,
    Permission,
    Tenant,
    Tenants,
    TenantsError,
    key_digest,
    single_tenant,
    tenants_from_toml,
)
from sessions.quotas import NO_QUOTAS, Quotas

KEY, OTHER_KEY = KEY_PREFIX + "a" * 43, KEY_PREFIX + "b" * 43
TWO = f"""
[[tenants]]
id = "acme"
key_hashes = ["{key_digest(KEY)}"]
weight = 3
allowed_origins = ["https://acme.example"]
retention_hours = 2
quotas = {{ sessions = 4, tokens_per_day = 1000 }}

[[tenants]]
id = "other"
key_hashes = ["{key_digest(OTHER_KEY)}"]
"""


def test_a_file_says_who_there_is() -> None:
    tenants = tenants_from_toml(TWO)
    acme, other = tenants.find("acme"), tenants.find("other")
    assert acme is not None
    assert other is not None
    assert (acme.weight, acme.quotas) == (3, Quotas(sessions=4, tokens_per_day=1_000))
    assert (acme.retention_ms, other.retention_ms) == (7_200_000, None)
    assert (other.weight, other.quotas) == (1, NO_QUOTAS)
    assert tenants.weights == {"acme": 3}
    assert tenants.find("nobody") is None
    assert tenants.origins_of(Permission("acme")) == {"https://acme.example"} == tenants.origins_of(None)
    assert tenants.origins_of(Permission("other")) == frozenset() == tenants.origins_of(Permission("nobody"))


def test_a_key_permits_what_its_tenant_may() -> None:
    tenants = tenants_from_toml(TWO)
    permission = tenants.permission_of(KEY)
    assert permission == Permission("acme", key_digest(KEY))
    assert tenants.permits(permission)
    assert tenants.permission_of(key_digest(KEY)) is None, "the hash is no key"
    assert not tenants.permits(Permission("other", key_digest(KEY)))
    assert not tenants.permits(Permission("nobody"))
    assert single_tenant().permits(Permission(DEFAULT_TENANT))


@given(st.text())
def test_nothing_else_is_a_key(text: str) -> None:
    assert tenants_from_toml(TWO).permission_of(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[tenants", "not TOML"),
        ('[[tenants]]\nid = "a b"', "tenants"),
        ('[[tenants]]\nid = "a"\nweight = 0', "weight"),
        ('[[tenants]]\nid = "a"\nkeys = []', "keys"),
        ('[[tenants]]\nid = "a"\nkey_hashes = ["short"]', "key_hashes"),
        ('[[tenants]]\nid = "a"\nquotas = { sessions = 0 }', "sessions"),
        ('[[tenants]]\nid = "a"\n[[tenants]]\nid = "a"', "same id"),
        (TWO.replace(key_digest(OTHER_KEY), key_digest(KEY)), "named twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_what_is_wrong_with_it(text: str, why: str) -> None:
    with pytest.raises(TenantsError, match=why):
        tenants_from_toml(text)


def test_a_key_in_the_file_is_found_and_not_repeated() -> None:
    with pytest.raises(TenantsError) as found:
        tenants_from_toml(f'[[tenants]]\nid = "a"\nkey_hashes = ["{KEY}"]')
    assert "tenant-key" in str(found.value)
    assert KEY not in str(found.value)


# ---- the file while the service runs ----------------------------------------------------------------


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.rename(path)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    replace(path, TWO)
    directory, seen = TenantDirectory(path), list[Tenants]()
    directory.changed = seen.append
    directory.look()
    assert seen == [], "it is what it was"
    replace(path, TWO.replace("acme", "apex"))
    directory.look()
    assert seen == [directory.tenants]
    assert seen[0].permission_of(KEY) == Permission("apex", key_digest(KEY))


def test_while_the_file_cannot_be_used_nobody_is_known(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    replace(path, TWO)
    directory, seen = TenantDirectory(path), list[Tenants]()
    directory.changed = seen.append
    with capture_logs() as logs:
        for spoil in (lambda: replace(path, "[["), lambda: path.write_bytes(b"\xff"), path.unlink):
            spoil()
            directory.look()
            directory.look()
            assert directory.tenants is None
    assert [one["event"] for one in logs] == ["tenants_unknown"] * 3, "each is told once"
    assert seen == [], "what was permitted is not taken back by that"
    replace(path, TWO)
    directory.look()
    assert len(seen) == 1


def test_a_gateway_that_begins_without_the_file_knows_nobody(tmp_path: Path) -> None:
    assert TenantDirectory(tmp_path / "none.toml").tenants is None
    with pytest.raises(TenantsError, match="No such file"):
        read_tenants(tmp_path / "none.toml")


def test_without_a_file_there_is_one_tenant() -> None:
    directory = TenantDirectory()
    directory.look()
    assert not directory.is_file
    assert directory.tenants is not None
    assert directory.tenants.find(DEFAULT_TENANT) == Tenant(DEFAULT_TENANT)
