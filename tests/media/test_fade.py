"""Sound that stops and goes on without a click."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.fade import faded_in, faded_out

FULL = 32_767


def pcm(*samples: int) -> bytes:
    return np.array(samples, dtype="<i2").tobytes()


def samples(sound: bytes) -> list[int]:
    return [int(sample) for sample in np.frombuffer(sound, dtype="<i2")]


def test_a_fade_falls_from_loud_to_silent() -> None:
    faded = samples(faded_out(pcm(*[FULL] * 240)))
    assert faded == sorted(faded, reverse=True)
    assert (faded[0], faded[-1]) == (FULL, 0)
    assert faded[119] + faded[120] == pytest.approx(FULL, abs=1)


def test_a_fade_in_is_the_mirror_of_a_fade_out_and_changes_nothing_behind_it() -> None:
    sound = pcm(*[-FULL] * 300)
    assert samples(faded_in(sound, 240)) == samples(faded_out(sound[:480]))[::-1] + [-FULL] * 60


def test_what_is_shorter_than_its_fade_is_faded_as_a_whole() -> None:
    assert samples(faded_in(pcm(100, 100), 240)) == [15, 85]
    assert samples(faded_out(pcm(100))) == [50]
    assert (faded_in(b"", 240), faded_out(b"")) == (b"", b"")


LOUD = st.lists(st.integers(-FULL - 1, FULL), max_size=300)


@settings(max_examples=50)
@given(LOUD, st.integers(0, 300))
def test_a_fade_keeps_the_length_and_makes_nothing_louder(sound: list[int], rise: int) -> None:
    for faded in (samples(faded_out(pcm(*sound))), samples(faded_in(pcm(*sound), rise))):
        assert len(faded) == len(sound)
        assert all(abs(after) <= abs(before) for before, after in zip(sound, faded, strict=True))


@settings(max_examples=50)
@given(LOUD)
def test_what_fades_out_and_in_at_once_is_the_whole(sound: list[int]) -> None:
    out, into = samples(faded_out(pcm(*sound))), samples(faded_in(pcm(*sound), len(sound)))
    assert all(abs(one + other - whole) <= 1 for one, other, whole in zip(out, into, sound, strict=True))
