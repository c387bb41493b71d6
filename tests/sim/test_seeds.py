"""Simulated calls: whatever happens in them, their promises hold. A seed that fails says how it is seen again."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from stages.messages import CloseSession, Frame
from tests.sim import clock
from tests.sim.clock import MS, Clock, LivelockError, Wire
from tests.sim.run import play
from tests.sim.world import World

SEEDS = 200

# What a simulator that tests anything must have seen.
MISHAPS = (
    "barge-ins",
    "coughs",
    "drained orphaned",
    "ended cancelled client_cancelled",
    "ended cancelled turn_detected",
    "ended completed",
    "ended failed deadline_exceeded",
    "ended failed stage_lost",
    "ended failed step_failed",
    "ended incomplete",
    "late transcripts",
    "links broke",
    "prepared confirmed",
    "prepared withdrawn",
    "processes died",
    "responses retried",
    "refused conversation_already_has_active_response",
    "refused out_of_band_response_active",
    "refused response_cancel_not_active",
    "slow client",
    "slow steps",
    "speech resumed",
    "steps failed",
    "CallerTextFailed",
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_call_keeps_its_promises(seed: int) -> None:
    play(seed)


@pytest.mark.slow
def test_every_mishap_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS, SEEDS + 100):
        seen += play(seed)
    assert [name for name in MISHAPS if not seen[name]] == []


def test_a_seed_replays_exactly() -> None:
    ends = []
    for _ in range(2):
        world = World(11)
        world.run()
        ends.append((world.clock.now_ns, world.counts, world.core.items))
    assert ends[0] == ends[1]


def test_a_broken_promise_says_how_it_is_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "run", lambda self: self.watch.at_rest(lambda: {"thinker": 1}))
    with pytest.raises(AssertionError, match="stages hold nothing") as caught:
        play(7)
    assert caught.value.__notes__[0].endswith("replay it with: python -m tests.sim.run --seed 7")


def test_a_world_that_goes_in_circles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "EVENTS_MAX", 100)
    time = Clock(Random(0))

    def again() -> None:
        time.after(0, again)

    again()
    with pytest.raises(LivelockError):
        time.run_until(time.now_ns + 1)


def test_a_wire_keeps_order_and_loses_what_is_under_way_when_it_is_cut() -> None:
    time, came = Clock(Random(3)), list[Frame]()
    wire = Wire(time, came.append, delay_ms_max=5)
    frames = [CloseSession(str(number)) for number in range(50)]
    for frame in frames[:40]:
        wire.send(frame)
        time.run_until(time.now_ns + MS)
    time.run_until(time.now_ns + 10 * MS)
    assert came == frames[:40]
    for frame in frames[40:]:
        wire.send(frame)
    wire.cut()
    time.run_until(time.now_ns + 10 * MS)
    assert came == frames[:40]
