"""What a conversation does where nobody says anything: when that begins, and the words to a caller who keeps silent, or
who has come back (`sessions.returning`).

Rules
* Where nobody speaks and nothing is understood, made, owed or waited for, the silence begins as our sound ends.
* The caller's silence is an item without words.
* A call that nobody takes part in ends once they were told goodbye, if it is to be left then.
"""

from __future__ import annotations

from collections.abc import Callable

from sessions.effects import Effect, EndCall, Tell
from sessions.events import InputCommitted
from sessions.idle import IdlePrompts
from sessions.items import Item
from sessions.owed import Owing
from sessions.parts import Parts
from sessions.plan import Marks
from sessions.return_policy import ReturnPolicy
from sessions.returning import Returning
from sessions.serving import Serving
from sessions.settings import ResponseSpec

SILENT = "caller_silent"


class Silence:
    """Of the conversation that has these `parts`. `leaves`: calls of a caller who is not there."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        returns: ReturnPolicy,
        parts: Parts,
        owing: Owing,
        serving: Serving,
        *,
        leaves: bool = False,
    ) -> None:
        self.prompts = IdlePrompts(leaves=leaves)
        self.returning = Returning(returns, parts, owing, serving)
        self._new_id = new_id
        self._hearing = parts.hearing
        self._speaking = parts.speaking
        self._remembered = parts.remembered
        self._making = parts.making
        self._owing = owing

    @property
    def due_ns(self) -> int | None:
        """When the caller's silence has lasted as long as it may, or they have been back for long enough."""
        waits = (self._idle_due_ns, self.returning.due_ns)
        return min((at for at in waits if at is not None), default=None)

    @property
    def _idle_due_ns(self) -> int | None:
        detection = self._making.settings.turn_detection
        return self.prompts.due_ns(detection.idle_timeout_ms if detection else None)

    def look(self, now_ns: int, *, is_over: bool) -> None:
        """See whether there is one. `is_over`: the call is."""
        self.returning.look(now_ns, is_over=is_over)
        hearing, speaking = self._hearing, self._speaking
        is_heard = bool(hearing.current) or hearing.is_awaited
        is_said = bool(speaking.running) or speaking.prepared is not None or speaking.is_full
        if is_heard or is_said or self._owing.is_owed or is_over or self._remembered.is_waited_for:
            self.prompts.disturbed()
        else:
            self.prompts.silent_since(max(now_ns, speaking.played_out_ns))

    def prompt(self, input_end: int, now_ns: int) -> list[Effect]:
        """Speak again where the caller has been silent for too long, or has come back; or leave."""
        return self.returning.speak(now_ns) or self._prompt_idle(input_end, now_ns)

    def _prompt_idle(self, input_end: int, now_ns: int) -> list[Effect]:
        due_ns, step = self._idle_due_ns, self.prompts.step
        if due_ns is None or now_ns < due_ns or step is None:
            return []
        if step == "end":
            self.prompts.disturbed()
            return [EndCall(SILENT, now_ns)]
        item = Item(self._new_id("item"), "user", "", spoken=True)
        idle = self.prompts.silence(item.id, input_end, now_ns)
        self.prompts.prompted()
        told = [Tell(idle), Tell(InputCommitted(item.id, self._remembered.last_told)), *self._remembered.add_turn(item)]
        return told + self._making.start(ResponseSpec(idle=step), Marks(), self._hearing.next_turn(), now_ns)
