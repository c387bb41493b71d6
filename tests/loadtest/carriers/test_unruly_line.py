"""What goes wrong between a carrier and the service: each kind happens, is counted, and is bounded."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.carriers.effects import Send
from loadtest.carriers.unruly_line import FORGED, ORDERLY, Fault, Habits, UnrulyLine

MS = 1_000_000
FORGERIES: dict[Fault, str | bytes] = {fault: f"<{fault}>" for fault in FORGED}


def carry(habits: Habits, sounds: int = 6, seed: int = 1) -> tuple[list[str | bytes], UnrulyLine]:
    """What arrives of that many frames of sound, one each 20 ms, between a beginning and an end."""
    line = UnrulyLine(habits, Random(seed), FORGERIES)
    line.open([Send("begin")], 0)
    out = line.due(0)
    for index in range(sounds):
        line.take(Send(str(index), is_sound=True), index * 20 * MS)
        out += line.due(index * 20 * MS)
    line.take(Send("end"), sounds * 20 * MS)
    return out + line.due(10**12), line


def test_an_orderly_line_changes_nothing() -> None:
    out, line = carry(ORDERLY)
    assert out == ["begin", *"012345", "end"]
    assert (line.played, line.next_due_ns) == ({}, None)


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (Fault.LOSS, ["begin", *"2345", "end"]),
        (Fault.DOUBLE, ["begin", *"00112345", "end"]),
        (Fault.SWAP, ["begin", *"103245", "end"]),
    ],
)
def test_sound_is_lost_doubled_or_swapped_and_nothing_else(fault: Fault, arrives: list[str]) -> None:
    out, line = carry(Habits({fault: 1.0}, faults_max=2))
    assert out == arrives
    assert line.played == {fault: 2}


@pytest.mark.parametrize("fault", FORGED)
def test_messages_are_forged(fault: Fault) -> None:
    out, line = carry(Habits({fault: 1.0}, faults_max=3))
    assert (out.count(f"<{fault}>"), line.played[fault]) == (3, 3)
    assert [message for message in out if not str(message).startswith("<")] == ["begin", *"012345", "end"]


def test_what_a_carrier_has_no_forgery_for_does_not_happen() -> None:
    line = UnrulyLine(Habits({Fault.BINARY: 1.0}), Random(1), {})
    line.take(Send("0", is_sound=True), 0)
    assert (line.due(0), line.played) == (["0"], {})


def test_a_stall_holds_up_all_that_is_behind_it() -> None:
    line = UnrulyLine(Habits({Fault.STALL: 1.0}, stall_ms=(25, 25), faults_max=1), Random(1), {})
    line.take(Send("0", is_sound=True), 0)
    line.take(Send("1", is_sound=True), 20 * MS)
    assert line.next_due_ns == 25 * MS
    assert line.due(25 * MS - 1) == []
    assert line.due(25 * MS) == ["0", "1"]


def test_a_stall_that_is_long_over_holds_up_nothing() -> None:
    line = UnrulyLine(Habits({Fault.STALL: 1.0}, stall_ms=(25, 25), faults_max=1), Random(1), {})
    line.take(Send("0", is_sound=True), 0)
    line.take(Send("1", is_sound=True), 100 * MS)
    assert line.last_due_ns == 100 * MS


def test_sound_overtakes_the_beginning() -> None:
    assert carry(Habits({}, early_sounds=2))[0] == [*"01", "begin", *"2345", "end"]
    assert carry(Habits({}, early_sounds=9))[0] == [*"012345", "begin", "end"]


@given(st.integers(), st.dictionaries(st.sampled_from(list(Fault)), st.floats(0, 1)), st.integers(0, 3))
def test_the_same_seed_plays_the_same_and_order_is_kept_but_for_swaps(
    seed: int, shares: dict[Fault, float], early_sounds: int
) -> None:
    habits = Habits(shares, early_sounds=early_sounds, faults_max=5)
    out, line = carry(habits, 30, seed)
    again, _line = carry(habits, 30, seed)
    assert out == again
    assert all(count <= 5 for count in line.played.values())
    assert out[-1] == "end"
    assert line.next_due_ns is None
    kept = [int(message) for message in out if str(message).isdecimal()]
    assert len(set(kept)) == 30 - line.played[Fault.LOSS] - _held_back(line)
    if not line.played[Fault.SWAP]:
        assert kept == sorted(kept)


def _held_back(line: UnrulyLine) -> int:
    """One that was to be swapped with the next, where none came."""
    return line._swapped is not None
