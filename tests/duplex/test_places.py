"""Places for calls: never more than there are, whoever asks, and none that is lost with a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.places import SPARE_PLACES, OwnPlaces, Places, SharedPlaces

COUNT = 3


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[SharedPlaces, SharedPlaces]]:
    """Those of two gateways of one service."""
    both = SharedPlaces(tmp_path, COUNT), SharedPlaces(tmp_path, COUNT)
    yield both
    for one in both:
        one.close()


def test_two_gateways_share_what_there_is(pair: tuple[SharedPlaces, SharedPlaces]) -> None:
    one, other = pair
    assert [one.take(), other.take(), one.take()] == [True] * COUNT
    assert [one.take(), other.take()] == [False, False]
    assert (one.taken, other.taken) == (2, 1)
    one.give_back()
    assert [other.take(), one.take()] == [True, False]
    assert (one.taken, other.taken) == (1, 2)


def test_what_a_gateway_had_is_free_once_it_has_closed(pair: tuple[SharedPlaces, SharedPlaces], tmp_path: Path) -> None:
    one, _ = pair
    third = SharedPlaces(tmp_path, COUNT)
    assert [third.take() for _ in range(COUNT)] == [True] * COUNT
    assert not one.take()
    third.close()
    assert one.take()


TAKING = """
import sys
from pathlib import Path
from duplex.places import SharedPlaces
places = SharedPlaces(Path(sys.argv[1]), 3)
while places.take():
    pass
print(places.taken, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_gateway_had_is_free_once_it_was_killed(pair: tuple[SharedPlaces, SharedPlaces], tmp_path: Path) -> None:
    one, _ = pair
    command = [sys.executable, "-c", TAKING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"3\n"
        assert not one.take()
        process.send_signal(signal.SIGSTOP)
        assert not one.take(), "who stands still keeps them, and holds up nobody"
        process.kill()
        process.wait()
    assert one.take()


def test_who_comes_back_has_a_place_to_spare_until_another_is_free(pair: tuple[SharedPlaces, SharedPlaces]) -> None:
    one, other = pair
    assert [one.take(), one.take(), other.take()] == [True] * COUNT
    assert [one.take(), one.take(returning=True)] == [False, True]
    assert [other.take(returning=True) for _ in range(SPARE_PLACES)] == [True] * (SPARE_PLACES - 1) + [False]
    assert (one.spare, other.spare) == (1, SPARE_PLACES - 1)
    one.change()
    assert one.spare == 1, "none is free"
    one.give_back()
    assert (one.taken, one.spare) == (2, 0), "a spare one is given back first"
    one.give_back()
    assert not one.take(), "it is for who has a spare one"
    other.change()
    assert (other.taken, other.spare) == (SPARE_PLACES, SPARE_PLACES - 2)
    for _ in range(other.spare):
        other.give_back()
    assert not one.take()
    other.give_back()
    assert one.take()


def test_what_is_free_beyond_those_in_spare_places_is_taken(pair: tuple[SharedPlaces, SharedPlaces]) -> None:
    one, other = pair
    assert [one.take(), one.take(), one.take(), other.take(returning=True)] == [True] * (COUNT + 1)
    one.give_back()
    assert [one.take(), other.spare] == [False, 1]
    one.give_back()
    assert one.take(), "whoever stands still in a spare place keeps one free, and no more"
    assert not one.take()


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["come", "return", "leave", "change"]))))
def test_never_are_more_taken_than_there_are(steps: list[tuple[int, str]]) -> None:
    folder = Path(f"/dev/shm/duplex-places-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    gateways = SharedPlaces(folder, COUNT), SharedPlaces(folder, COUNT)
    try:
        for number, step in steps:
            taken, spare = sum(one.taken for one in gateways), sum(one.spare for one in gateways)
            gateway = gateways[number]
            if step == "come":
                assert gateway.take() == (taken < COUNT)
            elif step == "return":
                assert gateway.take(returning=True) == (taken - spare < COUNT or spare < SPARE_PLACES)
            elif step == "change":
                left = max(0, gateway.spare - (COUNT - (taken - spare)))
                gateway.change()
                assert gateway.spare == left
                assert sum(one.taken for one in gateways) == taken
            elif gateway.taken:
                was_spare = gateway.spare
                gateway.give_back()
                assert gateway.spare == max(0, was_spare - 1)
            assert sum(one.taken - one.spare for one in gateways) <= COUNT
            assert sum(one.spare for one in gateways) <= SPARE_PLACES
    finally:
        for one in gateways:
            one.close()
        (folder / "places").unlink()
        folder.rmdir()


def test_a_lone_gateway_counts() -> None:
    places: Places = OwnPlaces(1)
    assert [places.take(), places.take(), places.taken] == [True, False, 1]
    places.give_back()
    assert places.taken == 0
    assert [places.take(returning=True) for _ in range(SPARE_PLACES + 2)] == [True] * (SPARE_PLACES + 1) + [False]
    assert places.spare == SPARE_PLACES
    places.change()
    for left in range(SPARE_PLACES, -1, -1):
        assert not places.take()
        places.give_back()
        assert places.taken == left
    assert places.spare == 0
    with pytest.raises(AssertionError, match="once"):
        places.give_back()


def test_a_file_that_cannot_be_locked_is_no_full_house(tmp_path: Path) -> None:
    places = SharedPlaces(tmp_path, COUNT)
    reading, writing = os.pipe()
    os.close(writing)
    places.close()
    places._file = reading  # no file that has bytes to lock for writing
    with pytest.raises(OSError, match="Bad file descriptor"):
        places.take()
    os.close(reading)
