"""A response under way: its plan, its life, what has been made of it so far, and what its client is told of that.

Rules
* What is told is told once. Of a response that is only prepared nothing is, until it is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from sessions.effects import AuditStream, Effect, FeedStream, Measured, SaveSpeaking, Tell
from sessions.events import (
    CallArguments,
    CallFinished,
    CallStarted,
    MessageStarted,
    ReplyText,
    ReplyWords,
    ResponseFinished,
    ResponseStarted,
    ResponseView,
    Usage,
)
from sessions.filler import FillerCue
from sessions.heard import Cut
from sessions.items import History, Item
from sessions.plan import Marks, Plan
from sessions.reply import Reply
from sessions.response import Deadlines, Done, Phase, Response
from sessions.saving import Part, Saving
from sessions.tool_calls import Called, Calls
from stages.contracts import Filler, TextDelta, TextDone
from stages.event_log import Trail

_STATUS = {
    Phase.SUCCEEDED: "completed",
    Phase.CANCELLED: "cancelled",
    Phase.DEADLINE_EXCEEDED: "failed",
    Phase.FAILED: "failed",
    Phase.REJECTED: "failed",
}


@dataclass(slots=True)
class Run:
    """`is_touched`: something of the present attempt has come, or was made to its end. `is_written`: its text has just
    become whole. `deltas`: how many pieces of text have come, of all attempts. `cue` tells when its caller has waited
    for too long. `history` has the places of its items; `is_begun`: its client has been told of its message."""

    plan: Plan
    life: Response
    trail: Trail
    marks: Marks
    history: History
    is_begun: bool = False
    is_prepared: bool = False
    is_touched: bool = False
    is_written: bool = False
    deltas: int = 0
    usage: Usage = field(default_factory=Usage)
    reply: Reply = field(init=False)
    calls: Calls = field(init=False)
    saving: Saving = field(default_factory=Saving)
    cue: FillerCue = field(default_factory=FillerCue)

    def __post_init__(self) -> None:
        self.reply = Reply(self.plan.sample_rate)
        self.calls = Calls(self.plan.tag.response, self.plan.item)

    @classmethod
    def begun(
        cls,
        plan: Plan,
        deadlines: Deadlines,
        trail: Trail,
        marks: Marks,
        history: History,
        *,
        filler: str,
        now_ns: int,
    ) -> Run:
        """Accepted now. `filler` is for who speaks in a conversation that has had replies before."""
        life = Response(
            plan.tag,
            tuple(leg.stage for leg, _ in plan.stages),
            finals=plan.finals,
            observers=[leg.stage for leg, _ in plan.stages if leg.observes],
            deadlines=deadlines,
            now_ns=now_ns,
        )
        return cls(
            plan, life, trail, marks, history, cue=FillerCue(filler if plan.with_audio and plan.is_continued else "")
        )

    def begin_anew(self, attempt: int) -> None:
        """What there is of the attempt before is void."""
        self.plan = replace(self.plan, tag=structs.replace(self.plan.tag, attempt=attempt))
        self.reply, self.usage = Reply(self.plan.sample_rate), Usage()
        self.is_written = self.is_touched = False
        self.saving.anew()
        self.cue.anew()
        self.calls = Calls(self.plan.tag.response, self.plan.item)

    def next_deadline_ns(self) -> int | None:
        waits = [self.life.next_deadline_ns()]
        if not self.life.ended:
            waits += [self.saving.next_deadline_ns(), self.cue.due_ns]
        return min((at for at in waits if at is not None), default=None)

    def add_text(self, delta: TextDelta) -> None:
        if delta.filler:
            self.reply.add_filler(delta.text)
        else:
            self.cue.stop()
            self.reply.add_text(delta.text)

    def bridge(self, words: str) -> list[Effect]:
        """Have `words` said before its own, where there are any."""
        head = self.plan.stages[0][0].stage
        return [FeedStream(head, self.plan.tag, Filler(words)), Measured("fillers", 1)] if words else []

    def written(self, done: TextDone) -> str:
        """Its text is whole. Gives why it ends where it does; empty where it was to."""
        self.is_written = True
        self.usage = Usage(done.prompt_tokens, done.cached_tokens, done.output_tokens)
        self.reply.is_limited = done.reason != "stop"
        return done.reason if self.reply.is_limited else ""

    def is_making(self, item: str) -> bool:
        """`item` was announced to the conversation, and is not over yet."""
        if self.is_prepared or self.life.ended or not self.plan.view.in_conversation:
            return False
        calls = (call.id for call in self.calls.items if call.status == "in_progress")
        return item == self.plan.item or item in calls

    def takes(self, name: str) -> bool:
        """`name` is that of its item, or of a call that it makes or may make, whoever knows of them."""
        return name == self.plan.item or self.calls.take(name)

    @property
    def tokens(self) -> int:
        """How many were sampled, as far as is known: of a text that did not become whole, one for each piece."""
        return max(self.usage.output_tokens, self.deltas)

    @property
    def is_said_to_conversation(self) -> bool:
        """Its sound is, or will be, part of what the conversation remembers."""
        is_said = self.plan.with_audio and self.plan.view.in_conversation
        return is_said and not self.is_prepared and not self.life.ended

    def save(self, part: Part) -> Effect:
        plan, tag, previous = self.plan, self.plan.tag, self.history.previous_of(self.plan.item)
        return SaveSpeaking(plan.item, tag.response, tag.epoch, previous, plan.sample_rate, part)

    def first_sent(self, now_ns: int) -> list[Effect]:
        """Sound of it goes out. The first is measured."""
        if self.marks.first_sent_ns:
            return []
        self.marks.first_sent_ns = now_ns
        since_ns = self.marks.speech_end_ns
        return [Measured("first_audio_seconds", (now_ns - since_ns) / 1e9)] if since_ns else []

    def audits(self) -> list[Effect]:
        """What each stage that was asked is to be asked now: whether it holds anything of it."""
        tag = self.plan.tag
        return [AuditStream(stage, structs.replace(tag, attempt=attempt)) for stage, attempt in sorted(self.life.asked)]

    # ---- what the client is told -----------------------------------------------------------------------

    def started(self) -> list[Effect]:
        """Its client is told of it from now on. One that may call may have no words, and so no message."""
        if self.plan.view.in_conversation:
            message = Item(self.plan.item, "assistant", "", spoken=self.plan.with_audio, status="in_progress")
            self.history.begin(message, [self.plan.previous_item])
        told: list[Effect] = [Tell(ResponseStarted(self.plan.view))]
        return told if self.plan.view.may_call else [*told, *self.message()]

    def message(self) -> list[Effect]:
        """The beginning of its message, unless that was told already."""
        if self.is_begun:
            return []
        self.is_begun = True
        return [Tell(MessageStarted(self.plan.tag.response, self.plan.item, self._told(self.plan.item)))]

    def _told(self, item: str) -> str | None:
        """Its client is told of `item` now: what that stands behind. Out of band it stands nowhere."""
        return self.history.tell(item) if self.plan.view.in_conversation else None

    def text(self, delta: str) -> list[Effect]:
        told = Tell(ReplyText(self.plan.tag.response, self.plan.item, delta, self.plan.with_audio))
        return [*self.message(), told]

    def news(self) -> list[Effect]:
        """Words that are new. Alone they are no output: until there is some, another attempt may time them anew."""
        if self.is_prepared or self.life.phase is not Phase.OUTPUT_OPEN:
            return []
        words, rate = self.reply.take_words(), self.plan.sample_rate
        told = Tell(ReplyWords(self.plan.tag.response, self.plan.item, words, rate))
        return [*self.message(), told] if words else []

    def news_of_calls(self) -> tuple[list[Effect], list[Called]]:
        """What is new of its calls, and those that have ended with that, where they belong to the conversation. Of what
        the service carries out its client is told by the history."""
        if self.is_prepared:
            return [], []
        events = self.calls.news()
        ended = [event.item for event in events if isinstance(event, CallFinished)]
        served = {item.id for item in self.calls.items if item.name in self.plan.served}
        if not self.plan.view.in_conversation:
            return [Tell(event) for event in events if _item_of(event) not in served], []
        told: list[Effect] = []
        for event in events:
            if isinstance(event, CallStarted):
                self.history.begin(event.item, self.calls.before(event.item))
            if _item_of(event) not in served:
                told.append(Tell(self._placed(event)))
        return told, [Called(replace(item, by_service=item.id in served), self.plan.spec) for item in ended]

    def _placed(self, event: CallStarted | CallArguments | CallFinished) -> CallStarted | CallArguments | CallFinished:
        if isinstance(event, CallArguments):
            return event
        return replace(event, previous=self._told(event.item.id))

    def finished(self, view: ResponseView) -> list[Effect]:
        """It is over, as `view` shows it; what leaves nothing has no place any more."""
        message = [] if view.leaves_nothing else self.message()
        previous = self._told(self.plan.item) if self.is_begun else None
        if view.leaves_nothing and view.in_conversation:
            self.history.give_up(self.plan.item)
        return [*message, Tell(ResponseFinished(view, self.marks.parts(), previous))]

    def terminal(self, done: Done, cut: Cut, sent: int, *, was_cut: bool) -> ResponseView:
        """The response as it ended, with the words that history has of it. `sent`: samples of its sound."""
        succeeded = done.phase is Phase.SUCCEEDED
        is_silence = succeeded and not self.calls.items  # it had nothing to say, and has said that
        return replace(
            self.plan.view,
            text=cut.text,
            status="incomplete" if succeeded and done.reason else _STATUS[done.phase],
            reason=done.reason,
            code=done.code,
            message=done.message,
            usage=self.usage,
            cut=cut if was_cut else None,
            calls=tuple(call for call in self.calls.items if call.name not in self.plan.served),
            leaves_nothing=not (cut.text or sent or is_silence),
        )


def _item_of(event: CallStarted | CallArguments | CallFinished) -> str:
    return event.item if isinstance(event, CallArguments) else event.item.id
