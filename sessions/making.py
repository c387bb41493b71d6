"""What the stages are asked to make for the caller: responses, and what is done ahead of them.

Theory of operation
    While the caller speaks, the prompt as far as it is known is read into the Thinker's KV. In a pause whose words are
    known, the answer that is due if the turn ends there is prepared. A response takes the place of both: what was read
    stays in the KV, and an answer that was prepared for something else is withdrawn.

Rules
* Settings and epoch are those of the conversation, which assigns them. Those of a response are the ones at its start.
* A response is made once its tenant's quota has room for it, and rejected where there is none. It is prepared only
  where the room is at hand.
* What a response has read of the history can be asked again in other words until something of it has come.
"""

from __future__ import annotations

from sessions.effects import Effect
from sessions.hearing import Hearing, Turn
from sessions.plan import Marks, Plan
from sessions.planner import Identity, Planner, ReplyDefaults
from sessions.prefill import Prefill
from sessions.quotas import Allowance
from sessions.remembered import Remembered
from sessions.route import Leg, Route
from sessions.settings import ResponseSpec, SessionSettings
from sessions.speaking import Speaking
from stages.contracts import Message, Options, Tag, Transcript


class Making:
    """Of one conversation."""

    def __init__(
        self,
        identity: Identity,
        settings: SessionSettings,
        defaults: ReplyDefaults,
        route: Route,
        *,
        hearing: Hearing,
        speaking: Speaking,
        remembered: Remembered,
        allowance: Allowance | None = None,
    ) -> None:
        self._allowance = allowance or Allowance()
        self.settings = settings
        self.epoch = identity.epoch
        self._may_prepare_at_all = defaults.prepare
        self._hearing = hearing
        self._speaking = speaking
        self._remembered = remembered
        self._planner = Planner(identity, defaults, route)
        self._prefill = Prefill(identity.session, route.head)

    # ---- reading ahead -----------------------------------------------------------------------------

    @property
    def reading(self) -> Tag | None:
        """The prefill that is under way."""
        return self._prefill.tag

    def read(self, history: tuple[Message, ...] | None = None) -> list[Effect]:
        """Keep the Thinker's KV in step with the usual prompt, as the history stands, or as it will with `history`."""
        # A number of its own: the stage may still be leaving the prefill before it.
        turn = self._hearing.next_turn()
        tools, _ = self._planner.tooling(ResponseSpec(), self.settings)
        return self._prefill.start(self.epoch, turn, self._messages(history), tools)

    def stop_reading(self) -> list[Effect]:
        return self._prefill.stop()

    def gone(self, tag: Tag) -> None:
        """The stage has let go of the prefill `tag`, or would not take it."""
        self._prefill.gone(tag)

    def _messages(self, history: tuple[Message, ...] | None = None) -> tuple[Message, ...]:
        history = self._remembered.messages() if history is None else history
        return self._planner.messages(ResponseSpec(), self.settings, history)

    def partly_understood(self, turn: Turn, heard: Transcript, now_ns: int) -> list[Effect]:
        """Work ahead with what is known so far of the turn that is being spoken."""
        if turn.provisional:
            return []
        if heard.settled and self._may_prepare(turn, heard.text):
            return self._prepare(turn, heard.text, now_ns)
        if not heard.text:
            return []
        messages = (*self._messages(), Message("user", heard.text))
        return self._prefill.feed(messages, complete=heard.settled and turn.is_paused)

    def _may_prepare(self, turn: Turn, text: str) -> bool:
        return (
            self._may_prepare_at_all
            and bool(text)
            and turn.is_paused
            and self.settings.speech_is_answered
            and "audio" in self.settings.modalities
            and self._speaking.active is None
            and not self._hearing.is_awaited
            and not self._speaking.is_full
        )

    def _prepare(self, turn: Turn, text: str, now_ns: int) -> list[Effect]:
        """Begin the answer that is due if the turn ends with `text`."""
        history = (*self._remembered.messages(), Message("user", text))
        plan = self._planner.plan(
            ResponseSpec(), self.settings, history, epoch=self.epoch, turn=turn.tag.turn, previous=None
        )
        withdrawn = self._speaking.withdraw(now_ns)
        if self._allowance.reserve(plan.tag.response, plan.tokens_max) != "granted":
            return withdrawn
        return [*withdrawn, *self._prefill.stop(), *self._speaking.prepare(plan, now_ns)]

    # ---- responses ---------------------------------------------------------------------------------

    def plan(self, spec: ResponseSpec, turn: int) -> Plan:
        """A new response, as the conversation stands."""
        known = self._remembered
        previous = known.last_id if spec.in_conversation else None
        return self._planner.plan(spec, self.settings, known.messages(), epoch=self.epoch, turn=turn, previous=previous)

    def start(self, spec: ResponseSpec, marks: Marks, turn: int, now_ns: int) -> list[Effect]:
        """Begin a response."""
        effects = [*self._speaking.withdraw(now_ns), *self._prefill.stop()]
        if spec.words:
            return effects + self.say(spec.words, self._remembered.last_id, now_ns)
        return effects + self._speaking.accept(self.plan(spec, turn), marks, now_ns)

    def say(self, words: str, previous: str | None, now_ns: int) -> list[Effect]:
        """Begin a response of these words, which stand behind the item `previous`."""
        spec, turn = ResponseSpec(words=words), self._hearing.next_turn()
        plan = self._planner.plan(spec, self.settings, (), epoch=self.epoch, turn=turn, previous=previous)
        accepted = self._speaking.accept(plan, Marks(), now_ns)
        return accepted + self._speaking.admit(plan.tag.response, plan.stages, now_ns)

    def is_prepared(self, spec: ResponseSpec) -> bool:
        """What is prepared is what `spec` asks for, as the conversation stands."""
        prepared = self._speaking.prepared
        return prepared is not None and self._planner.would_make(
            prepared, spec, self.settings, self._remembered.messages()
        )

    def admit_accepted(self, now_ns: int) -> list[Effect]:
        """Have responses made that need not wait for words which are still being understood."""
        effects: list[Effect] = []
        for plan in self._speaking.accepted:
            if not plan.spec.reads_history or not self._hearing.is_awaited:
                effects += self._admit(plan, now_ns)
        return effects

    def _admit(self, plan: Plan, now_ns: int) -> list[Effect]:
        response = plan.tag.response
        match self._allowance.reserve(response, plan.tokens_max):
            case "granted":
                return self._speaking.admit(response, self._stages_now(plan), now_ns)
            case "refused":
                message = "the quota tokens_per_day has no room for this response"
                return self._speaking.reject(response, "quota_exceeded", message, now_ns)
        return []

    def _stages_now(self, plan: Plan) -> tuple[tuple[Leg, Options], ...]:
        """What `plan` asks of its stages, its prompt made of the history as that stands now."""
        # What has come behind the item that it follows is for the next one.
        known = self._remembered
        history = known.messages_until(plan.item) if plan.view.in_conversation else known.messages()
        return self._planner.stages_of(plan, self.settings, history)

    def ask_again(self, now_ns: int) -> list[Effect]:
        """The history has changed where a reply was cut. What answers it, and has not begun yet, reads it as it is
        now; what has begun is not made again."""
        plan = self._speaking.unbegun
        if plan is None or not plan.spec.reads_history:
            return []
        stages = self._stages_now(plan)
        return self._speaking.ask_again(stages, now_ns) if stages != plan.stages else []
