"""The supervisor: starts the store, the stage workers and the gateways, mends what dies, and ends everything.

Theory of operation
    Each child's standard input is a pipe that we hold: a child whose input ends stops by itself, so nothing outlives
    us, however we die. Stages start side by side; the gateways start at once too and become ready when they are. What
    dies or hangs is started again (`duplex.child`). Each gateway is told of every change, over our probe link to it,
    for its metrics.

    The service's address is ours: we listen, the gateways take who comes (`duplex.door`). So it stays while they come
    and go, and who comes when none is there waits for the next one.

Rules
* Children have a session of their own: a terminal's Ctrl-C reaches the supervisor alone, which ends them in order:
  gateways (calls say goodbye), workers, store.
* Processes are ended by our own handle, never by name.
* One service per data directory: a lock on it is held for as long as we run, and is taken before anything is touched.
* Nobody waits at the door of a service that ends: it is closed before the workers are.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import structlog

from duplex import console
from duplex.child import Child, ChildPlan, StartError
from duplex.config import Config, ConfigError
from duplex.door import ABSENT, LoadBoard, bound_socket, port_of
from duplex.gateway_spec import GatewaySpec
from duplex.pipeline import graph_of
from duplex.tasks import stop_task
from duplex.tls_dev import CERTIFICATE, development_tls, host_addresses
from sessions.embedded_valkey import EmbeddedStoreError, EmbeddedValkey
from stages.edges import GATEWAY
from stages.graph import Graph, StageNode, address_of, worker_spec
from stages.liveness import PINGS_PER_SILENCE
from stages.messages import ReplicaReport

STORE_CHECK_S = 0.5
PATH_BYTES_MAX = 100  # a Unix socket's path, of which the kernel takes 107
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
LOCK_NAME = "service.lock"
OWN_HOST = "127.0.0.1"  # where each of several gateways can be asked alone

_log = structlog.get_logger("duplex.supervisor")


@contextmanager
def sole_service(run_dir: Path) -> Iterator[None]:
    """Hold `run_dir`, which is made if need be. Raises `StartError` where another service does."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (run_dir / LOCK_NAME).open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another service runs on {run_dir.parent}: stop it, or set DUPLEX_DATA_DIR to another directory"
            raise StartError(message) from error
        yield


class Entrance:
    """Where the gateways are reached: the public address, of each its own where there are several, and the board on
    which they write how many calls they have. Raises OSError where an address cannot be had."""

    def __init__(self, config: Config) -> None:
        self._sockets: list[socket.socket] = []
        self.board = LoadBoard(config.run_dir, config.gateways)
        for number in range(config.gateways):
            self.board.write(number, ABSENT)
        try:
            self._listen(config)
        except OSError:
            self.close()
            raise

    def _listen(self, config: Config) -> None:
        self._sockets.append(bound_socket(config.host, config.port))
        if config.gateways > 1:
            first = config.gateway_port
            ports = range(first, first + config.gateways) if first else [0] * config.gateways
            self._sockets += [bound_socket(OWN_HOST, port, "DUPLEX_GATEWAY_PORT") for port in ports]

    @property
    def port(self) -> int:
        """Of the public address."""
        return port_of(self._sockets[0])

    @property
    def own_ports(self) -> tuple[int, ...]:
        """Of the gateways, on `OWN_HOST`; empty for a lone one."""
        return tuple(map(port_of, self._sockets[1:]))

    def sockets_of(self, number: int) -> tuple[int, ...]:
        """Descriptors for gateway `number`: the public one, and its own where it has one."""
        public, *own = self._sockets
        return public.fileno(), *(one.fileno() for one in own[number : number + 1])

    def close(self) -> None:
        """Idempotent."""
        for listener in self._sockets:
            listener.close()


@contextmanager
def entrance(config: Config) -> Iterator[Entrance]:
    """The service's, closed on leaving. Raises OSError where an address cannot be had."""
    opened = Entrance(config)
    try:
        yield opened
    finally:
        opened.close()
        opened.board.close()


