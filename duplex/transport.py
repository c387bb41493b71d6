"""How sound travels between a client and its gateway."""

from __future__ import annotations

from dataclasses import dataclass, replace

from media.audio_format import AudioFormat
from sessions.settings import SessionSettings


@dataclass(frozen=True, slots=True)
class Transport:
    """How sound travels: how far ahead of the ear it is sent, and whether its client throws away what it has not played
    yet once it is interrupted. `input_format`: of what comes beside the messages; None: sound travels in them, in the
    formats that the session asks for."""

    lead_ms: int
    input_format: AudioFormat | None = None
    recalls: bool = True

    def settings_here(self, settings: SessionSettings) -> SessionSettings:
        """Settings of a session that may come from another transport: formats are those of this one."""
        if self.input_format is None:
            return settings
        return replace(settings, input_format="audio/pcm", output_format="audio/pcm")
