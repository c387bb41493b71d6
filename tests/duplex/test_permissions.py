"""Whoever uses a permission is told once when it is taken back, however early or late that is."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from duplex.permissions import Permissions
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import DEFAULT_TENANT, Permission, key_digest
from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace

ACME, OTHER = Permission("acme", key_digest(KEY)), Permission("other", key_digest(OTHER_KEY))
NEXT = TWO.replace(key_digest(KEY), key_digest("dk_next"))


class House:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "tenants.toml"
        replace(self._path, TWO)
        self._directory = TenantDirectory(self._path)
        self.permissions = Permissions(self._directory)
        self.told: list[str] = []

    def write(self, text: str) -> None:
        replace(self._path, text)
        self._directory.look()


def test_whoever_uses_it_is_told_once_and_nobody_else(tmp_path: Path) -> None:
    house = House(tmp_path)
    in_use, told = house.permissions.in_use, house.told
    with in_use(ACME, lambda: told.append("call")), in_use(ACME, lambda: told.append("sideband")):
        with in_use(OTHER, lambda: told.append("other")), capture_logs() as logs:
            house.write(TWO.replace("sessions = 4", "sessions = 5"))
            assert told == []
            house.write(NEXT)
            assert sorted(told) == ["call", "sideband"]
            house.write(NEXT.replace("sessions = 4", "sessions = 5"))
            assert len(told) == 2
        revoked = [log for log in logs if log["event"] == "permission_revoked"]
        assert [log["tenant"] for log in revoked] == ["acme", "acme"]


def test_a_use_that_is_over_is_told_nothing(tmp_path: Path) -> None:
    house = House(tmp_path)
    with house.permissions.in_use(ACME, lambda: house.told.append("call")):
        pass
    house.write(NEXT)
    assert house.told == []


def test_a_use_that_begins_too_late_is_told_at_once(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.write(NEXT)
    with house.permissions.in_use(ACME, lambda: house.told.append("call")):
        assert house.told == ["call"]


def test_while_it_is_not_known_nothing_is_taken_back(tmp_path: Path) -> None:
    house = House(tmp_path)
    with house.permissions.in_use(ACME, lambda: house.told.append("call")):
        house.write("[[")
        with house.permissions.in_use(ACME, lambda: house.told.append("late")):
            assert house.told == []
        house.write(NEXT)
    assert house.told == ["call"]


def test_without_tenants_all_is_permitted_to_all() -> None:
    told: list[str] = []
    with Permissions(TenantDirectory()).in_use(Permission(DEFAULT_TENANT), lambda: told.append("call")):
        assert told == []
