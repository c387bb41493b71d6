"""What it costs that a conversation outlives its process: checkpoints, the wait for them, and what the store holds.

Theory of operation
    An embedded Valkey is started for each durability. Turns as the service writes them (the caller's words, a reply of
    five seconds in four clauses, what was heard of it each second) go through the real recorder and journal, and in
    turn with each entry the same bytes through a bare XADD, which is the floor. Then clauses are said by the real
    conversation: its sound comes with its words, or `CHUNK_MS` behind them as the first chunk does, and what is added
    is the time from there until the first frame may go; in turn with the same where nothing waits for the store.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from redis.asyncio import Redis

from benchmarks.figures import percentile
from duplex.checkpoints import Recorder, encode_settings
from duplex.journal import Journal, JournalPorts
from sessions.durability import APPENDFSYNC, Durability
from sessions.effects import Save, SaveDeletion, SaveHeard, SaveItem, SaveSpeaking
from sessions.embedded_valkey import EmbeddedValkey
from sessions.items import Item
from sessions.records import ReplySpeaking, SessionRecord, TurnRecord, encode_entry, token_digest
from sessions.redis_store import RedisSessionStore, session_keys
from sessions.reply import SpokenWord
from sessions.saving import Part
from sessions.settings import OUTPUT_RATE, SessionSettings
from tests.sessions.talk import WORD_SAMPLES, Talk

Say = Callable[[str], None]

TURNS = 50
CLAUSES = 200
IDLE_SESSIONS = 10_000
AT_ONCE = 64
CHUNK_MS = 10  # the vocoder's first chunk after the words, as docs/figures.md has it
LEASE_MS = 30_000
FLUSH_NS_MAX = 10_000_000_000
EPOCH = 1 << 20
FLOOR_KEY = "bench:floor"
ASKED = "Could you tell me what the weather will be like tomorrow afternoon?"
REPLY = (
    "Tomorrow afternoon will be mostly dry,",
    "with a little wind from the west,",
    "and about eighteen degrees.",
    "Shall I look at the evening as well?",
)
SECONDS = 5


def turn(number: int, previous: str | None) -> Iterator[Save]:
    """All that is saved of one exchange, in its order."""
    asked, said = f"item_{2 * number:024}", f"item_{2 * number + 1:024}"
    yield SaveItem(Item(asked, "user", "", spoken=True), previous)
    yield SaveItem(Item(asked, "user", ASKED, spoken=True), previous)
    first = 0
    for place, clause in enumerate(REPLY, 1):
        times = (first + at for at in range(len(clause.split())))
        words = tuple(
            SpokenWord(word, at * WORD_SAMPLES, (at + 1) * WORD_SAMPLES)
            for word, at in zip(clause.split(), times, strict=True)
        )
        part = Part(place, first, words, "")
        yield SaveSpeaking(said, f"resp_{number:024}", EPOCH, asked, OUTPUT_RATE, part)
        first += len(words)
    for second in range(1, SECONDS + 1):
        yield SaveHeard(said, second * OUTPUT_RATE, "acked", 2_400)
    item = Item(said, "assistant", " ".join(REPLY), spoken=True, audio_samples=first * WORD_SAMPLES)
    yield SaveItem(item, asked)


@dataclass(slots=True)
class Session:
    """One session at a store, with its recorder and journal. `stored` is told of each entry that the store has."""

    store: RedisSessionStore
    name: str
    stored: Callable[[TurnRecord], None] = lambda _: None
    recorder: Recorder = field(default_factory=lambda: Recorder((), SessionSettings(), EPOCH))
    journal: Journal = field(init=False)
    running: asyncio.Task[None] = field(init=False)

    async def open(self) -> None:
        record = SessionRecord(self.name, "bench", 0, encode_settings(SessionSettings()), token_digest(self.name))
        self.journal = Journal(self.store, await self.store.create(record, "gw_bench", LEASE_MS))
        self.journal.attach(JournalPorts(self.recorder.compacted, lambda _: None, lambda _: None, self._stored))
        self.running = asyncio.create_task(self.journal.run())

    def _stored(self, entry: TurnRecord) -> None:
        self.stored(entry)

    def save(self, effect: Save) -> TurnRecord:
        entry = self.recorder.saved(effect)
        self.journal.write(entry)
        if self.journal.compaction_due():
            self.journal.write(self.recorder.compacted())
        return entry

    async def flush(self) -> None:
        assert await self.journal.flush(FLUSH_NS_MAX), "the store took what was written"

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def _ms(values: list[int]) -> str:
    return f"{percentile(values, 0.5) / 1e6:.3f} / {percentile(values, 0.95) / 1e6:.3f} ms"


async def checkpoints(say: Say, turns: int) -> bool:
    """Print all figures, for both durabilities; False where something was not stored."""
    for durability in APPENDFSYNC:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="duplex-"))
            server = stack.enter_context(EmbeddedValkey(Path(folder), durability=durability))
            await _at(say, durability, server.url, turns)
    return True


async def _at(say: Say, durability: Durability, url: str, turns: int) -> None:
    say(f"\n{durability} (appendfsync {APPENDFSYNC[durability]})")
    store, redis = RedisSessionStore(url), Redis.from_url(url)
    try:
        await _turns(say, store, redis, turns)
        for gap_ms in (CHUNK_MS, 0):
            await _clauses(say, store, gap_ms)
        if durability == "process-crash-safe":
            await _idle(say, store, redis)
    finally:
        await store.close()
        await redis.aclose()


async def _turns(say: Say, store: RedisSessionStore, redis: Redis, turns: int) -> None:
    session = Session(store, "turns")
    await session.open()
    ours: list[int] = []
    floor: list[int] = []
    per_turn: list[int] = []
    count = written = 0
    for number in range(turns):
        spent = 0
        for effect in turn(number, f"item_{2 * number - 1:024}" if number else None):
            began_ns = time.monotonic_ns()
            entry = session.save(effect)
            await session.flush()
            spent += time.monotonic_ns() - began_ns
            ours.append(time.monotonic_ns() - began_ns)
            payload = encode_entry(entry)
            began_ns = time.monotonic_ns()
            await redis.xadd(FLOOR_KEY, {"entry": payload})
            floor.append(time.monotonic_ns() - began_ns)
            count, written = count + 1, written + len(payload)
        per_turn.append(spent)
    ratio = percentile(ours, 0.5) / percentile(floor, 0.5)
    say(f"  a checkpoint, p50 / p95: {_ms(ours)}; a bare XADD of the same bytes {_ms(floor)}: {ratio:.2f} times")
    say(f"  a turn: {count / turns:.0f} entries, {written / turns:,.0f} bytes, {_ms(per_turn)} of the store in all")
    keys = session_keys(session.name)
    held = sum([int(await redis.memory_usage(key, samples=0) or 0) for key in keys])
    say(f"  memory of a session of {turns} turns: {held:,} bytes, {await redis.xlen(keys[1])} entries")
    await redis.delete(FLOOR_KEY)
    await session.close()


async def _clauses(say: Say, store: RedisSessionStore, gap_ms: int) -> None:
    """Sound comes `gap_ms` behind its words."""
    session = Session(store, f"clauses_{gap_ms}")
    await session.open()
    held: list[int] = []
    free: list[int] = []
    for number in range(CLAUSES):
        for is_away, added in ((False, held), (True, free)):
            added.append(await _said(session, f"{number}_{is_away}", gap_ms, is_away=is_away))
    more = (percentile(held, 0.5) - percentile(free, 0.5)) / 1e6
    say(
        f"  first sample of a clause, sound {gap_ms} ms behind its words: held until stored {_ms(held)}, "
        f"not held {_ms(free)}; {more:+.3f} ms"
    )
    await session.close()


async def _said(session: Session, name: str, gap_ms: int, *, is_away: bool) -> int:
    """From the coming of the sound to the first frame, ns."""
    talk, sent, item = Talk(), asyncio.Event(), f"item_{name}"
    talk.is_stored = False
    response = _asked(talk)
    talk.core.speaking.store_is_away(is_away)

    def stored(entry: TurnRecord) -> None:
        if isinstance(entry, ReplySpeaking):
            talk.core.speaking.saved(talk.core.speaking.running[0].item, entry.part)
            if talk.send(1):
                sent.set()

    session.stored = stored
    for effect in talk.words(response, "one two three"):
        if isinstance(effect, SaveSpeaking):
            part = Part(1, 0, effect.part.words, "")
            session.save(SaveSpeaking(item, name, EPOCH, None, OUTPUT_RATE, part))
    if gap_ms:
        await asyncio.sleep(gap_ms / 1_000)
    began_ns = time.monotonic_ns()
    talk.audio(response, WORD_SAMPLES)
    if talk.send(1):
        sent.set()
    await sent.wait()
    added_ns = time.monotonic_ns() - began_ns
    session.save(SaveDeletion(item))
    await session.flush()
    return added_ns


def _asked(talk: Talk) -> str:
    talk.say("hello")
    response = talk.active
    talk.open(response)
    return response


async def _idle(say: Say, store: RedisSessionStore, redis: Redis) -> None:
    """Sessions of one exchange each, as they were written, that nobody uses."""
    recorder = Recorder((), SessionSettings(), EPOCH)
    payloads = [encode_entry(recorder.saved(effect)) for effect in turn(0, None)]
    before, names = await _used(redis), iter(range(IDLE_SESSIONS))
    began_ns = time.monotonic_ns()

    async def make() -> None:
        for number in names:
            record = SessionRecord(f"idle_{number}", "bench", 0, encode_settings(SessionSettings()), token_digest("x"))
            owner = await store.create(record, "gw_bench", LEASE_MS)
            for seq, payload in enumerate(payloads, 1):
                await store.append(owner, seq, payload)

    await asyncio.gather(*(make() for _ in range(AT_ONCE)))
    took_s = (time.monotonic_ns() - began_ns) / 1e9
    each = (await _used(redis) - before) / IDLE_SESSIONS
    rate = IDLE_SESSIONS * (len(payloads) + 1) / took_s
    say(f"  {IDLE_SESSIONS:,} idle sessions of one turn: {each:,.0f} bytes each ({rate:,.0f} writes a second)")


async def _used(redis: Redis) -> int:
    return int((await redis.info("memory"))["used_memory"])
