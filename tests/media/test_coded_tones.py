"""The tones of words, and the ear that hears them: what is said is heard, wherever it was cut and however it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from media.coded_tones import (
    DELAY_MS_MAX,
    EAR_RATE,
    EDGE_SAMPLES,
    RATES,
    SYMBOL,
    WORD,
    WORD_MS,
    Decoder,
    Heard,
    encode,
    render,
    response_number,
    word_samples,
)
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.word_code import RESPONSES, WORDS, codeword

HALF = WORD // 2
# Where the sound behind a cut begins like the word would have gone on, a cut is seen late.
CUT_SAMPLES_MAX = 60

Ids = tuple[int, int]
ids = st.tuples(st.integers(0, RESPONSES - 1), st.integers(0, WORDS - 1))
rates = st.sampled_from(RATES)


def decode(samples: FloatSamples, rate: int = EAR_RATE) -> list[Heard]:
    decoder = Decoder(rate)
    return [*decoder.feed(samples), *decoder.finish()]


def silence(samples: int) -> FloatSamples:
    return np.zeros(samples, dtype=np.float32)


def joined(*parts: FloatSamples) -> FloatSamples:
    return np.concatenate(parts)


def said(words: Sequence[Ids], rate: int = EAR_RATE) -> FloatSamples:
    return joined(*(encode(*word, rate) for word in words))


def whole(words: Sequence[Ids], rate: int = EAR_RATE, start: int = 0) -> list[Heard]:
    """What is heard where nothing is lost."""
    length = word_samples(rate)
    return [Heard(*word, start + place * length, length, 0, whole=True) for place, word in enumerate(words)]


def numbers(heard: Sequence[Heard]) -> list[Ids]:
    return [(piece.response, piece.word) for piece in heard]


# ---- the voice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
def test_a_word_is_pairs_of_whole_oscillations(rate: int) -> None:
    sound = encode(1234, 56, rate)
    assert len(sound) == word_samples(rate)
    assert sound.dtype == np.dtype(np.float32)
    assert len(sound) * 1000 == WORD_MS * rate
    spectra = np.abs(np.fft.rfft(sound.reshape(16, -1))) / (rate / 80 / 2)
    for symbol, spectrum in zip(codeword(1234, 56), spectra, strict=True):
        low, high = 5 + symbol // 16, 25 + symbol % 16  # of 80 Hz: 400 to 1,600 and 2,000 to 3,200 Hz
        assert np.flatnonzero(spectrum > 1e-4).tolist() == [low, high]
        np.testing.assert_allclose(spectrum[[low, high]], 0.25, atol=1e-5)


def test_negative_symbols_are_silent() -> None:
    sound = render(np.array([-1, 200, -1]), 8_000).reshape(3, 100)
    assert not sound[[0, 2]].any()
    np.testing.assert_array_equal(sound[1], render(np.array([200]), 8_000))


def test_a_rate_without_whole_symbols_is_a_bug_of_the_caller() -> None:
    for ask in (lambda: word_samples(22_050), lambda: encode(0, 0, 22_050)):
        with pytest.raises(AssertionError, match="22050 is not one of"):
            ask()


def test_a_response_has_the_same_number_everywhere() -> None:
    assert response_number("resp_1") == crc32(b"resp_1") % RESPONSES == 20_946
    assert len({response_number(f"resp_{number}") for number in range(1_000)}) > 980


# ---- what is said is heard ------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@example([(0, 0), (1156, 1)], 48_000, 1, 1.0)
@given(st.lists(ids, max_size=4), rates, st.integers(0, 2_000), st.floats(0.1, 1.0))
def test_words_are_heard_where_they_are(words: list[Ids], rate: int, pause: int, gain: float) -> None:
    sound = joined(silence(pause), *(encode(*word, rate) for word in words)) * np.float32(gain)
    heard = decode(sound, rate)
    assert numbers(heard) == words
    slack = 2 * max(1, rate // 24_000)  # two samples of the service's own rate
    assert all(piece.whole and piece.skipped <= slack for piece in heard)
    for piece, wanted in zip(heard, whole(words, rate, pause), strict=True):
        assert abs(piece.start_sample - wanted.start_sample) <= slack
        assert abs(piece.samples_heard - wanted.samples_heard) <= slack


def test_at_the_rate_of_the_ear_every_border_is_exact() -> None:
    words = [(7, word) for word in range(12)]
    assert decode(joined(silence(777), said(words)) * np.float32(0.1)) == whole(words, start=777)


def test_silence_may_lie_between_words() -> None:
    words = [(9, 0), (9, 1), (9, 2)]
    heard = decode(joined(*(part for word in words for part in (encode(*word, EAR_RATE), silence(1_001)))))
    assert heard == [Heard(*word, place * (WORD + 1_001), WORD, 0, whole=True) for place, word in enumerate(words)]


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(ids, min_size=1, max_size=3), rates, st.lists(st.integers(0, 3_000), max_size=12))
def test_chunks_make_no_difference(words: list[Ids], rate: int, sizes: list[int]) -> None:
    sound = joined(said(words, rate), encode(1, 2, rate)[: word_samples(rate) * 2 // 3], silence(100))
    decoder, heard = Decoder(rate), list[Heard]()
    for chunk in np.split(sound, np.minimum(np.cumsum(sizes), len(sound))):
        heard += decoder.feed(chunk)
    assert [*heard, *decoder.finish()] == decode(sound, rate)


def test_a_stream_may_follow_another() -> None:
    decoder = Decoder(8_000)
    for words in ([(1, 1)], [(2, 2), (2, 3)]):
        sound = said(words, 8_000)
        assert [*decoder.feed(sound), *decoder.finish()] == whole(words, 8_000)


@pytest.mark.parametrize("rate", RATES)
def test_reports_do_not_wait_for_long(rate: int) -> None:
    delay = DELAY_MS_MAX * rate // 1000
    for pause in range(0, word_samples(rate), word_samples(rate) // 7):
        decoder = Decoder(rate)
        sound = joined(silence(pause), encode(3, 4, rate), silence(delay))
        assert numbers(decoder.feed(sound)) == [(3, 4)]


# ---- what it goes through ---------------------------------------------------------------------------------------


def noisy(samples: FloatSamples) -> FloatSamples:
    """20 dB under the words, whose power is 1/16."""
    noise = np.random.default_rng(1).normal(0, np.sqrt(1 / 16 / 100), len(samples))
    return (samples + noise).astype(np.float32)


def resampled(samples: FloatSamples, rate: int) -> FloatSamples:
    resampler = StreamResampler(EAR_RATE, rate)
    return joined(resampler.process(samples), resampler.flush())


def mu_law(samples: FloatSamples) -> FloatSamples:
    """ITU-T G.711, as its formula has it."""
    coded = np.round(np.sign(samples) * np.log1p(255 * np.abs(samples)) / np.log1p(255) * 127) / 127
    decoded: FloatSamples = (np.sign(coded) * (256 ** np.abs(coded) - 1) / 255).astype(np.float32)
    return decoded


def as_pcm(samples: FloatSamples) -> FloatSamples:
    return pcm16_to_float(float_to_pcm16(samples))


WAYS: dict[str, tuple[int, Callable[[FloatSamples], FloatSamples]]] = {
    "pcm16": (24_000, as_pcm),
    "noise": (24_000, noisy),
    "16 kHz": (16_000, lambda sound: resampled(sound, 16_000)),
    "8 kHz": (8_000, lambda sound: resampled(sound, 8_000)),
    "48 kHz": (48_000, lambda sound: resampled(sound, 48_000)),
    "a noisy telephone": (8_000, lambda sound: mu_law(resampled(noisy(sound), 8_000))),
}


@pytest.mark.parametrize("gain", [0.1, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_words_survive(way: str, gain: float) -> None:
    rate, carry = WAYS[way]
    words = [(int(response), int(word)) for response, word in np.random.default_rng(2).integers(0, WORDS, (10, 2))]
    heard = decode(as_pcm(carry(joined(silence(1_111), said(words))) * np.float32(gain)), rate)
    assert numbers(heard) == words
    for place, piece in enumerate(heard):
        assert piece.whole
        assert abs(piece.start_sample * EAR_RATE / rate - 1_111 - place * WORD) <= EAR_RATE / rate


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_cuts_before_silence_are_found(way: str) -> None:
    rate, carry = WAYS[way]
    late = []
    for at in range(HALF, WORD, 97):
        sound = joined(silence(500), encode(at, 5, EAR_RATE)[:at], silence(2_000))
        (piece,) = decode(carry(sound), rate)
        assert (piece.response, piece.word, piece.skipped) == (at, 5, 0)
        late.append(abs((piece.start_sample + piece.samples_heard) * EAR_RATE / rate - 500 - at))
    assert np.median(late) <= 3 + EAR_RATE / rate
    assert np.quantile(late, 0.98) <= EDGE_SAMPLES + EAR_RATE / rate


# ---- cuts and joins ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(ids, st.integers(1, WORD - 1))
def test_either_half_of_a_word_is_enough(word: Ids, at: int) -> None:
    for piece in (slice(at), slice(at, None)):
        sound = encode(*word, EAR_RATE)[piece]
        heard = decode(joined(silence(300), sound, silence(300)))
        if len(sound) >= HALF:
            assert numbers(heard) == [word]
        for one in heard:
            assert (one.response, one.word) == word
            assert abs(one.samples_heard - len(sound)) <= CUT_SAMPLES_MAX
            assert abs(one.skipped - (piece.start or 0)) <= CUT_SAMPLES_MAX
            assert one.whole is (one.samples_heard >= WORD - EDGE_SAMPLES)


cuts = st.tuples(ids, st.integers(0, WORD), st.integers(0, WORD))


@pytest.mark.slow
@given(st.lists(cuts, max_size=8), st.sampled_from([0, 1, 500]))
@example([((0, 0), 0, 299), ((0, 0), 300, 3_000)], 0)
def test_of_any_pieces_only_what_was_there_is_heard(pieces: list[tuple[Ids, int, int]], pause: int) -> None:
    parts, truth, at = list[FloatSamples](), dict[Ids, list[tuple[int, int, int]]](), 0
    for word, *places in pieces:
        begin, end = sorted(places)
        parts += [encode(*word, EAR_RATE)[begin:end], silence(pause)]
        truth.setdefault(word, []).append((at, at + end - begin, at - begin))
        at += end - begin + pause
    heard = decode(joined(*parts, silence(1)))
    assert set(numbers(heard)) <= set(truth)
    for word, spans in truth.items():
        found = [(one.start_sample, one.samples_heard) for one in heard if (one.response, one.word) == word]
        for begin, end, origin in spans:
            # Pieces that lie as they do in the word, but for less than a symbol, are one word, heard as one.
            is_alone = sum(abs(origin - other) < SYMBOL for *_, other in spans) == 1
            if is_alone and end - begin >= HALF + SYMBOL:
                assert any(
                    abs(start - begin) < SYMBOL and abs(start + length - end) < SYMBOL for start, length in found
                )
    assert [one.start_sample for one in heard] == sorted(one.start_sample for one in heard)


@pytest.mark.slow
def test_cuts_where_another_word_follows_are_found() -> None:
    random = np.random.default_rng(3)
    early = []
    for _ in range(60):
        first, second = (1, int(random.integers(WORDS))), (2, int(random.integers(WORDS)))
        end, begin = int(random.integers(HALF + SYMBOL, WORD)), int(random.integers(0, HALF - SYMBOL))
        heard = decode(joined(encode(*first, EAR_RATE)[:end], encode(*second, EAR_RATE)[begin:]))
        assert numbers(heard) == [first, second]
        early += [abs(heard[0].samples_heard - end), abs(heard[1].start_sample - end), abs(heard[1].skipped - begin)]
    assert np.median(early) <= 2
    assert np.quantile(early, 0.98) <= 2 * EDGE_SAMPLES


@pytest.mark.parametrize("length", [96, 240, 480, 960])
def test_a_hole_is_seen(length: int) -> None:
    for at in range(600, 3_000, 171):
        sound = encode(5, 6, EAR_RATE)
        sound[at : at + length] = 0
        before, after = decode(sound)
        assert numbers([before, after]) == [(5, 6)] * 2
        assert (before.start_sample, before.skipped, before.whole, after.whole) == (0, 0, False, False)
        assert abs(before.samples_heard - at) <= CUT_SAMPLES_MAX
        assert after.start_sample == after.skipped
        assert abs(after.skipped - at - length) <= CUT_SAMPLES_MAX


def test_beside_a_short_halt_a_word_is_not_lost_between_its_two_places() -> None:
    """Half of a symbol of silence: windows in between find symbols of both pieces, more than of either alone."""
    word, halt = (41_298, 2), 192
    sound = encode(*word, EAR_RATE)
    (piece,) = decode(joined(sound[:1_920], silence(halt), sound[1_920:]))
    assert (piece.response, piece.word) == word
    assert abs(piece.skipped - 1_920) <= EDGE_SAMPLES
    assert piece.start_sample == piece.skipped + halt


@pytest.mark.parametrize("length", [20, 48, 240, 480])
def test_what_was_cut_out_of_the_middle_is_missed(length: int) -> None:
    """Seven symbols in a row are left on one side, wherever 20 ms are lost."""
    for at in range(300, 4_000, 171):
        sound = encode(5, 6, EAR_RATE)
        heard = decode(np.delete(sound, slice(at, at + length)))
        assert set(numbers(heard)) == {(5, 6)}
        assert not any(piece.whole for piece in heard)


def test_the_same_word_may_come_twice() -> None:
    sound = encode(8, 9, EAR_RATE)
    assert decode(joined(sound, sound[:3_000], silence(500)))[0] == whole([(8, 9)])[0]
    assert numbers(decode(joined(sound, sound))) == [(8, 9)] * 2


def test_pieces_come_in_the_order_of_their_beginnings() -> None:
    """The second word would have begun before the first."""
    first, second = encode(1, 1, EAR_RATE)[:2_400], encode(2, 2, EAR_RATE)[2_600:]
    for pause in (4_000, WORD + 50, WORD + 150, 5_500):
        heard = decode(joined(silence(pause), first, second))
        assert numbers(heard) == [(1, 1), (2, 2)]


# ---- what is no word --------------------------------------------------------------------------------------------


def test_other_sounds_are_no_words() -> None:
    random, clock = np.random.default_rng(4), np.arange(2 * EAR_RATE) / EAR_RATE
    tones = [np.sin(2 * np.pi * hz * clock) for hz in (400, 800, 2_000, 2_400)]
    chirp = np.sin(2 * np.pi * (300 + 800 * clock) * clock)
    for sound in (random.normal(0, 0.2, len(clock)), tones[0] + tones[2], tones[1] + tones[3], chirp, np.ones(9_999)):
        assert decode((sound / 4).astype(np.float32)) == []


@pytest.mark.slow
def test_symbols_that_make_no_word_are_none() -> None:
    """Single symbols of many words, in step: each is as clear as can be."""
    random = np.random.default_rng(5)
    assert decode(render(random.integers(0, 251, 800), EAR_RATE)) == []


def test_symbols_of_a_word_in_another_sound_are_found_out() -> None:
    """Right tones at wrong phases: the code is satisfied, the sound is not."""
    sound = -encode(3, 3, EAR_RATE).reshape(16, SYMBOL)[:, ::-1]
    sound[::2] *= -1
    assert decode(sound.ravel()) == []


def test_a_whisper_far_below_any_voice_is_silence() -> None:
    assert decode(encode(1, 1, EAR_RATE) * np.float32(0.001)) == []
