"""Who has which place for KV: kept while there is room, pinned in use, never another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.event_log import EventKind, EventLog
from stages.kv_cache import Claim, KvCache, KvLimits, kv_of
from stages.stream import StageFailure

SECOND_NS = 1_000_000_000


@dataclass(eq=False)
class Content:
    """What lies in a place: the session that has written there."""

    index: int
    written_by: set[str] = field(default_factory=set)


def cache(places: int = 2, *, sessions: str = "abcdef", idle_s: int = 10) -> KvCache[Content]:
    """`sessions` are open, and no more can be."""
    limits = KvLimits(places, len(sessions), idle_s * SECOND_NS, token_bytes=3)
    made = KvCache(limits, Content, model="m1")
    for session in sessions:
        made.open(session)
    return made


def read(kv: KvCache[Content], session: str, tokens: int = 10, *, ahead: bool = False) -> Claim[Content]:
    """A stream of `session` that has read `tokens`, and goes on."""
    claim = kv.claim(session, ahead=ahead)
    content = kv.take(claim)
    assert content is not None
    content.written_by.add(session)
    kv.step_over(claim, tokens, tokens)
    return claim


def keep(kv: KvCache[Content], *sessions: str) -> None:
    """Each has read ten tokens and is not using them."""
    for session in sessions:
        kv.release(read(kv, session))


def failure_code(act: Callable[[], object]) -> str:
    with pytest.raises(StageFailure) as failure:
        act()
    return failure.value.code


# ---- kept ---------------------------------------------------------------------------------------------


def test_what_was_read_is_there_for_the_next_turn() -> None:
    kv = cache()
    first = kv.claim("a")
    content = kv.take(first)
    kv.step_over(first, 40, 40)
    kv.release(first)
    assert kv.take(kv.claim("a")) is content
    seen = kv.statistics()
    assert (seen.hits, seen.misses, seen.evictions) == (1, {"new": 1}, {})
    assert (seen.places, seen.used, seen.pinned, seen.tokens, seen.token_bytes) == (2, 1, 1, 40, 3)


def test_a_place_of_which_nothing_has_been_read_is_no_hit() -> None:
    kv = cache()
    one = kv.claim("a", ahead=True)
    kv.take(one)
    kv.release(one)
    kv.take(kv.claim("a"))
    assert kv.statistics().hits == 0


def test_streams_of_one_session_have_one_place() -> None:
    kv = cache()
    ahead, answer = kv.claim("a", ahead=True), kv.claim("a")
    assert kv.take(ahead) is kv.take(answer)
    assert kv.kept_for("a") == 1


def test_a_session_that_is_closed_leaves_nothing() -> None:
    kv = cache()
    keep(kv, "a")
    kv.close("a")
    assert kv.kept_for("a") == 0
    assert not kv.knows("a")
    kv.open("a")
    kv.take(kv.claim("a"))
    assert kv.statistics().misses == {"new": 2}
    assert kv.statistics().evictions == {"closed": 1}


def test_a_place_whose_session_is_closed_is_free_when_its_last_stream_lets_go() -> None:
    kv = cache(1)
    one, other = read(kv, "a"), read(kv, "a", ahead=True)
    kv.close("a")
    assert kv.kept_for("a") == 1
    kv.open("a")
    again = kv.claim("a")
    assert kv.take(again) is None, "the place is not free yet, and what is there is found by nobody"
    kv.release(other)
    assert kv.take(one) is not None, "its own stream goes on"
    kv.release(one)
    content = kv.take(again)
    assert content is not None
    assert content.written_by == set()
    assert kv.statistics().evictions == {"closed": 1}


# ---- pressure -----------------------------------------------------------------------------------------


def test_the_least_recently_used_makes_room() -> None:
    kv = cache()
    keep(kv, "a", "b", "a")
    keep(kv, "c")
    assert [kv.kept_for(session) for session in "abc"] == [1, 0, 1]
    assert kv.statistics().evictions == {"pressure": 1}


def test_what_was_lost_is_read_again_and_counted() -> None:
    kv = cache(1)
    kv.release(read(kv, "a", 100))
    keep(kv, "b")
    again = kv.claim("a")
    kv.take(again)
    kv.step_over(again, 60, 60)
    kv.step_over(again, 130, 70)
    seen = kv.statistics()
    assert seen.misses == {"new": 2, "evicted": 1}
    assert seen.rebuilt_tokens == 100, "the other thirty are new"


def test_what_is_lost_again_before_it_was_whole_is_counted_once() -> None:
    kv = cache(1)
    kv.release(read(kv, "a", 100))
    keep(kv, "b")
    half = kv.claim("a", ahead=True)
    kv.take(half)
    kv.step_over(half, 60, 60)
    keep(kv, "b")
    kv.release(half)
    kv.release(read(kv, "a", 100))
    assert kv.statistics().rebuilt_tokens == 160 + 10, "sixty and a hundred of a's, and ten of b's"


def test_it_is_told_for_how_long_a_response_has_been_waiting() -> None:
    kv = cache(1)
    kv.at(100)
    pinned = read(kv, "a")
    ahead, waiting = kv.claim("b", ahead=True), kv.claim("c")
    assert kv.take(ahead) is None
    kv.at(200)
    assert kv.statistics().wait_ns_max == 0, "who reads ahead waits for nothing"
    assert kv.take(waiting) is None
    kv.at(500)
    assert kv.take(waiting) is None
    assert kv.statistics().wait_ns_max == 300
    kv.release(pinned)
    assert kv.take(waiting) is not None
    assert kv.statistics().wait_ns_max == 0


def test_what_is_pinned_is_never_taken_away() -> None:
    kv = cache(1)
    pinned = read(kv, "a")
    waiting = kv.claim("b")
    assert kv.take(waiting) is None
    assert kv.waits
    assert kv.statistics().waiting == 1
    kv.release(pinned)
    assert kv.take(waiting) is not None
    assert not kv.waits


def test_a_claim_that_is_released_waits_no_more() -> None:
    kv = cache(1)
    read(kv, "a")
    waiting = kv.claim("b")
    kv.take(waiting)
    kv.release(waiting)
    kv.step_over(waiting)
    assert not kv.waits


def test_as_many_wait_as_there_may_be_sessions_and_no_more() -> None:
    """Whether places are few is nobody's fault: all who speak at once are answered, one after the other."""
    kv = cache(1)
    pinned, waiting = read(kv, "a"), list[Claim[Content]]()
    for session in "bcdefb":
        waiting.append(kv.claim(session))
        assert kv.take(waiting[-1]) is None
    assert failure_code(lambda: kv.claim("e")) == "capacity"
    assert kv.claim("e", ahead=True), "who reads ahead may wait"
    for claim in waiting:
        kv.release(pinned)
        assert kv.take(claim) is not None
        pinned = claim


