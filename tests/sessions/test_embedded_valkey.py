"""The embedded server as a process: it starts, keeps what it acknowledged, and never outlives its service."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.embedded_valkey import DataDirInUse, DataDirUnusable, EmbeddedStartFailed, EmbeddedValkey
from sessions.records import SessionRecord
from sessions.redis_store import RedisSessionStore
from sessions.store import Ownership
from sessions.valkey_keeper import LOG_BYTES_MAX, LOG_NAME, SOCKET_NAME, bound_log, connect, end_leftover
from tests.sessions.store_backends import HOUR_MS, TOKEN, new_record

pytestmark = [pytest.mark.live, pytest.mark.slow]

END_S_MAX = 20.0
APPENDS = 50

SERVICE = """
import sys
from pathlib import Path
from sessions.embedded_valkey import EmbeddedValkey
server = EmbeddedValkey(Path(sys.argv[1]))
server.start()
sys.stdout.write(f"{server.server_pid}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path) as running:
        yield running


def open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    return os.pidfd_open(pid)


def await_end(process: int) -> None:
    ended = select.select([process], [], [], END_S_MAX)[0]
    os.close(process)
    assert ended, "the process still runs"


def fill(url: str, record: SessionRecord) -> None:
    """A session with `APPENDS` acknowledged entries."""

    async def scenario() -> None:
        store = RedisSessionStore(url)
        owner = await store.create(record, "a", HOUR_MS)
        for seq in range(1, APPENDS + 1):
            await store.append(owner, seq, b"%d" % seq)
        await store.close()

    asyncio.run(scenario())


def taken_over(url: str, record: SessionRecord) -> tuple[Ownership, tuple[bytes, ...]]:
    async def scenario() -> tuple[Ownership, tuple[bytes, ...]]:
        store = RedisSessionStore(url)
        owner, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        await store.verify()
        await store.close()
        return owner, snapshot.entries

    return asyncio.run(scenario())


def assert_kept(url: str, record: SessionRecord) -> None:
    owner, entries = taken_over(url, record)
    assert owner.fence == 2
    assert entries == tuple(b"%d" % seq for seq in range(1, APPENDS + 1))


def test_an_orderly_stop_leaves_nothing_but_the_data(tmp_path: Path) -> None:
    record = new_record()
    server = EmbeddedValkey(tmp_path)
    server.start()
    process = open_process(server.server_pid)
    fill(server.url, record)
    server.stop()
    await_end(process)
    assert (server.running, server.keeper_pid) == (False, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["appendonlydir", "valkey.lock", LOG_NAME]
    server.stop()
    with server:
        assert_kept(server.url, record)


def test_only_this_user_reaches_it(server: EmbeddedValkey) -> None:
    assert server.url == f"unix://{server.data_dir / SOCKET_NAME}"
    assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
    for path in server.data_dir.rglob("*.aof"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_signal_of_the_terminal_does_not_reach_it(server: EmbeddedValkey) -> None:
    assert os.getpgid(server.server_pid) == os.getpgid(server.keeper_pid) != os.getpgid(0)


def test_a_killed_server_is_noticed_and_its_acknowledged_appends_survive(server: EmbeddedValkey) -> None:
    record = new_record()
    fill(server.url, record)
    keeper = open_process(server.keeper_pid)
    os.kill(server.server_pid, signal.SIGKILL)
    await_end(keeper)
    assert not server.running
    server.stop()
    server.start()
    assert_kept(server.url, record)


def test_a_server_that_hangs_is_killed_and_its_acknowledged_appends_survive(server: EmbeddedValkey) -> None:
    record = new_record()
    fill(server.url, record)
    keeper = open_process(server.keeper_pid)
    os.kill(server.server_pid, signal.SIGSTOP)
    server.kill()
    await_end(keeper)
    server.kill()  # nobody is there any more
    server.restart()
    assert_kept(server.url, record)


def test_a_server_is_started_once(server: EmbeddedValkey) -> None:
    with pytest.raises(EmbeddedStartFailed, match="started already"):
        server.start()
    assert server.running


def test_a_second_service_on_the_directory_is_refused(server: EmbeddedValkey) -> None:
    second = EmbeddedValkey(server.data_dir, lock_wait_ms=0)
    with pytest.raises(DataDirInUse, match=str(server.keeper_pid)):
        second.start()
    assert not second.running
    assert server.running


def test_a_killed_service_takes_its_server_along_and_the_next_one_finds_the_data(tmp_path: Path) -> None:
    record = new_record()
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert service.stdout is not None
    process = open_process(int(service.stdout.readline()))
    fill(EmbeddedValkey(tmp_path).url, record)
    service.kill()
    with EmbeddedValkey(tmp_path) as next_one:
        await_end(process)
        assert_kept(next_one.url, record)
    service.communicate()


def test_a_server_whose_keeper_was_killed_is_ended_by_the_next_start(server: EmbeddedValkey) -> None:
    record = new_record()
    fill(server.url, record)
    leftover, keeper = open_process(server.server_pid), open_process(server.keeper_pid)
    os.kill(server.keeper_pid, signal.SIGKILL)
    await_end(keeper)
    with EmbeddedValkey(server.data_dir) as next_one:
        await_end(leftover)
        assert next_one.server_pid != server.server_pid
        assert_kept(next_one.url, record)
        server.stop()
        assert next_one.running, "another's server is not ours to stop"
        taken_over(next_one.url, record)


def test_stop_ends_a_server_whose_keeper_was_killed(server: EmbeddedValkey) -> None:
    leftover, keeper = open_process(server.server_pid), open_process(server.keeper_pid)
    os.kill(server.keeper_pid, signal.SIGKILL)
    await_end(keeper)
    server.stop()
    await_end(leftover)
    assert not server.socket_path.exists()


def test_a_terminated_keeper_stops_its_server(server: EmbeddedValkey) -> None:
    process = open_process(server.server_pid)
    os.kill(server.keeper_pid, signal.SIGTERM)
    await_end(process)
    assert not server.socket_path.exists()


def test_a_leftover_that_hangs_is_killed(server: EmbeddedValkey) -> None:
    process = open_process(server.server_pid)
    os.kill(server.server_pid, signal.SIGSTOP)
    assert end_leftover(server.socket_path, wait_s=0.05) == server.server_pid
    await_end(process)


def test_nobody_listens_where_there_is_no_server(tmp_path: Path) -> None:
    assert connect(tmp_path / SOCKET_NAME) is None
    assert end_leftover(tmp_path / SOCKET_NAME) is None


def test_a_start_that_fails_says_what_the_server_logged(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    server = EmbeddedValkey(tmp_path)
    with pytest.raises(EmbeddedStartFailed, match="manifest"):
        server.start()
    assert not server.running
    assert not server.socket_path.exists()


def test_a_keeper_that_hangs_is_killed_and_its_server_ended(
    server: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.embedded_valkey._KEEPER_STOP_S_MAX", 0.01)
    process = open_process(server.server_pid)
    os.kill(server.keeper_pid, signal.SIGSTOP)
    server.stop()
    await_end(process)
    assert not server.socket_path.exists()


@pytest.mark.parametrize(
    ("keeper", "what"), [("", "its keeper died"), ("import sys; sys.stdin.read()", "no word from its keeper")]
)
def test_a_keeper_that_says_nothing_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeper: str, what: str
) -> None:
    script = tmp_path / "keeper.py"
    script.write_text(keeper)
    monkeypatch.setattr("sessions.embedded_valkey._KEEPER", script)
    if keeper:
        monkeypatch.setattr("sessions.embedded_valkey._KEEPER_START_S_MAX", 0.01)
    server = EmbeddedValkey(tmp_path)
    with pytest.raises(EmbeddedStartFailed, match=what):
        server.start()
    assert not server.running


def test_power_loss_safety_syncs_each_write(tmp_path: Path) -> None:
    record = new_record()
    with EmbeddedValkey(tmp_path, durability="power-loss-safe", memory_mb_max=64) as server:
        assert "appendfsync always" in (tmp_path / "valkey.conf").read_text()
        fill(server.url, record)
        assert_kept(server.url, record)


@pytest.mark.parametrize(
    ("name", "what"), [("d" * 120, "shorter data directory"), ("a b", "blanks"), ("a'b", "quotes")]
)
def test_an_unusable_path_is_refused_at_once(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(DataDirUnusable, match=what):
        EmbeddedValkey(tmp_path / name)


def test_a_full_log_is_set_aside_once(tmp_path: Path) -> None:
    log = tmp_path / LOG_NAME
    bound_log(tmp_path)
    for generation in (b"1", b"2"):
        log.write_bytes(generation * (LOG_BYTES_MAX + 1))
        bound_log(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{LOG_NAME}.1"]
    assert (tmp_path / f"{LOG_NAME}.1").read_bytes()[:1] == b"2"
    log.write_bytes(b"3")
    bound_log(tmp_path)
    assert log.read_bytes() == b"3"
