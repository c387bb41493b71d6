"""What the core of a carrier wants done, and what it tells of a call.

Rules
* `Send` and `HungUp` are for the socket; all others are the record of the call: what was accepted, what left for the
  ear and when (`Heard`), what was thrown away, and what the service did wrong.
* Sound is PCM16 mono at the rate of the line. Accepted = heard + thrown away + queued, at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.playout_model import Heard


@dataclass(frozen=True, slots=True)
class Send:
    """A message to the service. `is_sound`: it carries the caller's sound, which may be lost on the way."""

    message: str | bytes
    is_sound: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """Sound of the service was queued."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """The service emptied the queue: so many samples were never heard, and these marks were not reached."""

    samples: int
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """The service broke the protocol. `code`: the carrier's own for it, where it has one."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class HungUp:
    """The call is over at the carrier, which closes the connection."""

    reason: str


Effect = Send | Accepted | Heard | Cleared | Complaint | HungUp
