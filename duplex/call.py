"""One call: the shell around a conversation. Carries its effects to stages, store, metrics and client.

Theory of operation
    Frames from the stages, speech from the way in, commands from the client and the pacer's slots each become one call
    of the conversation, whose effects are carried out at once, in order. Nothing here awaits: what can be slow (store,
    client's socket) has a bounded queue of its own, so a stop takes effect within the call that decides it.

Rules
* `EndEpoch` is on the wire to every stage before the client is told anything of it.
* Calls of the service's own tools go on when the call ends, as far as they may; their answers are recorded while the
  session is still ours.
* A call ends exactly once, by `end`, whoever asks for it; `ended` is then set. It is drained once everything of it has
  been given back: its session stays open at the stages until then.
* What drives all calls of the process, as pacer, stages' links and shutdown do, comes in by `pace`, `frame`, `lost` and
  `end`. Whatever goes wrong behind these ends this call and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from duplex.audience import Audience
from duplex.call_tools import CallTools
from duplex.checkpoints import Recorder
from duplex.journal import Journal, JournalPorts
from duplex.listening import Listening, ListeningPorts
from duplex.metrics import Metrics
from duplex.session_watch import SESSION_DELETED, SESSION_REPLACED
from duplex.stage_pool import SAME_LOSS, StagePool, StageUnresponsiveError
from duplex.tool_client import ToolClient
from duplex.transport import Client
from duplex.turn_sound_service import TurnSoundService
from duplex.usage_meter import UsageMeter
from duplex.vad_service import VadService
from media.audio_format import FORMATS, AudioFormat
from media.heard_estimate import Path
from media.input_offsets import Placed
from media.playout import LedgerView
from media.rtp_map import Position
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import (
    CommandRefused,
    DurabilityRestored,
    DurabilitySuspended,
    Event,
    ReplyAudio,
    ResponseFinished,
    SettingsChanged,
    TurnHeld,
)
from sessions.records import CallBegun, CallRecord, Compacted, ReplySpeaking, TurnRecord
from sessions.service_calls import Failure, Result
from sessions.settings import SessionSettings
from sessions.taken_input import TakenInput
from sessions.takeover import Takeover
from stages.contracts import Item, Tag
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Frame,
    Grant,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
)

CLOSE_FLUSH_NS_MAX = 2_000_000_000  # the last entries of a call, where the store has not said that it fails
# Slots of the pacer are 20 ms apart. After a pause of so many, somebody else may serve the session.
STILL_NS_MAX = 500_000_000
INTERNAL_ERROR = "internal_error"
# Why a call ends whose session is somebody else's, or gone.
NOT_OURS = frozenset({SESSION_REPLACED, SESSION_DELETED})

_log = structlog.get_logger("duplex.call")


@dataclass(frozen=True, slots=True)
class Services:
    """What all calls of the process share. `turn_sound`: None where words alone end turns. `doubt` finds out whether a
    call's session is still ours, and trusts the call or ends it, as it must for a stage's refusal. `tools`: or None."""

    stages: Mapping[str, StagePool]
    vad: VadService
    metrics: Metrics
    turn_sound: TurnSoundService | None = None
    doubt: Callable[[Call, str], None] = lambda call, refusal: call.end(refusal) if refusal else call.trust()
    tools: ToolClient | None = None


class Call:
    """`input_format`: of the client's sound; None: as the session asks for. `responses`: those that it holds open from
    before. `draw`: look whether more of the tenant's quotas is to be drawn."""

    def __init__(
        self,
        conversation: Conversation,
        session: str,
        services: Services,
        journal: Journal,
        input_format: AudioFormat | None = None,
        *,
        responses: Sequence[str] = (),
        draw: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._draw = draw
        self._usage = UsageMeter(conversation.allowance)
        self.conversation = conversation
        self._services = services
        self.journal = journal
        self._client: Client | None = None
        self.audience = Audience()
        self._path: Path | None = None
        talk = conversation
        self._recorder = Recorder(talk.items, talk.settings, talk.epoch, talk.begun_calls, talk.hearing.input_from)
        self._taken_input = TakenInput(conversation.hearing)
        journal.attach(JournalPorts(self._recorder.compacted, self._durability, self._store_failed, self._stored))
        self._encoder = conversation.route.encoder
        ports = ListeningPorts(self.carry_out, self._feed_encoder)
        self.listening = Listening(
            conversation, services.vad, ports, client_format=input_format, turn_sound=services.turn_sound
        )
        self.tools = CallTools(session, services.tools, self._usage.may_call_tool, self._tool_answered)
        self._takeover = Takeover(responses, services.stages)
        self._last_sent_ns = 0
        self._underruns = 0
        self._written: Position | None = None  # what is left of a reply of which something was taken back
        self._end_reason: str | None = None
        self._paced_ns = 0
        self._is_in_doubt = False
        self._leaving = "", 0  # why it is to end in its next pause, and by when
        self._is_spoilt = False  # a fault of ours has ended it: nothing of it can be relied on any more
        self._is_at_stages = False
        self.ended = asyncio.Event()
        # Set by who has cleaned up behind the call: nothing of it is held here any more.
        self.over = asyncio.Event()
        self._drained = asyncio.Event()

    @property
    def fence(self) -> int:
        """Which owner of its session it is."""
        return self.journal.fence

    @property
    def end_reason(self) -> str | None:
        """Why the call is over, or None while it lives."""
        return self._end_reason

    def attach(self, client: Client | None) -> None:
        """Tell `client` what happens from now on; None: nobody."""
        self._client = client
        now_ns = time.monotonic_ns()
        self._look_along_path(now_ns)
        self.carry_out(self._takeover.tell(now_ns))
        if client is not None:
            self.carry_out(self.conversation.recover(now_ns))

    def _look_along_path(self, now_ns: int) -> None:
        path = self._client.path(now_ns) if self._client else self._path
        if path is not None and path != self._path:
            self._path = path
            self.carry_out(self.conversation.path_seen(path, now_ns))

    @property
    def arrived_ns(self) -> int:
        """What was sent to the client by then is known to have arrived."""
        return self._path.arrived_ns if self._path is not None else 0

    # ---- life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the session at every stage and read the prompt into the Thinker."""
        self._is_at_stages = True
        for stage in self._services.stages.values():
            stage.order(OpenSession(self.session, self.conversation.epoch))
        self.carry_out(self.conversation.warm_up())

    def end(self, reason: str) -> None:
        """The call is over. Everything that runs for it is ended at the stages."""
        if self._end_reason is not None:
            return
        if reason != SESSION_DELETED:
            self._safely(lambda: self._keep_taken(self._taken_input.last(self.listening.newest)))
        self._end_reason = reason
        _log.info("call_ended", session=self.session, reason=reason)
        self._safely(lambda: self.carry_out(self.conversation.close(time.monotonic_ns())))
        self.ended.set()
        self._look_whether_drained()

    def end_in_pause(self, reason: str, by_ns: int) -> None:
        """End it once nothing is being said, by either side, or made to be said; at `by_ns` whatever is."""
        self._leaving = reason, by_ns

    def _end_if_leaving(self, now_ns: int) -> None:
        reason, by_ns = self._leaving
        if reason and (self.is_quiet(now_ns) or now_ns >= by_ns):
            self.end(reason)

    def is_quiet(self, now_ns: int) -> bool:
        speaking, hearing = self.conversation.speaking, self.conversation.hearing
        is_heard = hearing.current is not None or hearing.is_awaited
        is_said = bool(speaking.running) or speaking.is_sounding(now_ns) or now_ns < speaking.played_out_ns
        return not (is_said or is_heard or self.conversation.is_serving)

    def _look_whether_drained(self) -> None:
        is_awaited = self._is_at_stages and self.conversation.hearing.is_awaited
        is_held = self.conversation.speaking.undrained or is_awaited or self._awaits_tools
        if self._end_reason is not None and not is_held:
            self._drained.set()

    @property
    def _awaits_tools(self) -> bool:
        """An answer is to come that can still be recorded here."""
        is_ours = self._is_at_stages and self._end_reason not in NOT_OURS and not self.journal.is_over
        return is_ours and self.conversation.is_serving

    async def until_drained(self) -> None:
        """Return once the ended call holds nothing, or its deadlines have passed; for that it must still be paced."""
        await self._drained.wait()

    def leave_stages(self) -> None:
        """Close the session at every stage, whatever of it is still there. Idempotent."""
        if self._is_at_stages:
            self._is_at_stages = False
            for stage in self._services.stages.values():
                stage.order(CloseSession(self.session))
            self._look_whether_drained()

    def look_after_session(self) -> None:
        """Renew the session's lease; where the session is gone, or somebody else's, the call ends."""
        self.journal.renew()

    async def flush(self) -> bool:
        """Wait, for a bounded time, until the store has everything; False where it has not."""
        flushed = await self.journal.flush(CLOSE_FLUSH_NS_MAX)
        unwritten = self.journal.waiting + self.journal.lost
        if not flushed and unwritten:
            _log.error("checkpoints_lost", session=self.session, waiting=unwritten)
        return flushed

    def give_up_writing(self) -> None:
        """There is no more time to wait for the store."""
        self.journal.give_up()

    def _stored(self, entry: TurnRecord) -> None:
        if isinstance(entry, ReplySpeaking):
            self.conversation.speaking.saved(entry.item, entry.part)
            self._safely(lambda: self._send_due(time.monotonic_ns()))
        elif isinstance(entry, CallBegun):
            self._safely(partial(self._calls_stored, (entry.call,)))
        elif isinstance(entry, Compacted):
            self._safely(partial(self._calls_stored, entry.calls))

    def _calls_stored(self, calls: Sequence[CallRecord]) -> None:
        for call in calls:
            self.carry_out(self.conversation.call_stored(call.id, time.monotonic_ns()))

    def _durability(self, suspended: bool) -> None:
        self.conversation.speaking.store_is_away(suspended)
        self._services.metrics.durability_suspended.inc(suspended)
        _log.warning("durability_suspended" if suspended else "durability_restored", session=self.session)
        if self._end_reason is None:
            self._tell(DurabilitySuspended() if suspended else DurabilityRestored())

    def _store_failed(self, kind: str) -> None:
        self._services.metrics.store_errors.labels(kind).inc()

    def _safely(self, act: Callable[[], None]) -> None:
        """Do what somebody asks for who serves other calls as well; where it fails, this call is over."""
        if self._is_spoilt:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the boundary between this call and what all calls share
            self.spoil(error)

    def spoil(self, error: BaseException) -> None:
        """A fault of ours has shown while something was done for this call, which is over with it."""
        if self._is_spoilt:
            return
        _log.error("call_failed", session=self.session, exc_info=error)
        self._services.metrics.errors.labels("service", INTERNAL_ERROR).inc()
        self.end(INTERNAL_ERROR)
        self._is_spoilt = True
        self.leave_stages()
        self._drained.set()

    async def write_down(self) -> None:
        """Have the store take what is said, until cancelled or until the journal has failed."""
        try:
            await self.journal.run()
        except Exception as error:  # noqa: BLE001 - or nobody would notice before the call ends
            self.spoil(error)
            self.journal.give_up()

    def pace(self, now_ns: int) -> None:
        """The pacer's slot: deadlines, then frames that are due."""
        self._safely(lambda: self._pace(now_ns))

    def _pace(self, now_ns: int) -> None:
        deadline_ns = self.conversation.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.carry_out(self.conversation.tick(now_ns, self.listening.newest))
        self.listening.tick(now_ns)
        self.carry_out(self._takeover.tick(now_ns))
        if self._client is not None:
            self._client.pace(now_ns)
        self._look_along_path(now_ns)
        self._send_due(now_ns)
        self._paced_ns = now_ns
        self._usage.heard(self.listening.heard_samples)
        if self._end_reason is None:
            self._keep_taken(self._taken_input.due(self.listening.newest))
        self._draw()
        self._end_if_leaving(now_ns)
        self._look_whether_drained()

    def _send_due(self, now_ns: int) -> None:
        if not self._may_speak(now_ns):
            return
        while self._client is not None and (frame_ns := self._client.next_frame_ns(now_ns)) is not None:
            effects = self.conversation.take_due(frame_ns)
            if not effects and not self._client.pad():
                break
            self.carry_out(effects)
        underruns = self.conversation.speaking.underruns
        self._services.metrics.underruns.inc(underruns - self._underruns)
        self._underruns = underruns

    def _may_speak(self, now_ns: int) -> bool:
        """False in doubt, as after this process has stood still, until the session is known to have no other owner."""
        if self._paced_ns and now_ns - self._paced_ns > STILL_NS_MAX and not self._is_in_doubt:
            _log.warning("stood_still", session=self.session, ms=(now_ns - self._paced_ns) // 1_000_000)
            self._doubt()
        return not self._is_in_doubt

    def _doubt(self, refusal: str = "") -> None:
        self._is_in_doubt = True
        self._services.doubt(self, refusal)

    def allowance_drawn(self) -> None:
        """More of the tenant's quotas is at hand, or it is known that there is none."""
        self._safely(lambda: self.carry_out(self.conversation.allowance_drawn(time.monotonic_ns())))

    def message_passed(self, wire_bytes: int) -> None:
        """The client has sent a message of so many bytes, or was sent one."""
        self._usage.message(wire_bytes)

    def trust(self) -> None:
        """The session is ours."""
        self._is_in_doubt = False
        self._paced_ns = time.monotonic_ns()

    # ---- from the stages ---------------------------------------------------------------------------

    def frame(self, stage: str, frame: Frame) -> None:
        """A worker has sent `frame` about this session."""
        self._safely(lambda: self._frame(stage, frame))

    def _frame(self, stage: str, frame: Frame) -> None:
        now_ns, talk = time.monotonic_ns(), self.conversation
        match frame:
            case Published(tag, event):
                self.carry_out(talk.published(tag, event, now_ns))
                self._send_due(now_ns)
            case Grant(tag, units) if stage == self._encoder:
                self.listening.credit_returned(tag, units)
            case SessionOpened():
                self.carry_out(self._takeover.opened(stage, now_ns))
            case Opened(tag):
                self.carry_out(talk.opened(tag, stage, now_ns))
            case Refused(tag, code, message):
                self._stream_gone(stage, tag)
                self.carry_out(talk.refused(tag, stage, code, message, now_ns))
            case Closed(tag, outcome, released, code, message):
                self._stream_gone(stage, tag)
                failure = (SAME_LOSS.get(code, code), message) if outcome == "failed" else None
                self.carry_out(talk.closed(tag, stage, released, failure, now_ns))
            case StepDone(_, kind, queued_ns, service_ns, batch):
                self._services.metrics.stage_queue_seconds.labels(stage, kind).observe(queued_ns / 1e9)
                self._services.metrics.stage_service_seconds.labels(stage, kind).observe(service_ns / 1e9)
                self._services.metrics.stage_batch_steps.labels(stage, kind).observe(batch)
            case SessionRefused(_, code, _):
                self._doubt(f"{stage}_{code}")
        self._look_whether_drained()

    def _stream_gone(self, stage: str, tag: Tag) -> None:
        if stage == self._encoder:
            self.listening.drop(tag)

    def lost(self, stage: str, tag: Tag) -> None:
        """The worker that had `tag` is out of reach."""
        self._safely(lambda: self._lost(stage, tag))

    def _lost(self, stage: str, tag: Tag) -> None:
        self._stream_gone(stage, tag)
        self.carry_out(self.conversation.lost(tag, stage, time.monotonic_ns(), self.listening.oldest))

    # ---- from the client ---------------------------------------------------------------------------

    def update(self, settings: SessionSettings) -> None:
        """The client has changed its settings."""
        self.carry_out(self.conversation.update(settings, self.listening.newest, time.monotonic_ns()))
        self.listening.settings_changed()
        self._keep(self._recorder.settings_changed(settings))
        self._tell(SettingsChanged(self.session, settings, tuple(self.tools.tools)))

    def commit_input(self) -> None:
        start, end = self.listening.uncommitted_from, self.listening.newest
        self.carry_out(self.conversation.commit_input(start, end, time.monotonic_ns()))

    def heard(self, response: str, samples: int) -> None:
        """The client reports that its caller has heard so much of `response`; of one that is long over, nothing."""
        now_ns = time.monotonic_ns()
        if self.conversation.speaking.sent_of(response, now_ns) is None:
            self._services.metrics.stale_dropped.labels("reports").inc()
            return
        self.carry_out(self.conversation.heard(response, samples, now_ns))

    def client_failed(self, code: str) -> None:
        """The client has sent what could not be followed."""
        self._services.metrics.errors.labels("client", code).inc()

    # ---- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[do.Effect]) -> None:
        for effect in effects:
            with self._ending_where_unresponsive():
                self._carry_out_one(effect)
        written, self._written = self._written, None
        if written is not None:
            # What was decided took it for sent, and is carried out by now.
            self.carry_out(self.conversation.written(written.response, written.samples, time.monotonic_ns()))

    @contextmanager
    def _ending_where_unresponsive(self) -> Iterator[None]:
        try:
            yield
        except StageUnresponsiveError as error:
            _log.error("stage_unresponsive", session=self.session, error=str(error))
            self.end("stage_unresponsive")

    def _carry_out_one(self, effect: do.Effect) -> None:
        match effect:
            case do.Tell(event):
                self._tell(event)
            case do.OpenStream() | do.CancelStream() | do.CutStream() | do.GrantCredit():
                self._order(effect)
            case do.AuditStream(stage, tag):
                self._services.stages[stage].audit(tag)
            case do.FeedStream(stage, tag, item):
                self._feed(stage, tag, item)
            case do.EndEpoch(epoch):
                self._end_epoch(epoch)
            case do.HearFrom() | do.StopHearing() | do.Overheard():
                self.listening.order(effect)
            case do.ResetGate():
                self.listening.reset_gate()
                self._keep_taken(self._taken_input.dismissed(self.listening.newest))
            case do.RequestTool() | do.FollowTool() | do.CancelTool():
                self.tools.order(effect)
            case do.EndCall(reason, by_ns):
                self.end_in_pause(reason, by_ns)
            case do.Measured():
                self._measure(effect)
            case _:
                self._save(effect)

    def _feed(self, stage: str, tag: Tag, item: Item) -> None:
        if stage == self._encoder:
            self.listening.tell_encoder(tag, item)
        else:
            self._services.stages[stage].feed(tag, item)

    def _order(self, effect: do.OpenStream | do.CancelStream | do.CutStream | do.GrantCredit) -> None:
        stage, tag = self._services.stages[effect.stage], effect.tag
        match effect:
            case do.OpenStream(options=options, edges=edges, lasts_ns_max=lasts_ns_max):
                stage.order(Open(tag, options, edges, self.conversation.tenant, lasts_ns_max))
            case do.CancelStream():
                self._stream_gone(effect.stage, tag)
                stage.order(Cancel(tag))
            case do.CutStream(samples=samples):
                stage.order(Cut(tag, samples))
            case do.GrantCredit(samples=samples):
                stage.order(Grant(tag, samples))

    def _tool_answered(self, call_id: str, answer: Result | Failure) -> None:
        if self.journal.is_over:
            self._services.metrics.stale_dropped.labels("tools").inc()
            return
        now_ns = time.monotonic_ns()
        self._safely(lambda: self.carry_out(self.conversation.call_answered(call_id, answer, now_ns)))
        self._look_whether_drained()

    def _end_epoch(self, epoch: int) -> None:
        for stage in self._services.stages.values():
            stage.order(EndEpoch(self.session, epoch))
        if self._client is not None:
            self._written = self._client.drop_audio()

    def _tell(self, event: Event) -> None:
        if isinstance(event, ReplyAudio):
            self._last_sent_ns = time.monotonic_ns()
            frame = event.frame
            self.listening.sent(frame.pcm, FORMATS[event.format].sample_rate, frame.sounds_ns)
            self._usage.said(frame.samples, FORMATS[event.format].sample_rate)
        elif isinstance(event, TurnHeld):
            held_ns = max(0, time.monotonic_ns() - self.listening.speech_onset_ns)
            self._services.metrics.hold_seconds.observe(held_ns / 1e9)
        elif isinstance(event, ResponseFinished):
            self._finished(event)
        elif isinstance(event, CommandRefused):
            self.client_failed(event.code)
        self.audience.tell(event, self._client)

    def _finished(self, event: ResponseFinished) -> None:
        response, metrics = event.response, self._services.metrics
        metrics.responses.labels(response.status).inc()
        if response.status == "failed":
            metrics.errors.labels("service", response.code).inc()
        if response.reason == "turn_detected" and self._last_sent_ns:
            metrics.barge_in_stop_seconds.observe(max(0, self._last_sent_ns - self.listening.speech_onset_ns) / 1e9)
        _log.info(
            "response_ended",
            session=self.session,
            epoch=response.epoch,
            turn=response.turn,
            response=response.id,
            status=response.status,
            reason=response.reason,
            code=response.code,
            **{f"{part}_ms": ms for part, ms in event.timings},
        )

    def _save(self, effect: do.Save | do.SaveLate) -> None:
        if isinstance(effect, do.SaveLate):
            self.journal.late()
        else:
            self._keep(self._recorder.saved(effect))

    def _keep(self, entry: TurnRecord) -> None:
        self.journal.write(entry)
        if self.journal.compaction_due():
            self.journal.write(self._recorder.compacted())

    def _keep_taken(self, until: int | None) -> None:
        if until is not None:
            self._keep(self._recorder.input_taken(until))

    def input_misplaced(self, placed: Placed) -> None:
        """The client has sent some of its input twice, or left some out."""
        self._services.metrics.input_misplaced_samples.labels("duplicate").inc(placed.skip)
        self._services.metrics.input_misplaced_samples.labels("gap").inc(placed.gap)

    def _measure(self, measured: do.Measured) -> None:
        self._services.metrics.measured(measured.name, measured.value, measured.label)
        if measured.name == "items_trimmed":
            _log.info("history_trimmed", session=self.session, items=int(measured.value))

    def _feed_encoder(self, tag: Tag, item: Item, units: int) -> None:
        with self._ending_where_unresponsive():
            self._services.stages[self._encoder].feed(tag, item, units)

    def ledgers(self) -> list[LedgerView]:
        """Where the audio of what is being said stands."""
        now_ns = time.monotonic_ns()
        views = (self.conversation.speaking.ledger(view.id, now_ns) for view in self.conversation.speaking.running)
        return [view for view in views if view is not None]
