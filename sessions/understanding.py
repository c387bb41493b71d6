"""What becomes of a turn's words: history, an answer that is owed, and what a machine at the other end is met with.

Rules
* Where nothing was said, it was a cough or a door, and what it cut short is answered again.
* What is not to be answered (`sessions.far_side`) is history all the same.
* A message to a machine goes before any answer; then the call ends.
"""

from __future__ import annotations

from media.beep import Beep
from sessions.effects import Effect, EndCall, Overheard, Tell
from sessions.events import LineRecognised
from sessions.far_side import FarSide, Judgement, MachinePolicy
from sessions.hearing import Understood
from sessions.owed import Owing
from sessions.parts import Parts
from sessions.serving import Serving
from sessions.settings import ResponseSpec
from sessions.silence import Silence
from stages.contracts import Tag, Transcript

MACHINE = "answering_machine"
MESSAGE_NS_MAX = 60_000_000_000  # mailboxes take a minute or more


class Understanding:
    """Of the conversation that has these `parts`."""

    def __init__(
        self,
        policy: MachinePolicy,
        parts: Parts,
        owing: Owing,
        serving: Serving,
        silence: Silence,
    ) -> None:
        self._far_side = FarSide(policy)
        self._message = policy.message
        self._hearing = parts.hearing
        self._speaking = parts.speaking
        self._remembered = parts.remembered
        self._making = parts.making
        self._owing = owing
        self._serving = serving
        self._silence = silence

    @property
    def due_ns(self) -> int | None:
        """When a beep that was waited for will not come any more; while somebody speaks it still may."""
        is_heard = self._hearing.current is not None or self._hearing.is_awaited
        return None if is_heard else self._far_side.due_ns

    def tick(self, now_ns: int) -> list[Effect]:
        due_ns = self.due_ns
        if due_ns is None or now_ns < due_ns:
            return []
        return self._recognised(self._far_side.tick(now_ns), now_ns)

    def beeped(self, beep: Beep, now_ns: int) -> list[Effect]:
        """The line has beeped, and is quiet."""
        return self._recognised(self._far_side.beeped(beep, now_ns), now_ns)

    def transcript(self, tag: Tag, heard: Transcript, now_ns: int) -> list[Effect]:
        """More is known of what the turn `tag` says."""
        current = self._hearing.current
        if not heard.final and current is not None and current.tag == tag:
            return [*self._making.partly_understood(current, heard, now_ns), Overheard(heard.text, heard.settled)]
        effects, understood = self._hearing.transcript(tag, heard, now_ns)
        if understood is None:
            return effects
        return effects + self._understood(understood, now_ns)

    def _understood(self, understood: Understood, now_ns: int) -> list[Effect]:
        turn, text = understood.turn, understood.text
        if not self._remembered.has(turn.item):
            return []  # the client has deleted it meanwhile
        effects = self._remembered.understand(turn.item, text)
        judged = self._far_side.understood(text, now_ns)
        turn.answer = turn.answer and judged.answers
        if text:
            self._silence.prompts.caller_is_there()
            self._serving.said()
            effects += self._serving.interrupt() if self._making.settings.speech_interrupts else []
        self._owing.understood(turn, text, now_ns)
        if not turn.answer:
            effects += self._speaking.withdraw(now_ns)
        return effects + self._recognised(judged, now_ns, turn.item, answered=turn.answer)

    def _recognised(
        self, judged: Judgement, now_ns: int, item: str | None = None, *, answered: bool = False
    ) -> list[Effect]:
        effects: list[Effect] = [Tell(LineRecognised(judged.what, item, answered))] if judged.what else []
        if judged.act == "hang_up":
            return [*effects, EndCall(MACHINE, now_ns)]
        if judged.act == "leave_message":
            if "audio" in self._making.settings.modalities:
                self._owing.say_instead(ResponseSpec(words=self._message), now_ns)
            return [*effects, *self._speaking.withdraw(now_ns), EndCall(MACHINE, now_ns + MESSAGE_NS_MAX)]
        return effects
