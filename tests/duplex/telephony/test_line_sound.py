"""A reply's frames on a telephone line: whole frames, true places, nothing left over behind a flush."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import A_LAW_LINE, MU_LAW_LINE, linear_line
from duplex.telephony.line_sound import LineSound
from media.audio_format import AudioFormat
from media.playout import Frame
from media.rtp_map import Position

QUIET = b"\xff"


def frame(start: int, samples: int, *, response: str = "a", final: bool = False, level: int = 8_000) -> Frame:
    pcm = np.full(samples, level, dtype="<i2").tobytes()
    return Frame(response, start, pcm, final)


def telephone() -> LineSound:
    return LineSound(MU_LAW_LINE, 160, 8_000)


def located(sound: LineSound, position: int) -> tuple[str, int] | None:
    place = sound.locate(position)
    return None if place is None else (place.response, place.samples)


def test_a_frame_becomes_a_frame() -> None:
    sound = telephone()
    (coded,) = sound.add(frame(0, 160))
    assert coded == MU_LAW_LINE.encode(frame(0, 160).pcm)
    assert sound.position == sound.frame_samples == 160
    assert located(sound, 100) == ("a", 100)


def test_agents_js_1184_frames_are_whole_and_only_the_last_is_filled_up() -> None:
    sound = telephone()
    assert [len(sound.add(frame(start, 100))) for start in (0, 100, 200)] == [0, 1, 0]
    waits = [sound.is_waiting]
    last = sound.add(frame(300, 100, final=True))
    assert [len(coded) for coded in last] == [160, 160]
    assert last[-1][80:] == QUIET * 80
    assert [*waits, sound.is_waiting] == [True, False]
    assert located(sound, sound.position) == ("a", 400)


def test_a_final_without_sound_fills_up_what_waits() -> None:
    sound = telephone()
    sound.add(frame(0, 100))
    (coded,) = sound.add(frame(100, 0, final=True))
    assert coded[100:] == QUIET * 60
    assert sound.add(frame(100, 0, final=True)) == []
    assert sound.pad() == []


def test_what_follows_a_filled_frame_has_its_place_behind_it() -> None:
    sound = telephone()
    sound.add(frame(0, 80))
    assert len(sound.pad()) == 1
    sound.add(frame(80, 160))
    assert [located(sound, at) for at in (80, 160, 200)] == [("a", 80), ("a", 80), ("a", 120)]


def test_another_reply_begins_on_a_frame_of_its_own() -> None:
    sound = telephone()
    sound.add(frame(0, 100))
    assert len(sound.add(frame(0, 160, response="b"))) == 2
    assert [located(sound, at) for at in (150, 160, 170)] == [("a", 100), ("a", 100), ("b", 10)]


def test_timbal_112_a_flush_leaves_nothing_for_the_next_reply() -> None:
    sound = telephone()
    sound.add(frame(0, 250))
    assert sound.take_back(160) == Position("a", 160, 160)
    assert not sound.is_waiting
    (coded,) = sound.add(frame(0, 160, response="b", level=-300))
    assert set(MU_LAW_LINE.decode(coded)) == set(MU_LAW_LINE.decode(MU_LAW_LINE.encode(frame(0, 1, level=-300).pcm)))
    assert located(sound, 260) == ("b", 100)


def test_a_flush_of_what_has_left_takes_nothing_back() -> None:
    sound = telephone()
    sound.add(frame(0, 160))
    assert sound.take_back(160) is None
    assert located(sound, 160) == ("a", 160)


@pytest.mark.parametrize(("rate", "frame_bytes"), [(8_000, 320), (16_000, 640), (24_000, 960)])
def test_linear_lines_have_the_sound_of_a_reply_at_their_rate(rate: int, frame_bytes: int) -> None:
    sound = LineSound(linear_line(rate), frame_bytes, 24_000)
    coded = [piece for start in range(0, 4_800, 480) for piece in sound.add(frame(start, 480, final=start == 4_320))]
    assert {len(piece) for piece in coded} == {frame_bytes}
    heard = np.frombuffer(b"".join(coded), dtype="<i2")
    assert abs(len(heard) - 200 * rate // 1_000) <= sound.frame_samples
    middle = heard[len(heard) // 4 : len(heard) // 2]
    assert np.abs(middle - 8_000).max() < 100
    assert located(sound, rate // 10) == ("a", 2_400)


def test_what_a_resampler_holds_back_is_dropped_with_the_rest() -> None:
    sound = LineSound(linear_line(16_000), 640, 24_000)
    sound.add(frame(0, 480))
    sound.take_back(sound.position)
    silent = sound.add(frame(0, 480, response="b", level=0)) + sound.add(frame(480, 480, response="b", level=0))
    assert set(b"".join(silent)) == {0}


def test_alaw_too() -> None:
    sound = LineSound(A_LAW_LINE, 160, 8_000)
    assert sound.add(frame(0, 160)) == [A_LAW_LINE.encode(frame(0, 160).pcm)]


LINES = st.sampled_from(
    [(MU_LAW_LINE, 160, 8_000), (linear_line(16_000), 640, 24_000), (linear_line(24_000), 960, 24_000)]
)


@given(LINES, st.lists(st.tuples(st.sampled_from(["add", "end", "pad", "flush"]), st.integers(1, 480))))
def test_places_never_run_backwards_and_frames_are_whole(
    line: tuple[AudioFormat, int, int], steps: list[tuple[str, int]]
) -> None:
    sound, number, start, at = LineSound(*line), 0, 0, 0
    for step, samples in steps:
        frames: list[bytes] = []
        match step:
            case "add":
                frames = sound.add(frame(start, samples, response=str(number)))
                start += samples
            case "end":
                frames = sound.add(frame(start, samples, response=str(number), final=True))
                number, start = number + 1, 0
            case "pad":
                frames = sound.pad()
            case _:
                sound.take_back(sound.position)
                number, start = number + 1, 0
        assert all(len(each) == line[1] for each in frames)
        at += len(frames) * sound.frame_samples
        assert sound.position == at
        places = [located(sound, position) for position in range(0, at + 1, 160)]
        heard = [(int(place[0]), place[1]) for place in places if place is not None]
        assert heard == sorted(heard)
