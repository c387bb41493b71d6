"""Opus by libopus, through PyAV: one encoder and one decoder for each call.

Theory of operation
    We encode 24 kHz mono ourselves, which libopus takes as it is, and hand finished packets to the transport. After a
    few frames of silence the encoder's output no longer changes; from then on that packet is repeated, which is what
    the encoder would give, and costs nothing. So a call that is silent still sends a packet every 20 ms.

Rules
* One frame in, one packet out, 20 ms each. `lookahead_ticks` of sound stay inside the encoder: what a packet plays at
  its beginning is that much older than what was put in.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from duplex.webrtc.inbound import opus_ticks
from duplex.webrtc.rtp import CLOCK_RATE, PACKET_TICKS
from sessions.settings import OUTPUT_RATE

DECODED_RATE = CLOCK_RATE  # FFmpeg's libopus gives 48 kHz, whatever it is asked for
FRAME_SAMPLES = OUTPUT_RATE // 50
FRAME_BYTES = FRAME_SAMPLES * 2
TICKS_PER_SAMPLE = CLOCK_RATE // OUTPUT_RATE

BIT_RATE = 32_000
# `lowdelay` uses the transform coder alone: 2.5 ms of look-ahead instead of 6.5, and half the work of `voip`.
# Complexity 5 costs two thirds of 10 and sounds the same at this rate.
OPTIONS = {"application": "lowdelay", "compression_level": "5", "frame_duration": "20"}

# RFC 6716, section 3.1, and 4.3: full frames of silence in the transform coder are two bytes after the header.
SILENCE_BYTES_MAX = 3


class OpusError(ValueError):
    """The peer sent what is not Opus."""


@contextmanager
def _one_processor() -> Iterator[None]:
    """Let libraries believe that there is one processor.

    PyAV sends each frame through a filter graph, made with the first one, which starts a thread for each processor it
    may use, and for each call. There is no setting for that.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class OpusEncoder:
    """PCM16 mono at 24 kHz to packets of 20 ms."""

    def __init__(self) -> None:
        codec = av.CodecContext.create("libopus", "w")
        assert isinstance(codec, AudioCodecContext)
        codec.sample_rate, codec.layout, codec.format = OUTPUT_RATE, "mono", "s16"
        codec.bit_rate, codec.options = BIT_RATE, OPTIONS
        codec.open()
        assert codec.extradata is not None, "libopus describes its stream"
        # RFC 7845, section 5.1: the pre-skip, in samples at 48 kHz, stands at byte 10 of the header.
        (self.lookahead_ticks,) = struct.unpack_from("<H", codec.extradata, 10)
        self._codec = codec
        self._samples_in = 0
        self._silence: bytes | None = None
        self._last = b""
        with _one_processor():
            self.silence()

    def encode(self, pcm: bytes) -> bytes:
        """The packet of a frame; a short one is filled up with silence."""
        assert len(pcm) <= FRAME_BYTES, f"{len(pcm)} bytes are more than a frame"
        self._silence = None
        return self._encode(pcm)

    def silence(self) -> bytes:
        """The packet of a silent frame."""
        if self._silence is not None:
            return self._silence
        before, packet = self._last, self._encode(b"")
        if packet == before and len(packet) <= SILENCE_BYTES_MAX:
            self._silence = packet
        return packet

    def _encode(self, pcm: bytes) -> bytes:
        samples = np.zeros((1, FRAME_SAMPLES), dtype=np.int16)
        samples[0, : len(pcm) // 2] = np.frombuffer(pcm, dtype="<i2")
        frame = AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = OUTPUT_RATE, Fraction(1, OUTPUT_RATE), self._samples_in
        self._samples_in += FRAME_SAMPLES
        (packet,) = self._codec.encode(frame)
        self._last = bytes(packet)
        assert opus_ticks(self._last) == PACKET_TICKS
        return self._last


class OpusDecoder:
    """Packets to PCM16 mono at `DECODED_RATE`."""

    def __init__(self) -> None:
        codec = av.CodecContext.create("libopus", "r")
        assert isinstance(codec, AudioCodecContext)
        codec.sample_rate, codec.layout, codec.format = DECODED_RATE, "mono", "s16"
        self._codec = codec

    def decode(self, payload: bytes) -> bytes:
        """The sound of one packet; raises `OpusError`, and goes on with the next one."""
        try:
            frames = self._codec.decode(av.Packet(payload))
        except av.FFmpegError as error:
            raise OpusError(f"{len(payload)} bytes cannot be decoded") from error
        return b"".join(frame.to_ndarray().tobytes() for frame in frames)