class Supervisor:
    """`graph` is what `config` asks for."""

    def __init__(self, config: Config, graph: Graph) -> None:
        self._config = config
        self._store = (
            None if config.redis_url else EmbeddedValkey(config.data_dir / "store", durability=config.durability)
        )
        environment = child_environment(config, config.redis_url or (self._store.url if self._store else ""))
        self._graph = graph
        self._run_dir = config.run_dir.resolve()
        names = [*config.gateway_names, *(name for stage in graph.stages for name in stage.replica_names)]
        longest = max(len(os.fsencode(self._run_dir / f"{name}.sock")) for name in names)
        if longest > PATH_BYTES_MAX:
            raise StartError(
                f"data_dir is too deep for sockets: {self._run_dir} (set DUPLEX_DATA_DIR to a shorter path)"
            )
        self.workers = tuple(
            Child(self._worker_plan(stage, name, environment), self._report)
            for stage in graph.stages
            for name in stage.replica_names
        )
        self.gateways = tuple(
            Child(self._gateway_plan(number, environment), partial(self._gateway_changed, number), self._report)
            for number in range(config.gateways)
        )
        self._replacing: asyncio.Task[None] | None = None
        self._entrance: Entrance | None = None

    def _worker_plan(self, stage: StageNode, name: str, environment: dict[str, str]) -> ChildPlan:
        def arguments(incarnation: int) -> tuple[str, ...]:
            spec = worker_spec(self._graph, stage, name, self._run_dir, incarnation)
            return "-m", "stages.worker", msgspec.json.encode(spec).decode()

        return ChildPlan(
            name,
            stage.name,
            arguments,
            _with_secrets(environment, stage.secrets.values()),
            address_of(self._run_dir, name),
            self._silence_ns_max,
            stage.step_s_max * 10**9,
        )

    def _gateway_plan(self, number: int, environment: dict[str, str]) -> ChildPlan:
        name = self._config.gateway_names[number]

        def arguments(_incarnation: int) -> tuple[str, ...]:
            listener, *own = self._sockets_of(number)
            spec = GatewaySpec(name, number, listener, own[0] if own else None)
            return "-m", "duplex.gateway_process", msgspec.json.encode(spec).decode()

        return ChildPlan(
            name,
            GATEWAY,
            arguments,
            _with_secrets(environment, ["DUPLEX_TOKEN", "DUPLEX_OPERATOR_TOKEN"]),
            address_of(self._run_dir, name),
            self._silence_ns_max,
            files=lambda: self._sockets_of(number),
        )

    def _sockets_of(self, number: int) -> tuple[int, ...]:
        """Those that gateway `number` is given: the public one, and its own where it has one."""
        assert self._entrance is not None, "the address is taken before anybody is started"
        return self._entrance.sockets_of(number)

    @property
    def _silence_ns_max(self) -> int:
        return int(self._config.worker_silence_s * 1e9)

    def _gateway_changed(self, number: int) -> None:
        if not self.gateways[number].pid and self._entrance is not None:
            self._entrance.board.write(number, ABSENT)
        self._report()

    def _report(self) -> None:
        """Tell each gateway how its stages, it and the other gateways have fared."""
        for child in (*self.workers, *self.gateways):
            seen = child.statistics()
            report = ReplicaReport(
                child.plan.stage, child.plan.name, seen.state.value, seen.incarnation, seen.deaths, seen.hangs
            )
            for gateway in self.gateways:
                gateway.send(report)

    def replace_processes(self) -> None:
        """Replace every worker, then every gateway, by a new process, one after the other. Once more is once.

        Calls go on: at their workers unnoticed, of a gateway their clients are told to come back, and find another one.
        The new ones go by the weights that tenants have by then.
        """
        if self._replacing is None or self._replacing.done():
            self._read_weights()
            self._replacing = asyncio.create_task(self._replace_processes())

    def _read_weights(self) -> None:
        try:
            self._graph = graph_of(self._config)
        except ConfigError as error:
            _log.error("weights_kept", error=str(error))

    async def _replace_processes(self) -> None:
        for worker in self.workers:
            await worker.replace()
        _log.info("workers_replaced", count=len(self.workers))
        for gateway in self.gateways:
            await gateway.replace()
        _log.info("gateways_replaced", count=len(self.gateways))

    async def run(self, stopped: asyncio.Event) -> None:
        """Start everything, tell the operator, and keep it until `stopped`. Raises `StartError` or OSError."""
        with sole_service(self._config.run_dir), entrance(self._config) as self._entrance:
            keepers: list[asyncio.Task[None]] = []
            if self._config.tls_dev:  # for all gateways, which would all make one
                development_tls(self._config.data_dir / "tls", datetime.now(UTC))
            try:
                await self._start_store()
                if await _done_before(self._start_children(), stopped):
                    keepers = [asyncio.create_task(child.keep()) for child in (*self.workers, *self.gateways)]
                    keepers.append(asyncio.create_task(self._keep_store()))
                    self._announce(self._entrance)
                    await stopped.wait()
                console.say("stopping: calls end, then everything else …")
            finally:
                if self._replacing is not None:
                    await stop_task(self._replacing)
                for keeper in keepers:
                    await stop_task(keeper)
                await self._stop(self._entrance)

    async def _stop(self, entrance: Entrance) -> None:
        await asyncio.gather(*(gateway.stop() for gateway in self.gateways))
        entrance.close()
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        if self._store is not None:
            await asyncio.to_thread(self._store.stop)
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        for path in self._config.run_dir.glob("*.sock"):
            path.unlink(missing_ok=True)

    async def _start_store(self) -> None:
        if self._store is None:
            console.say("  store      the configured one")
            return
        began = time.monotonic()
        await asyncio.to_thread(self._store.start)
        console.say(f"  store      embedded Valkey, ready in {time.monotonic() - began:.1f} s")

    async def _keep_store(self) -> None:
        """Start the embedded store again where it has died or hangs; what it acknowledged is in its file."""
        while self._store is not None:
            await self._until_store_is_gone(self._store)
            _log.error("store_died")
            try:
                await asyncio.to_thread(self._store.restart)
            except (EmbeddedStoreError, OSError) as error:
                _log.error("store_not_restarted", error=str(error))
                await asyncio.sleep(STORE_CHECK_S)
            else:
                _log.info("store_restarted", pid=self._store.server_pid)

    async def _until_store_is_gone(self, store: EmbeddedValkey) -> None:
        """Come back when it has died; it is killed where it is silent for as long as a worker may be.

        As with workers, silence is counted in pings: that of a moment in which we stood still ourselves is no hang.
        """
        ping_s_max = self._config.worker_silence_s / PINGS_PER_SILENCE
        unanswered = 0
        while store.running:
            await asyncio.sleep(0 if unanswered else STORE_CHECK_S)
            unanswered = unanswered + 1 if await _is_silent(store.socket_path, ping_s_max) else 0
            if unanswered == PINGS_PER_SILENCE:
                _log.error("store_hangs", pid=store.server_pid)
                store.kill()
                return

    async def _start_children(self) -> None:
        starting = [asyncio.create_task(self._start_one(child)) for child in (*self.workers, *self.gateways)]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    @staticmethod
    async def _start_one(child: Child) -> None:
        began = time.monotonic()
        await child.start()
        console.say(f"  {child.plan.name:<10} ready in {time.monotonic() - began:.1f} s")

    def _announce(self, entrance: Entrance) -> None:
        config = self._config
        here, *others = addresses_of(config, entrance.port, host_addresses())
        console.say(f"\nReady: {here}")
        for name, port in zip(config.gateway_names, entrance.own_ports, strict=False):
            console.say(f"{name} alone: {'https' if config.tls_dev else 'http'}://{OWN_HOST}:{port}")
        if others:
            console.say(f"Other devices reach it as {' or '.join(others)}")
        if config.tls_dev:
            console.say("The certificate is for development: a browser will warn once, and go on where told to.")
        if config.token is None and config.tenants_file is None:
            console.say("No token is set: everybody on this machine may call (set DUPLEX_TOKEN to change that).")
        command = os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("duplex") else "duplex"
        console.say("Try:   open it in a browser and talk, or, in another terminal:")
        trusting = f" --cacert {config.data_dir / 'tls' / CERTIFICATE}" if config.tls_dev else ""
        console.say(f'       {command} call {here}{trusting} --say "What is the capital of France?"')
        console.say("Stop:  Ctrl-C")


