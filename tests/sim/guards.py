"""Shows that the simulator tests something: takes one guard of the product away, and waits for it to be missed.

`python -m tests.sim.guards [--seeds N]` prints for each guard the first seed that breaks a promise without it.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import msgspec

from duplex.log_queue import LogQueue
from duplex.replica_port import Greeting, ReplicaPort
from duplex.stage_pool import StagePool
from media.heard_estimate import Path
from media.playout import Playout
from sessions import response as life
from sessions import takeover
from sessions.conversation import Conversation
from sessions.heard import Heard
from sessions.items import Item
from sessions.memory_quotas import MemoryQuotas, _Tenant
from sessions.memory_store import MemorySessionStore, _Session
from sessions.prompt import _Script
from sessions.quotas import Allowance, Amounts, Kind, Quotas
from sessions.records import SessionRecord
from sessions.reply import Reply
from sessions.response import Phase, Response
from sessions.saving import Part, Saving
from sessions.service_calls import ServiceCalls
from sessions.settings import ResponseSpec
from sessions.speaking import Speaking
from sessions.store import Appended, Ownership, StoreError
from stages.contracts import Tag, TextDelta
from stages.credit import Credit
from stages.kv_cache import Claim, KvCache
from stages.messages import Welcome
from stages.outbox import Outbox
from stages.owners import Owners
from stages.pool import Pool
from stages.scheduler import StageScheduler
from stages.stage import Stage
from tests.sim.plan import draw
from tests.sim.shrink import broken_at

SEEDS_MAX = 2_000  # as many as CI plays


def _anybody(owners: Owners, link: int, session: str) -> bool:
    """In place of: only a session's owner is followed."""
    return session in owners._sessions


def _takes_what_is_late(mouth: Speaking, tag: Tag, event: Any, now_ns: int) -> list[Any]:
    """In place of: what comes for a response that has ended changes nothing."""
    run = mouth._runs.get(tag.response)
    if run is not None and run.life.ended and isinstance(event, TextDelta):
        return mouth._text(run, event, now_ns)
    return _PUBLISHED(mouth, tag, event, now_ns)


_PUBLISHED = Speaking.published


def _nothing(credit: Credit, units: int) -> None:
    """In place of: what was consumed may be sent again."""


def _twice(credit: Credit, units: int) -> None:
    """In place of: what was consumed may be sent again, once."""
    credit._in_flight = max(0, credit._in_flight - 2 * units)


def _not_struck(response: Response, name: str, attempt: int, now_ns: int) -> list[life.Effect]:
    """In place of: who has let go is struck from the ledger."""
    return response._check_drained(now_ns)


def _struck_early(response: Response, now_ns: int) -> list[life.Effect]:
    """In place of: a response has drained when nobody holds anything of it."""
    if response._done_ns is None or response._drained:
        return []
    return response._drain("complete", now_ns)


def _all_alike(port: ReplicaPort, welcome: Welcome, *, on_control: bool) -> Greeting:
    """In place of: processes of one worker are told apart by their incarnations."""
    return _WELCOMED(port, msgspec.structs.replace(welcome, incarnation=1), on_control=on_control)


_WELCOMED = ReplicaPort.welcomed


def _never_reborn(pool: StagePool, replica: str, incarnation: int) -> None:
    """In place of: a higher incarnation is another process, and the one before it holds nothing any more."""
    pool._lost[replica].clear()
    _UP(pool, replica, incarnation)


_UP = StagePool._up


def _moves_from_the_end(response: Response, step: life.Step) -> bool:
    """In place of: no phase follows an ending."""
    phase = Phase.OUTPUT_OPEN if response.ended else response.phase
    target = life._TRANSITIONS.get((phase, step))
    if target is not None:
        response._phase = target
    return target is not None


def _keeps_its_credit(outbox: Outbox) -> None:
    """In place of: a stream that ends takes its credit with it."""


def _keeps_the_session(stage: Stage, session: str) -> list[Any]:
    """In place of: the model forgets a session that was closed."""
    return []


