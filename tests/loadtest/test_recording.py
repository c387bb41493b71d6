from __future__ import annotations

from loadtest.playout_model import Heard
from loadtest.recording import Recording

RATE = 1_000
MS = 1_000_000


def test_pieces_lie_where_they_were_heard() -> None:
    recording = Recording(RATE, seconds_max=1)
    recording.start(50 * MS)
    recording.add(Heard(53 * MS, b"\1\0\2\0"))
    recording.add(Heard(58 * MS, b"\3\0"))

    assert recording.pcm == bytes(6) + b"\1\0\2\0" + bytes(6) + b"\3\0"
    assert not recording.truncated


def test_a_rounding_of_one_sample_makes_no_hole() -> None:
    recording = Recording(RATE, seconds_max=1)
    recording.add(Heard(0, b"\1\0"))
    recording.add(Heard(2 * MS - 400_000, b"\2\0"))
    recording.add(Heard(2 * MS - 900_000, b"\3\0"))

    assert recording.pcm == b"\1\0\2\0\3\0"


def test_the_length_is_bounded() -> None:
    recording = Recording(RATE, seconds_max=1)
    recording.add(Heard(998 * MS, b"\1\0" * 5))
    assert (len(recording.pcm), recording.truncated) == (2_000, True)

    recording.add(Heard(5_000 * MS, b"\1\0"))
    assert len(recording.pcm) == 2_000
