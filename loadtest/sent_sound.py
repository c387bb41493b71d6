"""What a caller has said lately, for a service that did not understand all of it before it was lost.

Theory of operation
    All that is sent is kept, as it travels, with its place in the session's input. A service that takes the session up
    again says from where on it wants to hear: `since` gives that, piece by piece, in messages that name their place.

Rules
* At most `SECONDS_MAX` are kept, the newest. What is wanted from before that is gone, and the service sees the gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from media.audio_format import FORMATS, AudioFormat, FormatName
from media.chunk import BYTES_PER_SAMPLE

# Longer than a sentence, its pause and a reconnection; beyond that a service has given the sentence up.
SECONDS_MAX = 30
PIECE_MS = 500  # of one message that is sent again


@dataclass(frozen=True, slots=True)
class Piece:
    """What was said from sample `start` up to `end`, as it travels."""

    start: int
    end: int
    coded: bytes


def format_of(sound: FormatName | AudioFormat) -> AudioFormat:
    """By its name, or one that has none in the Realtime API."""
    return FORMATS[sound] if isinstance(sound, str) else sound


class SentSound:
    """Of one session, in `sound`."""

    def __init__(self, sound: FormatName | AudioFormat = "audio/pcm") -> None:
        sound = format_of(sound)
        self._sample_bytes = BYTES_PER_SAMPLE if sound.law is None else 1
        self._kept_max = SECONDS_MAX * sound.sample_rate * self._sample_bytes
        self._piece_bytes = PIECE_MS * sound.sample_rate // 1_000 * self._sample_bytes
        self._kept = bytearray()
        self._end = 0

    @property
    def end(self) -> int:
        """Where the next sample that is said will stand."""
        return self._end

    def begin_at(self, sample: int) -> None:
        """The session's input goes on there, after what others have said in it."""
        self._kept.clear()
        self._end = sample

    def add(self, coded: bytes) -> None:
        """Whole samples have been said."""
        self._kept += coded
        self._end += len(coded) // self._sample_bytes
        del self._kept[: max(0, len(self._kept) - self._kept_max)]

    def since(self, sample: int) -> Piece | None:
        """The first of what was said from `sample` on, as far as it is kept; None where nothing was."""
        oldest = self._end - len(self._kept) // self._sample_bytes
        start = min(max(sample, oldest), self._end)
        place = (start - oldest) * self._sample_bytes
        coded = bytes(self._kept[place : place + self._piece_bytes])
        return Piece(start, start + len(coded) // self._sample_bytes, coded) if coded else None