def _keeps_the_place(pool: Pool, work: str, now_ns: int) -> list[Any]:
    """In place of: the place of a stream that is over is free."""
    return []


def _any_owner(store: MemorySessionStore, ownership: Any) -> Any:
    """In place of: who was taken over writes nothing more."""
    return store._find(ownership.session)


async def _brings_back(store: MemorySessionStore, ownership: Ownership, seq: int, entry: bytes) -> Appended:
    """In place of: what was deleted is there no more."""
    if ownership.session not in store._sessions:
        record = SessionRecord(ownership.session, "sim", 0, b"", b"")
        store._sessions[ownership.session] = held = _Session(
            record, ownership.fence, ownership.owner, 0, 0, seq=seq - 1
        )
        store._touch(held, ownership)
    return await _APPEND(store, ownership, seq, entry)


_APPEND = MemorySessionStore.append


def _never_repeated(held: _Session, ownership: Ownership, seq: int, entry: bytes) -> bool:
    """In place of: an entry that was taken is known when it comes again."""
    return False


def _never_behind(queue: LogQueue, error: StoreError) -> bool:
    """In place of: a store that has gone back is told again what it has forgotten."""
    return False


def _never(scheduler: StageScheduler, now_ns: int) -> bool:
    """In place of: a step whose stream's time is over is not started."""
    return False


def _number_again(queue: LogQueue) -> None:
    """In place of: each entry has a number of its own."""
    if queue._current is not None:
        queue._current = None
        queue._waiting.popleft()


def _unheeded(heard: Heard, response: str, samples: int, now_ns: int) -> str | None:
    """In place of: what a client reports puts an estimate right, and moves a cut."""
    return None


def _without_way(playout: Playout, path: Path, now_ns: int) -> None:
    """In place of: what was sent is heard once it has come there."""


def _unsaved(saving: Saving, reply: Reply, generated: int, now_ns: int) -> Part | None:
    """In place of: what is about to be said is stored."""
    return None


def _not_kept_back(playout: Playout, response: str, sample: int | None) -> None:
    """In place of: sound waits until its words are stored."""


def _at_once(calls: ServiceCalls, item: Item, spec: ResponseSpec, now_ns: int) -> list[Any]:
    """In place of: a call is begun once the store has it."""
    return [*_CALLED(calls, item, spec, now_ns), *calls.stored(item.call_id)]


_CALLED = ServiceCalls.call


def _does_again(calls: ServiceCalls, items: Iterable[Item], now_ns: int) -> list[Any]:
    """In place of: what is not safe, and may have been done, is not done again."""
    for call in calls._calls.values():
        call.begun = replace(call.begun, safe=True)
    return _RECOVERED(calls, items, now_ns)


_RECOVERED = ServiceCalls.recover


def _leaves_open(calls: ServiceCalls, item: Item, now_ns: int) -> list[Any]:
    """In place of: of every call that history has it says what came of it."""
    return []


def _cancels_all(calls: ServiceCalls) -> list[Any]:
    """In place of: an interruption cancels what is safe."""
    for call in calls._calls.values():
        call.begun = replace(call.begun, safe=True)
    return _INTERRUPTED(calls)


_INTERRUPTED = ServiceCalls.interrupt


def _heedless(script: _Script) -> None:
    """In place of: a prompt has every call, and what came of it."""
    script._calls.clear()


def _anybodys(cache: KvCache[Any], claim: Claim[Any]) -> Any:
    """In place of: KV is found by who made it, and of what."""
    return next(iter(cache._places.values()), None)


