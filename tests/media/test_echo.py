"""Our echo is known by its sound, at any loudness and delay; nobody else's is."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.echo import (
    DELAY_MS_MAX,
    FRAMES_MAX,
    KEPT_MS,
    LEAD_MS,
    NS_PER_MS,
    PER_MS,
    PIECE_MS_MAX,
    RATE,
    UNLIKE,
    USUAL_TICKS_MIN,
    Echo,
    Kinship,
    Likeness,
    fit,
)
from media.pcm import FloatSamples, float_to_pcm16
from media.resample import StreamResampler
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS, WINDOW_SAMPLES

OUT_RATE = 24_000
FRAME_MS = 20
BEGAN_MS = 50_000
LEAD_OUT_MS = 160  # frames are sent so far ahead of their moment


def voice(seed: int, ms: int, rate: int = OUT_RATE) -> FloatSamples:
    """Noise whose loudness comes and goes as that of syllables, mostly below 2 kHz."""
    dice = np.random.default_rng(seed)
    count = ms * rate // 1_000
    spectrum = np.fft.rfft(dice.standard_normal(count))
    spectrum /= 1 + (np.fft.rfftfreq(count, 1 / rate) / 800) ** 2
    syllables = np.arange(0, count + rate // 10, rate // 10)
    loudness = np.interp(np.arange(count), syllables, dice.uniform(0.1, 1, len(syllables)))
    sound = np.fft.irfft(spectrum, count) * loudness
    scaled: FloatSamples = (0.2 * sound / np.abs(sound).max()).astype(np.float32)
    return scaled


def resampled(sound: FloatSamples, from_rate: int, to_rate: int) -> FloatSamples:
    resampler = StreamResampler(from_rate, to_rate)
    return np.concatenate((resampler.process(sound), resampler.flush()))


def delayed(sound: FloatSamples, delay_ms: int, gain: float = 1.0) -> FloatSamples:
    """As it comes in, 16 kHz."""
    silence = np.zeros(delay_ms * VAD_SAMPLE_RATE // 1_000, dtype=np.float32)
    return np.concatenate((silence, np.float32(gain) * resampled(sound, OUT_RATE, VAD_SAMPLE_RATE)))


class Call:
    """What goes out and what comes in, both in real time since the same moment."""

    def __init__(self) -> None:
        self.echo = Echo()
        self._frames: deque[tuple[int, bytes, int]] = deque()

    def send(self, sound: FloatSamples, *, at_ms: int = 0, rate: int = OUT_RATE) -> None:
        size = FRAME_MS * rate // 1_000
        pcm = float_to_pcm16(resampled(sound, OUT_RATE, rate))
        for place in range(len(pcm) // (2 * size)):
            frame = pcm[2 * size * place : 2 * size * (place + 1)]
            self._frames.append((at_ms + place * FRAME_MS, frame, rate))

    def hear(self, sound: FloatSamples, from_ms: int, to_ms: int, late_ms: int = 0) -> list[Likeness]:
        windows = range(-(-from_ms // WINDOW_MS), to_ms // WINDOW_MS)
        return [self._judge(sound, (window + 1) * WINDOW_SAMPLES, late_ms) for window in windows]

    def _judge(self, sound: FloatSamples, end: int, late_ms: int) -> Likeness:
        now_ms = end // 16 + late_ms
        while self._frames and self._frames[0][0] <= now_ms + LEAD_OUT_MS:
            at_ms, frame, rate = self._frames.popleft()
            self.echo.sent(frame, rate, (BEGAN_MS + at_ms) * NS_PER_MS)
        return self.echo.judge(sound[max(0, end - 8_192) : end], end, (BEGAN_MS + now_ms) * NS_PER_MS)


def kinds(found: list[Likeness]) -> list[Kinship]:
    return [likeness.kinship for likeness in found]


# ---- an echo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", [0.05, 1.0])
@pytest.mark.parametrize("delay_ms", [0, 300, 1_000])
@pytest.mark.parametrize("rate", [8_000, 24_000])
def test_our_sound_is_known_again_within_200_ms(gain: float, delay_ms: int, rate: int) -> None:
    call, ours = Call(), voice(1, 1_000)
    call.send(ours, rate=rate)
    found = call.hear(delayed(ours, delay_ms, gain), delay_ms, delay_ms + 800)
    assert all(likeness.is_ours for likeness in found[5:])
    assert call.echo.delay_ms == pytest.approx(delay_ms, abs=2)


def test_it_is_told_since_when_it_has_lasted() -> None:
    call, ours = Call(), voice(1, 1_000)
    call.send(ours)
    found = call.hear(delayed(ours, 320), 320, 900)
    began = {likeness.since for likeness in found[3:]}
    assert len(began) == 1
    assert abs(began.pop() - 320 * 16) <= 3 * WINDOW_SAMPLES


@pytest.mark.parametrize("delay_ms", [0, 300])
def test_it_is_told_where_it_ends_though_a_voice_that_follows_is_taken_for_it_at_first(delay_ms: int) -> None:
    call, ours = Call(), voice(1, 1_000)
    call.send(ours)
    ends_ms = 1_000 + delay_ms
    caller = delayed(voice(2, 800), ends_ms + 60, 0.7)
    echo = delayed(ours, delay_ms)
    caller[: len(echo)] += echo
    found = call.hear(caller, delay_ms, ends_ms + 400)
    ours_last = [likeness for likeness in found if likeness.is_ours][-1]
    assert sum(likeness.is_ours for likeness in found) * WINDOW_MS > 1_060, "a part of what follows is taken for ours"
    assert ours_last.until / 16 == pytest.approx(ends_ms + 64, abs=8)


def test_what_comes_later_is_known_at_once_where_the_delay_is() -> None:
    call, ours = Call(), voice(1, 2_000)
    call.send(ours)
    sound = delayed(ours, 300)
    call.hear(sound, 320, 900)
    assert all(likeness.is_ours for likeness in call.hear(sound, 1_120, 1_500))


def test_the_delay_may_change() -> None:
    call, ours = Call(), voice(1, 3_000)
    call.send(ours)
    call.hear(delayed(ours, 300), 320, 900)
    assert call.hear(delayed(ours, 500), 1_120, 1_700)[-1].is_ours
    assert call.echo.delay_ms == pytest.approx(500, abs=2)


def test_an_echo_that_fits_badly_is_suspected_before_it_is_known() -> None:
    call, ours = Call(), voice(1, 1_500)
    call.send(ours)
    noisy = delayed(ours, 300) + delayed(voice(2, 1_500), 300, 2)
    found = kinds(call.hear(noisy, 320, 1_200))
    assert Kinship.SUSPECT in found[:5]
    assert Kinship.OURS in found


def test_sound_that_was_sent_in_two_pieces_is_known_with_the_gap_where_it_was() -> None:
    call, ours = Call(), voice(1, 2_000)
    half = len(ours) // 2
    call.send(ours[:half])
    call.send(ours[half:], at_ms=1_400)
    gap = np.zeros(400 * OUT_RATE // 1_000, dtype=np.float32)
    sound = delayed(np.concatenate((ours[:half], gap, ours[half:])), 300)
    assert all(likeness.is_ours for likeness in call.hear(sound, 1_728, 2_400)[5:])


# ---- no echo ---------------------------------------------------------------------------------------


def test_another_voice_is_not_ours() -> None:
    call = Call()
    call.send(voice(1, 2_000))
    found = kinds(call.hear(delayed(voice(2, 2_000), 0), 0, 2_000))
    assert Kinship.OURS not in found
    assert set(found[10:]) == {Kinship.OTHER}


def test_a_tone_is_no_echo_of_another_that_began_and_ended_as_abruptly() -> None:
    clock = np.arange(2 * OUT_RATE) / OUT_RATE
    ours, other = (0.2 * np.sin(2 * np.pi * hz * clock).astype(np.float32) for hz in (440, 300))
    call = Call()
    call.send(ours)
    assert set(kinds(call.hear(delayed(other, 320), 320, 1_800))) == {Kinship.OTHER}


def test_who_has_said_nothing_has_no_echo() -> None:
    call = Call()
    assert not call.echo.may_be_heard(BEGAN_MS * NS_PER_MS)
    assert call.hear(delayed(voice(2, 500), 0), 0, 500) == [UNLIKE] * 15


def test_silence_of_ours_has_no_echo() -> None:
    call = Call()
    call.send(np.zeros(OUT_RATE, dtype=np.float32))
    assert call.hear(delayed(voice(2, 500), 0), 0, 500) == [UNLIKE] * 15


def test_an_echo_does_not_come_for_ever() -> None:
    call, ours = Call(), voice(1, 1_000)
    call.send(ours)
    call.hear(delayed(ours, 300), 960, 1_000)
    last_ms = BEGAN_MS + 1_000 + DELAY_MS_MAX + PIECE_MS_MAX
    assert call.echo.may_be_heard(last_ms * NS_PER_MS)
    assert not call.echo.may_be_heard((last_ms + 1) * NS_PER_MS)
    assert set(call.hear(delayed(ours, 2_900), 2_912, 3_500)) == {UNLIKE}


def test_a_voice_over_the_echo_is_heard_and_so_is_its_end() -> None:
    call, ours = Call(), voice(1, 4_000)
    call.send(ours)
    sound = delayed(ours, 300)
    over = np.zeros_like(sound)
    start, end = 1_500 * 16, 2_700 * 16
    over[start:end] = 2 * delayed(voice(2, 1_200), 0)[: end - start]
    call.hear(sound, 320, 1_500)
    found = call.hear(sound + over, 1_504, 3_600)
    assert not any(likeness.is_ours for likeness in found[14:34])
    assert found[-1].is_ours
    assert found[-1].since > end - PIECE_MS_MAX * 16


def test_the_usual_fit_follows_a_line_that_becomes_worse() -> None:
    call, ours = Call(), voice(1, 12_000)
    call.send(ours)
    sound = delayed(ours, 300)
    call.hear(sound, 320, 2_000)
    noise = 0.25 * delayed(voice(3, 12_000), 300)
    call.hear(sound + noise, 2_016, 10_000)
    assert all(likeness.is_ours for likeness in call.hear(sound + noise, 10_016, 12_000))


def test_an_echo_that_fits_worse_and_is_no_louder_is_an_echo() -> None:
    """As at the end of a sentence, in the noise of the line: nobody has added anything."""
    call, ours = Call(), voice(1, 4_000)
    call.send(ours)
    sound = delayed(ours, 300)
    call.hear(sound, 320, 2_000)
    softer = delayed(ours, 300, 0.6) + delayed(voice(3, 4_000), 300, 0.48)
    assert all(likeness.is_ours for likeness in call.hear(softer, 2_016, 3_600))


def test_of_a_short_piece_nobody_can_tell_a_voice_over_it() -> None:
    call, ours = Call(), voice(1, 4_000)
    call.send(ours)
    sound = delayed(ours, 300)
    call.hear(sound, 320, 2_000)
    louder = sound + delayed(voice(3, 4_000), 300)
    found = kinds(call.hear(louder, 2_208, 2_800))
    short = USUAL_TICKS_MIN // PER_MS // WINDOW_MS - 2  # a piece begins with two windows
    assert set(found[:short]) == {Kinship.OURS}
    assert found[short] is Kinship.MIXED


def test_of_an_echo_at_another_delay_the_usual_fit_is_learned_anew() -> None:
    call, ours = Call(), voice(1, 4_000)
    call.send(ours)
    call.hear(delayed(ours, 300, 0.1), 320, 2_000)
    noisy = delayed(ours, 700) + delayed(voice(3, 4_000), 700, 0.6)
    found = kinds(call.hear(noisy, 2_208, 3_600))
    assert call.echo.delay_ms == 700
    assert set(found) == {Kinship.OURS}


# ---- clocks and bounds -----------------------------------------------------------------------------


@pytest.mark.parametrize("late_ms", [150, 900])
def test_sound_that_comes_late_is_placed_by_its_samples_unless_the_microphone_stood_still(late_ms: int) -> None:
    call, ours = Call(), voice(1, 3_000)
    call.send(ours)
    sound = delayed(ours, 100)
    call.hear(sound, 96, 500)
    assert call.echo.delay_ms == pytest.approx(100, abs=2)
    found = call.hear(sound, 640, 1_280, late_ms)
    assert all(likeness.is_ours for likeness in found)
    assert call.echo.delay_ms == pytest.approx(100 if late_ms < 500 else 100 + late_ms, abs=2)


def test_no_more_is_kept_than_an_echo_may_need() -> None:
    echo = Echo()
    for place in range(2 * FRAMES_MAX):
        echo.sent(bytes(2 * FRAME_MS * 24), OUT_RATE, (BEGAN_MS + place * FRAME_MS) * NS_PER_MS)
    assert len(echo._waiting) == FRAMES_MAX
    assert KEPT_MS >= PIECE_MS_MAX + DELAY_MS_MAX + LEAD_MS


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6_000), st.integers(0, 1_300), st.sampled_from([8_000, 24_000])),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 7_000),
)
def test_whatever_was_sent_whenever_silence_is_nobodys(frames: list[tuple[int, int, int]], end_ms: int) -> None:
    echo = Echo()
    for at_ms, samples, rate in frames:
        echo.sent(float_to_pcm16(voice(1, 100)[:samples]), rate, (BEGAN_MS + at_ms) * NS_PER_MS)
    piece = np.zeros(8_192, dtype=np.float32)
    assert not echo.judge(piece, end_ms * 16, (BEGAN_MS + end_ms) * NS_PER_MS).is_ours


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 4_000), st.floats(0.001, 10))
def test_a_piece_fits_best_where_it_was_taken_from_however_loud(place: int, gain: float) -> None:
    ours = voice(5, 1_500, RATE)
    fits = fit(np.float32(gain) * ours[place : place + 1_024], ours)
    assert int(fits.argmax()) == place
    assert fits.min() >= 0
    assert fits.max() <= 1.3
