"""The KV that a Thinker keeps between turns: a cache with few places, of which any may be lost at any moment.

Theory of operation
    A *place* holds the KV of one identity: whose it is (tenant, session), and what made it (model, form of prompts).
    A stream has a *claim* on the KV of its session. It takes the place for a step, and gets what lies there, or an
    empty one in its stead: then all of its prompt, which is made of the conversation's record, is read again. What
    lies in a place is the engine's business; here is decided who has which.

    A claim of a response pins the place until the response is over. One that reads ahead (a prefill) pins it for a
    step, and keeps it as long as it has something to read unless a response wants a place. What nobody claims stays,
    since the next turn goes on from it, until its session is closed, nothing was done with it for `idle_ns_max`, or
    another session needs the place: the one that was used least recently goes.

Rules
* An identity that differs in anything is another KV, and is never found. Where two of them are of one session it is
  counted as a mismatch, and the older one goes.
* What is pinned is never taken away. Where all places are, a response waits for one, behind those that came before it,
  for as long as its owner has it wait; where as many wait as there may be sessions, it is refused with the code
  `capacity`. Who reads ahead begins no step while a response waits, and takes no place that another reads ahead in.
* Where a claim got no place, `waits` is true until it did, or is gone: who runs the streams asks all of them again when
  a step has come back. `at` tells the time, and is called before anything else is: there is no timer.
* Tokens are those that the engine says; bytes are tokens times `token_bytes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from stages.event_log import EventKind, EventLog
from stages.stream import StageFailure, StageModel

SESSIONS_MAX = 1_024  # as many calls as a service takes, and some to spare
IDLE_S_MAX = 600  # a call of which nobody has said anything for so long is ended as well, by default

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """All that tells one KV from another, but for the tokens, which the engine compares. `model` and `prompt_format`
    are revisions."""

    tenant: str
    session: str
    model: str
    prompt_format: str


@dataclass(frozen=True, slots=True)
class KvLimits:
    """`sessions_max`: that may be open at once, of which `places` have their KV here. `token_bytes`: what one token's
    KV takes, where that is known."""

    places: int
    sessions_max: int = SESSIONS_MAX
    idle_ns_max: int = IDLE_S_MAX * 1_000_000_000
    token_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Place(Generic[T]):
    identity: KvIdentity
    index: int
    content: T
    claims: set[Claim[T]] = field(default_factory=set)
    tokens: int = 0
    to_rebuild: int = 0  # tokens that were here before they were evicted, and have not been read again
    used_ns: int = 0

    @property
    def is_pinned(self) -> bool:
        return any(claim.pins for claim in self.claims)


@dataclass(slots=True, eq=False)
class Claim(Generic[T]):
    """Of one stream. `ahead`: it reads what may be wanted later."""

    identity: KvIdentity
    ahead: bool
    place: _Place[T] | None = None
    is_stepping: bool = False

    @property
    def pins(self) -> bool:
        return self.is_stepping or not self.ahead


@dataclass(frozen=True, slots=True)
class _Lost:
    """What an open session had before it was evicted."""

    identity: KvIdentity
    tokens: int


@dataclass(frozen=True, slots=True)
class KvStatistics:
    """`used` of `places` hold something, `pinned` of them are in use, and `waiting` claims got none. Since the process
    began: `hits` found their KV, `misses` did not, since there was none yet (new) or it had been evicted; `evictions`
    by cause; `rebuilt_tokens` were read again that had been evicted. `wait_ns_max`: the longest that a response
    has been waiting for a place."""

    places: int = 0
    used: int = 0
    pinned: int = 0
    waiting: int = 0
    tokens: int = 0
    token_bytes: int = 0
    hits: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    mismatches: int = 0
    rebuilt_tokens: int = 0
    wait_ns_max: int = 0


class KvCache(Generic[T]):
    """`make(index)` gives the empty content of place `index`, whenever that changes hands."""

    def __init__(self, limits: KvLimits, make: Callable[[int], T], *, model: str = "", prompt_format: str = "") -> None:
        self._limits = limits
        self._make = make
        self._revisions = (model, prompt_format)
        self._events = EventLog(0)
        self._now_ns = 0
        self._tenants: dict[str, str] = {}
        self._places: dict[KvIdentity, _Place[T]] = {}  # least recently used first
        self._leaving: list[_Place[T]] = []  # of sessions that are closed, with streams that have yet to let go
        self._free = list(reversed(range(limits.places)))
        self._starved: dict[Claim[T], int] = {}  # since when
        self._lost: dict[str, _Lost] = {}  # by session
        self._hits = self._mismatches = self._rebuilt_tokens = 0
        self._misses = Counter[str]()
        self._evictions = Counter[str]()

    # ---- sessions ----------------------------------------------------------------------------------

    def log_to(self, events: EventLog) -> None:
        """What happens is written there from now on."""
        self._events = events

    def at(self, now_ns: int) -> None:
        """It is `now_ns` (monotonic). What nobody has used for too long goes."""
        self._now_ns = now_ns
        old = takewhile(lambda place: now_ns - place.used_ns >= self._limits.idle_ns_max, self._places.values())
        for place in [place for place in old if not place.claims]:
            self._evict(place, "idle")

    def open(self, session: str) -> None:
        """`session` may claim from now on; idempotent. Raises `StageFailure("capacity")`."""
        if session not in self._tenants and len(self._tenants) >= self._limits.sessions_max:
            raise StageFailure("capacity", f"all {self._limits.sessions_max} sessions are taken")
        self._tenants.setdefault(session, "")

    def knows(self, session: str) -> bool:
        """`session` is open."""
        return session in self._tenants

    def serve(self, session: str, tenant: str) -> None:
        """Streams of `session` that are opened from now on are of `tenant`."""
        if session in self._tenants:
            self._tenants[session] = tenant

    def close(self, session: str) -> None:
        """What was kept for `session` goes, at once or when its last claim is released."""
        self._tenants.pop(session, None)
        self._lost.pop(session, None)
        for place in self._of(session):
            if place.claims:
                self._leaving.append(place)
                del self._places[place.identity]
            else:
                self._evict(place, "closed")

    def kept_for(self, session: str) -> int:
        """How many places hold something of `session`."""
        return len(self._of(session)) + sum(place.identity.session == session for place in self._leaving)

    def _of(self, session: str) -> list[_Place[T]]:
        return [place for place in self._places.values() if place.identity.session == session]

    # ---- claims ------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """A claim got no place the last time that it asked."""
        return bool(self._starved)

    def claim(self, session: str, *, ahead: bool = False) -> Claim[T]:
        """A stream of `session`, which is open, begins. Raises `StageFailure("capacity")`."""
        identity = KvIdentity(self._tenants[session], session, *self._revisions)
        waiting = self._responses_waiting
        if not ahead and waiting >= self._limits.sessions_max:
            places = self._limits.places
            raise StageFailure("capacity", f"all {places} places for KV are in use, and {waiting} responses wait")
        for place in self._of(session):
            if place.identity != identity:
                self._refuse(place)
        return Claim(identity, ahead)

    @property
    def _responses_waiting(self) -> int:
        return sum(not claim.ahead for claim in self._starved)

    def _refuse(self, place: _Place[T]) -> None:
        """What is kept of the session under another identity is none of this one's."""
        self._mismatches += 1
        if not place.is_pinned:
            self._evict(place, "mismatch")

    def take(self, claim: Claim[T]) -> T | None:
        """What is to be used in the claim's next step; None while all places are in use."""
        gives_way = claim.ahead and not claim.is_stepping and self._responses_waiting > 0
        place = None if gives_way else claim.place or self._find(claim) or self._settle(claim)
        if place is None:
            self._starved.setdefault(claim, self._now_ns)
            return None
        self._starved.pop(claim, None)
        claim.place, claim.is_stepping = place, True
        place.claims.add(claim)
        self._touch(place)
        return place.content

    def _find(self, claim: Claim[T]) -> _Place[T] | None:
        place = self._places.get(claim.identity)
        if place is not None and place.tokens:
            self._hits += 1
            self._note(claim.identity, EventKind.KV_TAKEN, place.tokens, "kept")
        return place

    def _settle(self, claim: Claim[T]) -> _Place[T] | None:
        """A place for an identity that has none."""
        index = self._index_for(claim)
        if index is None:
            return None
        lost = self._lost.pop(claim.identity.session, None)
        tokens = lost.tokens if lost and lost.identity == claim.identity else 0
        why = "evicted" if tokens else "new"
        self._misses[why] += 1
        self._note(claim.identity, EventKind.KV_TAKEN, 0, why)
        place = self._places[claim.identity] = _Place(claim.identity, index, self._make(index), to_rebuild=tokens)
        return place

    def _index_for(self, claim: Claim[T]) -> int | None:
        if not self._free:
            unclaimed = (place for place in self._places.values() if not place.claims)
            read_ahead = (place for place in self._places.values() if not claim.ahead and not place.is_pinned)
            victim = next(unclaimed, None) or next(read_ahead, None)
            if victim is None:
                return None
            self._evict(victim, "pressure")
        return self._free.pop()

    def step_over(self, claim: Claim[T], tokens: int | None = None, read: int = 0) -> None:
        """Its step is over, or was not begun: `read` tokens were evaluated in it, and the place holds `tokens` now,
        where that is known."""
        claim.is_stepping = False
        place = claim.place
        if place is None:
            return
        place.tokens = place.tokens if tokens is None else tokens
        rebuilt = min(read, place.to_rebuild)
        place.to_rebuild -= rebuilt
        self._rebuilt_tokens += rebuilt
        self._touch(place)

    def release(self, claim: Claim[T]) -> None:
        """It wants nothing for now, or its stream is over. What it has read stays as long as there is room."""
        self._starved.pop(claim, None)
        claim.is_stepping = False
        place, claim.place = claim.place, None
        if place is None:
            return
        place.claims.discard(claim)
        self._touch(place)
        if place in self._leaving and not place.claims:
            self._leaving.remove(place)
            self._give_up(place, "closed")

    def _touch(self, place: _Place[T]) -> None:
        """It was used now, more recently than any other."""
        place.used_ns = self._now_ns
        if place not in self._leaving:
            self._places[place.identity] = self._places.pop(place.identity)

    def _evict(self, place: _Place[T], cause: str) -> None:
        for claim in place.claims:
            claim.place = None
        del self._places[place.identity]
        self._give_up(place, cause)
        if cause in ("pressure", "idle"):
            self._lost[place.identity.session] = _Lost(place.identity, place.tokens + place.to_rebuild)

    def _give_up(self, place: _Place[T], cause: str) -> None:
        self._free.append(place.index)
        self._evictions[cause] += 1
        self._note(place.identity, EventKind.KV_EVICTED, place.tokens, cause)

    def _note(self, identity: KvIdentity, kind: EventKind, tokens: int, cause: str) -> None:
        self._events.of(identity.session, "", identity.tenant).add(kind, tokens, cause=cause)

    def statistics(self) -> KvStatistics:
        places = self._places.values()
        waits = (self._now_ns - since_ns for claim, since_ns in self._starved.items() if not claim.ahead)
        return KvStatistics(
            self._limits.places,
            len(places),
            sum(place.is_pinned for place in places),
            len(self._starved),
            sum(place.tokens for place in places),
            self._limits.token_bytes,
            self._hits,
            dict(self._misses),
            dict(self._evictions),
            self._mismatches,
            self._rebuilt_tokens,
            max(waits, default=0),
        )


@runtime_checkable
class CachingModel(StageModel, Protocol):
    """A model whose sessions share the places of a cache."""

    @property
    def kv(self) -> KvCache[Any]: ...


def kv_of(model: StageModel) -> KvCache[Any]:
    """The cache of `model`; one without places where it has none."""
    return model.kv if isinstance(model, CachingModel) else KvCache(KvLimits(places=0), lambda _: None)