def _keeps_its_lease(quotas: MemoryQuotas, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
    """In place of: the place of a call that is over is its tenant's again."""


def _without_a_place(quotas: MemoryQuotas, held: _Tenant, lease: str, limits: Quotas) -> bool:
    """In place of: the place of a session that has one is its own."""
    return limits.sessions is None or len(held.leases) < limits.sessions


def _by_its_name(held: _Tenant, lease: str) -> str | None:
    """In place of: a lease is known by its number, whichever session its call has taken up."""
    return lease if held.leases.pop(lease, None) is not None else None


def _takes_more(allowance: Allowance, kind: Kind) -> bool:
    """In place of: what is used up is not used any more."""
    return True


def _goes_on_waiting(conversation: Conversation, now_ns: int) -> list[Any]:
    """In place of: a response that has waited for its quota is made once there is more."""
    return []


def _never_overtaken(fence: int, present_fence: int) -> bool:
    """In place of: who took a session over before its present owner has lost it."""
    return False


GUARDS: dict[str, tuple[type | ModuleType, str, Callable[..., Any]]] = {
    "staleness": (Owners, "owns", _anybody),
    "staleness, late output": (Speaking, "published", _takes_what_is_late),
    "credit return": (Credit, "give_back", _nothing),
    "credit return, once": (Credit, "give_back", _twice),
    "ledger strike": (Response, "_strike", _not_struck),
    "ledger, whole": (Response, "_check_drained", _struck_early),
    "incarnation": (ReplicaPort, "welcomed", _all_alike),
    "incarnation, death": (StagePool, "_up", _never_reborn),
    "terminal, once": (Response, "_move", _moves_from_the_end),
    "release, credit": (Outbox, "close", _keeps_its_credit),
    "release, session": (Stage, "_release_session", _keeps_the_session),
    "release, place": (Pool, "end", _keeps_the_place),
    "takeover, the last": (takeover, "is_overtaken", _never_overtaken),
    "fence": (MemorySessionStore, "_owned", _any_owner),
    "deletion": (MemorySessionStore, "append", _brings_back),
    "sequence": (LogQueue, "written", _number_again),
    "sequence, repetition": (MemorySessionStore, "_repeated", _never_repeated),
    "store that went back": (LogQueue, "_went_back", _never_behind),
    "tools, before": (ServiceCalls, "call", _at_once),
    "tools, once": (ServiceCalls, "recover", _does_again),
    "tools, taken up": (ServiceCalls, "_take_up", _leaves_open),
    "tools, interruption": (ServiceCalls, "interrupt", _cancels_all),
    "tools, prompts": (_Script, "_answer", _heedless),
    "KV, whose it is": (KvCache, "_find", _anybodys),
    "quotas, place": (MemoryQuotas, "close", _keeps_its_lease),
    "quotas, return": (MemoryQuotas, "_has_room", _without_a_place),
    "quotas, number": (MemoryQuotas, "_drop", _by_its_name),
    "quotas, limit": (Allowance, "take", _takes_more),
    "quotas, draw": (Conversation, "allowance_drawn", _goes_on_waiting),
    "queue deadline": (StageScheduler, "_may_expire", _never),
    "heard, reports": (Heard, "report", _unheeded),
    "heard, path": (Playout, "go_by", _without_way),
    "saving": (Saving, "part", _unsaved),
    "saving, before the sound": (Playout, "keep_back", _not_kept_back),
}


@contextmanager
def without(guard: str) -> Iterator[None]:
    """The product without one of its guards."""
    owner, name, stand_in = GUARDS[guard]
    kept = inspect.getattr_static(owner, name)
    setattr(owner, name, staticmethod(stand_in) if isinstance(kept, staticmethod) else stand_in)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def missed_at(guard: str, seeds: int = SEEDS_MAX) -> tuple[int, str] | None:
    """The first seed that breaks a promise without `guard`, and where; None where no seed does."""
    with without(guard):
        for seed in range(seeds):
            where = broken_at(draw(seed))
            if where is not None:
                return seed, where
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes guards of the product away, one at a time.")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    seeds = parser.parse_args().seeds
    unmissed = 0
    for guard in GUARDS:
        missed = missed_at(guard, seeds)
        unmissed += missed is None
        told = f"missed by seed {missed[0]}: {missed[1]}" if missed else f"missed by none of {seeds} seeds"
        sys.stdout.write(f"{guard:<20} {told}\n")
        sys.stdout.flush()
    return 1 if unmissed else 0


if __name__ == "__main__":
    sys.exit(main())
