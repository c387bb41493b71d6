"""Each fault of a store: what its client says of it, and that a call that is repeated as it was happens once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sessions.store import Appended, LeaseHeld, SequenceGap, StaleOwner, StoreError, StoreTimeout, StoreWentBack
from tests.sessions.fault_proxy import Late
from tests.sessions.store_backends import HOUR_MS, TOKEN, new_record
from tests.sessions.store_faults import FAILING, ROWS, Faulty, Row, faulty_store, params

pytestmark = pytest.mark.live

S_MAX = 10


def play(url: str, other_url: str, folder: Path, scenario: Callable[[Faulty], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX), faulty_store(url, other_url, folder) as faulty:
            await scenario(faulty)

    asyncio.run(run())


async def failure_of(call: Awaitable[object]) -> type[StoreError] | None:
    try:
        await call
    except StoreError as error:
        return type(error)
    return None


@pytest.mark.parametrize("row", params(ROWS))
def test_a_write_that_failed_is_repeated_as_it_was_and_happens_once(
    valkey_url: str, other_valkey_url: str, tmp_path: Path, row: Row
) -> None:
    record = new_record()

    async def scenario(faulty: Faulty) -> None:
        store = faulty.store
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"one")
        await row.strike(faulty, record.session)
        failures = [await failure_of(store.append(owner, 2, b"two")) for _ in range(2)]
        await row.heal(faulty, record.session)
        assert failures == [row.error, row.error]
        last = await store.append(owner, 2, b"two")
        assert last is (Appended.DUPLICATE if row.happens or row.error is None else Appended.OK)
        assert await store.append(owner, 3, b"three") is Appended.OK
        _, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        assert (snapshot.entries, snapshot.went_back) == ((b"one", b"two", b"three"), False)

    play(valkey_url, other_valkey_url, tmp_path, scenario)


@pytest.mark.parametrize("row", params(FAILING))
def test_a_probe_fails_as_a_write_would(valkey_url: str, other_valkey_url: str, tmp_path: Path, row: Row) -> None:
    record = new_record()

    async def scenario(faulty: Faulty) -> None:
        await faulty.store.create(record, "a", HOUR_MS)
        await row.strike(faulty, record.session)
        with pytest.raises(StoreError) as failure:
            await faulty.store.ping()
        await row.heal(faulty, record.session)
        assert type(failure.value) is row.error
        await faulty.store.ping()

    play(valkey_url, other_valkey_url, tmp_path, scenario)


@pytest.mark.slow
def test_a_reply_that_comes_too_late_is_nobody_elses(valkey_url: str, other_valkey_url: str, tmp_path: Path) -> None:
    record = new_record()

    async def scenario(faulty: Faulty) -> None:
        owner = await faulty.store.create(record, "a", HOUR_MS)
        faulty.proxy.befall(Late(), times=1)
        with pytest.raises(StoreTimeout):
            await faulty.store.append(owner, 1, b"one")
        faulty.proxy.heal()
        with pytest.raises(SequenceGap):
            await faulty.store.append(owner, 4, b"four")

    play(valkey_url, other_valkey_url, tmp_path, scenario)


def test_a_replica_that_lagged_has_an_earlier_fence(valkey_url: str, other_valkey_url: str, tmp_path: Path) -> None:
    record = new_record()

    async def scenario(faulty: Faulty) -> None:
        store, session = faulty.store, record.session
        first = await store.create(record, "a", HOUR_MS)
        await store.append(first, 1, b"one")
        await faulty.copy(session, to=faulty.other)
        await store.append(first, 2, b"two")
        owner, _ = await store.acquire(session, "b", TOKEN, HOUR_MS)
        faulty.proxy.lead_to(faulty.other_socket)
        await faulty.server.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreError, match="READONLY"):
            await store.renew(owner)
        for write in (store.renew(owner), store.append(owner, 1, b"x"), store.compact(owner, 1, b"x")):
            with pytest.raises(StoreWentBack) as gone:
                await write
            assert gone.value.fence == 1
        with pytest.raises(SequenceGap) as gap:
            await store.append(first, 3, b"three")
        assert gap.value.expected == 2
        with pytest.raises(LeaseHeld):
            await store.acquire(session, "b", None, HOUR_MS, seen_fence=2)
        above, snapshot = await store.acquire(session, "b", TOKEN, HOUR_MS, seen_fence=2)
        assert (above.fence, snapshot.record.fence, snapshot.entries, snapshot.went_back) == (3, 3, (b"one",), True)
        for late in (first, owner):
            with pytest.raises(StaleOwner):
                await store.append(late, 2, b"late")
        assert await store.append(above, 1, b"two") is Appended.OK

    play(valkey_url, other_valkey_url, tmp_path, scenario)
