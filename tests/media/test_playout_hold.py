"""A playout that is held and goes on: silent at once, nothing lost, nothing said twice."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.chunk import AudioChunk
from media.playout import Frame, LedgerView, Playout

RATE = 8_000
FRAME = 160  # 20 ms
FADE = 80  # 10 ms
MS = 1_000_000
LOUD = 10_000


def loud(samples: int, seq: int = 0, start: int = 0, *, final: bool = False) -> AudioChunk:
    return AudioChunk(seq, RATE, start, np.full(samples, LOUD, dtype="<i2").tobytes(), final)


def make(lead_ms: int = 40, *responses: str) -> Playout:
    playout = Playout(RATE, FRAME, lead_ms * MS)
    for response in responses or ("r",):
        playout.open(response)
    return playout


def drain(playout: Playout, now_ms: int) -> list[Frame]:
    frames = []
    while (frame := playout.due(now_ms * MS)) is not None:
        frames.append(frame)
    return frames


def levels(frame: Frame) -> list[int]:
    return [int(sample) for sample in np.frombuffer(frame.pcm, dtype="<i2")]


def spans(frames: list[Frame]) -> list[tuple[int, int, bool]]:
    return [(frame.start_sample, frame.end_sample, frame.final) for frame in frames]


def test_what_sounds_fades_out_at_once_and_goes_on_where_it_stopped() -> None:
    playout = make()
    playout.push("r", loud(1_600))
    assert spans(drain(playout, 0)) == [(0, 160, False), (160, 320, False)]
    playout.hold()
    (fade,) = drain(playout, 5)
    assert (fade.start_sample, fade.end_sample) == (320, 320 + FADE)
    assert levels(fade)[0] > 0.99 * LOUD
    assert levels(fade)[-1] < 0.01 * LOUD
    assert drain(playout, 500) == []
    assert playout.view("r", 500 * MS) == LedgerView(generated=1_600, sent=400, heard=400, complete=False)
    playout.resume()
    first, second = drain(playout, 600)
    assert (first.start_sample, second.start_sample) == (400, 560)
    assert levels(first)[0] < 0.01 * LOUD
    assert levels(first)[FADE:] == [LOUD] * (FRAME - FADE)
    assert levels(second) == [LOUD] * FRAME
    assert playout.underruns == 0, "a hold is none"


def test_a_late_driver_fades_what_its_own_clock_says_is_sounding() -> None:
    """Over WebRTC frames are asked for at the moments of their packets, however late that is."""
    playout = make(20)
    playout.push("r", loud(1_600))
    assert spans([*drain(playout, 0), *drain(playout, 20)]) == [(0, 160, False), (160, 320, False)]
    playout.hold()  # 47 ms by the driver's clock, who has yet to ask for the packet of 40 ms
    (fade,) = drain(playout, 40)
    assert (fade.start_sample, fade.end_sample) == (320, 320 + FADE)
    assert levels(fade)[-1] < 0.01 * LOUD
    assert drain(playout, 60) == []


def test_before_its_first_sample_a_response_simply_does_not_begin() -> None:
    playout = make()
    playout.push("r", loud(FRAME))
    playout.hold()
    assert drain(playout, 0) == []
    playout.resume()
    (frame,) = drain(playout, 0)
    assert levels(frame) == [LOUD] * FRAME


def test_what_has_run_dry_neither_fades_out_nor_in() -> None:
    playout = make()
    playout.push("r", loud(FRAME))
    drain(playout, 0)
    playout.hold()
    playout.push("r", loud(FRAME, 1, FRAME))
    assert drain(playout, 21) == []
    playout.resume()
    (frame,) = drain(playout, 30)
    assert levels(frame) == [LOUD] * FRAME
    assert playout.underruns == 1


@pytest.mark.parametrize("asked_ms", [20, 21, 500])
def test_an_ear_that_has_run_dry_by_then_gets_no_tail(asked_ms: int) -> None:
    """Sound that came after silence would be a click, though it fades."""
    playout = make()
    playout.push("r", loud(FRAME + FADE))  # less than a frame of it is left, and waits for more
    assert spans(drain(playout, 0)) == [(0, FRAME, False)]
    playout.hold()
    is_dry = asked_ms > 20
    assert spans(drain(playout, asked_ms)) == ([] if is_dry else [(FRAME, FRAME + FADE, False)])
    assert playout.view("r", asked_ms * MS).sent == FRAME + FADE * (not is_dry)
    playout.push("r", loud(FRAME, 1, FRAME + FADE, final=True))
    playout.resume()
    first, *_ = drain(playout, asked_ms + 100)
    assert (first.start_sample, levels(first)[0] == LOUD) == (FRAME if is_dry else FRAME + FADE, is_dry)


def test_a_hold_that_is_over_before_the_next_frame_leaves_no_trace() -> None:
    playout = make()
    playout.push("r", loud(640))
    drain(playout, 0)
    playout.hold()
    playout.hold()
    playout.resume()
    playout.resume()
    assert [levels(frame) for frame in drain(playout, 20)] == [[LOUD] * FRAME]


def test_a_hold_amid_the_silence_of_the_one_before_fades_nothing() -> None:
    playout = make()
    playout.push("r", loud(1_600))
    drain(playout, 0)
    playout.hold()
    assert len(drain(playout, 5)) == 1
    playout.resume()
    playout.hold()
    assert drain(playout, 6) == []
    playout.resume()
    (frame,) = drain(playout, 20)
    assert (levels(frame)[0] < 100, levels(frame)[-1]) == (True, LOUD)


def test_a_short_rest_fades_out_as_a_whole_and_is_the_end() -> None:
    playout = make()
    playout.push("r", loud(FRAME + 30, final=True))
    drain(playout, 0)
    playout = make(20)
    playout.push("r", loud(FRAME + 30, final=True))
    assert spans(drain(playout, 0)) == [(0, FRAME, False)]
    playout.hold()
    (fade,) = drain(playout, 5)
    assert (fade.start_sample, fade.end_sample, fade.final) == (FRAME, FRAME + 30, True)
    playout.resume()
    assert drain(playout, 100) == []


@pytest.mark.parametrize("end", [Playout.cut, lambda playout, response, _now: playout.forget(response)])
def test_a_response_that_ends_during_a_hold_takes_its_fade_along(end: object) -> None:
    playout = make(20, "a", "b")
    playout.push("a", loud(640))
    playout.push("b", loud(FRAME, final=True))
    drain(playout, 0)
    playout.hold()
    end(playout, "a", 5 * MS)  # type: ignore[operator]
    assert drain(playout, 5) == []
    playout.resume()
    (frame,) = drain(playout, 30)
    assert (frame.response, levels(frame)) == ("b", [LOUD] * FRAME)


@given(st.integers(0, 2**32), st.integers(10, 300), st.sampled_from((20, 40, 160)))
def test_outside_its_fades_a_reply_that_was_held_sounds_as_one_that_was_not(seed: int, steps: int, lead: int) -> None:
    random, playout = Random(seed), make(lead)
    source = np.array([random.randint(-LOUD, LOUD) for _ in range(6_000)], dtype="<i2")
    pushed = seq = now_ms = 0
    got: list[Frame] = []
    held = False
    faded = np.zeros(len(source) + FADE, dtype=bool)
    for step in range(steps + 400):
        if pushed < len(source):
            size = min(random.randint(1, 400), len(source) - pushed)
            final = pushed + size == len(source)
            playout.push("r", AudioChunk(seq, RATE, pushed, source[pushed : pushed + size].tobytes(), final))
            pushed, seq = pushed + size, seq + 1
        if step < steps and random.random() < 0.1:
            held = not held
            playout.hold() if held else playout.resume()
        elif step == steps:
            held = False
            playout.resume()
        now_ms += random.choice((1, 10, 20))
        for frame in drain(playout, now_ms):
            assert not held or frame.samples <= FADE
            if held:
                faded[frame.start_sample : frame.end_sample + FADE] = True
            got.append(frame)
    sound = np.frombuffer(b"".join(frame.pcm for frame in got), dtype="<i2")
    assert len(sound) == len(source), "nothing lost, nothing twice"
    assert np.array_equal(sound[~faded[: len(source)]], source[~faded[: len(source)]])
    assert np.all(np.abs(sound) <= np.abs(source)), "a fade only makes quieter"
