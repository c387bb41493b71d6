"""The response that is to begin once nobody speaks: at most one, asked for by its client, due to an understood turn, or
to what came of calls that the service has carried out itself.

Rules
* What was asked for begins, or is cancelled as any response is: its client never waits for what will not come.
* Nobody speaks for so long that it waits for longer than `OWED_NS_MAX`. What then still seems to be speech may be noise
  that never ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sessions.effects import Effect, Tell
from sessions.events import CommandRefused, MessageStarted, ResponseDrained, ResponseFinished, ResponseStarted
from sessions.hearing import Turn
from sessions.parts import Parts
from sessions.plan import Marks, Plan
from sessions.settings import ResponseSpec

# Turns of conversations seldom last for half a minute without the pause that ends them.
OWED_NS_MAX = 30_000_000_000
ASKED_ALREADY = CommandRefused(
    "conversation_already_has_active_response", "a response that was asked for before begins when nobody speaks"
)


@dataclass(frozen=True, slots=True)
class Owed:
    """It begins in `turn`, and has been waiting since `since_ns`. `spec`: what it shall be; None: it answers an
    understood turn, which waits for the response before it. `is_asked`: its client has asked for it, while the words
    before a call were still being said, or amid that turn."""

    marks: Marks
    turn: int
    since_ns: int
    spec: ResponseSpec | None = None
    is_asked: bool = False

    @property
    def due_ns(self) -> int:
        """When it waits for no speech any more."""
        return self.since_ns + OWED_NS_MAX


class Owing:
    """Of the conversation that has these `parts`."""

    def __init__(self, parts: Parts) -> None:
        self._hearing = parts.hearing
        self._speaking = parts.speaking
        self._remembered = parts.remembered
        self._making = parts.making
        self._owed: Owed | None = None

    @property
    def is_owed(self) -> bool:
        return self._owed is not None

    @property
    def is_asked_for(self) -> bool:
        """A client waits for it."""
        return self._owed is not None and self._owed.is_asked

    @property
    def due_ns(self) -> int | None:
        """When what is owed begins though somebody speaks; None where that is not what it waits for."""
        if self._owed is None or self._waits_for_more or self._hearing.current is None:
            return None
        return self._owed.due_ns

    @property
    def _waits_for_more(self) -> bool:
        """Something else than speech comes before what is owed, and has an end of its own."""
        return self._speaking.active is not None or self._speaking.is_full or self._hearing.is_awaited

    # ---- what comes to be owed ---------------------------------------------------------------------

    def ask(self, spec: ResponseSpec, turn: Turn | None, now_ns: int) -> None:
        """The client wants it, amid the caller's `turn` or our own words."""
        number = turn.tag.turn if turn else self._hearing.next_turn()
        self._owed = Owed(Marks(), number, now_ns, spec, is_asked=True)

    def follow(self, spec: ResponseSpec, now_ns: int) -> None:
        """What came of calls is to be said, unless something else is owed: that reads it as well."""
        self._owed = self._owed or Owed(Marks(), self._hearing.next_turn(), now_ns, spec)

    def say_instead(self, spec: ResponseSpec, now_ns: int) -> None:
        """This is to be said, and no answer to a turn; what a client has asked for goes before it."""
        if not self.is_asked_for:
            self._owed = Owed(Marks(), self._hearing.next_turn(), now_ns, spec)

    def understood(self, turn: Turn, text: str, now_ns: int) -> None:
        """`turn` has said `text`; where that is nothing, what it cut short is answered again."""
        owed = self._owed
        asked = owed.spec if owed and owed.is_asked and owed.turn == turn.tag.turn else None
        if asked or (turn.answer and (text or not owed)):
            marks, since_ns = Marks(turn.speech_end_ns, turn.ended_ns, now_ns), owed.since_ns if owed else now_ns
            self._owed = Owed(marks, turn.tag.turn, since_ns, asked, is_asked=asked is not None)

    def failed(self, turn: Turn, now_ns: int) -> None:
        """The words of `turn` are lost, but what it cut short can still be answered."""
        if turn.answer and self._owed is None:
            self._owed = Owed(Marks(), turn.tag.turn, now_ns)

    # ---- what becomes of it ------------------------------------------------------------------------

    def begin(self, now_ns: int, *, is_over: bool) -> list[Effect]:
        """Begin what is owed, once nobody speaks and no other turn is still being understood. `is_over`: the call
        is."""
        owed = self._owed
        if self._speaking.active or self._hearing.is_awaited:
            return []
        if self._hearing.current and (owed is None or now_ns < owed.due_ns):
            return []
        if owed is None or is_over or not (owed.spec or self._remembered.is_unanswered):
            self._owed = None
            return self._speaking.withdraw(now_ns)  # the turn that it was prepared for came to nothing
        if self._speaking.is_full:
            return []
        self._owed = None
        spec = owed.spec or ResponseSpec()
        if self._making.is_prepared(spec):
            return self._speaking.confirm(self._remembered.last_id, owed.marks, now_ns)
        return self._making.start(spec, owed.marks, owed.turn, now_ns)

    def withdraw(self, reason: str) -> list[Effect]:
        """What is owed never begins."""
        owed, self._owed = self._owed, None
        if owed is None or owed.spec is None or not owed.is_asked:
            return []
        return withdrawn(self._making.plan(owed.spec, owed.turn), reason)


def withdrawn(plan: Plan, reason: str) -> list[Effect]:
    """It never begins: what its client is told of it. Nothing was taken for it, and so it has drained."""
    view = replace(plan.view, status="cancelled", reason=reason, leaves_nothing=True)
    message = () if plan.view.may_call else (MessageStarted(view.id, view.item, plan.previous_item),)
    told = (
        ResponseStarted(plan.view),
        *message,
        ResponseFinished(view, previous=plan.previous_item),
        ResponseDrained(view.id, "complete", 0.0, ()),
    )
    return [Tell(event) for event in told]
