"""What waits for its readers: in order, each edge by itself, none of it lost, and nobody held up by an observer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import AudioOut, Clause, TextDelta
from stages.credit import CreditAccount, CreditError
from stages.edges import GATEWAY, OutEdge
from stages.event_log import EventLog, EventLogStatistics
from stages.outbox import WINDOW_LEAD_NS, GivenUp, Outbox, Overrun, Taken
from stages.stream import Emit, Publish
from tests.stages.stage_bench import latents, sound

TEXT = Publish(TextDelta("so"))
EAR = OutEdge(GATEWAY, "audio", 8)
NEXT = OutEdge("next", "latents", 8)
OTHER = OutEdge("other", "latents", 4)
WATCH = OutEdge("watch", "audio", 12, need="complete", observed=True)


def filled(outbox: Outbox, *outputs: Emit | Publish) -> Outbox:
    for output in outputs:
        assert outbox.add(output) is None
    return outbox


def test_an_output_goes_by_every_edge_that_carries_it() -> None:
    made = sound(4)
    outbox = filled(Outbox((EAR, NEXT, WATCH)), made, TEXT)
    assert outbox.take() == [Taken("watch", made), Taken(GATEWAY, made), Taken(GATEWAY, TEXT)]
    assert outbox.take() == []
    assert not outbox.waits


def test_what_no_edge_in_use_carries_goes_nowhere() -> None:
    outbox = filled(Outbox((EAR,)), latents(400))
    assert (outbox.take(), outbox.waits) == ([], False)


def test_what_is_published_where_no_edge_carries_it_is_refused() -> None:
    outbox = Outbox((NEXT,))
    failure = outbox.add(sound(1))
    assert failure is not None
    wrong = "no edge carries the audio that was published"
    assert (failure.code, str(failure), outbox.untaken) == ("wrong_output", wrong, 0)


def test_each_edge_has_a_place_of_its_own() -> None:
    first, second, third = latents(4), latents(4, 4), latents(1, 8)
    outbox = filled(Outbox((NEXT, OTHER)), first, second)
    assert outbox.take() == [Taken("next", first), Taken("next", second), Taken("other", first)]
    outbox.add(third)
    assert outbox.take() == []
    assert outbox.give_back("next", 4)
    assert outbox.take() == [Taken("next", third)]
    assert outbox.waits
    assert outbox.give_back("other", 4)
    assert outbox.take() == [Taken("other", second)]
    assert outbox.give_back("other", 4)
    assert outbox.take() == [Taken("other", third)]
    assert not outbox.waits


def test_the_gateway_hears_nothing_before_its_turn_among_what_is_handed_on() -> None:
    outbox = filled(Outbox((NEXT, OTHER)), latents(4), latents(4, 4), TEXT)
    assert [move.target for move in outbox.take() if isinstance(move, Taken)] == ["next", "next", "other"]
    outbox.give_back("other", 4)
    assert outbox.take() == [Taken("other", latents(4, 4)), Taken(GATEWAY, TEXT)]


def test_an_observer_holds_nobody_up_and_is_given_up_beyond_its_maximum() -> None:
    pieces = [sound(4, seq) for seq in range(4)]
    outbox = filled(Outbox((EAR, WATCH)), *pieces[:3])
    assert [move.target for move in outbox.take() if isinstance(move, Taken)] == ["watch"] * 3 + [GATEWAY] * 2
    assert outbox.has_room(0)
    assert not outbox.has_room(1)
    outbox.give_back(GATEWAY, 8)
    outbox.add(pieces[3])
    assert outbox.take() == [GivenUp("watch"), Taken(GATEWAY, pieces[2]), Taken(GATEWAY, pieces[3])]
    assert not outbox.uses("watch")
    assert outbox.uses(GATEWAY)
    assert not outbox.give_back("watch", 4)
    assert not outbox.waits


def test_a_lost_observer_gets_no_more() -> None:
    outbox = Outbox((EAR, WATCH))
    outbox.lose("watch")
    assert filled(outbox, sound(1)).take() == [Taken(GATEWAY, sound(1))]


def test_what_never_fits_ends_the_taking() -> None:
    outbox = filled(Outbox((EAR,)), sound(4), sound(9, 1), TEXT)
    assert outbox.take() == [Taken(GATEWAY, sound(4)), Overrun(9, 8)]


def test_where_nothing_comes_back_before_the_end_what_does_not_fit_now_never_will() -> None:
    whole = OutEdge("next", "latents", 8, need="complete")
    outbox = filled(Outbox((whole,)), latents(6))
    assert outbox.take() == [Taken("next", latents(6))]
    assert outbox.overrun_by(2) is None
    assert outbox.overrun_by(3) == Overrun(3, 8)
    outbox.add(latents(3, 6))
    assert outbox.take() == [Overrun(3, 8)]


def test_a_step_needs_room_at_every_reader_but_observers() -> None:
    outbox = Outbox((NEXT, OTHER, OutEdge("watch", "latents", 1, need="complete", observed=True)))
    assert outbox.has_room(4)
    assert not outbox.has_room(5)
    assert outbox.overrun_by(4) is None
    assert outbox.overrun_by(5) == Overrun(5, 4)
    assert Outbox(()).has_room(1_000)
    assert Outbox(()).overrun_by(1_000) is None


def test_what_a_reader_of_sound_still_has_is_what_it_has_not_given_back() -> None:
    outbox = Outbox((OutEdge(GATEWAY, "audio", 24_000),))
    assert outbox.lead_ns == 0
    filled(outbox, sound(12_000)).take()
    assert outbox.lead_ns == 500_000_000
    outbox.give_back(GATEWAY, 6_000)
    assert outbox.lead_ns == 250_000_000


def test_the_reader_with_the_least_tells_how_much_there_is() -> None:
    outbox = filled(Outbox((NEXT, OTHER)), latents(2))
    outbox.take()
    assert outbox.lead_ns == WINDOW_LEAD_NS // 4
    outbox.give_back("next", 1)
    assert outbox.lead_ns == WINDOW_LEAD_NS // 8


def test_who_gives_nothing_back_as_it_goes_tells_nothing() -> None:
    complete = OutEdge("next", "latents", 8, need="complete")
    outbox = filled(Outbox((WATCH, complete)), latents(2), sound(4))
    outbox.take()
    assert outbox.lead_ns is None
    assert Outbox(()).lead_ns is None


def test_credit_comes_back_from_who_had_it() -> None:
    outbox = filled(Outbox((NEXT,)), latents(4))
    outbox.take()
    assert not outbox.give_back(GATEWAY, 4)
    assert not outbox.give_back("nobody", 4)
    with pytest.raises(CreditError):
        outbox.give_back("next", 5)


# ---- any order --------------------------------------------------------------------------------------


@dataclass
class Reader:
    """What one edge has taken, and has not given back."""

    taken: list[Emit | Publish] = field(default_factory=list)
    in_flight: int = 0


EDGES = (
    OutEdge("a", "clauses", 6),
    OutEdge("b", "clauses", 9),
    OutEdge("c", "clauses", 1_000, need="complete", observed=True),
    OutEdge(GATEWAY, "audio", 7),
)
OUTPUTS = st.one_of(
    st.integers(1, 6).map(lambda size: Emit(Clause(0, "x" * size), size)),
    st.integers(1, 7).map(lambda size: Publish(AudioOut(0, 8_000, 0, bytes(2 * size)), size)),
    st.just(TEXT),
)


@given(st.lists(st.one_of(OUTPUTS, st.sampled_from(["a", "b", GATEWAY])), max_size=60))
def test_whoever_reads_how_slowly_ever_each_gets_all_of_its_own_in_order(acts: list[Emit | Publish | str]) -> None:
    outbox, readers = Outbox(EDGES), {edge.target: Reader() for edge in EDGES}
    made: list[Emit | Publish] = []

    def settle() -> None:
        for move in outbox.take():
            assert isinstance(move, Taken)
            reader = readers[move.target]
            reader.taken.append(move.output)
            reader.in_flight += move.output.units
        for edge in EDGES:
            assert readers[edge.target].in_flight <= edge.window
        assert readers["c"].taken == [output for output in made if isinstance(output, Emit)], (
            "observers have all at once"
        )

    def give_back(target: str) -> None:
        reader = readers[target]
        outbox.give_back(target, reader.in_flight)
        reader.in_flight = 0

    for act in acts:
        if isinstance(act, str):
            give_back(act)
        else:
            made.append(act)
            outbox.add(act)
        settle()
    for _ in range(len(made)):
        for target in ("a", "b", GATEWAY):
            give_back(target)
        settle()
    handed_on = [output for output in made if isinstance(output, Emit)]
    assert not outbox.waits
    assert readers["a"].taken == readers["b"].taken == handed_on
    assert readers[GATEWAY].taken == [output for output in made if isinstance(output, Publish)]


# ---- what is entered in the event log -----------------------------------------------------------------------


def balance(log: EventLog) -> dict[str, int]:
    """Credit in flight on each edge, as the log tells it."""
    signs = {"credit_taken": 1, "credit_returned": -1}
    in_flight: Counter[str] = Counter()
    for event in log.read().events:
        in_flight[event.link] += signs[event.kind] * event.value
    return {target: units for target, units in in_flight.items() if units}


def in_flight(outbox: Outbox) -> dict[str, int]:
    units = {lane.target: lane.credit.statistics().in_flight for lane in outbox._lanes if lane.credit}
    return {target: taken for target, taken in units.items() if taken}


def test_credit_is_entered_as_it_goes_and_comes() -> None:
    log = EventLog()
    outbox = filled(Outbox((EAR, NEXT, WATCH), trail=log.of("s", "r")), latents(6), sound(8), TEXT, latents(0, 6))
    outbox.take()
    assert outbox.untaken == 0
    outbox.add(latents(4, 6))
    outbox.take()
    assert outbox.untaken == 1
    outbox.give_back("next", 5)
    outbox.lose("watch")
    outbox.close()
    assert [(event.kind, event.value, event.link, event.state, event.cause) for event in log.read().events] == [
        ("credit_taken", 6, "next", "latents", ""),
        ("credit_taken", 8, "watch", "audio", ""),
        ("credit_taken", 8, GATEWAY, "audio", ""),
        ("credit_returned", 5, "next", "latents", "granted"),
        ("credit_returned", 8, "watch", "audio", "lost"),
        ("credit_returned", 1, "next", "latents", "closed"),
        ("credit_returned", 8, GATEWAY, "audio", "closed"),
    ]


def test_where_no_credit_is_none_is_entered() -> None:
    log = EventLog()
    outbox = filled(Outbox((NEXT,), trail=log.of("s", "r")), TEXT)
    assert outbox.take() == [Taken(GATEWAY, TEXT)]
    outbox.close()
    assert log.statistics() == EventLogStatistics(0, 0)


@given(st.lists(st.one_of(OUTPUTS, st.sampled_from(["a", "b", GATEWAY])), max_size=60), st.booleans())
def test_what_the_log_says_of_credit_is_what_is_in_flight(acts: list[Emit | Publish | str], loses: bool) -> None:
    log = EventLog()
    outbox = Outbox(EDGES, trail=log.of("s", "r"))
    for act in acts:
        if isinstance(act, str):
            outbox.give_back(act, in_flight(outbox).get(act, 0))
        else:
            outbox.add(act)
        outbox.take()
        assert balance(log) == in_flight(outbox)
    if loses:
        outbox.lose("c")
    outbox.close()
    assert balance(log) == {}


# ---- who is waited for -------------------------------------------------------------------------------------


def test_an_edge_is_waited_for_by_what_was_made_and_by_what_would_be() -> None:
    outbox = filled(Outbox((EAR, NEXT)), latents(8), latents(1, 8))
    outbox.take()
    assert set(outbox.waiting()) == {"next"}, "an item waits behind a full window"
    before = outbox.waiting()["next"]
    assert outbox.give_back("next", 8)
    outbox.take()
    assert outbox.waiting() == {}
    assert not outbox.has_room(8)
    after = outbox.waiting()
    assert set(after) == {"next"}, "a step of 8 does not fit beside what is in flight"
    assert after["next"] > before, "its credit has moved"
    assert outbox.has_room(4)
    assert outbox.waiting() == {}


def test_nobody_waits_for_an_observer_or_for_credit_that_an_edge_does_not_have() -> None:
    outbox = filled(Outbox((WATCH,)), sound(12), TEXT)
    outbox.take()
    assert outbox.has_room(12)
    assert outbox.waiting() == {}


def test_what_is_in_flight_stands_in_the_accounts_of_the_edges_until_the_stream_ends() -> None:
    accounts = {"next": CreditAccount(), "other": CreditAccount()}
    one, another = Outbox((NEXT, OTHER), accounts), Outbox((NEXT,), accounts)
    for outbox in (one, another):
        filled(outbox, latents(4)).take()
    assert {target: account.in_flight for target, account in accounts.items()} == {"next": 8, "other": 4}
    one.give_back("next", 1)
    one.lose("other")
    assert {target: account.in_flight for target, account in accounts.items()} == {"next": 7, "other": 0}
    one.close()
    another.close()
    assert {target: (account.in_flight, account.peak) for target, account in accounts.items()} == {
        "next": (0, 8),
        "other": (0, 4),
    }
