"""What a reply's frames become on a telephone line: resampled, squeezed, cut into whole frames; and where each sample
of the line comes from.

Theory of operation
    Frames of a reply that follow each other are one run: they go through one resampler, and their places on the line
    follow from where the run began. What is less than a frame waits for what follows. Where nothing follows, at the
    end of a reply or in a hold, silence fills the frame, and the next run begins behind it.

Rules
* Only whole frames leave.
* What a flush finds in here is dropped with it: neither half a frame nor what the resampler holds back is heard in the
  next reply.
* Places are found on a clock of `TICKS` per second, of which every rate here is a whole part.
"""

from __future__ import annotations

from dataclasses import replace

from media.audio_format import AudioFormat
from media.pcm import float_to_pcm16, pcm16_to_float
from media.playout import Frame
from media.resample import StreamResampler
from media.rtp_map import Position, RtpMap

TICKS = 48_000
SAMPLE_BYTES = 2


class LineSound:
    """`line`: how sound travels, in frames of `frame_bytes`. `reply_rate`: of the replies."""

    def __init__(self, line: AudioFormat, frame_bytes: int, reply_rate: int) -> None:
        assert TICKS % line.sample_rate == TICKS % reply_rate == 0
        self._line = line
        self._frame_bytes = frame_bytes
        self._frame_samples = frame_bytes // len(line.encode(bytes(SAMPLE_BYTES)))
        self._line_ticks = TICKS // line.sample_rate
        self._reply_ticks = TICKS // reply_rate
        self._map = RtpMap(self._reply_ticks)
        self._resampler = None if line.sample_rate == reply_rate else StreamResampler(reply_rate, line.sample_rate)
        self._rest = b""
        self._run: tuple[str, int] | None = None  # the response, and its sample that comes next
        self._run_tick = 0  # where that comes
        self.position = 0
        """Samples of the line that have left."""

    @property
    def frame_samples(self) -> int:
        """Of the line, in a frame."""
        return self._frame_samples

    @property
    def is_waiting(self) -> bool:
        """Something waits for what follows."""
        return self._run is not None

    def add(self, frame: Frame) -> list[bytes]:
        """The frames of the line that are whole with the next of a reply."""
        frames = [] if self._run in (None, (frame.response, frame.start_sample)) else self.pad()
        if frame.samples:
            if self._run is None:
                self._run_tick = self.position * self._line_ticks
            self._map.record(self._run_tick, frame.response, frame.start_sample, frame.samples)
            self._run = frame.response, frame.end_sample
            self._run_tick += frame.samples * self._reply_ticks
            frames += self._cut(self._resampled(frame.pcm))
        return [*frames, *self.pad()] if frame.final else frames

    def pad(self) -> list[bytes]:
        """What waits, as a whole frame."""
        if self._run is None:
            return []
        self._run = None
        rest = b"" if self._resampler is None else float_to_pcm16(self._resampler.flush())
        frames = self._cut(rest)
        if self._rest:
            missing = self._frame_bytes - len(self._rest)
            samples = missing * self._frame_samples // self._frame_bytes
            frames += self._cut(bytes(SAMPLE_BYTES * samples))
        return frames

    def _resampled(self, pcm: bytes) -> bytes:
        return pcm if self._resampler is None else float_to_pcm16(self._resampler.process(pcm16_to_float(pcm)))

    def _cut(self, pcm: bytes) -> list[bytes]:
        coded, size = self._rest + self._line.encode(pcm), self._frame_bytes
        whole = len(coded) // size
        self._rest = coded[whole * size :]
        self.position += whole * self._frame_samples
        return [coded[at * size : (at + 1) * size] for at in range(whole)]

    def take_back(self, position: int) -> Position | None:
        """Of what has left, no more than `position` samples did after all; what waits is dropped. Gives what is left of
        the last response of which there was something; None where there was nothing."""
        if self._resampler is not None:
            self._resampler.reset()
        self._rest, self._run, self.position = b"", None, position
        return self._map.take_back(position * self._line_ticks)

    def locate(self, position: int) -> Position | None:
        """What has been played of which response where the line has played `position` samples. Where one begins there,
        it is the end of the one before."""
        tick = position * self._line_ticks
        before, at = self._map.locate(tick - 1), self._map.locate(tick)
        if before is None or (at is not None and at.response == before.response):
            return at
        return replace(before, samples=before.until)
