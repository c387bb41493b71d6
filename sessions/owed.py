"""The response that is to begin once nobody speaks: at most one, asked for by its client or due to an understood turn.

Rules
* What was asked for begins, or is cancelled as any response is: its client never waits for what will not come.
* Nobody speaks for so long that it waits for longer than `OWED_NS_MAX`. What then still seems to be speech may be noise
  that never ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sessions.effects import Effect, Tell
from sessions.events import CommandRefused, ResponseDrained, ResponseFinished, ResponseStarted
from sessions.plan import Marks, Plan
from sessions.settings import ResponseSpec

# Turns of conversations seldom last for half a minute without the pause that ends them.
OWED_NS_MAX = 30_000_000_000
ASKED_ALREADY = CommandRefused(
    "conversation_already_has_active_response", "a response that was asked for before begins when nobody speaks"
)


@dataclass(frozen=True, slots=True)
class Owed:
    """It begins in `turn`, and has been waiting since `since_ns`. `spec`: its client has asked for it, while the words
    before a call were still being said, or amid that turn; None: it answers an understood turn, which waits for the
    response before it."""

    marks: Marks
    turn: int
    since_ns: int
    spec: ResponseSpec | None = None

    @property
    def due_ns(self) -> int:
        """When it waits for no speech any more."""
        return self.since_ns + OWED_NS_MAX


def withdrawn(plan: Plan, reason: str) -> list[Effect]:
    """It never begins: what its client is told of it. Nothing was taken for it, and so it has drained."""
    view = replace(plan.view, status="cancelled", reason=reason, leaves_nothing=True)
    told = (
        ResponseStarted(plan.view, plan.previous_item),
        ResponseFinished(view),
        ResponseDrained(view.id, "complete", 0.0, ()),
    )
    return [Tell(event) for event in told]
