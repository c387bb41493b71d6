"""The responses of a call that have not drained: which there are, what each is at, and what can be asked of them.

Rules
* One response of the conversation is active at a time, and none while one is prepared.
"""

from __future__ import annotations

from media.chunk import ms_to_samples
from media.playout import LedgerView, Reports
from sessions.events import CommandRefused, ResponseView
from sessions.plan import Plan
from sessions.response import Phase
from sessions.run import Run
from sessions.sounding import Sounding
from stages.contracts import Tag

# What is recognised as ours began at most so long ago: a provisional turn lasts up to 10 s, and its echo comes late.
ECHO_MS = 12_000
DRAINING_MAX = 64  # ended responses whose ledger is not yet empty; each leaves by its drain deadline at the latest


class Responses(Sounding):
    """For the parameters see `Sounding`."""

    def __init__(self, transport_lead_ms: int, *, recalls: bool, reports: Reports = "acked") -> None:
        super().__init__(transport_lead_ms, recalls=recalls, reports=reports)
        self._runs: dict[str, Run] = {}
        self._active: str | None = None
        self._prepared: str | None = None

    @property
    def active(self) -> ResponseView | None:
        """The conversation's response that has not ended."""
        return self._runs[self._active].plan.view if self._active else None

    @property
    def has_called(self) -> bool:
        """The active response has made a call, which the client may have carried out by now."""
        run = self._runs.get(self._active or "")
        return run is not None and any(call.status == "completed" for call in run.calls.items)

    @property
    def running(self) -> tuple[ResponseView, ...]:
        """Every response that has not ended, in or out of the conversation."""
        return tuple(run.plan.view for run in self._runs.values() if not run.life.ended and not run.is_prepared)

    @property
    def prepared(self) -> Plan | None:
        """The response that waits to be confirmed; None also where it has failed."""
        run = self._runs.get(self._prepared or "")
        return run.plan if run and not run.life.ended else None

    @property
    def accepted(self) -> tuple[Plan, ...]:
        """Responses that the client knows of and that are not being made yet."""
        return tuple(run.plan for run in self._runs.values() if run.life.phase is Phase.ACCEPTED)

    @property
    def unbegun(self) -> Plan | None:
        """The active response while nothing of it has come yet, and it may still be asked for in other words."""
        run = self._runs.get(self._active or "")
        return run.plan if run and run.life.may_ask_again else None

    @property
    def undrained(self) -> int:
        return len(self._runs)

    def why_not(self, *, in_conversation: bool) -> CommandRefused | None:
        """Why the client can have no response begun now; None where it can."""
        if in_conversation and self.active:
            message = f"response {self.active.id} is still in progress; cancel it or wait for its end"
            return CommandRefused("conversation_already_has_active_response", message)
        if not in_conversation and any(not view.in_conversation for view in self.running):
            message = "one out-of-band response at a time; another is still in progress"
            return CommandRefused("out_of_band_response_active", message)
        if self.is_full:
            message = "too many responses have yet to give back what they hold; wait for one to drain"
            return CommandRefused("too_many_responses", message)
        return None

    def knows(self, response: str) -> bool:
        """`response` has not drained yet."""
        return response in self._runs

    def is_untouched(self, tag: Tag) -> bool:
        """Nothing that was made for `tag` has come yet or is on its way, so that a stage which is lost before it has
        answered may be asked for it once more. Of input nothing is seen before its stage has answered."""
        run = self._runs.get(tag.response)
        if run is None or run.plan.tag != tag:
            return not tag.response
        return not run.is_touched and not run.life.is_head_asked

    @property
    def is_full(self) -> bool:
        """So many responses have yet to drain that no other can be started."""
        return len(self._runs) >= DRAINING_MAX

    def is_sounding(self, now_ns: int) -> bool:
        """A reply of the conversation is being made or said, or the caller still hears the end of one."""
        return self._active is not None or bool(self._heard.unplayed(now_ns))

    def words_about(self, now_ns: int) -> str:
        """The words that the caller has heard of us in the last `ECHO_MS`, or is about to hear."""
        if self._active is None or not self._runs[self._active].plan.with_audio:
            return self._heard.last_words(now_ns)
        run = self._runs[self._active]
        sent = self._playout.view(self._active, now_ns).sent
        return run.reply.words_between(sent - ms_to_samples(ECHO_MS, run.plan.sample_rate), sent)

    def is_making(self, item: str) -> bool:
        """`item` is of a reply, and not over yet."""
        return any(run.is_making(item) for run in self._runs.values())

    def takes(self, name: str) -> bool:
        """A response that has not drained has it for an item or a call, or a reply of which more may become known."""
        return self.cut_of(name) is not None or any(run.takes(name) for run in self._runs.values())

    def lead_ns(self, now_ns: int) -> int:
        """How far ahead of the ear what is being said was sent, at most."""
        sounding = (run.plan for run in self._runs.values() if run.plan.with_audio and not run.life.ended)
        return max((self._playout.lead_ns(plan.tag.response, now_ns) for plan in sounding), default=0)

    def ledger(self, response: str, now_ns: int) -> LedgerView | None:
        """Where the audio of `response` stands, or None once it has drained or where it has none."""
        run = self._runs.get(response)
        return self._playout.view(response, now_ns) if run and run.plan.with_audio else None

    def _sent(self, run: Run, now_ns: int) -> int:
        return self._playout.view(run.plan.tag.response, now_ns).sent if run.plan.with_audio else 0
