"""What the calls of the service's own tools do to the conversation: what is said meanwhile, what is kept, what follows.

Theory of operation
    `ServiceCalls` says which call is begun when. What has come of one is entered behind it, and once nothing more is
    waited for a response begins by itself, as the client has nothing to ask for it with: it is what the response was
    to be that made the call, but for its tool choice.

    A caller who is kept waiting is told so, once, by a response of the tool's words. These stand before the calls, as
    the words of a reply do: behind them is what comes of those.

Rules
* What answers calls begins no response once the caller, or the client, has interrupted.
* A reply that has calls of its client as well is followed by whatever the client does.
* At most `FOLLOW_UPS_MAX` responses follow each other without a word of the caller's or the client's: the last may
  call nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sessions.effects import Effect, Measured, Tell
from sessions.events import CallUnknown
from sessions.filler import FILLER_AFTER_NS
from sessions.owed import Owing
from sessions.parts import Parts
from sessions.service_calls import Failure, Result, ServiceCalls, ServiceTool, Settled
from sessions.settings import ResponseSpec
from sessions.tool_calls import BegunCall, Called, before_calls, is_alone
from stages.contracts import ToolChoice

# What takes more steps than these is no question on the phone.
FOLLOW_UPS_MAX = 8


class Serving:
    """Of the conversation that has these `parts`. `left`: calls that its owner before has not told the end of."""

    def __init__(
        self,
        tools: Iterable[ServiceTool],
        left: Iterable[BegunCall],
        parts: Parts,
        owing: Owing,
    ) -> None:
        self.calls = ServiceCalls(tools, left)
        self._hearing = parts.hearing
        self._speaking = parts.speaking
        self._remembered = parts.remembered
        self._making = parts.making
        self._owing = owing
        self._follow_ups = 0
        self._follows: ResponseSpec | None = None  # what has come of calls asks for that

    # ---- calls -------------------------------------------------------------------------------------

    def called(self, called: Called, now_ns: int) -> list[Effect]:
        """A call has ended that the history has now; those of the client are none of ours."""
        if not called.item.by_service or called.item.status != "completed":
            return []
        return self.calls.call(called.item, called.spec, now_ns)

    def answered(self, call_id: str, answer: Result | Failure) -> list[Effect]:
        effects = self.calls.answered(call_id, answer)
        return [Measured("answers_dropped", 1)] if effects is None else effects

    def interrupt(self) -> list[Effect]:
        """The caller goes on, or the client has enough: what comes of calls asks for nothing any more."""
        self._follows = None
        return self.calls.interrupt()

    def said(self) -> None:
        """The caller has said something, or the client has asked for a response."""
        self._follow_ups = 0

    def recover(self, now_ns: int) -> list[Effect]:
        return self.calls.recover(self._remembered.items, now_ns)

    # ---- what follows ------------------------------------------------------------------------------

    def settle(self, now_ns: int) -> list[Effect]:
        """Enter what has come of calls, and have a response follow once nothing more is to come."""
        settled = self.calls.take_settled()
        effects = [effect for one in settled for effect in self._enter(one)]
        if settled:
            effects += self._making.ask_again(now_ns)
        if self._follows is not None and not self.calls.is_waited_for:
            spec, self._follows = self._follows, None
            self._owing.follow(spec, now_ns)
        return effects

    def _enter(self, settled: Settled) -> list[Effect]:
        call = settled.call
        effects = [*self._remembered.settle(settled), Measured("service_calls", 1, settled.outcome)]
        if settled.outcome == "unknown":
            effects.append(Tell(CallUnknown(call.id, call.name)))
        if settled.spec is not None and is_alone(call.id, self._remembered.items):
            self._follow_ups += self._follows is None
            may_call = self._follow_ups < FOLLOW_UPS_MAX
            choice = ToolChoice() if may_call else ToolChoice("none")
            self._follows = replace(settled.spec, messages=None, tool_choice=choice)
        return effects

    # ---- the caller waits --------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        waits = (self.calls.next_deadline_ns(), self._filler_due_ns)
        return min((at for at in waits if at is not None), default=None)

    def tick(self, now_ns: int) -> list[Effect]:
        """Act on deadlines that have passed."""
        self.calls.tick(now_ns)
        due_ns, unfilled = self._filler_due_ns, self.calls.unfilled
        if due_ns is None or now_ns < due_ns or unfilled is None:
            return []
        words, spec = self.calls.fill(unfilled[0])
        if "audio" not in (spec.modalities or self._making.settings.modalities):
            return []
        return self._making.say(words, before_calls(unfilled[0], self._remembered.items), now_ns)

    @property
    def _filler_due_ns(self) -> int | None:
        """When the caller has been kept waiting for long enough; None while they are not, or something else goes on."""
        speaking, hearing, unfilled = self._speaking, self._hearing, self.calls.unfilled
        is_said = speaking.active is not None or speaking.prepared is not None or speaking.is_full
        if unfilled is None or is_said or hearing.current is not None or hearing.is_awaited or self._owing.is_owed:
            return None
        return max(unfilled[1], speaking.played_out_ns) + FILLER_AFTER_NS
