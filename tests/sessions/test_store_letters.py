"""What a store does beside keeping sessions: it carries letters between gateways, and keeps secrets for one call."""

from __future__ import annotations

import asyncio

from sessions.store import LogLimits, SessionStore
from tests.sessions.store_backends import HOUR_MS, Backend

S_MAX = 10


def test_a_letter_goes_to_its_reader_alone(backend: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        other_gateway = backend.open(LogLimits()) if backend.url else store
        async with asyncio.timeout(S_MAX):
            assert not await other_gateway.send("gw_1", b"to nobody")
            async with store.letters("gw_1") as one, store.letters("gw_2") as other:
                assert await other_gateway.send("gw_2", b"\x00\xff")
                assert await other_gateway.send("gw_1", b"")
                assert [await anext(one), await anext(other)] == [b"", b"\x00\xff"]
            while await other_gateway.send("gw_1", b"to nobody"):  # noqa: ASYNC110 - a server sees it in its own time
                await asyncio.sleep(0)
        if other_gateway is not store:
            await other_gateway.close()

    backend.run(scenario)


def test_a_secret_is_kept_for_its_time_and_spent_once(backend: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        assert await store.keep_secret("acme", b"\x00one", b"\xffgrant", HOUR_MS, 2)
        assert await store.keep_secret("acme", b"two", b"", 2 * HOUR_MS, 2)
        assert not await store.keep_secret("acme", b"three", b"", HOUR_MS, 2)
        assert [await store.find_secret("acme", digest) for digest in (b"\x00one", b"two", b"three")] == [
            b"\xffgrant",
            b"",
            None,
        ]
        assert await store.keep_secret("acme", b"\x00one", b"\xffother", HOUR_MS, 2), "it has its place"
        spent = await asyncio.gather(*(store.spend_secret("acme", b"\x00one") for _ in range(3)))
        assert (spent.count(b"\xffother"), spent.count(None)) == (1, 2)
        assert await store.find_secret("acme", b"\x00one") is None
        assert await store.keep_secret("acme", b"three", b"", HOUR_MS, 2), "its place is free"
        assert [await store.spend_secret("acme", digest) for digest in (b"two", b"three")] == [b"", b""]

    backend.run(scenario)


def test_a_secret_whose_time_is_over_is_gone_and_takes_no_place(backend: Backend) -> None:
    if not backend.url:
        return  # its clock stands

    async def scenario(store: SessionStore) -> None:
        assert await store.keep_secret("acme", b"short", b"", 1, 1)
        async with asyncio.timeout(S_MAX):
            while await store.find_secret("acme", b"short") is not None:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
        assert await store.spend_secret("acme", b"short") is None
        assert await store.keep_secret("acme", b"next", b"", HOUR_MS, 1)
        assert not await store.keep_secret("acme", b"another", b"", HOUR_MS, 1)
        await store.spend_secret("acme", b"next")

    backend.run(scenario)


def test_secrets_are_their_holders_own(backend: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        assert await store.keep_secret("holder_1", b"one", b"grant", HOUR_MS, 1)
        assert not await store.keep_secret("holder_1", b"two", b"", HOUR_MS, 1)
        assert await store.keep_secret("holder_2", b"two", b"", HOUR_MS, 1), "others' places are theirs"
        assert await store.find_secret("holder_2", b"one") is None
        assert await store.spend_secret("holder_2", b"one") is None
        assert await store.find_secret("no {holder}", b"one") is None
        assert await store.spend_secret("holder_1", b"one") == b"grant"
        assert await store.spend_secret("holder_2", b"two") == b""

    backend.run(scenario)
