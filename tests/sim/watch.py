"""What must hold after every step of a simulated call, as its client, its store and its stages see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import (
    CallerText,
    CallerTextFailed,
    CommandRefused,
    Event,
    InputCommitted,
    ItemDeleted,
    ReplyAudio,
    ReplyText,
    ResponseDrained,
    ResponseFinished,
    ResponseStarted,
)
from sessions.items import Item
from sessions.settings import SessionSettings
from stages.contracts import OUT_OF_BAND, Tag, ThinkerOptions

WORD_SAMPLES = 4_800  # the scripted voice takes 20 frames of 10 ms for each word


@dataclass(slots=True)
class _Response:
    """A response as its client has seen it so far."""

    epoch: int
    text: str = ""
    sent: int = 0
    granted: int = 0
    has_final_frame: bool = False
    status: str = ""
    drained: str = ""


@dataclass(slots=True)
class _Owed:
    """Turns that want an answer, by item; and whether a reply of which nothing was said has been cut short."""

    turns: dict[str, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    cut_short: bool = False


class Watch:
    """Raises `AssertionError` at the step that breaks a promise. `counts` says what has happened, and how often."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.responses: dict[str, _Response] = {}
        self.prompts: dict[str, tuple[str, ...]] = {}
        self._store: list[Item] = []
        self._epoch = 0
        self._core: Conversation | None = None
        self._owed = _Owed()

    def attach(self, core: Conversation) -> None:
        self._core = core

    @property
    def core(self) -> Conversation:
        assert self._core is not None, "attach comes first"
        return self._core

    # ---- effects -----------------------------------------------------------------------------------

    def saw(self, effects: Sequence[do.Effect]) -> None:
        tells = [place for place, effect in enumerate(effects) if isinstance(effect, do.Tell)]
        ends = [place for place, effect in enumerate(effects) if isinstance(effect, do.EndEpoch)]
        if ends and tells:
            assert ends[0] < tells[0], "the epoch ends at the stages before the client is told anything"
        for effect in effects:
            self._saw_one(effect)
        assert [item.id for item in self._store] == [item.id for item in self.core.items], "what is stored is what is"
        assert tuple(self._store) == self.core.items
        hearing = self.core.hearing
        if self.core.speaking.prepared is not None:
            assert hearing.current or hearing.is_awaited, "an answer is prepared for a turn that may still end so"

    def _saw_one(self, effect: do.Effect) -> None:
        match effect:
            case do.EndEpoch(epoch):
                assert epoch > self._epoch, "epochs only rise"
                self._epoch = epoch
                self.counts["epochs ended"] += 1
            case do.SaveItem(item, previous):
                self._save(item, previous)
            case do.SaveDeletion(item_id):
                self._store = [item for item in self._store if item.id != item_id]
            case do.GrantCredit(_, tag, samples):
                response = self.responses[tag.response]
                response.granted += samples
                assert response.granted <= response.sent + samples
            case do.OpenStream("thinker", tag, ThinkerOptions(messages=messages)):
                self._asked(tag, tuple(m.content for m in messages if m.role == "user"))
            case do.Measured("responses_retried"):
                self.counts["responses retried"] += 1
            case do.Measured(name, _, label) if name == "prepared_replies":
                self.counts[f"prepared {label}"] += 1

    def _asked(self, tag: Tag, prompt: tuple[str, ...]) -> None:
        told = self.responses.get(tag.response)
        assert not (tag.attempt and told and (told.text or told.sent)), "what was put out is never made again"
        self.prompts[tag.response] = prompt
        if tag.response in self.responses and tag.epoch != OUT_OF_BAND:
            turns = self._owed.turns
            self._owed.turns = {item: text for item, text in turns.items() if text not in prompt}

    def _save(self, item: Item, previous: str | None) -> None:
        ids = [known.id for known in self._store]
        if item.id in ids:
            self._store[ids.index(item.id)] = item
        else:
            self._store.insert(0 if previous is None else ids.index(previous) + 1, item)

    # ---- the client --------------------------------------------------------------------------------

    def told(self, event: Event) -> None:
        self.counts[type(event).__name__] += 1
        match event:
            case ResponseStarted(view):
                assert view.id not in self.responses, "a response begins once"
                self.responses[view.id] = _Response(view.epoch)
                if view.in_conversation:
                    self._owed.turns.clear()
            case ReplyText(name, _, delta):
                assert not self.responses[name].status, "no text after the end"
                self.responses[name].text += delta
            case ReplyAudio():
                self._audio(event)
            case ResponseFinished():
                self._finished(event)
            case ResponseDrained(name, status):
                response = self.responses[name]
                assert response.status, "drained comes after done"
                assert not response.drained, "drained once"
                response.drained = status
                self.counts[f"drained {status}"] += 1
            case CommandRefused(code):
                self.counts[f"refused {code}"] += 1
            case _:
                self._turn(event)

    def _audio(self, event: ReplyAudio) -> None:
        response, frame = self.responses[event.frame.response], event.frame
        assert not response.status, "no sample after the end"
        assert event.epoch in (OUT_OF_BAND, self._epoch) or event.epoch > self._epoch, "no sample of an ended epoch"
        assert event.epoch == response.epoch
        assert frame.start_sample == response.sent, "frames are contiguous"
        assert not response.has_final_frame, "nothing follows the final frame"
        response.sent = frame.end_sample
        response.has_final_frame = frame.final
        assert response.sent == event.watermark

    def _finished(self, event: ResponseFinished) -> None:
        view = event.response
        response = self.responses[view.id]
        assert not response.status, "one terminal"
        response.status = view.status
        cause = view.reason if view.status == "cancelled" else view.code
        self.counts[f"ended {view.status} {cause}".strip()] += 1
        if view.status == "completed":
            assert view.text == response.text.strip(), "a whole reply is what was told of it"
            if "audio" in view.modalities:
                assert response.sent == WORD_SAMPLES * len(view.text.split()), "every word of it was sent"
        elif "audio" in view.modalities:
            said, told = view.text.split(), response.text.split()
            assert said == told[: len(said)], "what was said is the beginning of what was to be said"
        if view.reason == "turn_detected" and view.in_conversation and not view.text:
            self._owed.cut_short = True

    # ---- turns -------------------------------------------------------------------------------------

    def speech_ended(self, item: str, settings: SessionSettings) -> None:
        """The caller has fallen silent; is an answer wanted?"""
        if settings.turn_detection is not None and settings.turn_detection.create_response:
            self._owed.wanted.add(item)

    def nothing_owed(self) -> None:
        """The client has taken matters into its own hands."""
        self._owed.turns.clear()
        self._owed.cut_short = False

    def _turn(self, event: Event) -> None:
        owed = self._owed
        match event:
            case InputCommitted(item):
                if item not in owed.wanted:
                    owed.cut_short = False
            case CallerText(item, text, final=True) if item in owed.wanted:
                self._settled(item, text)
            case CallerTextFailed(item) if item in owed.wanted:
                self._settled(item, "")
            case ItemDeleted(item):
                owed.turns.pop(item, None)

    def _settled(self, item: str, text: str) -> None:
        self._owed.wanted.discard(item)
        exists = any(known.id == item for known in self.core.items)
        if text and exists and not self._is_being_answered(text):
            self._owed.turns[item] = text
        elif not text and exists and self._owed.cut_short and self._has_open_question():
            self._owed.turns["again"] = ""
        self.counts["coughs"] += not text
        self._owed.cut_short = False

    def _is_being_answered(self, text: str) -> bool:
        active = self.core.speaking.active
        return active is not None and text in self.prompts.get(active.id, ())

    def _has_open_question(self) -> bool:
        last = next((item for item in reversed(self.core.items) if item.text and item.role != "system"), None)
        return last is not None and last.role == "user"

    # ---- rest --------------------------------------------------------------------------------------

    def at_rest(self, streams: Callable[[], dict[str, int]]) -> None:
        """Nothing is being said, heard or made: nothing may be held, and nobody may wait for an answer."""
        unfinished = [name for name, response in self.responses.items() if not response.status]
        assert not unfinished, f"every response ends: {unfinished}"
        undrained = [name for name, response in self.responses.items() if not response.drained]
        assert not undrained, f"every response drains: {undrained}"
        assert all(response.granted == response.sent for response in self.responses.values()), "credit is conserved"
        assert not any(streams().values()), f"stages hold nothing: {streams()}"
        assert not self._owed.turns, f"turns without an answer: {self._owed.turns}"
