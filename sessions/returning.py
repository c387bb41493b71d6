"""What a conversation does by itself where its client comes back and finds it unfinished: a turn that nobody has
answered, or a reply that broke off with its call.

Theory of operation
    Who comes back may bring sound along that was not understood, ask for a response, or say how much was heard. So we
    wait until nothing of that has come for a moment (`PAUSE_NS`), and then say what the operator has chosen: the answer
    or the rest of the reply (`answer`), or a question (`ask`).

Rules
* It is done once, and only where speech is answered without being asked for: else the client has it said.
* Once anybody has said something else, or it is about to be said, nothing is done.
"""

from __future__ import annotations

from sessions.effects import Effect
from sessions.owed import Owing
from sessions.parts import Parts
from sessions.plan import Marks
from sessions.return_policy import ReturnPolicy
from sessions.serving import Serving
from sessions.settings import ResponseSpec

# A client that comes back asks for what it wants within a round trip or two, and sends again what it has.
PAUSE_NS = 1_000_000_000


class Returning:
    """Of the conversation that has these `parts`."""

    def __init__(
        self,
        policy: ReturnPolicy,
        parts: Parts,
        owing: Owing,
        serving: Serving,
    ) -> None:
        self._policy = policy
        self._hearing = parts.hearing
        self._speaking = parts.speaking
        self._remembered = parts.remembered
        self._making = parts.making
        self._owing = owing
        self._serving = serving
        self._unfinished: str | None = None  # the item with which the conversation ended
        self._quiet_since_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """When something is done, unless anything comes before."""
        return None if self._quiet_since_ns is None else self._quiet_since_ns + PAUSE_NS

    def client_is_back(self) -> None:
        """It has the conversation as that stands now."""
        last = self._remembered.unfinished
        self._unfinished = last.id if last is not None and self._policy.then != "wait" else None

    def look(self, now_ns: int, *, is_over: bool) -> None:
        """See whether anything goes on. `is_over`: the call is."""
        last, speaking = self._remembered.unfinished, self._speaking
        is_said = speaking.active is not None or self._owing.is_owed
        if is_over or is_said or last is None or last.id != self._unfinished:
            self._unfinished = self._quiet_since_ns = None
        elif self._hearing.current or self._hearing.is_awaited or self._serving.calls.is_running or speaking.is_full:
            self._quiet_since_ns = None
        elif self._quiet_since_ns is None:
            self._quiet_since_ns = now_ns

    def speak(self, now_ns: int) -> list[Effect]:
        """Say it, where that is due."""
        due_ns, last = self.due_ns, self._remembered.unfinished
        if due_ns is None or now_ns < due_ns or last is None:
            return []
        self._unfinished = self._quiet_since_ns = None
        settings, asks = self._making.settings, self._policy.then == "ask"
        if not settings.speech_is_answered or (asks and "audio" not in settings.modalities):
            return []
        spec = ResponseSpec(words=self._policy.question) if asks else ResponseSpec(goes_on=last.broke_off)
        return self._making.start(spec, Marks(), self._hearing.next_turn(), now_ns)
