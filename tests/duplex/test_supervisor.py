"""What the supervisor makes of its configuration, of its processes, and of what they report."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from duplex import config as configuration
from duplex import supervisor
from duplex.child import StartError
from duplex.config import Config, load
from duplex.door import ABSENT, bound_socket, port_of
from duplex.gateway_spec import GatewaySpec
from duplex.pipeline import graph_of
from duplex.supervisor import SECRETS, Entrance, Supervisor, addresses_of, child_environment, entrance, sole_service
from sessions.embedded_valkey import EmbeddedValkey
from sessions.response import Deadlines
from stages.liveness import PINGS_PER_SILENCE
from stages.messages import Frame, ReplicaReport


class Announced:
    """An entrance at ports that nobody listens on."""

    def __init__(self, port: int, own_ports: tuple[int, ...] = ()) -> None:
        self.port = port
        self.own_ports = own_ports


def announce(settings: Config, *, port: int, own_ports: tuple[int, ...] = ()) -> None:
    Supervisor(settings, graph_of(settings))._announce(cast("Entrance", Announced(port, own_ports)))


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
    for name, field in Config.model_fields.items():
        assert ("SecretStr" in str(field.annotation)) is (f"DUPLEX_{name.upper()}" in SECRETS)
        if "SecretStr" in str(field.annotation):
            monkeypatch.setenv(f"DUPLEX_{name.upper()}", f"the {name}")
    settings = load(port=2000, engine="scripted", temperature=0.25)
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
    announce(settings, port=81)
    assert f"Ready: {address}\n" in capsys.readouterr().err


def test_each_of_several_gateways_has_an_address_of_its_own_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Config(engine="scripted", data_dir=tmp_path, redis_url="redis://h", gateways=2)
    announce(settings, port=81, own_ports=(91, 92))
    said = capsys.readouterr().err
    assert "gateway-1 alone: http://127.0.0.1:91\ngateway-2 alone: http://127.0.0.1:92\n" in said


def test_a_gateway_is_given_the_sockets_that_stay_ours(tmp_path: Path) -> None:
    settings = Config(engine="scripted", port=0, data_dir=tmp_path, redis_url="redis://h", gateways=2)
    settings.run_dir.mkdir()
    one = Supervisor(settings, graph_of(settings))
    with entrance(settings) as one._entrance:
        ports = [one._entrance.port, *one._entrance.own_ports]
        for number, child in enumerate(one.gateways):
            _, module, spec = child.plan.arguments(1)
            given = msgspec.json.decode(spec, type=GatewaySpec)
            assert (module, given.replica, given.number) == ("duplex.gateway_process", f"gateway-{number + 1}", number)
            assert child.plan.files() == (given.listener, given.own_listener)
            for descriptor, port in zip(child.plan.files(), (ports[0], ports[1 + number]), strict=True):
                with socket.socket(fileno=os.dup(descriptor)) as listener:
                    assert port_of(listener) == port
    with bound_socket("127.0.0.1", ports[0]):
        pass  # it was given back


def test_a_lone_gateway_has_no_other_address(tmp_path: Path) -> None:
    settings = Config(engine="scripted", port=0, data_dir=tmp_path, redis_url="redis://h")
    settings.run_dir.mkdir()
    with entrance(settings) as opened:
        assert opened.own_ports == ()
        assert len(opened.sockets_of(0)) == 1


def test_a_taken_port_of_a_gateway_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    settings = Config(engine="scripted", port=0, data_dir=tmp_path, redis_url="redis://h")
    settings.run_dir.mkdir()
    with bound_socket("127.0.0.1", 0) as public, bound_socket("127.0.0.1", 0) as taken:
        free = port_of(public)
        public.close()
        asked = settings.model_copy(update={"gateways": 2, "port": free, "gateway_port": port_of(taken)})
        with pytest.raises(OSError, match=f"port {port_of(taken)} .*DUPLEX_GATEWAY_PORT"):
            Entrance(asked)
        with bound_socket("127.0.0.1", free):
            pass


def test_a_gateway_that_has_died_is_struck_from_the_board(tmp_path: Path) -> None:
    settings = Config(engine="scripted", port=0, data_dir=tmp_path, redis_url="redis://h", gateways=2)
    settings.run_dir.mkdir()
    one = Supervisor(settings, graph_of(settings))
    with entrance(settings) as one._entrance:
        board = one._entrance.board
        board.write(0, 7)
        assert board.least_of_others(1) == 7
        one._gateway_changed(0)
        assert board.least_of_others(1) == ABSENT


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
    assert addresses_of(settings, 81, ["127.0.0.1", "::1", "10.0.0.7", "fd00::2", "fe80::1"]) == found


def test_who_may_call_is_said_where_everybody_may(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for token, said in ((None, True), ("secret", False)):
        settings = configuration.load({}, engine="scripted", data_dir=tmp_path, redis_url="redis://h", token=token)
        announce(settings, port=81)
        err = capsys.readouterr().err
        assert ("No token is set" in err) == said
        assert "secret" not in err


def test_each_replica_is_a_worker_of_its_own_and_the_gateway_is_told_of_all(tmp_path: Path) -> None:
    settings = Config(
        engine="scripted", data_dir=tmp_path, redis_url="redis://h", replicas_vocoder=2, worker_silence_s=2.5
    )
    one = Supervisor(settings, graph_of(settings))
    names = [(worker.plan.stage, worker.plan.name) for worker in one.workers]
    assert names[3:] == [("vocoder", "vocoder-1"), ("vocoder", "vocoder-2")]
    plan = one.workers[4].plan
    assert plan.address == f"unix:{settings.run_dir.resolve()}/vocoder-2.sock"
    (gateway,) = one.gateways
    assert plan.silence_ns_max == gateway.plan.silence_ns_max == 2_500_000_000
    assert (plan.step_ns_max, gateway.plan.step_ns_max) == (60_000_000_000, 0)
    assert one.workers[1].plan.step_ns_max > Deadlines().whole_ns_max, "a Thinker's step may be a whole answer"
    told: list[Frame] = []
    gateway.send = lambda frame: told.append(frame)  # type: ignore[method-assign]  # noqa: PLW0108
    one._report()
    assert told[4:] == [
        ReplicaReport("vocoder", "vocoder-2", "down", 0, 0, 0),
        ReplicaReport("gateway", "gateway", "down", 0, 0, 0),
    ]


def test_processes_are_replaced_one_after_the_other_and_once_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Config(engine="scripted", data_dir=tmp_path, redis_url="redis://h", gateways=2)
        one = Supervisor(settings, graph_of(settings))
        replaced: list[str] = []
        may_go_on = asyncio.Event()

        async def replace(name: str) -> None:
            replaced.append(name)
            await may_go_on.wait()

        for child in (*one.workers, *one.gateways):
            child.replace = partial(replace, child.plan.name)  # type: ignore[method-assign]
        for _ in range(2):
            one.replace_processes()
            await asyncio.sleep(0)
        assert replaced == ["encoder"]
        may_go_on.set()
        assert one._replacing is not None
        await one._replacing
        assert replaced == ["encoder", "thinker", "talker", "vocoder", "gateway-1", "gateway-2"]

    asyncio.run(scenario())


def test_a_worker_is_told_its_incarnation(tmp_path: Path) -> None:
    settings = Config(engine="scripted", data_dir=tmp_path, redis_url="redis://h")
    one = Supervisor(settings, graph_of(settings))
    assert [worker.plan.name for worker in one.workers] == ["encoder", "thinker", "talker", "vocoder"]
    for worker in one.workers:
        for incarnation in (1, 2):
            _, module, spec = worker.plan.arguments(incarnation)
            assert module == "stages.worker"
            assert f'"incarnation":{incarnation}' in spec
            assert f'"replica":"{worker.plan.name}"' in spec


# ---- the store ----------------------------------------------------------------------------------------------


class Store:
    """A store that lives as long as `running`. Its kernel takes links for it; it answers where `serve` does so."""

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "store.sock"
        self.server_pid = 7
        self.running = True
        self.killed = 0
        self.pinged = asyncio.Event()

    def stand_still(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket_path))
        listener.listen()
        return listener

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._answer, self.socket_path)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"+PONG\r\n")
        writer.close()
        self.pinged.set()

    def kill(self) -> None:
        self.killed += 1


def watched(folder: Path, store: Store) -> Coroutine[None, None, None]:
    settings = Config(engine="scripted", redis_url="redis://h", data_dir=folder, worker_silence_s=0.2)
    return Supervisor(settings, graph_of(settings))._until_store_is_gone(cast("EmbeddedValkey", store))


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STORE_CHECK_S", 0)


@pytest.mark.usefixtures("_often")
def test_a_store_that_answers_nothing_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        with store.stand_still():
            await watched(tmp_path, store)
        assert store.killed == 1

    asyncio.run(scenario())


@pytest.mark.usefixtures("_often")
def test_a_store_that_answers_is_left_alone_until_it_has_died(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        async with await store.serve():
            watching = asyncio.create_task(watched(tmp_path, store))
            for _ in range(2 * PINGS_PER_SILENCE):
                store.pinged.clear()
                await store.pinged.wait()
            store.running = False
            await watching
        assert store.killed == 0

    asyncio.run(scenario())


@pytest.mark.usefixtures("_often")
def test_a_store_that_is_gone_is_not_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        watching = asyncio.create_task(watched(tmp_path, store))
        for _ in range(100 * PINGS_PER_SILENCE):
            await asyncio.sleep(0)
        store.running = False
        await watching
        assert store.killed == 0

    asyncio.run(scenario())


def test_new_processes_go_by_the_weights_that_tenants_have_by_then(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenants]]\nid = "a"\nweight = 2\n', encoding="utf-8")
    settings = Config(engine="scripted", redis_url="redis://h", data_dir=tmp_path, tenants_file=file)
    one = Supervisor(settings, graph_of(settings))

    def weights() -> dict[str, int]:
        spec = json.loads(one.workers[0].plan.arguments(1)[-1])
        found: dict[str, int] = spec["tenant_weights"]
        return found

    assert weights() == {"a": 2}
    file.write_text('[[tenants]]\nid = "a"\nweight = 5\n', encoding="utf-8")
    one._read_weights()
    assert weights() == {"a": 5}
    file.write_text("[[", encoding="utf-8")
    with capture_logs() as logs:
        one._read_weights()
    assert [log["event"] for log in logs] == ["weights_kept"]
    assert weights() == {"a": 5}
