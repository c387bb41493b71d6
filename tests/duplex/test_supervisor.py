"""Processes that are started, mended and ended; and what the supervisor makes of its configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from duplex import config as configuration
from duplex import supervisor
from duplex.config import Config, load
from duplex.pipeline import graph_of
from duplex.supervisor import Child, ChildPlan, StartError, Supervisor, addresses_of, child_environment, sole_service
from duplex.vad_service import stop_task
from tests.live.service import open_processes, wait_for_ends

S_MAX = 20

READY = "import sys; print('ready 1', flush=True); sys.stdin.read()"
CHATTY = "import sys; print('hello'); print('ready', flush=True); sys.stdin.read()"
FLOODING = "import sys; print('ready'); sys.stdout.write('x' * (1 << 20)); sys.stdout.flush(); sys.exit(5)"
DYING = "import sys; sys.exit(3)"
SILENT = "import sys; print('hello', flush=True); sys.stdin.read()"
STUBBORN = "import signal, time; print('ready', flush=True); signal.pause()"


class Watched(Child):
    """Sets `up` whenever it was started."""

    def __init__(self, plan: ChildPlan) -> None:
        super().__init__(plan)
        self.up = asyncio.Event()

    async def start(self) -> None:
        await super().start()
        self.up.set()


def child(*scripts: str) -> Watched:
    """Runs the first of `scripts` at its first start, and so on; the last one from then on."""

    def arguments(incarnation: int) -> Sequence[str]:
        return ("-c", scripts[min(incarnation, len(scripts)) - 1])

    return Watched(ChildPlan("part", arguments, dict(os.environ)))


def play(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario

    asyncio.run(bounded())


live = [pytest.mark.live, pytest.mark.slow]


class TestChild:
    pytestmark = live

    @pytest.mark.parametrize(("script", "line"), [(READY, "ready 1"), (CHATTY, "ready")])
    def test_it_is_started_once_it_says_so(self, script: str, line: str) -> None:
        async def scenario() -> None:
            one = child(script)
            assert one.pid == 0
            await one.start()
            assert one.ready_line == line
            assert one.pid > 0
            await one.stop()
            assert one.pid == 0
            await one.stop()  # once more harms nobody

        play(scenario())

    def test_one_that_dies_at_its_start_is_named_with_its_status(self) -> None:
        async def scenario() -> None:
            with pytest.raises(StartError, match="part ended with status 3"):
                await child(DYING).start()

        play(scenario())

    def test_one_that_is_never_ready_is_named_and_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "READY_S_MAX", 0.3)

        async def scenario() -> None:
            one = child(SILENT)
            with pytest.raises(StartError, match=r"part was not ready after 0\.3 s"):
                await one.start()
            await one.stop()
            assert one.pid == 0

        play(scenario())

    def test_one_that_does_not_end_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "STOP_S_MAX", 0.2)

        async def scenario() -> None:
            one = child(STUBBORN)
            await one.start()
            with open_processes([one.pid]) as processes:
                await one.stop()
                wait_for_ends(processes)

        play(scenario())

    def test_one_that_dies_is_started_again(self) -> None:
        async def scenario() -> None:
            one = child(READY)
            await one.start()
            keeping = asyncio.create_task(one.keep())
            first = one.pid
            one.up.clear()
            os.kill(first, signal.SIGKILL)
            await one.up.wait()
            assert one.pid not in {0, first}
            await stop_task(keeping)
            await one.stop()

        play(scenario())

    def test_one_that_cannot_be_started_again_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stages.restart.PAUSE_NS_MIN", 1_000_000)

        async def scenario() -> None:
            one = child("print('ready', flush=True)", DYING, DYING, READY)
            await one.start()
            one.up.clear()
            keeping = asyncio.create_task(one.keep())
            await one.up.wait()
            assert one.ready_line == "ready 1"
            await stop_task(keeping)
            await one.stop()

        play(scenario())

    def test_what_it_writes_never_blocks_it(self) -> None:
        async def scenario() -> None:
            one = child(FLOODING, READY)
            await one.start()
            one.up.clear()
            keeping = asyncio.create_task(one.keep())
            await one.up.wait()
            assert one.ready_line == "ready 1"
            await stop_task(keeping)
            await one.stop()

        play(scenario())


def test_one_service_per_data_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "data" / "run"
    with sole_service(run_dir):
        assert run_dir.stat().st_mode & 0o777 == 0o700
        with pytest.raises(StartError, match=f"another service runs on {tmp_path / 'data'}"), sole_service(run_dir):
            pass
    with sole_service(run_dir):
        pass


def test_a_directory_too_deep_for_sockets_is_named(tmp_path: Path) -> None:
    settings = Config(engine="scripted", redis_url="redis://h", data_dir=tmp_path / ("d" * 90))
    with pytest.raises(StartError, match="DUPLEX_DATA_DIR"):
        Supervisor(settings, graph_of(settings))


def test_children_get_the_configuration_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "duplex.toml"
    file.write_text('silence_ms = 300\nallowed_origins = ["https://a.example", "https://b.example"]\n')
    monkeypatch.setenv("DUPLEX_CONFIG", str(file))
    monkeypatch.setenv("DUPLEX_PORT", "1000")
    monkeypatch.setenv("OTHER", "kept")
    settings = load(port=2000, engine="scripted", token="secret", openai_api_key="key", temperature=0.25)
    environment = child_environment(settings, "unix:///store")
    assert "DUPLEX_CONFIG" not in environment
    assert environment["OTHER"] == "kept"
    again = load(environment)
    assert again == settings.model_copy(update={"redis_url": "unix:///store"})


def test_defaults_survive_the_way_to_a_child() -> None:
    settings = Config()
    assert load(child_environment(settings, "unix:///s")) == settings.model_copy(update={"redis_url": "unix:///s"})


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:81"), ("localhost", "http://localhost:81"), ("::1", "http://[::1]:81")],
)
def test_the_address_can_be_used_as_it_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, address: str
) -> None:
    settings = Config(engine="scripted", host=host, port=0, data_dir=tmp_path, redis_url="redis://h")
    one = Supervisor(settings, graph_of(settings))
    one.gateway.ready_line = "ready 81"
    one._announce()
    assert f"Ready: {address}\n" in capsys.readouterr().err
    assert one.gateway.plan.environment["DUPLEX_PORT"] == "81", "a gateway that is started again keeps its address"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("0.0.0.0", ["https://127.0.0.1:81", "https://10.0.0.7:81"]),
        ("::", ["https://127.0.0.1:81", "https://10.0.0.7:81", "https://[fd00::2]:81"]),
        ("10.0.0.7", ["https://10.0.0.7:81"]),
    ],
)
def test_a_service_on_all_addresses_is_found_at_each(host: str, found: list[str]) -> None:
    settings = configuration.load({}, host=host, token="t", tls_dev=True)
    assert addresses_of(settings, "81", ["127.0.0.1", "::1", "10.0.0.7", "fd00::2", "fe80::1"]) == found


def test_who_may_call_is_said_where_everybody_may(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for token, said in ((None, True), ("secret", False)):
        settings = configuration.load({}, engine="scripted", data_dir=tmp_path, redis_url="redis://h", token=token)
        one = Supervisor(settings, graph_of(settings))
        one.gateway.ready_line = "ready 81"
        one._announce()
        err = capsys.readouterr().err
        assert ("No token is set" in err) == said
        assert "secret" not in err


def test_a_worker_is_told_its_incarnation(tmp_path: Path) -> None:
    settings = Config(engine="scripted", data_dir=tmp_path, redis_url="redis://h")
    one = Supervisor(settings, graph_of(settings))
    assert [worker.plan.name for worker in one.workers] == ["encoder", "thinker", "talker", "vocoder"]
    for worker in one.workers:
        for incarnation in (1, 2):
            _, module, spec = worker.plan.arguments(incarnation)
            assert module == "stages.worker"
            assert f'"incarnation":{incarnation}' in spec
            assert f'"stage":"{worker.plan.name}"' in spec
    assert one.gateway.plan.arguments(1) == ("-m", "duplex.gateway_process")
    assert sys.executable
