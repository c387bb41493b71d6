"""How sound travels between a client and its gateway, and who the client is to a call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from media.audio_format import AudioFormat, FormatName
from media.heard_estimate import Path
from media.playout import Reports
from media.rtp_map import Position
from sessions.events import Event
from sessions.service_calls import ServiceTool
from sessions.settings import SessionSettings


@dataclass(frozen=True, slots=True)
class Transport:
    """How sound travels: how far ahead of the ear it is sent, and whether its client throws away what it has not played
    yet once it is interrupted. `input_format`: of what comes beside the messages; None: sound travels in them, in the
    formats that the session asks for. `output_format`: of replies, beside the messages. `reports`: what tells us what
    was heard. `tools`: those that calls have over it, beside the service's. `leaves`: a call whose caller is silent for
    good is ended, since the line itself never tells that nobody is there."""

    lead_ms: int
    input_format: AudioFormat | None = None
    recalls: bool = True
    output_format: FormatName = "audio/pcm"
    reports: Reports = "acked"
    tools: tuple[ServiceTool, ...] = ()
    leaves: bool = False

    def settings_here(self, settings: SessionSettings) -> SessionSettings:
        """Settings of a session that may come from another transport: formats are those of this one."""
        if self.input_format is None:
            return settings
        return replace(settings, input_format="audio/pcm", output_format=self.output_format)


class Observer(Protocol):
    """Who is told what happens in a call."""

    def tell(self, event: Event) -> None:
        """Queue `event`."""
        ...


class Client(Observer, Protocol):
    """The connection, as the call sees it."""

    def pace(self, now_ns: int) -> None:
        """The pacer's slot has come."""
        ...

    def next_frame_ns(self, now_ns: int, /) -> int | None:
        """The moment at which the next frame goes out, if it can be taken now."""
        ...

    def path(self, now_ns: int, /) -> Path:
        """What lies between the sending of a sample and the caller's ear, as it is seen now."""
        ...

    def pad(self) -> bool:
        """No frame is due then: send silence for it. False where the transport has no use for that."""
        ...

    def drop_audio(self) -> Position | None:
        """Forget audio that was queued and not yet written. Where there was some: how much of which response has
        left."""
        ...
