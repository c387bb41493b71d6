"""Our packets, heard through our decoder: libopus both ways, nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from duplex.webrtc.inbound import opus_ticks
from duplex.webrtc.opus import FRAME_BYTES, FRAME_SAMPLES, OpusDecoder, OpusEncoder, OpusError
from duplex.webrtc.rtp import CLOCK_RATE, PACKET_TICKS
from tests.live.census import bytes_kept

SILENT_FRAMES = 40
LOUD = 8_000
INAUDIBLE = 2  # of 32768
LEAK_PACKETS = 1_000
LEAKED_BYTES_MAX = 64  # the versions of PyAV that leaked lost about 146 bytes with each frame


def tone(frames: int) -> bytes:
    """A tone at 24 kHz whose frames begin alike."""
    clock = np.arange(frames * FRAME_SAMPLES)
    pcm: bytes = (np.sin(2 * np.pi * clock / 80) * LOUD).astype("<i2").tobytes()
    return pcm


def frames_of(pcm: bytes) -> list[bytes]:
    return [pcm[start : start + FRAME_BYTES] for start in range(0, len(pcm), FRAME_BYTES)]


def samples_of(pcm: bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(pcm, dtype="<i2").astype(np.float64)


def test_each_frame_is_one_packet_of_20_ms_at_the_asked_for_rate() -> None:
    encoder = OpusEncoder()
    packets = [encoder.encode(frame) for frame in frames_of(tone(50))]
    assert {opus_ticks(packet) for packet in packets} == {PACKET_TICKS}
    assert 24_000 < sum(len(packet) for packet in packets) * 8 < 40_000


def test_sound_comes_back_later_by_the_look_ahead() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    assert encoder.lookahead_ticks == 120
    sent = frames_of(tone(10))
    heard = samples_of(b"".join(decoder.decode(encoder.encode(frame)) for frame in sent))
    assert len(heard) == 10 * PACKET_TICKS
    wanted = np.sin(2 * np.pi * np.arange(len(heard)) / 160) * LOUD
    late = encoder.lookahead_ticks
    settled = slice(2 * PACKET_TICKS, None)
    error = heard[late:][settled] - wanted[:-late][settled]
    assert np.sqrt(np.mean(error**2)) < LOUD / 20


def test_a_short_frame_is_filled_with_silence() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    heard = samples_of(decoder.decode(encoder.encode(tone(1)[:200])))
    assert len(heard) == PACKET_TICKS
    assert np.abs(heard[600:]).max() < LOUD / 20


def test_packets_that_are_repeated_sound_like_those_that_the_encoder_would_give() -> None:
    sparing, tireless = OpusEncoder(), OpusEncoder()
    here, there = OpusDecoder(), OpusDecoder()
    for pcm in (tone(5), tone(2), tone(3)):
        for frame in [*frames_of(pcm), *[b""] * SILENT_FRAMES]:
            spared = here.decode(sparing.encode(frame) if frame else sparing.silence())
            whole = there.decode(tireless.encode(frame))
            assert np.abs(samples_of(spared) - samples_of(whole)).max() <= INAUDIBLE
        assert sparing.silence() is sparing.silence()


def test_after_speech_it_is_silent() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    for frame in frames_of(tone(5)):
        decoder.decode(encoder.encode(frame))
    heard = [samples_of(decoder.decode(encoder.silence())) for _ in range(SILENT_FRAMES)]
    assert np.abs(heard[1]).max() < LOUD / 80  # the tail of the encoder's high-pass, which dies away in 300 ms
    assert np.abs(heard[-1]).max() == 0


def test_no_thread_is_started() -> None:
    before, processors = len(list(Path("/proc/self/task").iterdir())), os.sched_getaffinity(0)
    encoder, decoder = OpusEncoder(), OpusDecoder()
    for frame in frames_of(tone(3)):
        decoder.decode(encoder.encode(frame))
    assert len(list(Path("/proc/self/task").iterdir())) <= before  # one of another test may have ended meanwhile
    assert os.sched_getaffinity(0) == processors


@pytest.mark.parametrize("payload", [b"\xff" * 10, b"\xfb", b"\xfb\x3f"])
def test_what_is_not_opus_is_refused_and_the_next_packet_is_heard(payload: bytes) -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    with pytest.raises(OpusError):
        decoder.decode(payload)
    assert len(samples_of(decoder.decode(encoder.encode(tone(1))))) == PACKET_TICKS == CLOCK_RATE // 50


@pytest.mark.slow
def test_aiortc_1423_and_pyav_2282_packets_that_were_made_and_heard_leave_no_memory_behind() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    frame = tone(1)

    def talk() -> None:
        for _ in range(LEAK_PACKETS):
            decoder.decode(encoder.encode(frame))

    assert bytes_kept(talk) < LEAK_PACKETS * LEAKED_BYTES_MAX