def test_who_reads_ahead_gives_way_to_a_response_between_steps() -> None:
    kv = cache(1)
    ahead, answer = kv.claim("a", ahead=True), kv.claim("b")
    kv.take(ahead)
    assert kv.take(answer) is None, "amid its step it is pinned"
    kv.step_over(ahead, 16, 16)
    assert kv.take(answer) is not None
    assert kv.take(ahead) is None
    kv.release(answer)
    assert kv.take(ahead) is not None


def test_who_reads_ahead_keeps_its_place_from_others_that_do() -> None:
    kv = cache(1)
    first, second = read(kv, "a", ahead=True), kv.claim("b", ahead=True)
    assert kv.take(second) is None
    kv.release(first)
    assert kv.take(second) is not None


def test_who_reads_ahead_takes_no_place_that_a_response_waits_for() -> None:
    kv = cache(1)
    pinned = read(kv, "a")
    answer, ahead = kv.claim("b"), kv.claim("c", ahead=True)
    assert kv.take(answer) is None
    kv.release(pinned)
    assert kv.take(ahead) is None
    assert kv.take(answer) is not None


# ---- time ---------------------------------------------------------------------------------------------


def test_what_nobody_used_for_too_long_goes() -> None:
    kv = cache(3)
    kv.at(0)
    keep(kv, "a")
    pinned = read(kv, "b")
    kv.at(6 * SECOND_NS)
    keep(kv, "c")
    kv.at(10 * SECOND_NS)
    assert [kv.kept_for(session) for session in "abc"] == [0, 1, 1]
    assert kv.statistics().evictions == {"idle": 1}
    kv.release(pinned)
    kv.at(20 * SECOND_NS)
    assert kv.statistics().used == 0


# ---- identity -----------------------------------------------------------------------------------------


def test_the_same_session_of_another_tenant_is_another_kv() -> None:
    kv = cache()
    kv.serve("a", "acme")
    keep(kv, "a")
    kv.serve("a", "other")
    content = kv.take(kv.claim("a"))
    assert content is not None
    assert content.written_by == set()
    seen = kv.statistics()
    assert (seen.hits, seen.mismatches, seen.evictions) == (0, 1, {"mismatch": 1})


def test_what_is_in_use_under_another_identity_stays_and_is_not_found() -> None:
    kv = cache()
    kv.serve("a", "acme")
    mine = read(kv, "a")
    kv.serve("a", "other")
    theirs = kv.take(kv.claim("a"))
    assert theirs is not None
    assert theirs.written_by == set()
    assert kv.take(mine) is not theirs
    assert kv.statistics().mismatches == 1


def test_what_was_lost_of_another_tenant_is_not_read_again() -> None:
    kv = cache(1)
    kv.serve("a", "acme")
    keep(kv, "a", "b")
    kv.serve("a", "other")
    read(kv, "a")
    assert kv.statistics().rebuilt_tokens == 0


