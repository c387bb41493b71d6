"""Each fault of a real store: what a running call and a new one make of it; nothing is lost or doubled by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from duplex import log_queue
from duplex.admission import RefusedError
from duplex.config import Config
from duplex.gateway import Admitted, Gateway
from duplex.pipeline import graph_of
from duplex.stage_pool import StagePool
from sessions.events import DurabilityRestored, DurabilitySuspended
from sessions.planner import ReplyDefaults
from sessions.settings import SessionSettings
from sessions.store import StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from tests.duplex.test_gateway import Deaf, say, texts
from tests.duplex.test_gateway_store import Listener
from tests.sessions.store_backends import embedded_server
from tests.sessions.store_faults import FAILING, Faulty, Row, faulty_store, params

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("_stages_are_there")]

S_MAX = 10

# What is said at the door, and by readiness.
SAID: dict[type[StoreError], tuple[str, str]] = {
    StoreUnavailable: ("store_unavailable", "the store is away"),
    StoreTimeout: ("store_unavailable", "the store does not answer"),
    StoreFull: ("store_full", "the store is full"),
    StoreRefused: ("store_unavailable", "the store refuses what it is asked"),
}
LASTING = tuple(row for row in FAILING if row.error is not StoreRefused)
REFUSING = tuple(row for row in FAILING if row.error is StoreRefused)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server, and one to which it fails over."""
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    with embedded_server(one) as url, embedded_server(other) as other_url:
        yield url, other_url


@pytest.fixture
def _stages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))
    monkeypatch.setattr(log_queue, "RETRY_MS_MIN", 1)
    monkeypatch.setattr(log_queue, "RETRY_MS_MAX", 1)


class Bench:
    def __init__(self, faulty: Faulty, folder: Path) -> None:
        self.faulty = faulty
        config = Config(engine="scripted", data_dir=folder)
        self.gateway = Gateway(config, graph_of(config), faulty.store, Deaf(), ReplyDefaults("Hi.", 10))

    async def refused_code(self) -> str:
        with pytest.raises(RefusedError) as refused:
            async with self.gateway.new_call(SessionSettings()):
                pass
        return refused.value.code

    async def until_not_ready(self) -> str | None:
        for _ in range(2):
            await self.gateway.store_watch.probe()
        return self.gateway.not_ready()

    def figure(self, name: str) -> float:
        lines = self.gateway.render_metrics().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


def play(urls: tuple[str, str], folder: Path, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX), faulty_store(*urls, folder) as faulty:
            await scenario(Bench(faulty, folder))

    asyncio.run(run())


async def begin(admitted: Admitted) -> Listener:
    listener = Listener()
    admitted.call.attach(listener)
    say(admitted, "One.")
    assert await admitted.call.flush()
    return listener


@pytest.mark.parametrize("row", params(LASTING))
def test_a_call_goes_on_through_a_fault_that_passes_and_no_new_one_is_taken(
    urls: tuple[str, str], tmp_path: Path, row: Row
) -> None:
    async def scenario(one: Bench) -> None:
        assert row.error is not None
        code, trouble = SAID[row.error]
        async with one.gateway.new_call(SessionSettings()) as admitted:
            listener, session = await begin(admitted), admitted.call.session
            await row.strike(one.faulty, session)
            say(admitted, "Two.")
            await listener.until_told(DurabilitySuspended)
            say(admitted, "Three.")
            assert one.figure("duplex_calls_unstored") == 1
            assert one.figure(f'duplex_store_errors_total{{kind="{row.error.__name__}"}}') >= 1
            assert await one.refused_code() == code
            assert await one.until_not_ready() == trouble
            with pytest.raises(RefusedError, match=trouble):
                one.gateway.admit()
            assert one.figure("duplex_store_ready") == 0
            await row.heal(one.faulty, session)
            await listener.until_told(DurabilityRestored)
            await one.gateway.store_watch.probe()
            assert one.gateway.not_ready() is None
            assert (one.figure("duplex_calls_unstored"), one.figure("duplex_store_ready")) == (0, 1)
            assert [listener.times_told(kind) for kind in (DurabilitySuspended, DurabilityRestored)] == [1, 1]
            assert one.figure("duplex_durability_suspended_total") == 1
            assert admitted.call.end_reason is None
        async with one.gateway.resumed_call(admitted.resume_token) as again:
            assert (texts(again), again.history_lost) == (["One.", "Two.", "Three."], False)

    play(urls, tmp_path, scenario)


@pytest.mark.parametrize("row", params(REFUSING))
def test_a_fault_that_cannot_pass_ends_the_call_at_once(urls: tuple[str, str], tmp_path: Path, row: Row) -> None:
    async def scenario(one: Bench) -> None:
        assert row.error is not None
        code, trouble = SAID[row.error]
        async with one.gateway.new_call(SessionSettings()) as admitted:
            await begin(admitted)
            await row.strike(one.faulty, admitted.call.session)
            say(admitted, "Two.")
            await admitted.call.ended.wait()
            assert admitted.call.end_reason == "store_refused"
            assert await one.refused_code() == code
            assert await one.until_not_ready() == trouble
        await row.heal(one.faulty, admitted.call.session)
        async with one.gateway.resumed_call(admitted.resume_token) as again:
            assert texts(again) == ["One."], "what could not be written was not taken for written"

    play(urls, tmp_path, scenario)


def test_a_replica_that_lagged_gets_the_whole_call_again(urls: tuple[str, str], tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        faulty = one.faulty
        async with one.gateway.new_call(SessionSettings()) as first:
            await begin(first)
            await faulty.copy(first.call.session, to=faulty.other)
        async with one.gateway.resumed_call(first.resume_token) as second:
            listener = Listener()
            second.call.attach(listener)
            say(second, "Two.")
            assert await second.call.flush()
            faulty.proxy.lead_to(faulty.other_socket)
            await faulty.server.replicaof("127.0.0.1", "1")
            say(second, "Three.")
            await listener.until_told(DurabilityRestored)
            assert one.figure('duplex_store_errors_total{kind="StoreWentBack"}') == 1
            epoch = second.call.conversation.epoch
        async with one.gateway.resumed_call(first.resume_token, epoch=epoch) as third:
            assert (texts(third), third.history_lost) == (["One.", "Two.", "Three."], False)
            assert third.call.conversation.epoch > epoch

    play(urls, tmp_path, scenario)
