"""Closed sessions whose workers have yet to let go of them, so that their places there are not free.

Rules
* A session is leaving from when it was closed until each of the streams that it had then was answered for, or its
  worker is gone. Streams that it has when it comes back meanwhile are others.
* Who has left is told once, with whether it is to be audited then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.contracts import Tag


@dataclass(frozen=True, slots=True)
class Left:
    """`session` has left. `audited`: somebody wants to see that nothing of it is still there."""

    session: str
    audited: bool


@dataclass(slots=True)
class _Leaving:
    """`streams`: which replica has yet to answer for each."""

    streams: dict[Tag, str] = field(default_factory=dict)
    audited: bool = False


class LeavingSessions:
    """The closed sessions of one stage."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Leaving] = {}

    def __contains__(self, session: str) -> bool:
        return session in self._sessions

    def leave(self, tag: Tag, replica: str) -> None:
        """The session of `tag` is closed, and `replica` has yet to answer for this stream of it."""
        self._sessions.setdefault(tag.session, _Leaving()).streams[tag] = replica

    def audit(self, session: str) -> None:
        """`session`, which is leaving, is to be audited once it has left."""
        self._sessions[session].audited = True

    def let_go(self, tag: Tag) -> list[Left]:
        """A worker holds nothing of `tag` any more."""
        leaving = self._sessions.get(tag.session)
        if leaving is None or leaving.streams.pop(tag, None) is None or leaving.streams:
            return []
        del self._sessions[tag.session]
        return [Left(tag.session, leaving.audited)]

    def lost(self, replica: str) -> list[Left]:
        """`replica` is gone: nobody waits for it any more."""
        tags = [tag for one in self._sessions.values() for tag, by in one.streams.items() if by == replica]
        return [left for tag in tags for left in self.let_go(tag)]
