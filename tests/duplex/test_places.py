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

from duplex.places import OwnPlaces, Places, SharedPlaces

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


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans())))
def test_never_are_more_taken_than_there_are(steps: list[tuple[int, bool]]) -> None:
    folder = Path(f"/dev/shm/duplex-places-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    gateways = SharedPlaces(folder, COUNT), SharedPlaces(folder, COUNT)
    try:
        for number, takes in steps:
            free = COUNT - sum(one.taken for one in gateways)
            gateway = gateways[number]
            if takes:
                assert gateway.take() == (free > 0)
            elif gateway.taken:
                gateway.give_back()
            assert 0 <= sum(one.taken for one in gateways) <= COUNT
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
