"""What a stage still holds of what it has let go of: nothing, or something leaks.

Theory of operation
    Ledgers say when everything of a response has been given back, and its client is told. This looks at the things
    themselves, once that is said: streams, the queue and the running steps, credit, what the model keeps. Frames and
    blocks of the arena are looked at where they are (`stages.exchange`). A gateway asks as soon as a response has
    drained or a session has left, and where it lost a link, before it counts on what was held there.

    Kinds: `streams`, `steps` (waiting or running), `late_outputs` (made after the stream had ended), `sessions`, and
    `model_…` of what the model itself counts for a session (`model_unknown`: it throws). *Strays* are steps, and units
    of credit, that belong to no stream at all, whosever they were.

Rules
* Asking changes nothing, but that late outputs are told once.
* Another gateway's streams and sessions are no leaks: what is asked for a session is answered for who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.accounts import EdgeAccounts
from stages.engine_boundary import asked
from stages.entries import Entry
from stages.owners import Owners
from stages.scheduler import StageScheduler
from stages.stream import StageFailure, StageModel

LATE_STREAMS_MAX = 64  # streams of which late outputs are remembered: a well-behaved model makes none


@dataclass(frozen=True, slots=True)
class Audits:
    """Looks at what its stage has: `entries` by name, and the others."""

    entries: Mapping[str, Entry]
    owners: Owners
    scheduler: StageScheduler
    accounts: EdgeAccounts
    model: StageModel
    _late: dict[str, int] = field(default_factory=dict)

    def late(self, key: str, outputs: int) -> None:
        """A step of `key` has handed outputs over, and no such stream is open."""
        if key in self._late or len(self._late) < LATE_STREAMS_MAX:
            self._late[key] = self._late.get(key, 0) + outputs

    def of_stream(self, key: str) -> dict[str, int]:
        """What there is of a stream that has ended."""
        return {
            "streams": int(key in self.entries),
            "steps": int(self.scheduler.waits(key) or self.scheduler.runs(key)),
            "late_outputs": self._late.pop(key, 0),
        }

    def of_session(self, session: str, link: int) -> dict[str, int]:
        """What there is of a session that the gateway on control link `link` has closed."""
        controls = [entry.control for entry in self.entries.values() if entry.tag.session == session]
        is_over = not controls and not self.owners.is_owned(session)
        return {
            "streams": controls.count(link),
            "sessions": int(self.owners.owns(link, session) or (is_over and self.owners.is_closing(session))),
            **(self._kept_for(session) if is_over else {}),
        }

    def _kept_for(self, session: str) -> dict[str, int]:
        kept = asked(lambda: self.model.kept_for(session))
        if isinstance(kept, StageFailure):
            return {"model_unknown": 1}
        return {f"model_{kind}": count for kind, count in kept.items()}

    def strays(self) -> dict[str, int]:
        """What belongs to nothing."""
        return {
            "steps": sum(key not in self.entries for key in self.scheduler.keys),
            "credit": self.accounts.stray(entry.outbox for entry in self.entries.values()),
        }
