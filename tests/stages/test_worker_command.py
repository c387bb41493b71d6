"""`python -m stages.worker`: its one argument, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog

from stages import worker
from stages.worker import WorkerSpec
from tests.stages.worker_bench import NEXT, ONWARD


@dataclass
class Command:
    """`python -m stages.worker`, run in this process; its standard input is at its end from the start."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Status, standard output, and standard error."""
        read, write = os.pipe()
        os.close(write)
        with os.fdopen(read) as stdin:
            self.monkeypatch.setattr("sys.stdin", stdin)
            self.monkeypatch.setattr("sys.argv", ["worker", *arguments])
            status = worker.main()
        said = self.capsys.readouterr()
        return status, said.out, said.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    yield Command(monkeypatch, capsys)
    structlog.reset_defaults()


def spec_json(folder: Path, **changed: object) -> str:
    spec = WorkerSpec("think", "thinker", "scripted", f"unix:{folder}/think.sock", 1)
    return msgspec.json.encode(msgspec.to_builtins(spec) | changed).decode()


@pytest.mark.parametrize("arguments", [(), ("one", "two")])
def test_the_command_takes_one_argument(command: Command, arguments: tuple[str, ...]) -> None:
    status, _, said = command.run(*arguments)
    assert (status, said) == (worker.STATUS_REFUSED, "usage: python -m stages.worker SPEC_JSON\n")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"incarnation": -1}, "$.incarnation"),
        ({"streams_max": 0}, "$.streams_max"),
        ({"payload_bytes_max": -1}, "$.payload_bytes_max"),
        ({"events_max": -3}, "Expected `int` >= 0 - at `$.events_max`: correct it where it was made"),
        ({"events_max": 10**20}, "Expected `int` <= 262144 - at `$.events_max`"),
        ({"arena_blocks": 100_000_000}, "Expected `int` <= 4096 - at `$.arena_blocks`"),
        ({"session_blocks_max": 0}, "$.session_blocks_max"),
        ({"edges": [{**ONWARD, "window": 10**30}]}, "$.edges[0].window"),
        ({"inputs": [{"payload": "clauses", "window": 0}]}, "$.inputs[0].window"),
        ({"gpu": 1}, "gpu"),
        ({"engine": "magic"}, "no engine 'magic' for a thinker; there are: local, openai, scripted"),
        ({"kind": "mouth"}, "no engine 'scripted' for a mouth"),
        ({"options": {"volume": 11}}, "volume"),
        ({"options": {"replies": []}}, "replies"),
        ({"tenant_weights": {"a": 0}}, "tenant_weights"),
        (
            {"engine": "synthetic", "options": {"bananas": 1}},
            "engine 'synthetic' cannot use its options: Object contains",
        ),
    ],
)
def test_a_wrong_specification_is_refused_in_one_line_with_the_stage(
    command: Command, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    status, out, said = command.run(spec_json(tmp_path, **changed))
    assert (status, out) == (worker.STATUS_REFUSED, "")
    assert said.startswith("worker 'think': ")
    assert named in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"address": "udp:0.0.0.0:1"}, "'udp:0.0.0.0:1'"),
        ({"address": "tcp:127.0.0.1:0", "payload_bytes_max": 300_000}, "'think' hands over up to 300000 bytes"),
        ({"address": "unix:/nowhere/think.sock"}, "'unix:/nowhere/think.sock'"),
        ({"edges": [{**ONWARD, "replicas": {NEXT: "tcp:next"}}]}, "'tcp:next'"),
        (
            {"edges": [{**ONWARD, "replicas": {NEXT: "tcp:next:1"}}], "payload_bytes_max": 300_000},
            "'tcp:next:1' carries 261120",
        ),
    ],
)
def test_what_the_host_or_a_peer_does_not_allow_is_said_with_the_stage(
    command: Command, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    status, out, said = command.run(spec_json(tmp_path, **changed))
    assert (status, out) == (worker.STATUS_FAILED, "")
    assert said.startswith("worker 'think': ")
    assert named in said


def test_an_arena_that_the_host_does_not_give_is_said_with_the_mend(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _length: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "ftruncate", full)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    status, _, said = command.run(spec_json(tmp_path))
    assert (status, said) == (
        worker.STATUS_FAILED,
        "worker 'think': the host gives no 64 blocks of 1048576 bytes (Cannot allocate memory): lower arena_blocks\n",
    )
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


@pytest.mark.parametrize("told", ["{", "[]", '{"replica": 7}', "7"])
def test_what_names_no_stage_is_refused_too(command: Command, told: str) -> None:
    status, _, said = command.run(told)
    assert (status, said[:12]) == (worker.STATUS_REFUSED, "worker '?': ")


def test_what_a_worker_logs_names_it(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines come out among those of all other processes, and engine threads know nothing of the loop's context."""

    async def log(_: WorkerSpec) -> bool:
        structlog.get_logger("stages.link").error("link_refused")
        with ThreadPoolExecutor(1) as threads:
            await asyncio.get_running_loop().run_in_executor(threads, structlog.get_logger().error, "step_failed")
        return False

    monkeypatch.setattr(worker, "_run", log)
    _, _, said = command.run(spec_json(tmp_path))
    lines = [msgspec.json.decode(line) for line in said.splitlines()]
    assert [(line["event"], line["process"]) for line in lines] == [("link_refused", "think"), ("step_failed", "think")]


def test_a_worker_ends_with_its_standard_input(command: Command, tmp_path: Path) -> None:
    assert command.run(spec_json(tmp_path))[0] == 0
    assert not (tmp_path / "think.sock").exists()


def test_a_worker_without_its_next_stage_is_not_ready_when_it_ends(command: Command, tmp_path: Path) -> None:
    edge = {**ONWARD, "replicas": {NEXT: f"unix:{tmp_path}/nobody.sock"}}
    assert command.run(spec_json(tmp_path, edges=[edge])) == (0, "", "")


def test_an_option_that_is_secret_comes_from_the_environment_where_it_is_set(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUPLEX_TEST_KEY", "secret")
    secrets = {"api_key": "DUPLEX_TEST_KEY", "other": "DUPLEX_TEST_UNSET"}
    status, _, said = command.run(spec_json(tmp_path, secrets=secrets))
    assert status == worker.STATUS_REFUSED
    assert "api_key" in said
    assert "other" not in said


def test_the_signal_handlers_end_with_the_worker(command: Command, tmp_path: Path) -> None:
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        command.run(spec_json(tmp_path))
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    finally:
        signal.signal(signal.SIGINT, found)
