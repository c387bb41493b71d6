"""What all streams of a stage have lent by each of its edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.accounts import EdgeAccounts, EdgeStatistics
from stages.edges import GATEWAY, OutEdge
from stages.event_log import NO_TRAIL
from stages.outbox import Overrun
from tests.stages.stage_bench import latents, sound

EAR = OutEdge(GATEWAY, "audio", 8)
NEXT = OutEdge("next", "latents", 8)


def test_each_edge_tells_its_streams_their_credit_and_who_waits_for_it() -> None:
    accounts = EdgeAccounts((EAR, NEXT))
    spoken, written = accounts.outbox(["next"], NO_TRAIL), accounts.outbox({"next": "next-1"}, NO_TRAIL)
    for outbox in (spoken, written):
        outbox.add(latents(6))
        outbox.take()
    spoken.add(sound(5))
    spoken.take()
    written.add(latents(3, 6))
    written.take()
    moves = written.waiting()["next"]
    assert accounts.statistics({"spoken": spoken, "written": written}) == (
        EdgeStatistics(GATEWAY, 2, 5, 5, {}),
        EdgeStatistics("next", 2, 12, 12, {"written": moves}),
    )
    spoken.close()
    written.close()
    assert accounts.statistics({}) == (EdgeStatistics(GATEWAY, 0, 0, 5, {}), EdgeStatistics("next", 0, 0, 12, {}))


@pytest.mark.parametrize(("rate", "window"), [(8_000, 3_200), (24_000, 9_600), (0, 9_600)])
def test_a_window_of_sound_is_as_long_at_any_rate(rate: int, window: int) -> None:
    edges = (OutEdge(GATEWAY, "audio", 9_600, sample_rate=24_000), NEXT)
    outbox = EdgeAccounts(edges).outbox(["next"], NO_TRAIL, rate)
    assert outbox.has_room(8)
    assert outbox.overrun_by(window) == Overrun(window, 8), "latents have no rate"
    sounding = EdgeAccounts(edges).outbox([], NO_TRAIL, rate)
    assert (sounding.overrun_by(window), sounding.overrun_by(window + 1)) == (None, Overrun(window + 1, window))


def test_credit_that_no_stream_has_taken_is_astray() -> None:
    accounts = EdgeAccounts((EAR, NEXT))
    kept, lost = accounts.outbox(["next"], NO_TRAIL), accounts.outbox(["next"], NO_TRAIL)
    for outbox, frames in ((kept, 6), (lost, 2)):
        outbox.add(latents(frames))
        outbox.add(sound(1))
        outbox.take()
    assert accounts.stray([kept, lost]) == 0
    assert accounts.stray([kept]) == 3
    lost.close()
    assert accounts.stray([kept]) == 0


STEPS = st.tuples(st.sampled_from(("add", "take", "grant", "close")), st.integers(0, 2), st.integers(1, 4))


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=40))
def test_what_is_out_is_what_its_streams_have_taken_and_nothing_without_them(steps: list[tuple[str, int, int]]) -> None:
    accounts = EdgeAccounts((EAR, NEXT))
    outboxes = {number: accounts.outbox(["next"], NO_TRAIL) for number in range(3)}
    made = dict.fromkeys(outboxes, 0)
    for step, number, units in steps:
        if number not in outboxes:
            continue
        outbox = outboxes[number]
        match step:
            case "add":
                outbox.add(latents(units, made[number]))
                made[number] += units
            case "take":
                outbox.take()
            case "grant":
                outbox.give_back("next", min(units, outbox.credit_out("next")))
            case _:
                outboxes.pop(number).close()
        assert accounts.stray(list(outboxes.values())) == 0
        out = {edge.target: edge.credit_out for edge in accounts.statistics({})}
        assert out["next"] == sum(one.credit_out("next") for one in outboxes.values()) <= NEXT.window * len(outboxes)
    for outbox in outboxes.values():
        outbox.close()
    assert all(edge.credit_out == 0 for edge in accounts.statistics({}))
