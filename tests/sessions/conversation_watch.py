"""Watches what a conversation asks for and tells, effect by effect: what must hold in any order of events.

Beside the promises of the core it checks those of the wire: every event passes a `RealtimeDialect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from duplex.realtime.dialect import Message as WireMessage
from duplex.realtime.dialect import RealtimeDialect
from sessions.effects import (
    CancelStream,
    CancelTool,
    Effect,
    EndEpoch,
    FeedStream,
    OpenStream,
    RequestTool,
    SaveCallBegun,
    SaveCallSettled,
    SaveDeletion,
    SaveEpoch,
    SaveItem,
    Tell,
)
from sessions.events import (
    CallArguments,
    CallFinished,
    CallStarted,
    Event,
    ReplyAudio,
    ReplyText,
    ResponseDrained,
    ResponseFinished,
    ResponseStarted,
)
from sessions.items import Item
from sessions.tool_calls import BegunCall
from stages.contracts import OUT_OF_BAND, Clause, Message, Prompt, Tag, ThinkerOptions
from tests.sessions.client_order import ClientOrder

Held = tuple[str, Tag]  # a stage, and what it may hold something of


@dataclass(slots=True)
class _Answer:
    """What the client knows of a response."""

    epoch: int
    in_conversation: bool
    text: str = ""
    sent: int = 0
    status: str = ""
    drained: bool = False


def _check_prompt(messages: tuple[Message, ...]) -> None:
    """Whatever came when: each call is followed by its result, or that there is none yet, and no result by nothing."""
    owed: list[str] = []
    for message in messages:
        assert (message.role == "tool") == bool(owed) == bool(message.call_id)
        assert message.call_id in (owed[:1] or [""])
        owed = owed[1:] or [call.id for call in message.calls]
    assert not owed


@dataclass(slots=True)
class Watch:
    """`epoch`: that of the conversation."""

    epoch: int
    held: set[Held] = field(default_factory=set)
    cancelled: set[Held] = field(default_factory=set)
    answers: dict[str, _Answer] = field(default_factory=dict)
    calls: dict[str, Item] = field(default_factory=dict)
    saved: list[Item] = field(default_factory=list)
    begun: dict[str, BegunCall] = field(default_factory=dict)  # of the service, and not settled
    requested: dict[str, bool] = field(default_factory=dict)  # and whether it is still under way
    said: set[Tag] = field(default_factory=set)  # words that nobody has to write
    client: ClientOrder = field(default_factory=ClientOrder)
    _unsaved_epoch: bool = False
    _dialect: RealtimeDialect = field(init=False)
    _places: list[int] = field(default_factory=list)
    _wire: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dialect = RealtimeDialect(lambda prefix: f"{prefix}_{len(self._places)}", extensions=True)

    def see(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case OpenStream(stage, tag, options):
                    if isinstance(options, ThinkerOptions):
                        _check_prompt(options.messages)
                    assert (stage, tag) not in self.held, "a stream is opened once"
                    assert tag.epoch in (OUT_OF_BAND, self.epoch) or not tag.response, "nothing of an ended epoch"
                    self.held.add((stage, tag))
                case FeedStream(item=Prompt(messages)):
                    _check_prompt(messages)
                case SaveCallBegun() | SaveCallSettled() | RequestTool() | CancelTool() | FeedStream(item=Clause()):
                    self._serves(effect)
                case CancelStream(stage, tag):
                    self.cancelled.add((stage, tag))
                case EndEpoch(epoch):
                    assert epoch > self.epoch, "epochs rise"
                    self.epoch, self._unsaved_epoch = epoch, True
                case SaveEpoch(epoch):
                    assert epoch == self.epoch
                    self._unsaved_epoch = False
                case SaveItem() | SaveDeletion():
                    self._keep(effect)
                case Tell(event):
                    assert not self._unsaved_epoch, "an epoch is saved before anybody is told of its end"
                    self._told(event)
                    for message in self._dialect.encode(event):
                        self._on_the_wire(self._dialect.stamp(message))
                case _:
                    pass

    def _keep(self, effect: SaveItem | SaveDeletion) -> None:
        if isinstance(effect, SaveItem):
            self._save(effect.item, effect.previous)
        else:
            self.saved = [item for item in self.saved if item.id != effect.item]

    def _serves(self, effect: SaveCallBegun | SaveCallSettled | RequestTool | CancelTool | FeedStream) -> None:
        match effect:
            case FeedStream(tag=tag):
                self.said.add(tag)
            case SaveCallBegun(call):
                assert any(item.id == call.item for item in self.saved), "the call itself comes first"
                self.begun[call.id] = call
            case RequestTool(call_id):
                assert call_id in self.begun, "it is written down, and not settled"
                assert call_id not in self.requested, "it is asked for once"
                self.requested[call_id] = True
            case CancelTool(call_id):
                assert self.begun[call_id].safe
                self.requested[call_id] = False
            case SaveCallSettled(call_id, outcome, output, previous):
                del self.begun[call_id]
                assert outcome != "cancelled" or not self.requested.get(call_id), "what is cancelled is stopped first"
                if output is not None:
                    self._save(output, previous)

    @property
    def are_answering(self) -> bool:
        """The client knows of a response that has not ended."""
        return any(not answer.status for answer in self.answers.values())

    def let_go(self, stage: str, tag: Tag) -> None:
        """The stage holds nothing of `tag` any more."""
        self.held.discard((stage, tag))

    def _save(self, item: Item, previous: str | None) -> None:
        names = [one.id for one in self.saved]
        if item.id in names:
            self.saved[names.index(item.id)] = item
        else:
            self.saved.insert(0 if previous is None else names.index(previous) + 1, item)

    def _told(self, event: Event) -> None:
        match event:
            case ResponseStarted(view):
                assert view.id not in self.answers, "a response begins once"
                others = [one for one in self.answers.values() if not one.status]
                assert all(one.in_conversation != view.in_conversation for one in others), "one of each kind at a time"
                self.answers[view.id] = _Answer(view.epoch, view.in_conversation)
            case ReplyText(name, _, delta):
                assert not self.answers[name].status, "no text after the end"
                self.answers[name].text += delta
            case ReplyAudio(_, epoch, frame):
                answer = self.answers[frame.response]
                assert not answer.status, "no sample after the end"
                assert epoch == answer.epoch
                assert epoch in (OUT_OF_BAND, self.epoch), "no sample of an ended epoch"
                assert frame.start_sample == answer.sent, "frames are contiguous"
                answer.sent = frame.end_sample
            case CallStarted(name, item):
                assert not self.answers[name].status, "nothing is called after the end"
                assert item.id not in self.calls, "a call begins once"
                self.calls[item.id] = item
            case CallArguments(_, name, _, delta):
                call = self.calls[name]
                assert call.status == "in_progress", "no arguments after the end"
                self.calls[name] = replace(call, text=call.text + delta)
            case CallFinished(name, item):
                assert not self.answers[name].status, "calls end before their response"
                assert self.calls[item.id] == replace(item, status="in_progress"), (
                    "a call ends once, with what was told"
                )
                self.calls[item.id] = item
            case ResponseFinished(view):
                assert all(self.calls[call.id] == call for call in view.calls)
                assert all(call.status != "in_progress" for call in view.calls), "no call outlives its response"
                answer = self.answers[view.id]
                assert not answer.status, "one terminal"
                answer.status = view.status
                said, text = view.text.split(), answer.text.split()
                assert said == text[: len(said)], "what was said is the beginning of what was told"
                assert said == text or view.status != "completed"
            case ResponseDrained(name, status):
                answer = self.answers[name]
                assert answer.status, "done comes before drained"
                assert not answer.drained, "drained once"
                answer.drained = True
                holders = [stage for stage, tag in self.held if tag.response == name]
                assert bool(holders) == (status == "orphaned"), "who has drained holds nothing"
            case _:
                pass

    def _on_the_wire(self, message: WireMessage) -> None:
        self.client.take(message)
        self._places.append(message["server_event_seq"])
        assert self._places[-1] == len(self._places), "events are numbered without a gap"
        name = message.get("response_id") or message.get("response", {}).get("id")
        if name is None:
            return
        kinds = self._wire.setdefault(name, [])
        item = message.get("item", {}).get("id")
        kinds.append(f"{message['type']} {item}" if item else message["type"])
        assert kinds[0] == "response.created"
        assert kinds.count("response.done") <= 1
        if "response.done" in kinds[:-1]:
            assert kinds[-1] == "response.drained", "after the end comes the drain alone"
        if item or kinds[-1] == "response.content_part.added":
            assert kinds.count(kinds[-1]) == 1, "an item begins and ends once"
