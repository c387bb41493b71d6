"""One contract of tenants' accounts, three stores: in memory, on the embedded Valkey, on Debian's Redis 7.0."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pytest
from redis.asyncio import Redis

from sessions.memory_quotas import MemoryQuotas
from sessions.memory_store import MemorySessionStore
from sessions.quota_scripts import (
    DAY_MS,
    LEASES_PER_SESSION_MAX,
    MINUTE_MS,
    RETURNS_PER_MINUTE_MAX,
    SESSION_RETRY_MS,
)
from sessions.quotas import Account, Amounts, OverQuota, Quotas
from sessions.redis_store import account_keys
from sessions.store import LogLimits, SessionStore
from tests.sessions.store_backends import HOUR_MS, START_MS, Backend

_numbers = itertools.count()


def new_tenant() -> str:
    return f"tenant-{next(_numbers)}"


async def two_gateways(backend: Backend, store: SessionStore) -> tuple[SessionStore, SessionStore]:
    return store, backend.open(LogLimits()) if backend.url else store


def test_livekit_agents_4884_two_that_come_in_the_same_instant_never_overshoot(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=3)

    async def scenario(store: SessionStore) -> None:
        here, there = await two_gateways(backend, store)
        asked = [
            gate.open_account(tenant, f"l{n}{n % 2}", HOUR_MS, quotas, {}) for n, gate in enumerate([here, there] * 8)
        ]
        answers = await asyncio.gather(*asked)
        assert sum(isinstance(answer, Account) for answer in answers) == 3
        assert {answer for answer in answers if isinstance(answer, OverQuota)} == {
            OverQuota("sessions", SESSION_RETRY_MS)
        }
        if there is not here:
            await there.close()

    backend.run(scenario)


def test_what_is_drawn_in_the_same_instant_never_exceeds_the_day(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(tokens_per_day=1_000, bytes_per_day=50, audio_seconds_per_day=7)

    async def scenario(store: SessionStore) -> None:
        here, there = await two_gateways(backend, store)
        wanted: Amounts = {"tokens": 300, "bytes": 7, "audio_ms": 6_000}
        gates = enumerate([here, there] * 5)
        drawn = await asyncio.gather(*(gate.draw(tenant, f"l{n}", HOUR_MS, quotas, wanted) for n, gate in gates))
        given = [account.given for account in drawn if account is not None]
        assert sorted(one["tokens"] for one in given) == [0] * 6 + [100] + [300] * 3
        assert sum(one["bytes"] for one in given) == 50
        assert sum(one["audio_ms"] for one in given) == 7_000
        if there is not here:
            await there.close()

    backend.run(scenario)


def test_a_place_is_free_once_its_call_is_over(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=1)

    async def scenario(store: SessionStore) -> None:
        first = await store.open_account(tenant, "one", HOUR_MS, quotas, {})
        assert isinstance(first, Account)
        assert isinstance(await store.open_account(tenant, "two", HOUR_MS, quotas, {}), OverQuota)
        await store.close_account(tenant, "one", first.day, {})
        assert isinstance(await store.open_account(tenant, "two", HOUR_MS, quotas, {}), Account)
        assert isinstance(await store.open_account(new_tenant(), "one", HOUR_MS, quotas, {}), Account), "another's"

    backend.run(scenario)


def test_a_gateway_that_was_killed_holds_no_place_for_longer_than_its_lease(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=1)
    if not backend.url:
        return  # its clock stands

    async def scenario(store: SessionStore) -> None:
        await store.open_account(tenant, "killed", 1, quotas, {})
        async with asyncio.timeout(10):
            while isinstance(await store.open_account(tenant, "next", HOUR_MS, quotas, {}), OverQuota):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await store.draw(tenant, "killed", HOUR_MS, quotas, {}) is None, "it has gone on, and its place is taken"
        assert await store.draw(tenant, "next", HOUR_MS, quotas, {}) is not None

    backend.run(scenario)


def test_starts_are_counted_by_the_minute(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(starts_per_minute=2)

    async def scenario(store: SessionStore) -> None:
        for lease in ("one", "two"):
            opened = await store.open_account(tenant, lease, HOUR_MS, quotas, {})
            assert isinstance(opened, Account)
            await store.close_account(tenant, lease, opened.day, {})
        refused = await store.open_account(tenant, "three", HOUR_MS, quotas, {})
        assert isinstance(refused, OverQuota)
        assert refused.quota == "starts_per_minute"
        assert 0 < refused.retry_ms <= MINUTE_MS

    backend.run(scenario)


def test_what_is_older_than_a_minute_or_of_another_day_counts_no_more(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(starts_per_minute=2, tokens_per_day=5)
    if not backend.url:
        return  # see `test_a_day_and_a_minute_end`

    async def scenario(store: SessionStore) -> None:
        _, starts, used, returns = account_keys(tenant)
        begun, returned = ["sess_a:0", "sess_b:1"], [f"sess_a:x{number}" for number in range(RETURNS_PER_MINUTE_MAX)]
        for lease in begun:
            opened = await store.open_account(tenant, lease, HOUR_MS, quotas, {"tokens": 2})
            assert isinstance(opened, Account)
        for lease in returned:
            assert await enters(store, tenant, lease, quotas)
            await store.close_account(tenant, lease, 0, {})
        refused = await store.open_account(tenant, "sess_a:next", HOUR_MS, quotas, {})
        assert isinstance(refused, OverQuota), "all its returns are used up, and all starts"
        async with Redis.from_url(backend.url) as server:
            await server.zincrby(starts, -MINUTE_MS // 2, "sess_a:0")
            assert not await enters(store, tenant, "sess_a:next", quotas)
            for key, names in ((starts, begun), (returns, returned)):
                for name in names:
                    await server.zincrby(key, -MINUTE_MS, name)
            assert await enters(store, tenant, "sess_a:next", quotas), "as one that comes back"
            assert (await server.zcard(starts), await server.zcard(returns)) == (0, 1)
            assert await enters(store, tenant, "sess_c:2", quotas)
            assert await enters(store, tenant, "sess_d:3", quotas)
            assert not await enters(store, tenant, "sess_e:4", quotas)
            await server.hincrby(used, "day", -1)
            drawn = await store.draw(tenant, "sess_c:2", HOUR_MS, quotas, {"tokens": 5})
            assert told(drawn) == {"tokens": 5}

    backend.run(scenario)


async def enters(store: SessionStore, tenant: str, lease: str, quotas: Quotas) -> bool:
    return isinstance(await store.open_account(tenant, lease, HOUR_MS, quotas, {}), Account)


def test_who_comes_back_takes_the_place_that_is_theirs(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=2)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_a:1", quotas)
        assert await enters(store, tenant, "sess_b:2", quotas)
        assert not await enters(store, tenant, "sess_c:3", quotas), "a newcomer"
        assert not await enters(store, tenant, "sess:4", quotas), "what a name begins with is no session"
        assert await enters(store, tenant, "sess_a:5", quotas)
        await store.close_account(tenant, "sess_a:1", 0, {})
        assert not await enters(store, tenant, "sess_c:6", quotas), "its place is taken by the one who came back"
        await store.close_account(tenant, "sess_a:5", 0, {})
        assert await enters(store, tenant, "sess_c:7", quotas)
        assert not await enters(store, tenant, "sess_a:8", quotas), "the place is another's by now"

    backend.run(scenario)


def test_of_all_who_come_back_in_the_same_instant_none_takes_another_s_place(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=2)

    async def scenario(store: SessionStore) -> None:
        here, there = await two_gateways(backend, store)
        assert await enters(store, tenant, "sess_a:0", quotas)
        sessions = ["sess_a", "sess_b", "sess_c"] * 2
        asked = [enters((here, there)[n % 2], tenant, f"{name}:{n + 1}", quotas) for n, name in enumerate(sessions)]
        answers = await asyncio.gather(*asked)
        assert [answer for name, answer in zip(sessions, answers, strict=True) if name == "sess_a"] == [True, True]
        served = {name for name, answer in zip(sessions, answers, strict=True) if answer}
        assert len(served) == 2
        if there is not here:
            await there.close()

    backend.run(scenario)


def test_a_session_has_only_so_many_leases(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=1)

    async def scenario(store: SessionStore) -> None:
        for number in range(LEASES_PER_SESSION_MAX):
            assert await enters(store, tenant, f"sess_a:{number}", quotas)
        refused = await store.open_account(tenant, "sess_a:more", HOUR_MS, quotas, {})
        assert refused == OverQuota("sessions", SESSION_RETRY_MS)
        await store.close_account(tenant, "sess_a:0", 0, {})
        assert await enters(store, tenant, "sess_a:more", quotas)

    backend.run(scenario)


def test_a_lease_goes_over_to_the_session_that_its_call_takes_up(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=2, tokens_per_day=11)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_a:1", quotas)
        opened = await store.open_account(tenant, "sess_new:2", HOUR_MS, quotas, {"tokens": 10})
        assert isinstance(opened, Account)
        assert not await enters(store, tenant, "sess_b:3", quotas)
        for _ in range(2):  # an answer may be lost, and the draw asked for again
            drawn = await store.draw(tenant, "sess_a:2", HOUR_MS, quotas, {})
            assert drawn == Account(opened.day, {})
        assert await enters(store, tenant, "sess_b:3", quotas), "both are of one session"
        assert await store.draw(tenant, "sess_c:2", HOUR_MS, quotas, {}) is not None, "what was there is not lost"
        await store.close_account(tenant, "sess_a:2", opened.day, {"tokens": 10})
        again = await store.draw(tenant, "sess_a:1", HOUR_MS, quotas, {"tokens": 10})
        assert again == Account(opened.day, {"tokens": 10}), "it is known by its number, whatever it is called"

    backend.run(scenario)


def test_a_lease_that_has_run_out_is_lost_unless_its_session_has_another(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=1)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_a:1", quotas)
        assert await store.draw(tenant, "sess_b:2", HOUR_MS, quotas, {}) is None
        assert await store.draw(tenant, "sess_a:3", HOUR_MS, quotas, {}) is not None

    backend.run(scenario)


def test_a_request_that_comes_late_takes_no_place_of_another(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(sessions=2)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_new:1", quotas)
        assert await store.draw(tenant, "sess_a:1", HOUR_MS, quotas, {}) is not None
        assert await enters(store, tenant, "sess_a:2", quotas)
        assert await enters(store, tenant, "sess_b:3", quotas)
        assert await store.draw(tenant, "sess_new:1", HOUR_MS, quotas, {}) is not None, "late, and it has its place"
        assert not await enters(store, tenant, "sess_new:4", quotas), "as one of the other session"
        await store.close_account(tenant, "sess_a:2", 0, {})
        assert await enters(store, tenant, "sess_a:5", quotas)

    backend.run(scenario)


def test_who_comes_back_starts_no_session_but_not_for_ever(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(starts_per_minute=2)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_a:0", quotas)
        for number in range(1, RETURNS_PER_MINUTE_MAX + 1):
            assert await enters(store, tenant, f"sess_a:{number}", quotas)
            await store.close_account(tenant, f"sess_a:{number - 1}", 0, {})
        assert await enters(store, tenant, "sess_a:x", quotas), "this one is a start"
        await store.close_account(tenant, "sess_a:x", 0, {})
        refused = await store.open_account(tenant, "sess_a:y", HOUR_MS, quotas, {})
        assert isinstance(refused, OverQuota)
        assert refused.quota == "starts_per_minute"
        assert 0 < refused.retry_ms <= MINUTE_MS
        assert not await enters(store, tenant, "sess_b:z", quotas)

    backend.run(scenario)


def test_who_comes_back_to_a_session_without_a_lease_starts_it(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(starts_per_minute=1)

    async def scenario(store: SessionStore) -> None:
        assert await enters(store, tenant, "sess_a:0", quotas)
        await store.close_account(tenant, "sess_a:0", 0, {})
        assert not await enters(store, tenant, "sess_a:1", quotas)

    backend.run(scenario)


def told(answer: Account | OverQuota | None) -> object:
    """All of it but times."""
    return answer.given if isinstance(answer, Account) else answer and answer.quota


@pytest.mark.parametrize("seed", range(5))
def test_leases_come_go_and_go_over_as_in_the_model(backend: Backend, seed: int) -> None:
    random, tenant, model = Random(seed), new_tenant(), MemoryQuotas(lambda: START_MS)
    quotas = Quotas(sessions=2, starts_per_minute=30, tokens_per_day=100)

    async def scenario(store: SessionStore) -> None:
        for newest in range(150):
            step, session = random.choice(["open", "draw", "draw", "close"]), random.choice("abcd")
            number = newest if step == "open" else newest - random.randrange(12)
            lease = f"sess_{session}:{number}"
            wanted: Amounts = {"tokens": random.randrange(3)}
            if step == "open":
                opened = await store.open_account(tenant, lease, HOUR_MS, quotas, wanted)
                assert told(opened) == told(model.open(tenant, lease, HOUR_MS, quotas, wanted))
            elif step == "draw":
                drawn = await store.draw(tenant, lease, HOUR_MS, quotas, wanted)
                assert told(drawn) == told(model.draw(tenant, lease, HOUR_MS, quotas, wanted))
            else:
                await store.close_account(tenant, lease, 0, {})
                model.close(tenant, lease, 0, {})

    backend.run(scenario)


def test_what_the_day_has_used_refuses_the_next_call_until_midnight(backend: Backend) -> None:
    tenant = new_tenant()
    quotas = Quotas(audio_seconds_per_day=1, tool_calls_per_day=1)

    async def scenario(store: SessionStore) -> None:
        first = await store.open_account(tenant, "one", HOUR_MS, quotas, {"audio_ms": 600, "tool_calls": 4})
        assert isinstance(first, Account)
        assert first.given == {"audio_ms": 600, "tool_calls": 1}
        second = await store.open_account(tenant, "two", HOUR_MS, quotas, {"audio_ms": 600, "tool_calls": 4})
        assert isinstance(second, Account), "a call can do without tools"
        assert second.given == {"audio_ms": 400, "tool_calls": 0}
        refused = await store.open_account(tenant, "three", HOUR_MS, quotas, {"audio_ms": 600})
        assert isinstance(refused, OverQuota)
        assert refused.quota == "audio_seconds_per_day"
        assert 0 < refused.retry_ms <= DAY_MS
        await store.close_account(tenant, "two", second.day, {"audio_ms": 100})
        last = await store.open_account(tenant, "three", HOUR_MS, quotas, {"audio_ms": 600})
        assert isinstance(last, Account)
        assert last.given == {"audio_ms": 100}, "what was not spent is there again"

    backend.run(scenario)


def test_nothing_goes_back_twice_nor_to_another_day(backend: Backend) -> None:
    tenant, quotas = new_tenant(), Quotas(tokens_per_day=10)

    async def scenario(store: SessionStore) -> None:
        first = await store.open_account(tenant, "one", HOUR_MS, quotas, {"tokens": 10})
        assert isinstance(first, Account)
        await store.close_account(tenant, "one", first.day - 1, {"tokens": 10})
        await store.close_account(tenant, "one", first.day, {"tokens": 10})
        again = await store.draw(tenant, "two", HOUR_MS, quotas, {"tokens": 10})
        assert again is not None
        assert again.given == {"tokens": 0}

    backend.run(scenario)


def test_without_quotas_all_that_is_wanted_is_given(backend: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        opened = await store.open_account(new_tenant(), "one", HOUR_MS, Quotas(), {"tokens": 5})
        assert isinstance(opened, Account)
        assert opened.given == {"tokens": 5}

    backend.run(scenario)


def test_a_day_and_a_minute_end() -> None:
    now_ms = START_MS - START_MS % DAY_MS + DAY_MS - 1
    model = MemoryQuotas(lambda: now_ms)
    quotas = Quotas(starts_per_minute=1, tokens_per_day=1)
    assert isinstance(model.open("t", "one", 10, quotas, {"tokens": 1}), Account)
    assert model.open("t", "two", 10, quotas, {}) == OverQuota("starts_per_minute", MINUTE_MS)
    now_ms += MINUTE_MS
    assert isinstance(model.open("t", "two", 10, quotas, {"tokens": 1}), Account), "it is the next minute, and day"
    assert model.open("t", "three", 10, Quotas(tokens_per_day=1), {}) == OverQuota(
        "tokens_per_day", DAY_MS - MINUTE_MS + 1
    )


def test_returns_are_counted_by_the_minute() -> None:
    now_ms = START_MS
    model, quotas = MemoryQuotas(lambda: now_ms), Quotas(starts_per_minute=1)
    for number in range(RETURNS_PER_MINUTE_MAX + 1):
        assert isinstance(model.open("t", f"sess_a:{number}", HOUR_MS, quotas, {}), Account)
        model.close("t", f"sess_a:{number - 1}", 0, {})
    assert isinstance(model.open("t", "sess_a:x", HOUR_MS, quotas, {}), OverQuota)
    now_ms += MINUTE_MS
    for again in ("y", "z"):
        assert isinstance(model.open("t", f"sess_a:{again}", HOUR_MS, quotas, {}), Account)


def test_the_model_is_the_store_s() -> None:
    async def scenario() -> None:
        store = MemorySessionStore(lambda: START_MS)
        assert isinstance(await store.open_account("t", "one", 1, Quotas(sessions=1), {}), Account)
        assert isinstance(await store.open_account("t", "two", 1, Quotas(sessions=1), {}), OverQuota)

    asyncio.run(scenario())
