"""What a caller says and hears over each kind of line."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest import realtime_wire as wire
from loadtest.errors import ServerViolation
from loadtest.line import Line
from loadtest.playout_model import AudioFrame
from media.audio_format import FORMATS, FormatName
from media.pcm import FloatSamples, pcm16_to_float

FRAME = 480  # 20 ms of what is said


def said(ms: int) -> bytes:
    clock = np.arange(ms * 24) / 24_000
    pcm: bytes = (np.sin(2 * np.pi * 440 * clock) * 8_000).astype("<i2").tobytes()
    return pcm


def delta(coded: bytes, **more: int) -> wire.AudioDelta:
    return wire.AudioDelta(response_id="r", item_id="i", delta=coded, **more)


def loudness(samples: FloatSamples) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def test_the_usual_line_changes_nothing() -> None:
    line = Line()
    assert line.said(said(20)) == wire.AppendAudio(said(20))
    assert line.heard(delta(b"\1\0", epoch=4)) == AudioFrame("r", b"\1\0", epoch=4)
    assert line.sample_rate == 24_000


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_a_telephone_carries_a_byte_for_each_125_microseconds_2_ms_later(name: FormatName) -> None:
    line, pcm = Line(name), said(200)
    frames = [line.said(pcm[at : at + 2 * FRAME]).audio for at in range(0, len(pcm), 2 * FRAME)]
    assert [len(frame) for frame in frames] == [144] + [160] * 9
    heard = line.heard(delta(b"".join(frames), start_sample=160, samples=1_584, sample_rate=8_000))
    assert (heard.start_sample, heard.samples, heard.sample_rate, len(heard.pcm)) == (160, 1_584, 8_000, 2 * 1_584)
    assert loudness(pcm16_to_float(heard.pcm)) == pytest.approx(loudness(pcm16_to_float(pcm)), rel=0.02)
    assert heard.pcm == FORMATS[name].decode(b"".join(frames))


def test_half_a_sample_is_a_violation_where_samples_have_two_bytes() -> None:
    with pytest.raises(ServerViolation, match="whole samples"):
        Line().heard(delta(b"\1"))
    assert Line("audio/pcmu").heard(delta(b"\xff")).pcm == b"\0\0"
