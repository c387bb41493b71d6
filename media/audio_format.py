"""The formats in which sound travels in messages, by their names in the Realtime API.

Rules
* A name fixes the rate. Inside, sound is PCM16 at that rate: only what goes to a peer or comes from it is encoded.
* Each sample is encoded by itself, so bytes can be cut and joined at samples without a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from media import g711
from media.g711 import A_LAW, MU_LAW, Law

FormatName = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]

PCM_RATE = 24_000  # the one that `audio/pcm` has in the Realtime API


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """`law`: how samples are squeezed into bytes; None: they are PCM16, little-endian."""

    name: FormatName
    sample_rate: int
    law: Law | None = None

    @property
    def is_telephone(self) -> bool:
        """It comes over a telephone line, or sounds like it."""
        return self.law is not None

    def encode(self, pcm: bytes) -> bytes:
        """Whole samples of PCM16, as they travel."""
        return pcm if self.law is None else self.law.encode(pcm)

    def decode(self, coded: bytes) -> bytes:
        """What has travelled, as PCM16; where that is the format itself, cut wherever the bytes were."""
        return coded if self.law is None else self.law.decode(coded)


FORMATS: dict[FormatName, AudioFormat] = {
    "audio/pcm": AudioFormat("audio/pcm", PCM_RATE),
    "audio/pcmu": AudioFormat("audio/pcmu", g711.SAMPLE_RATE, MU_LAW),
    "audio/pcma": AudioFormat("audio/pcma", g711.SAMPLE_RATE, A_LAW),
}
