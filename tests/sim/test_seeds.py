"""Simulated worlds: whatever happens in them, their promises hold. A seed that fails says how it is seen again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim import plan
from tests.sim.mishaps import Mishaps
from tests.sim.plan import CALLER_DEEDS, CHANCES, DIE_AT_CALL, RESUME_TWICE, REVOKE, WORLD_DEEDS, draw
from tests.sim.run import Played, main, play, play_many, play_some
from tests.sim.world import World

SEEDS = 2_000
REGRESSIONS = Path(__file__).with_name("regressions.txt")

# What a simulator that tests anything must have seen, beside every mishap that its plans may ask for.
SEEN = (
    "accounts settled",
    "attempts given up",
    "backchannels",
    "barge-ins",
    "call ended client_too_slow",
    "call ended connection_closed",
    "call ended permission_revoked",
    "call ended quota_exceeded",
    "call ended session_deleted",
    "call ended session_replaced",
    "caller moved",
    "calls refused SessionUnknown",
    "calls refused StoreFull",
    "calls refused StoreTimeout",
    "calls refused StoreUnavailable",
    "calls resumed",
    "closed failed deadline_exceeded",
    "closed failed downstream_lost",
    "closed failed hand_over_too_large",
    "closed failed upstream_lost",
    "connection lost",
    "credit used up",
    "drained orphaned",
    "ended cancelled client_cancelled",
    "ended cancelled turn_detected",
    "ended completed",
    "ended failed capacity",
    "ended failed deadline_exceeded",
    "ended failed stage_lost",
    "ended failed step_failed",
    "ended incomplete",
    "estimates put right",
    "events checked",
    "entries written twice",
    "frames for calls that are over",
    "frames overtaken on another link",
    "full",
    "gateways died",
    "gateways died at a call",
    "late requests",
    "histories estimated",
    "histories told",
    "holds",
    "late barge-ins",
    "leases held",
    "leases gone over",
    "leases run out",
    "long replies",
    "prepared confirmed",
    "prepared withdrawn",
    "prompts read anew",
    "prompts read on",
    "refused conversation_already_has_active_response",
    "refused out_of_band_response_active",
    "refused response_cancel_not_active",
    "replies broken off",
    "replies presumed whole",
    "replies told whole",
    "resumed twice",
    "resumes outdated",
    "resumes overtaken",
    "rivals in",
    "sessions begun anew",
    "sessions deleted",
    "sessions gone back",
    "sessions lost by a fail-over",
    "sessions refused by a stage",
    "side effects",
    "slow client",
    "speech resumed",
    "stale Cancel",
    "stale CloseSession",
    "stale EndEpoch",
    "stale Feed",
    "stale Grant",
    "stale Open",
    "stale OpenSession",
    "store replies lost",
    "store requests lost",
    "takeovers",
    "takeovers behind a fail-over",
    "tenants at their quota returned to",
    "tenants drawn",
    "tenants refused sessions",
    "tools asked book",
    "tools asked look_up",
    "tools asked show",
    "tools cancelled",
    "tools failed",
    "tools followed",
    "tools succeeded",
    "tools unknown",
    "unavailable",
    "words that bridge a wait",
    "words that bridge reading",
    "workers died",
    "writers fenced off",
    "CallerTextFailed",
)


@pytest.fixture(scope="module")
def played() -> Played:
    """All seeds of CI, on every core that there is."""
    total = Played()
    for part in play_many(range(SEEDS), os.cpu_count() or 1):
        total.add(part)
    return total


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise(played: Played) -> None:
    assert played.broken == []
    assert played.seeds == SEEDS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_has_happened(played: Played) -> None:
    wanted = (*SEEN, *WORLD_DEEDS, DIE_AT_CALL, REVOKE, *CHANCES)
    assert [name for name in wanted if not played.counts[name]] == []


def regressions() -> list[int]:
    lines = (line for line in REGRESSIONS.read_text().splitlines() if line and not line.startswith("#"))
    return [int(line.split()[0]) for line in lines]


@pytest.mark.parametrize("seed", regressions())
def test_a_fault_that_was_found_once_stays_away(seed: int) -> None:
    play(seed)


def test_a_seed_replays_exactly() -> None:
    ends = []
    for _ in range(2):
        lines: list[str] = []
        world = World(draw(11), lines.append)
        world.run()
        ends.append((world.clock.now_ns, world.counts, lines))
    assert ends[0] == ends[1]
    assert len(ends[0][2]) > 500


def test_a_trace_changes_nothing() -> None:
    untraced, traced = World(draw(12)), World(draw(12), lambda line: None)
    for world in (untraced, traced):
        world.run()
    assert untraced.counts == traced.counts


def test_plans_ask_for_nothing_that_nobody_can_do() -> None:
    world = World(draw(0))
    assert {*WORLD_DEEDS, DIE_AT_CALL, REVOKE} == set(Mishaps(world.house, list)._deeds)
    world._begin()
    for kind in (*CALLER_DEEDS, RESUME_TWICE):
        world._callers[0].do(kind, 0.5)


def test_what_callers_hear_with_changes_nothing_else_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [draw(seed) for seed in range(20)]
    monkeypatch.setattr(plan, "WAY_MS", (1, 2, 3))
    after = [draw(seed) for seed in range(20)]
    assert before != after
    assert [replace(one, headsets=()) for one in before] == [replace(one, headsets=()) for one in after]


def test_a_broken_promise_says_how_it_is_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def come_to_rest(world: World) -> None:
        raise AssertionError("stages hold nothing")

    monkeypatch.setattr(World, "_come_to_rest", come_to_rest)
    with pytest.raises(AssertionError, match="stages hold nothing") as caught:
        play(7)
    assert caught.value.__notes__[0].endswith("replay it with: python -m tests.sim.run --seed 7 --shrink")


def test_seeds_that_break_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = World.run

    def run(world: World) -> None:
        assert world.plan.seed != 3, "three"
        whole(world)

    monkeypatch.setattr(World, "run", run)
    played = play_some(range(2, 5))
    assert [seed for seed, _ in played.broken] == [3]
    assert "three" in played.broken[0][1]
    assert (played.seeds, played.counts["calls begun"] > 0, played.simulated_ns > 0) == (3, True, True)


@pytest.mark.parametrize("few", ["--count", "--processes"])
def test_no_seed_and_no_process_are_too_few(
    few: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--seed", "0", few, "0"])
    with pytest.raises(SystemExit):
        main()
    assert "one seed and one process are the least" in capsys.readouterr().err
