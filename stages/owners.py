"""Whose each session is at a stage, since which epoch, and when its model forgets it.

Theory of operation
    A session belongs to the control link of the gateway that opened it last. What the model keeps for it is reserved
    when it is first opened. When its owner closes it, that is given back, but not before its last stream has left.

Rules
* Nobody but its owner has a say in a session.
* Its epoch only rises.
* An owner is told once that the session is open for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.engine_boundary import asked
from stages.stream import StageFailure, StageModel


@dataclass(slots=True)
class _Session:
    """`control`: the link of the gateway that owns it."""

    epoch: int
    control: int
    is_told: bool = False  # its owner knows that it is open


class Owners:
    """`model` keeps something for each session."""

    def __init__(self, model: StageModel) -> None:
        self._model = model
        self._sessions: dict[str, _Session] = {}
        self._closing: set[str] = set()

    def __len__(self) -> int:
        """How many sessions have an owner."""
        return len(self._sessions)

    def owns(self, link: int, session: str) -> bool:
        held = self._sessions.get(session)
        return held is not None and held.control == link

    def is_owned(self, session: str) -> bool:
        return session in self._sessions

    def sessions_of(self, link: int) -> list[str]:
        return [name for name, held in self._sessions.items() if held.control == link]

    def refusal(self, link: int, session: str) -> tuple[str, str] | None:
        """Code and message for `link`, where it has no say in `session`."""
        if not self.is_owned(session):
            return "unknown_session", "the session is not open at this stage"
        if not self.owns(link, session):
            return "not_owner", "another gateway has opened the session"
        return None

    def epoch_of(self, session: str) -> int:
        """Of a session that is open."""
        return self._sessions[session].epoch

    def open(self, link: int, session: str, epoch: int) -> StageFailure | None:
        """From now on `session` is of `link`; gives why not, and then nothing has changed."""
        held = self._sessions.get(session)
        if held is not None and epoch < held.epoch:
            return StageFailure("stale_epoch", f"epoch {epoch} ended, the session is at {held.epoch}")
        if held is None:
            failure = asked(lambda: self._model.open_session(session))
            if failure is not None:
                return failure
            self._closing.discard(session)
        self._sessions[session] = _Session(epoch, link)
        return None

    def to_tell(self, session: str) -> int | None:
        """The owner, where it has yet to be told that `session` is open."""
        held = self._sessions.get(session)
        return held.control if held is not None and not held.is_told else None

    def told(self, session: str) -> None:
        self._sessions[session].is_told = True

    def raise_epoch(self, session: str, epoch: int) -> None:
        held = self._sessions[session]
        held.epoch = max(held.epoch, epoch)

    def close(self, session: str) -> None:
        """Nobody owns it any more; it is kept until `release`."""
        del self._sessions[session]
        self._closing.add(session)

    def is_closing(self, session: str) -> bool:
        """It was closed, and waits for its last stream."""
        return session in self._closing

    def release(self, session: str) -> None:
        """No stream of `session`, which was closed, is left."""
        self._closing.remove(session)
        self._model.close_session(session)