def addresses_of(config: Config, port: int, machine: Iterable[str]) -> list[str]:
    """Where the service is found, from this machine first. `machine`: its addresses, loopback first."""
    scheme = "https" if config.tls_dev else "http"
    hosts = [config.host]
    if config.host in WILDCARD_HOSTS:
        kept = [host for host in machine if ":" not in host or (config.host == "::" and not host.startswith("fe80:"))]
        hosts = [host for host in kept if host != "::1"]
    return [f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host in hosts]


async def _done_before(work: Coroutine[None, None, None], stopped: asyncio.Event) -> bool:
    """Whether `work` was done before `stopped`; it is cancelled where it was not, and its failure raised."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def _is_silent(store: Path, s_max: float) -> bool:
    """Whether nothing comes of a ping to the store that listens there. One that is gone is not silent."""
    try:
        async with asyncio.timeout(s_max):
            reader, writer = await asyncio.open_unix_connection(store)
            try:
                writer.write(b"PING\r\n")
                await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


SECRETS = ("DUPLEX_TOKEN", "DUPLEX_OPERATOR_TOKEN", "DUPLEX_OPENAI_API_KEY")


def _with_secrets(environment: dict[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Of the secrets, a child gets those that it uses."""
    kept = frozenset(wanted)
    return {name: value for name, value in environment.items() if name not in SECRETS or name in kept}


def child_environment(config: Config, redis_url: str) -> dict[str, str]:
    """The environment of children: ours, with the configuration as it stands after file and command line."""
    values = {name: value for name, value in os.environ.items() if name != "DUPLEX_CONFIG"}
    for name, value in config.model_dump(mode="json", exclude_none=True).items():
        values[f"DUPLEX_{name.upper()}"] = "|".join(value) if isinstance(value, list) else str(value)
    for name in SECRETS:
        secret = getattr(config, name.removeprefix("DUPLEX_").lower())
        if secret is not None:
            values[name] = secret.get_secret_value()
    values["DUPLEX_REDIS_URL"] = redis_url
    # One thread per model: numerical libraries that start one per core fight the neighbours for them.
    return values | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
