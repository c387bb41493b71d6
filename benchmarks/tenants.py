"""What a tenant has to suffer from others: time to first audio beside them, as a ratio to the same alone.

Theory of operation
    The synthetic engine has few lanes at each stage, so that calls compete: once one, where whoever comes waits for the
    step that runs, since none is broken off; and once four, as an engine has that batches. A victim asks for one reply
    after another, and breaks each off at its first sound. Beside it, in turn: a tenant that knocks and talks at ten
    times its quota of sessions; one whose clients take replies and read nothing; one whose prompts are now short and
    now long, so that what a step is expected to take is wrong. Each of these runs lies between two of the victim
    alone, which is the floor.

    Then two tenants of equal weight, of which one has three times as many calls, ask for text as fast as they can: the
    Jain index of their words tells how evenly the engine is shared (1: evenly; 0.5: one has all).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks import figures
from benchmarks.turns import Say
from duplex.tenants import KEY_PREFIX, key_digest
from tests.live.service import Service, serving

TURNS = 40
RATIO_MAX = 1.2
QUOTA_SESSIONS = 2
KNOCKERS = 10 * QUOTA_SESSIONS
SLOW_READERS = 4
SHARE_S = 8.0
STEP_S_MAX = 30
LONG_WORDS = 300


LANES = (1, 4)
PROFILE = """
[thinker]
concurrency = {lanes}
prefill_ms_per_token = 0.5
word_ms = 16
reply_words = 12
[talker]
concurrency = {lanes}
[vocoder]
concurrency = {lanes}
first_chunk_ms = 20
chunk_ms = 30
"""
TENANTS = ("victim", "greedy", "slow", "wrong", "few", "many")

Beside = Callable[[Service, str], Awaitable[None]]


@contextmanager
def _service(lanes: int) -> Iterator[tuple[Service, dict[str, str]]]:
    """A service with tenants, and their keys."""
    keys = {tenant: KEY_PREFIX + secrets.token_urlsafe(32) for tenant in TENANTS}
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        profile, tenants = Path(folder, "profile.toml"), Path(folder, "tenants.toml")
        profile.write_text(PROFILE.format(lanes=lanes), encoding="utf-8")
        tenants.write_text("".join(_table(tenant, key) for tenant, key in keys.items()), encoding="utf-8")
        settings = {"synthetic_profile": str(profile), "tenants_file": str(tenants), "calls_max": "40"}
        with serving(Path(folder, "data"), settings | {"log_level": "warning"}, engine="synthetic") as service:
            yield service, keys


def _table(tenant: str, key: str) -> str:
    quota = f"quotas = {{ sessions = {QUOTA_SESSIONS} }}\n" if tenant == "greedy" else ""
    return f'[[tenants]]\nid = "{tenant}"\nkey_hashes = ["{key_digest(key)}"]\n{quota}\n'


class _Caller:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def ask(self, text: str, modality: str = "audio") -> None:
        """Have `text` answered."""
        content = [{"type": "input_text", "text": text}]
        await self._send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        await self._send("response.create", response={"output_modalities": [modality]})

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(STEP_S_MAX):
            while True:
                event: dict[str, Any] = json.loads(await self._socket.recv())
                if event["type"] == kind:
                    return event

    async def first_audio_ms(self, text: str) -> float:
        """Ask, and break the answer off at its first sound."""
        began = time.perf_counter()
        await self.ask(text)
        await self.until("response.output_audio.delta")
        took = (time.perf_counter() - began) * 1e3
        await self._send("response.cancel")
        await self.until("response.done")
        return took


@asynccontextmanager
async def _calling(service: Service, key: str, **options: Any) -> AsyncIterator[_Caller]:
    headers = {"Authorization": f"Bearer {key}"}
    url = f"ws://{service.address}/v1/realtime"
    async with connect(url, additional_headers=headers, compression=None, proxy=None, **options) as socket:
        caller = _Caller(socket)
        await caller.until("session.created")
        yield caller


# ---- who is beside the victim -------------------------------------------------------------------------


async def _greedy(service: Service, key: str) -> None:
    """All of its clients knock, all the time; those that are let in ask without a pause."""
    await asyncio.gather(*(_knock(service, key) for _ in range(KNOCKERS)))


async def _knock(service: Service, key: str) -> None:
    while True:
        try:
            async with _calling(service, key) as caller:
                while True:
                    await caller.first_audio_ms("Tell me more.")
        except (InvalidStatus, ConnectionClosed):
            await asyncio.sleep(0.25)


async def _slow(service: Service, key: str) -> None:
    await asyncio.gather(*(_read_nothing(service, key) for _ in range(SLOW_READERS)))


async def _read_nothing(service: Service, key: str) -> None:
    """Ask, and leave all that comes where it is, until the service lets go."""
    while True:
        with suppress(ConnectionClosed):
            async with _calling(service, key, max_queue=1) as caller:
                await caller.ask("Tell me a story.")
                await asyncio.sleep(STEP_S_MAX)


async def _wrong(service: Service, key: str) -> None:
    """Short prompts, by which the next steps are judged, and then ones that take far longer."""
    async with _calling(service, key) as one, _calling(service, key) as other:
        await asyncio.gather(*(_alternate(caller) for caller in (one, other)))


async def _alternate(caller: _Caller) -> None:
    while True:
        for words in (1, 1, 1, LONG_WORDS):
            await caller.first_audio_ms("word " * words)


# ---- what is measured ---------------------------------------------------------------------------------


async def _victim(service: Service, key: str, turns: int) -> list[float]:
    async with _calling(service, key) as caller:
        return [await caller.first_audio_ms("How are you?") for _ in range(turns)]


async def _beside(
    service: Service, keys: dict[str, str], turns: int, other: tuple[str, Beside]
) -> tuple[list[float], list[float]]:
    """The victim's times alone, before and after, and beside `other`."""
    name, be = other
    before = await _victim(service, keys["victim"], turns // 2)
    neighbour = asyncio.ensure_future(be(service, keys[name]))
    await asyncio.sleep(1)
    beside = await _victim(service, keys["victim"], turns)
    neighbour.cancel()
    await asyncio.gather(neighbour, return_exceptions=True)
    await asyncio.sleep(1)
    return before + await _victim(service, keys["victim"], turns // 2), beside


def jain(shares: Sequence[float]) -> float:
    """How even `shares` are (Jain, Chiu and Hawe, 1984): from 1 / their number to 1."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


async def _words(service: Service, key: str, until: float) -> int:
    """How many words one call gets as text."""
    count = 0
    async with _calling(service, key) as caller:
        while time.perf_counter() < until:
            await caller.ask("More.", "text")
            done = await caller.until("response.done")
            count += done["response"]["usage"]["output_tokens"]
    return count


async def tenants(say: Say, *, turns: int) -> bool:
    """All of it; false where a ratio is too large with as many lanes as a batch has."""
    ratios = [await _with_lanes(say, lanes, turns) for lanes in LANES]
    return max(ratios[-1]) <= RATIO_MAX


async def _with_lanes(say: Say, lanes: int, turns: int) -> list[float]:
    ratios = []
    say(f"{lanes} lane(s) at each stage")
    with _service(lanes) as (service, keys):
        for name, be in (("greedy", _greedy), ("slow", _slow), ("wrong", _wrong)):
            alone, beside = await _beside(service, keys, turns, (name, be))
            ratios.append(figures.percentile(beside, 0.95) / figures.percentile(alone, 0.95))
            say(figures.line("first audio, alone", alone))
            say(figures.line(f"first audio, beside {name!r}", beside))
            say(f"    p95 is {ratios[-1]:.2f} of alone, aim {RATIO_MAX}")
        until = time.perf_counter() + SHARE_S
        calls = ["few"] * 2 + ["many"] * 6
        counts = await asyncio.gather(*(_words(service, keys[tenant], until) for tenant in calls))
    few, many = sum(counts[:2]), sum(counts[2:])
    say(f"words of tenants of equal weight, with 2 and 6 calls: {few} and {many}, Jain index {jain([few, many]):.3f}")
    return ratios
