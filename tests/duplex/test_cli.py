"""What the command line makes of its arguments, and what it gives back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from duplex import call_command, cli, config, doctor
from duplex.child import StartError
from duplex.supervisor import Supervisor
from duplex.tenants import TenantsError, key_digest, tenants_from_toml
from sessions.embedded_valkey import DataDirInUse

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command with these arguments: its status, output and errors."""
    for name in config.Config.model_fields:
        monkeypatch.delenv(f"DUPLEX_{name.upper()}", raising=False)
    monkeypatch.delenv("DUPLEX_CONFIG", raising=False)
    monkeypatch.setattr("duplex.logs.configure", lambda _level, _process: None)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["duplex", *arguments])
        status = cli.main()
        out, err = capsys.readouterr()
        return status, out, err

    return command


def test_a_command_is_needed(run: Run) -> None:
    for arguments in ((), ("sing",), ("serve", "--port", "http"), ("serve", "--engine", "cloud")):
        with pytest.raises(SystemExit) as ended:
            run(*arguments)
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--port", "70000"), "port: "),
        (("serve", "--host", "0.0.0.0"), "set token"),
        (("serve", "--data-dir", "d" * 100), "shorter data directory"),
        (("serve", "--data-dir", "a b"), "blanks"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_starts(run: Run, arguments: tuple[str, ...], named: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("duplex serve: ")
    assert named in err


@pytest.mark.parametrize("error", [StartError("no gateway"), DataDirInUse("in use"), OSError("no process")])
def test_a_failed_start_points_to_the_doctor(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(_self: Supervisor, _stopped: object) -> None:
        raise error

    monkeypatch.setattr(Supervisor, "run", fail)
    status, _, err = run("serve", "--engine", "scripted")
    assert status == 1
    assert f"duplex serve: {error}" in err
    assert "duplex doctor" in err


def test_arguments_win_over_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[config.Config] = []

    async def end(self: Supervisor, _stopped: object) -> None:
        seen.append(self._config)

    monkeypatch.setattr(Supervisor, "run", end)
    monkeypatch.setenv("DUPLEX_PORT", "1000")
    monkeypatch.setenv("DUPLEX_CALLS_MAX", "3")
    assert run("serve", "--port", "2000", "--data-dir", "here", "--engine", "scripted")[0] == 0
    (settings,) = seen
    assert (settings.port, settings.calls_max, settings.engine, settings.data_dir) == (
        2000,
        3,
        "scripted",
        Path("here"),
    )


def test_a_call_gives_back_what_it_came_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_command, "run_call", lambda arguments: 7)
    assert run("call", "http://127.0.0.1:1", "--say", "Hello")[0] == 7


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_the_doctor_reports(run: Run, monkeypatch: pytest.MonkeyPatch, ok: bool, status: int) -> None:
    finding = doctor.Finding("python", ok, "3.11", "" if ok else "install another")
    monkeypatch.setattr(doctor, "diagnose", lambda **_: [finding])
    got, out, _ = run("doctor")
    assert got == status
    assert "python" in out


def test_the_doctor_needs_a_configuration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUPLEX_PORT", "many")
    status, _, err = run("doctor")
    assert status == 2
    assert err.startswith("duplex doctor: port: ")


def test_a_key_is_made_with_its_hash_and_never_twice(run: Run) -> None:
    status, out, err = run("tenant-key")
    assert (status, err) == (0, "")
    key, digest = (line.split()[-1] for line in out.splitlines())
    assert digest == key_digest(key)
    tenants_from_toml(f'[[tenants]]\nid = "a"\nkey_hashes = ["{digest}"]')
    with pytest.raises(TenantsError, match="it has a key"):
        tenants_from_toml(f'[[tenants]]\nid = "a"\nkey_hashes = ["{key}"]')
    assert run("tenant-key")[1] != out


def test_tenants_that_cannot_be_used_are_told_at_the_start(run: Run) -> None:
    Path("tenants.toml").write_text('[[tenants]]\nid = "a b"\n', encoding="utf-8")
    config_file = Path("duplex.toml")
    config_file.write_text('tenants_file = "tenants.toml"\nredis_url = "redis://h"\n', encoding="utf-8")
    os.environ["DUPLEX_CONFIG"] = "duplex.toml"
    try:
        status, _, err = run("serve", "--engine", "scripted")
    finally:
        del os.environ["DUPLEX_CONFIG"]
    assert status == 2
    assert "tenants_file (DUPLEX_TENANTS_FILE): tenants.toml" in err