def test_another_revision_of_the_model_or_of_the_prompts_is_another_identity() -> None:
    made = [KvCache(KvLimits(1), Content, model=model, prompt_format=form) for model, form in ("mf", "nf", "mg")]
    for kv in made:
        kv.open("a")
    identities = {kv.claim("a").identity for kv in made}
    assert len(identities) == 3


def test_a_session_that_is_not_open_has_no_tenant() -> None:
    kv = cache(sessions="")
    kv.serve("a", "acme")
    assert not kv.knows("a")


def test_sessions_have_a_limit_and_are_opened_once() -> None:
    kv = KvCache(KvLimits(1, sessions_max=2), Content)
    for session in "aba":
        kv.open(session)
    assert failure_code(lambda: kv.open("c")) == "capacity"


# ---- what is told -------------------------------------------------------------------------------------


def test_what_happens_is_in_the_log() -> None:
    kv, log = cache(1), EventLog(16)
    kv.log_to(log)
    kv.serve("a", "acme")
    keep(kv, "a", "a", "b", "a")
    kv.close("a")
    told = [(event.session, event.kind, event.value, event.cause) for event in log.read().events]
    assert told == [
        ("a", EventKind.KV_TAKEN, 0, "new"),
        ("a", EventKind.KV_TAKEN, 10, "kept"),
        ("a", EventKind.KV_EVICTED, 10, "pressure"),
        ("b", EventKind.KV_TAKEN, 0, "new"),
        ("b", EventKind.KV_EVICTED, 10, "pressure"),
        ("a", EventKind.KV_TAKEN, 0, "evicted"),
        ("a", EventKind.KV_EVICTED, 10, "closed"),
    ]
    assert {event.tenant for event in log.read().events if event.session == "a"} == {"acme"}


def test_a_model_without_kv_has_a_cache_without_places() -> None:
    kv = kv_of(ScriptedModel("thinker", ScriptedOptions()))
    assert kv.statistics().places == 0
    assert not kv.waits


# ---- whatever happens ---------------------------------------------------------------------------------

_DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "ahead", "take", "over", "release", "close", "open", "idle", "tenant"]),
        st.sampled_from("abcd"),
        st.integers(0, 7),
    ),
    max_size=80,
)


class Machine:
    """Streams that come and go, and who has been promised what."""

    def __init__(self, places: int) -> None:
        self.kv = cache(places, sessions="abcd", idle_s=3)
        self.now_ns = 0
        self.open = set("abcd")
        self.tenants = dict.fromkeys("abcd", "")
        self.claims: list[tuple[str, Claim[Content]]] = []
        self.holding: dict[int, Content] = {}

    def do(self, deed: str, session: str, number: int) -> None:
        if deed in ("begin", "ahead"):
            self._begin(session, ahead=deed == "ahead")
        elif deed == "close":
            self.kv.close(session)
            self.open.discard(session)
        elif deed == "open":
            self.kv.open(session)
            self.open.add(session)
        elif deed == "tenant":
            self.kv.serve(session, str(number % 2))
        elif deed == "idle":
            self.now_ns += number * SECOND_NS
            self.kv.at(self.now_ns)
        elif self.claims:
            self._go_on(deed, number % len(self.claims))

    def _begin(self, session: str, *, ahead: bool) -> None:
        if session in self.open:
            try:
                self.claims.append((session, self.kv.claim(session, ahead=ahead)))
            except StageFailure:
                assert self.kv.statistics().waiting >= len("abcd")

    def _go_on(self, deed: str, number: int) -> None:
        session, claim = self.claims[number]
        if deed == "take":
            content = self.kv.take(claim)
            if content is not None:
                whose = f"{claim.identity.tenant}/{session}"
                assert content.written_by <= {whose}, "another's"
                content.written_by.add(whose)
                self.holding[id(claim)] = content
        elif deed == "over":
            self.kv.step_over(claim, number * 5, number)
        else:
            self.kv.release(claim)
            self.claims.pop(number)

    def check(self) -> None:
        seen = self.kv.statistics()
        assert seen.used <= seen.places
        assert seen.pinned <= seen.used
        places = [claim.place for _, claim in self.claims if claim.place is not None]
        of_index: dict[int, set[int]] = {}
        for place in places:
            of_index.setdefault(place.index, set()).add(id(place))
        assert all(len(one) == 1 for one in of_index.values()), "a place has one owner"
        for _, claim in self.claims:
            if claim.place is not None and claim.pins:
                assert claim.place.content is self.holding[id(claim)], "what is pinned stays"


@given(st.integers(1, 3), _DEEDS)
def test_nobody_ever_gets_what_is_anothers_and_what_is_pinned_stays(
    places: int, deeds: list[tuple[str, str, int]]
) -> None:
    machine = Machine(places)
    for deed in deeds:
        machine.do(*deed)
        machine.check()
    for _, claim in machine.claims:
        machine.kv.release(claim)
    for session in "abcd":
        machine.kv.close(session)
    assert machine.kv.statistics().used == 0
    assert not machine.kv.waits
