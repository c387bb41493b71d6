"""Every fault of a machine is found, named and given its mend; a sound machine has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from duplex.doctor import SOCKET_NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX, Finding, diagnose, render
from duplex.probes import StoreUnreachable
from sessions.durability import Durability, Persistence
from stages.weights import Fault, Problem

DATA = Path("/srv/duplex")


@dataclass(frozen=True)
class FakeMachine:
    """A machine that is sound unless told otherwise. It cannot show faults that come and go."""

    python: tuple[int, int, int] = (3, 11, 2)
    wanted: Sequence[str] = ("numpy==2.4.6", "onnx>=1.23; extra == 'local'", "pytest>=9; extra == 'dev'")
    installed: Sequence[tuple[str, str]] = (("numpy", "2.4.6"), ("onnx", "1.23.2"))
    load_refusal: str | None = None
    problems: Sequence[Problem] = ()
    bind_refusal: str | None = None
    is_running: bool = False
    write_refusal: str | None = None
    free_bytes: int = 10**10
    core_count: int = 2
    valkey_refusal: str | None = None
    redis_version: str | None = "7.2.4"
    persistence: Persistence = Persistence(appendonly=True, appendfsync="everysec")  # noqa: RUF009 - it is frozen
    reporting: Sequence[str] = ()

    def interpreter(self) -> tuple[int, int, int]:
        return self.python

    def requirements(self) -> Sequence[str]:
        return self.wanted

    def version_of(self, package: str) -> str | None:
        return dict(self.installed).get(package)

    def refusal_to_load(self, library: str) -> str | None:
        return self.load_refusal

    def weight_problems(self) -> Sequence[Problem]:
        return self.problems

    def refusal_to_bind(self, host: str, port: int) -> str | None:
        return self.bind_refusal

    def serves(self, host: str, port: int) -> bool:
        return self.is_running

    def refusal_to_write(self, folder: Path) -> str | None:
        return self.write_refusal

    def disk_free_bytes(self, folder: Path) -> int:
        return self.free_bytes

    def cores(self) -> int:
        return self.core_count

    def embedded_store(self) -> str | None:
        return self.valkey_refusal

    def store_version(self, url: str) -> str:
        if self.redis_version is None:
            raise StoreUnreachable("Connection refused")
        return self.redis_version

    def store_persistence(self, url: str) -> Persistence:
        return self.persistence

    def telemetry_on(self) -> Sequence[str]:
        return self.reporting


def wrong(machine: FakeMachine, redis_url: str | None = None, data_dir: Path = DATA) -> list[Finding]:
    findings = diagnose("127.0.0.1", 8080, data_dir, redis_url, machine)
    assert all(finding.ok or finding.mend for finding in findings)
    assert not any(finding.ok and finding.mend for finding in findings)
    return [finding for finding in findings if not finding.ok]


@pytest.mark.parametrize("redis_url", [None, "redis://store:6379/0"])
def test_a_sound_machine_has_no_fault(redis_url: str | None) -> None:
    assert wrong(FakeMachine(), redis_url) == []


@pytest.mark.parametrize(
    ("machine", "name", "detail", "mend"),
    [
        (FakeMachine(python=(3, 10, 12)), "interpreter", "Python 3.10.12", "install Python 3.11"),
        (FakeMachine(load_refusal="cannot open"), "libgomp.so.1", "cannot open", "apt-get install libgomp1"),
        (FakeMachine(core_count=1), "cores", "1", "give the service 2 cores"),
        (FakeMachine(write_refusal="Permission denied"), "data folder", "/srv/duplex: Permission denied", "make /srv"),
        (FakeMachine(free_bytes=36_870_912), "disk", "0.0 GB free for /srv/duplex", "free 500 MB"),
        (FakeMachine(bind_refusal="Address in use"), "port", "127.0.0.1:8080: Address in use", "end the program"),
        (FakeMachine(valkey_refusal="did not start"), "store", "did not start", "make run"),
        (FakeMachine(reporting=("DO_NOT_TRACK",)), "telemetry", "not switched off: DO_NOT_TRACK", "start the service"),
        (
            FakeMachine(problems=(Problem("toy", "toy/model.bin", Fault.DIGEST),)),
            "weights",
            "toy/model.bin: the SHA-256 is wrong",
            "make run",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_found_alone_and_carries_its_mend(machine: FakeMachine, name: str, detail: str, mend: str) -> None:
    (finding,) = wrong(machine)
    assert (finding.name, finding.detail) == (name, detail)
    assert finding.mend.startswith(mend)


def test_the_service_itself_may_have_its_port() -> None:
    machine = FakeMachine(bind_refusal="Address in use", is_running=True)
    assert wrong(machine) == []
    findings = diagnose("127.0.0.1", 8080, DATA, None, machine)
    (port,) = (finding for finding in findings if finding.name == "port")
    assert (port.detail, port.mend) == ("127.0.0.1:8080: the service is running there", "")


def test_packages_that_are_missing_or_of_another_version_are_named() -> None:
    (finding,) = wrong(FakeMachine(installed=(("onnx", "1.20.0"),)))
    assert finding.detail == "numpy is missing; onnx is 1.20.0, not >=1.23"


def test_a_long_list_of_packages_is_cut() -> None:
    (finding,) = wrong(FakeMachine(wanted=[f"package{number}==1" for number in range(8)]))
    assert finding.detail.endswith("package4 is missing; and 3 more")


@pytest.mark.parametrize(("excess", "ok"), [(0, True), (1, False)])
def test_the_data_folder_must_leave_room_for_a_socket_name(excess: int, ok: bool) -> None:
    length = SOCKET_PATH_BYTES_MAX - SOCKET_NAME_BYTES_MAX + excess
    folder = Path("/" + "d" * (length - 1))
    assert ([finding.name for finding in wrong(FakeMachine(), data_dir=folder)] == []) is ok


def test_a_store_that_does_not_answer_is_shown_without_its_password() -> None:
    (finding,) = wrong(FakeMachine(redis_version=None), "redis://user:secret@store:6379/0")
    assert finding.detail == "store: Connection refused"
    assert "DUPLEX_REDIS_URL" in finding.mend


def test_a_store_on_a_socket_is_shown_by_its_path() -> None:
    (finding,) = wrong(FakeMachine(redis_version=None), "unix:///run/valkey.sock")
    assert finding.detail.startswith("/run/valkey.sock: ")


def test_a_store_that_is_too_old_is_refused() -> None:
    (finding,) = wrong(FakeMachine(redis_version="6.2.14"), "redis://store")
    assert "Valkey 8" in finding.mend


def test_the_text_shows_each_mend_under_its_fault() -> None:
    findings = [Finding("port", True, "free"), Finding("store", False, "gone", "start it")]
    assert render(findings).splitlines() == [
        "ok    port   free",
        "WRONG store  gone",
        "             mend: start it",
        "1 of 2 need mending.",
    ]


def test_the_text_says_when_all_is_well() -> None:
    assert render([Finding("port", True, "free")]).endswith("Everything is in order.\n")


@pytest.mark.parametrize(
    ("durability", "appendonly", "appendfsync", "detail"),
    [
        ("process-crash-safe", True, "everysec", None),
        ("process-crash-safe", False, "everysec", "it is memory, and process-crash-safe is asked for"),
        ("power-loss-safe", True, "everysec", "it is process-crash-safe, and power-loss-safe is asked for"),
    ],
)
def test_a_store_that_keeps_less_than_is_asked_for_is_named(
    durability: Durability, appendonly: bool, appendfsync: str, detail: str | None
) -> None:
    machine = FakeMachine(persistence=Persistence(appendonly, appendfsync))
    findings = diagnose("127.0.0.1", 8080, DATA, "redis://store", machine, durability=durability)
    (finding,) = [each for each in findings if each.name == "durability"]
    assert (finding.ok, finding.detail) == (detail is None, detail or f"it is {durability}")
    assert finding.mend.startswith("set appendonly yes") is not finding.ok
