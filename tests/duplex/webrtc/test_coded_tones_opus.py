"""Coded tones through our own Opus: what a simulated caller behind WebRTC hears."""

from __future__ import annotations

import numpy as np
import pytest

from duplex.webrtc.opus import DECODED_RATE, FRAME_BYTES, TICKS_PER_SAMPLE, OpusDecoder, OpusEncoder
from media.coded_tones import EDGE_SAMPLES, Decoder, Heard, encode, word_samples
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from sessions.settings import OUTPUT_RATE

WORD = word_samples(OUTPUT_RATE)
PAUSE = 1_234


def through_opus(samples: FloatSamples, *, lost: int = -1) -> tuple[list[Heard], int]:
    """What is heard, and the look-ahead, both at 48 kHz. Packet `lost` is replaced by a packet of silence."""
    encoder, decoder, ear = OpusEncoder(), OpusDecoder(), Decoder(DECODED_RATE)
    nothing = OpusEncoder().silence()
    pcm, heard = float_to_pcm16(samples), list[Heard]()
    for number, start in enumerate(range(0, len(pcm), FRAME_BYTES)):
        packet = encoder.encode(pcm[start : start + FRAME_BYTES])
        heard += ear.feed(pcm16_to_float(decoder.decode(nothing if number == lost else packet)))
    return [*heard, *ear.finish()], encoder.lookahead_ticks


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.1, 0.4, 1.0])
def test_words_survive_opus(gain: float) -> None:
    words = [(17, word) for word in range(20)]
    sound = [np.zeros(PAUSE, np.float32), *(encode(*word, OUTPUT_RATE) for word in words), np.zeros(960, np.float32)]
    heard, late = through_opus(np.concatenate(sound) * np.float32(gain))
    assert [(one.response, one.word) for one in heard] == words
    for place, one in enumerate(heard):
        assert one.whole
        assert abs(one.start_sample - late - (PAUSE + place * WORD) * TICKS_PER_SAMPLE) <= 4 * TICKS_PER_SAMPLE


@pytest.mark.slow
def test_a_cut_survives_opus() -> None:
    late_by = []
    for at in range(WORD // 2, WORD, 127):
        (one,), late = through_opus(np.concatenate((encode(at, 3, OUTPUT_RATE)[:at], np.zeros(2_400, np.float32))))
        assert (one.response, one.word) == (at, 3)
        late_by.append(abs(one.start_sample + one.samples_heard - late - at * TICKS_PER_SAMPLE))
    assert max(late_by) <= 2 * EDGE_SAMPLES * TICKS_PER_SAMPLE


def test_a_lost_packet_is_missed() -> None:
    sound = np.concatenate([encode(1, word, OUTPUT_RATE) for word in range(3)])
    heard, _ = through_opus(np.concatenate((sound, np.zeros(960, np.float32))), lost=14)
    assert [one.word for one in heard if one.whole] == [0, 2]
    assert {one.word for one in heard} == {0, 1, 2}
