"""What must hold after every step of a simulated call, as its conversation does it and its client is told.

Rules that are checked
* A response ends once, its phase never goes back, and it drains once, after its end; nothing of it is told after that.
* No sample of an ended epoch is sent. Frames are contiguous; generated >= sent >= heard.
* What is stored is what the conversation holds, and what it holds of a reply is what was sent of it.
* Credit of a reply's sound is given back as it is sent, and once.
* A response that has drained is held by no stage, and only a process that may still live can orphan one.
* Whatever the caller has said is answered, unless the client wanted otherwise.
* Who takes a session over, whatever has become of the owner before, finds every word of which that one has sent a
  sample, unless it had told that the store is away, or knew nothing of the word itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from media.audio_format import FORMATS, AudioFormat
from media.chunk import ms_to_samples
from media.playout import LedgerView
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
    ResponseView,
    SpeechStarted,
    TurnHeld,
    TurnResumed,
)
from sessions.hearing import AWAITING_MAX
from sessions.items import ITEMS_MAX, Item
from sessions.records import Conversation as Stored
from sessions.response import Phase, Response
from sessions.responses import DRAINING_MAX
from sessions.settings import SessionSettings
from stages.contracts import OUT_OF_BAND, Clause, Tag, ThinkerOptions
from tests.sim.clock import Clock
from tests.sim.heard_watch import HeardWatch
from tests.sim.player import Player
from tests.sim.port import Port
from tests.sim.tenants import Tenants
from tests.sim.tools import SERVED_NAMES, ToolServer

WORD_MS = 100  # what the voice takes for each word
FADE_MS = 10
# How far along each phase is; the endings are equally far, and none follows another.
RANKS = {
    Phase.ACCEPTED: 0,
    Phase.ADMITTED: 1,
    Phase.RUNNING: 2,
    Phase.OUTPUT_OPEN: 3,
    Phase.SUCCEEDED: 4,
    Phase.CANCELLED: 4,
    Phase.DEADLINE_EXCEEDED: 4,
    Phase.FAILED: 4,
    Phase.REJECTED: 4,
}


@dataclass(slots=True)
class _Response:
    """A response as its client has seen it so far."""

    epoch: int
    item: str
    text: str = ""
    sent: int = 0
    is_unsaved: bool = False  # what was sent last is known not to be stored
    is_deleted: bool = False
    granted: int = 0
    has_final_frame: bool = False
    format: AudioFormat | None = None  # of its sound
    status: str = ""
    drained: str = ""


@dataclass(slots=True)
class _Owed:
    """Turns that want an answer, by item; and whether a reply of which nothing was said has been cut short."""

    turns: dict[str, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    cut_short: bool = False


class Watch:
    """Raises `AssertionError` at the step that breaks a promise. `counts` says what has happened, and how often.

    `holds` says whether any living stage holds a response.
    """

    def __init__(
        self,
        core: Conversation,
        clock: Clock,
        counts: Counter[str],
        ports: Mapping[str, Port],
        holds: Callable[[str], bool],
        *,
        player: Player,
        tools: ToolServer,
        tenants: Tenants,
    ) -> None:
        self.core = core
        self._ear = HeardWatch(core, clock, player, counts)
        self._clock = clock
        self._tools = tools
        self._tenants = tenants
        self._session = core._identity.session
        self._calls = {call.id: call for call in core.begun_calls}
        self.counts = counts
        self.responses: dict[str, _Response] = {}
        self.prompts: dict[str, tuple[str, ...]] = {}
        self._ports = ports
        self._holds = holds
        self._lives: dict[str, Response] = {}
        self._let_go: set[tuple[str, str]] = set()
        self._phases: dict[str, Phase] = {}
        self._views: dict[str, ResponseView] = {}
        self._heard: dict[str, LedgerView] = {}
        self._store: list[Item] = list(core.items)
        self._epoch = core.epoch
        self._has_ended = False
        self._is_held = False
        self._faded = 0
        self._drained_whole = True
        self._owed = _Owed()

    # ---- effects -----------------------------------------------------------------------------------

    def saw(self, effects: Sequence[do.Effect]) -> None:
        tells = [place for place, effect in enumerate(effects) if isinstance(effect, do.Tell)]
        ends = [place for place, effect in enumerate(effects) if isinstance(effect, do.EndEpoch)]
        if ends and tells:
            assert ends[0] < tells[0], "the epoch ends at the stages before the client is told anything"
        self._drained_whole = True
        for effect in effects:
            self._saw_one(effect)
        self._check_phases()
        assert tuple(self._store) == self.core.items, "what is stored is what is"
        if self.core.speaking.prepared is not None:
            hearing = self.core.hearing
            assert hearing.current or hearing.is_awaited, "an answer is prepared for a turn that may still end so"

    def let_go(self, stage: str, tag: Tag) -> None:
        """`stage` has said that it holds nothing of `tag`."""
        self._let_go.add((stage, tag.key))

    def within_limits(self) -> None:
        core = self.core
        assert core.speaking.undrained <= DRAINING_MAX
        assert len(core.hearing._awaiting) <= AWAITING_MAX
        assert len(core.items) <= ITEMS_MAX

    def _check_phases(self) -> None:
        runs = self.core.speaking._runs
        for name in [name for name in self._phases if name not in runs]:
            del self._phases[name]
            if name not in self.responses and self._drained_whole:
                assert not self._holds(name), f"a stage still holds {name}, which was prepared and has drained"
        for name, run in runs.items():
            self._lives[name] = run.life
            phase, before = run.life.phase, self._phases.get(name, Phase.ACCEPTED)
            if phase is not before:
                assert RANKS[phase] > RANKS[before], f"{name} goes from {before.name} to {phase.name}"
                self._phases[name] = phase

    def _saw_one(self, effect: do.Effect) -> None:
        match effect:
            case do.Tell(event):
                self._told(event)
            case do.EndEpoch(epoch):
                assert epoch > self._epoch, "epochs only rise"
                self._epoch = epoch
                self.counts["epochs ended"] += 1
            case do.SaveItem(item, previous):
                self._save(item, previous)
            case do.SaveDeletion(item_id):
                self._forget_call(item_id)
                self._store = [item for item in self._store if item.id != item_id]
                for response in self.responses.values():
                    response.is_deleted |= response.item == item_id
            case do.GrantCredit(_, tag, samples):
                response = self.responses[tag.response]
                response.granted += samples
                assert response.granted <= response.sent, "credit is given back for what was sent"
            case do.Measured("responses_retried"):
                self.counts["responses retried"] += 1
            case do.OpenStream(_, tag, ThinkerOptions(messages=messages)):
                self._prompted(tag, tuple(m.content for m in messages if m.role == "user"))
            case do.Measured("prepared_replies", _, label):
                self.counts[f"prepared {label}"] += 1
            case do.Measured("drain_lag_seconds", _, label):
                self._drained_whole = self._drained_whole and label == "complete"
            case _:
                self._saw_call(effect)

    def _prompted(self, tag: Tag, prompt: tuple[str, ...]) -> None:
        told = self.responses.get(tag.response)
        assert not (tag.attempt and told and (told.text or told.sent)), "what was put out is never made again"
        self.prompts[tag.response] = prompt
        if tag.response in self.responses and tag.epoch != OUT_OF_BAND:
            turns = self._owed.turns
            self._owed.turns = {item: text for item, text in turns.items() if text not in prompt}

    def _save(self, item: Item, previous: str | None) -> None:
        known = next((each for each in self._store if each.id == item.id), None)
        if item.role == "assistant" and item.spoken and known is None:
            self._check_cut(item)
        elif item.role == "assistant" and item.spoken and known is not None:
            self._check_refined(item, known)
        ids = [known.id for known in self._store]
        if item.id in ids:
            self._store[ids.index(item.id)] = item
        else:
            self._store.insert(0 if previous is None else ids.index(previous) + 1, item)
        self._ear.saved(item, known)

    def _saw_call(self, effect: do.Effect) -> None:
        match effect:
            case do.FeedStream(_, _, Clause()):
                self.counts["words that bridge a wait"] += 1
            case do.SaveCallBegun(call):
                assert call.id not in self._calls, "a call begins once"
                self._calls[call.id] = call
            case do.SaveCallSettled():
                self._settled_call(effect)
            case do.CancelTool(call_id):
                assert self._calls[call_id].safe, "only safe calls are cancelled"

    def tool_called(self, tenant: str) -> None:
        """A tool of the service is called, at the expense of `tenant`."""
        self._tenants.tool_called(tenant)

    def _settled_call(self, settled: do.SaveCallSettled) -> None:
        call = self._calls.pop(settled.call_id)  # each ends once
        if settled.output is not None:
            self._save(settled.output, settled.previous)
            self._tools.settled(call, settled.outcome, settled.output.text)

    def _forget_call(self, item_id: str) -> None:
        if any(item.id == item_id and item.kind != "message" for item in self._store):
            self._tools.forgetful.add(self._session)

    def _check_cut(self, item: Item) -> None:
        """History holds what was sent of a reply, and says whether it was cut."""
        assert item.id in self._views, "a reply is remembered once it has ended"
        view = self._views[item.id]
        assert (item.audio_samples, item.text) == (self.responses[view.id].sent, view.text)
        is_cut = view.cut is not None  # its client stopped playing what was said to its end
        assert item.cut == (is_cut or view.status not in ("completed", "incomplete"))

    def _check_refined(self, item: Item, known: Item) -> None:
        """Once its words are aligned, what was said of a reply that was cut is known better."""
        self.counts["replies refined"] += 1
        # Of a reply that has ended the client is told no more, while its last words may still become known.
        view = self._views.get(item.id)
        told = (self.responses[view.id].text if view else known.text).split()
        said = item.text.split()
        assert all(map(str.__eq__, said, told)), "what was said is the beginning of what was to be said"
        assert (item.role, item.audio_samples) == (known.role, known.audio_samples), "and how much of it was sent stays"
        assert item.heard_samples <= item.audio_samples, "nobody hears what was not sent"

    # ---- the client --------------------------------------------------------------------------------

    def _told(self, event: Event) -> None:
        self.counts[type(event).__name__] += 1
        match event:
            case ResponseStarted(view):
                assert view.id not in self.responses, "a response begins once"
                assert not self._has_ended, "nothing begins in a call that is over"
                self.responses[view.id] = _Response(view.epoch, view.item)
                if view.in_conversation:
                    self.nothing_owed()
            case ReplyText(name, _, delta):
                assert not self.responses[name].status, "no text after the end"
                self.responses[name].text += delta
            case TurnHeld():
                self._faded = 0
                self._is_held = True
            case TurnResumed() | SpeechStarted():
                self._is_held = False
            case ReplyAudio():
                self._audio(event)
            case ResponseFinished():
                self._finished(event)
            case ResponseDrained(name, status):
                self._drained(name, status)
            case CommandRefused(code):
                self.counts[f"refused {code}"] += 1
            case _:
                self._turn(event)

    def _drained(self, name: str, status: str) -> None:
        response = self.responses[name]
        assert response.status, "drained comes after done"
        assert not response.drained, "drained once"
        response.drained = status
        self.counts[f"drained {status}"] += 1
        if status == "complete":
            assert not self._holds(name), f"a stage still holds {name}, which has drained"
        else:
            for stage, attempt in self._lives[name]._ledger:
                key = f"{name}#{attempt}" if attempt else name
                assert (stage, key) not in self._let_go, f"{key} is orphaned at the {stage}, which has let it go"
                assert self._may_hold(key), f"{key} is orphaned at the {stage}, of which the process has ended"

    def _may_hold(self, key: str) -> bool:
        """As far as the gateway knows, a process lives that was asked for stream `key`."""
        return any(port.may_hold(key) for port in self._ports.values())

    def _audio(self, event: ReplyAudio) -> None:
        response, frame = self.responses[event.frame.response], event.frame
        form = FORMATS[event.format]
        assert not response.status, "no sample after the end"
        assert response.format in (None, form), "a response keeps the format that it began with"
        response.format = form
        assert event.epoch in (OUT_OF_BAND, self._epoch), "no sample of an ended epoch"
        assert event.epoch == response.epoch
        assert frame.start_sample == response.sent, "frames are contiguous"
        assert not response.has_final_frame, "nothing follows the final frame"
        if self._is_held:
            self._faded += frame.samples
            assert self._faded <= ms_to_samples(FADE_MS, form.sample_rate), "while it is held, sound only fades out"
        response.sent = frame.end_sample
        response.has_final_frame = frame.final
        response.is_unsaved = self._is_unsaved(event)
        assert response.sent == event.watermark
        self._check_ledger(event.frame.response)

    def _is_unsaved(self, event: ReplyAudio) -> bool:
        """The store is away, or neither words nor text of this sound have come."""
        speaking, frame = self.core.speaking, event.frame
        if speaking._store_is_away:
            return True
        run = speaking._runs.get(frame.response)
        if run is None:  # it has drained by the same step
            return self.responses[frame.response].is_unsaved
        reply = run.reply
        end = reply.words[-1].end if reply.words else 0
        is_untold = frame.end_sample > end and not reply.untimed
        self.counts["sound before its words"] += is_untold
        return is_untold

    def _check_ledger(self, name: str) -> None:
        ledger = self.core.speaking.ledger(name, self._clock.now_ns)
        if ledger is None:
            return  # it has drained by the same step
        before = self._heard.get(name)
        assert ledger.generated >= ledger.sent == self.responses[name].sent >= ledger.heard
        is_reported = ledger.basis == "acked" or ledger.heard == self.core.speaking._playout.reported(name)
        is_put_right = before is not None and before.basis == "estimated" and is_reported
        may_fall = is_put_right or self._ear.is_silent
        assert before is None or ledger.heard >= before.heard or may_fall
        self._heard[name] = ledger
        self._ear.sounds(name, ledger)

    def _finished(self, event: ResponseFinished) -> None:
        view = event.response
        response = self.responses[view.id]
        assert not response.status, "one terminal"
        response.status = view.status
        self._views[view.item] = view
        cause = view.reason if view.status == "cancelled" else view.code
        self.counts[f"ended {view.status} {cause}".strip()] += 1
        said, told = view.text.split(), response.text.split()
        if view.status == "completed":
            is_cut = view.cut is not None  # its client has stopped playing it
            assert is_cut or view.text == response.text.strip(), "a whole reply is what was told of it"
            if "audio" in view.modalities:
                rate = response.format.sample_rate if response.format else 0
                assert response.sent == ms_to_samples(WORD_MS * len(told), rate), "every word of it was sent"
        if "audio" in view.modalities:
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
        last = next((item for item in reversed(self.core.items) if item.words and item.role != "system"), None)
        return last is not None and last.role == "user"

    # ---- the end --------------------------------------------------------------------------------------

    def taken_over(self, stored: Stored) -> None:
        """Another owner has the session now, and `stored` is what it finds."""
        over = {item.id for item in stored.items}
        under_way = {spoken.item: spoken for spoken in stored.speaking}
        for name, response in self.responses.items():
            if not response.sent or response.epoch == OUT_OF_BAND or response.item in over or response.is_deleted:
                continue
            if response.is_unsaved:
                self.counts["words unsaved at a takeover"] += 1
                continue
            rate = response.format.sample_rate if response.format else 0
            begun = -(-response.sent * 1_000 // (rate * WORD_MS))
            spoken = under_way.get(response.item)
            kept = len(spoken.words) + len(spoken.rest.split()) if spoken else 0
            assert kept >= begun, f"of {name} {begun} words have begun to be sent, and {kept} are stored"
            self.counts["replies broken off"] += 1

    def call_ended(self) -> None:
        self._has_ended = True
        self._all_have_ended()

    def _all_have_ended(self) -> None:
        unfinished = [name for name, response in self.responses.items() if not response.status]
        assert not unfinished, f"every response ends: {unfinished}"

    def at_rest(self) -> None:
        """Nothing is being said, heard or made: nothing may be held, and nobody may wait for an answer."""
        assert not self._is_held, "every hold ends"
        self._all_have_ended()
        undrained = [name for name, response in self.responses.items() if not response.drained]
        assert not undrained, f"every response drains: {undrained}"
        assert all(response.granted == response.sent for response in self.responses.values()), "credit is conserved"
        assert not self._owed.turns, f"turns without an answer: {self._owed.turns}"
        self._check_calls()
        self._ear.at_rest()

    def _check_calls(self) -> None:
        """Of every call of the service's tools history says what came of it, but where something was taken from it."""
        assert not self._calls, f"calls without an end: {list(self._calls)}"
        if self._session in self._tools.forgetful:
            return
        items = self.core.items
        made = {item.call_id for item in items if item.kind == "function_call" and item.name in SERVED_NAMES}
        told = [item.call_id for item in items if item.kind == "function_call_output"]
        assert len(told) == len(set(told)), "what came of a call is told once"
        whole = {item.call_id for item in items if item.status == "completed"}
        assert made & whole <= set(told), f"calls of which nobody knows what came: {made & whole - set(told)}"
