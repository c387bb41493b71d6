"""The line between a caller and the service: what sound is in its messages, each way.

Theory of operation
    A caller speaks PCM16 at `SAMPLE_RATE`. What it says is resampled to the rate of the line, and encoded. What comes
    is decoded and left at that rate, at which the caller's player runs: the positions that the service names can be
    held against it.

Rules
* Resampling keeps 2 ms of what was said back until more comes, and adds no other delay; at equal rates, nothing.
"""

from __future__ import annotations

from loadtest import realtime_wire as wire
from loadtest.errors import ServerViolation
from loadtest.playout_model import AudioFrame
from loadtest.sent_sound import SentSound, format_of
from media.audio_format import AudioFormat, FormatName
from media.chunk import BYTES_PER_SAMPLE
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler


class Line:
    """`sound`: of both ways."""

    def __init__(self, sound: FormatName | AudioFormat = "audio/pcm") -> None:
        self._format = format_of(sound)
        self.sent = SentSound(self._format)
        self._resampler = StreamResampler(wire.SAMPLE_RATE, self._format.sample_rate)

    @property
    def sample_rate(self) -> int:
        """Of what is heard."""
        return self._format.sample_rate

    def said(self, pcm: bytes) -> wire.AppendAudio:
        """The message that carries what the caller says next."""
        coded = self._format.encode(float_to_pcm16(self._resampler.process(pcm16_to_float(pcm))))
        self.sent.add(coded)
        return wire.AppendAudio(coded)

    def heard(self, event: wire.AudioDelta) -> AudioFrame:
        """What arrives with a message. Raises `ServerViolation` where that is no sound."""
        pcm = self._format.decode(event.delta)
        if len(pcm) % BYTES_PER_SAMPLE:
            raise ServerViolation(f"audio of {event.response_id}: {len(pcm)} bytes are not whole samples")
        return AudioFrame(event.response_id, pcm, event.epoch, event.start_sample, event.samples, event.sample_rate)
