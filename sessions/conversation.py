"""The conversation: what happens when the caller speaks, stops, types or commands, and what becomes of it.

Theory of operation
    `Hearing` follows the caller's turns, `Speaking` follows the responses, `History` holds what was said; this core
    holds the policy between them. A turn that was understood is answered. Confirmed speech over our own ends the
    epoch: everything that was being said is aborted at all stages, cut, and told to the client, in that order; the
    encoder goes on, since the very speech that interrupts belongs to the new turn.

    What can be made ahead is (`sessions.making`): the prompt is read while the caller speaks, and in a pause whose
    words are known the answer itself is prepared. It is confirmed if the silence lasts, and the wait for the end of
    the turn has then hidden most of the work.

Rules
* One driver calls it, with monotonic `now_ns`; each call returns the effects to carry out, in order.
* The epoch is raised before anything of the old one is cut, and saved.
* At most one response of the conversation is active, and one out-of-band response beside it.
* A response whose prompt is the history is made only when all that the caller has said so far is understood; where it
  was owed for too long (`sessions.owed`), all but the turn that is still being spoken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from media.beep import Beep
from media.chunk import ms_to_samples, samples_to_ms
from media.heard_estimate import Path
from media.playout import Reports
from media.turn_events import Saying
from sessions.effects import (
    Effect,
    EndEpoch,
    Measured,
    ResetGate,
    SaveEpoch,
    Tell,
)
from sessions.events import (
    CommandRefused,
    InputCleared,
    TurnHeld,
    TurnResumed,
)
from sessions.hearing import Hearing, Turn
from sessions.items import History, Item
from sessions.making import Making
from sessions.owed import ASKED_ALREADY, Owing
from sessions.parts import Parts
from sessions.plan import Marks
from sessions.planner import Identity, ReplyDefaults
from sessions.quotas import Allowance
from sessions.remembered import Remembered
from sessions.response import Deadlines, Phase
from sessions.route import Route, line
from sessions.service_calls import Failure, Result
from sessions.serving import Serving
from sessions.settings import INPUT_RATE, ResponseSpec, SessionSettings
from sessions.silence import Silence
from sessions.speaking import CALL_ENDED, Speaking
from sessions.tool_calls import BegunCall, service_answers, service_has
from sessions.understanding import Understanding
from stages.contracts import Event, Tag, Transcript
from stages.event_log import EventLog

# Why we stop without any speech over our own: the client wants it, or a key was pressed on a telephone.
StopWhy = Literal["client_cancelled", "dtmf"]


class Conversation:
    """`recalls`: what its client has not played yet can be taken back; `reports`: what tells what it has played.
    `calls`: those that the service was to carry out under the owner before. `events`: the log of the process; without
    one, nothing is recorded. `allowance`: of its tenant's quotas; without one, there are none. `input_from`: where its
    input begins (16 kHz samples). `leaves`: the call of a caller who is not there."""

    def __init__(
        self,
        identity: Identity,
        settings: SessionSettings,
        defaults: ReplyDefaults,
        *,
        transport_lead_ms: int,
        recalls: bool = True,
        reports: Reports = "acked",
        items: tuple[Item, ...] = (),
        calls: tuple[BegunCall, ...] = (),
        route: Route | None = None,
        deadlines: Deadlines | None = None,
        events: EventLog | None = None,
        allowance: Allowance | None = None,
        input_from: int = 0,
        leaves: bool = False,
    ) -> None:
        self._identity = identity
        self.allowance = allowance or Allowance()
        self._route = route or line()
        self._hearing = Hearing(
            identity.session, self._route.encoder, lambda: identity.new_id("item"), input_from=input_from
        )
        history = History(items)
        self._speaking = Speaking(
            transport_lead_ms,
            deadlines or Deadlines(),
            events,
            identity.tenant,
            recalls=recalls,
            reports=reports,
            filler=defaults.filler,
            allowance=self.allowance,
            history=history,
        )
        self._remembered = Remembered(history, defaults.context_characters_max, self._hearing, self._speaking)
        self._making = Making(
            identity,
            settings,
            defaults,
            self._route,
            hearing=self._hearing,
            speaking=self._speaking,
            remembered=self._remembered,
            allowance=self.allowance,
        )
        parts = Parts(self._hearing, self._speaking, self._remembered, self._making)
        self._owing = Owing(parts)
        self._serving = Serving(defaults.service_tools, calls, parts, self._owing)
        self._silence = Silence(identity.new_id, defaults.returns, parts, self._owing, self._serving, leaves=leaves)
        self._understanding = Understanding(defaults.machines, parts, self._owing, self._serving, self._silence)
        self._is_over = False

    # ---- what can be asked -------------------------------------------------------------------------

    @property
    def settings(self) -> SessionSettings:
        return self._making.settings

    @property
    def tenant(self) -> str:
        return self._identity.tenant

    @property
    def epoch(self) -> int:
        return self._making.epoch

    @property
    def items(self) -> tuple[Item, ...]:
        return self._remembered.items

    @property
    def begun_calls(self) -> tuple[BegunCall, ...]:
        """Those that the service carries out, and of which nothing has come yet."""
        return self._serving.calls.pending

    @property
    def is_serving(self) -> bool:
        """The service is carrying out a call."""
        return self._serving.calls.is_running

    @property
    def route(self) -> Route:
        return self._route

    @property
    def speaking(self) -> Speaking:
        return self._speaking

    @property
    def hearing(self) -> Hearing:
        return self._hearing

    @property
    def reading(self) -> Tag | None:
        """The prefill that is under way."""
        return self._making.reading

    def next_deadline_ns(self) -> int | None:
        hearing, speaking = self._hearing, self._speaking
        waits = [hearing.next_deadline_ns(), speaking.next_deadline_ns(), self._serving.next_deadline_ns()]
        waits += [self._owing.due_ns, self._silence.due_ns, self._understanding.due_ns]
        return min((at for at in waits if at is not None), default=None)

    def tick(self, now_ns: int, input_end: int) -> list[Effect]:
        """Act on deadlines that have passed. `input_end`: so much of the input has come in (16 kHz samples)."""
        ticked = [*self._hearing.tick(now_ns), *self._speaking.tick(now_ns), *self._serving.tick(now_ns)]
        effects = self._settle([*ticked, *self._understanding.tick(now_ns)], now_ns)
        prompted = self._silence.prompt(input_end, now_ns)
        return [*effects, *self._settle(prompted, now_ns)] if prompted else effects

    def allowance_drawn(self, now_ns: int) -> list[Effect]:
        """More of the tenant's quotas is at hand, or it is known that there is none."""
        return self._settle([], now_ns)

    def update(self, settings: SessionSettings, input_end: int, now_ns: int) -> list[Effect]:
        """New settings, when the input has come up to `input_end`. The shell tells its detector of speech, which
        forgets what it has not decided yet.

        Where speech is detected no more, what was being said waits for a commit, and keeps nobody waiting. Where it is
        detected again, that turn is over; what was only buffered is dropped, since nobody has said that it was speech.
        """
        was_detecting, self._making.settings = self.settings.turn_detection is not None, settings
        if was_detecting is (settings.turn_detection is not None):
            return []
        if was_detecting:
            return self._settle(self._hearing.set_aside(), now_ns)
        turn = self._hearing.buffered
        if turn is None or not turn.told:
            return [*self._hearing.discard(), ResetGate()]
        self._hearing.take_up()
        turn.answer = settings.speech_is_answered
        return [ResetGate(), *self._end_turn(turn, input_end, now_ns, now_ns)]

    # ---- the caller speaks -------------------------------------------------------------------------

    def speech_started(self, onset: int, now_ns: int) -> list[Effect]:
        """A turn of the caller since `onset` (16 kHz sample), over nothing that we know to be heard. Its client stops
        playing all the same."""
        if self.settings.turn_detection is None:
            return []
        turn = self._hearing.current
        if turn is not None and not turn.provisional:
            return self._go_on(turn, now_ns)
        effects = self._hear(onset) if turn is None else []
        effects.append(self._hearing.tell_started())
        if self.settings.speech_interrupts:
            effects += self._cut_off(now_ns)
        return [*effects, *self._speaking.withdraw(now_ns), *self._making.read()]

    def _hear(self, onset: int, *, provisional: bool = False) -> list[Effect]:
        detection = self.settings.turn_detection
        assert detection is not None, "speech is detected because that was asked for"
        self._silence.prompts.disturbed()
        padding = ms_to_samples(detection.prefix_padding_ms, INPUT_RATE)
        return self._hearing.start(
            onset, max(0, onset - padding), self.epoch, answer=detection.create_response, provisional=provisional
        )

    def held(self, onset: int, now_ns: int) -> list[Effect]:
        """Speech over our own since `onset`: it may be an interruption. We fall silent, and destroy nothing."""
        if self.settings.turn_detection is None:
            return []
        turn = self._hearing.current
        effects = self._go_on(turn, now_ns) if turn else self._hear(onset, provisional=True)
        self._speaking.hold()
        return [*effects, Tell(TurnHeld(samples_to_ms(onset, INPUT_RATE)))]

    def resumed(self, why: str) -> list[Effect]:
        """It was none, as far as is known: we go on where we stopped."""
        self._speaking.resume()
        return [Tell(TurnResumed(why)), Measured("holds", 1, why)]

    def interrupted(self, onset: int, why: str, now_ns: int) -> list[Effect]:
        """It is one, of speech since `onset`: the epoch ends, and what the caller has not heard of it with it."""
        self._speaking.resume()
        if self.settings.turn_detection is None:
            return []
        turn = self._hearing.current
        heard = self._go_on(turn, now_ns) if turn else self._hear(onset)
        heard.append(self._hearing.tell_started())
        came_to = Measured("holds", 1, f"yielded_{why}")
        stopped = self._stop("turn_detected", now_ns, before=heard)
        if not stopped:  # what was held has ended meanwhile
            return [*heard, *self._making.read(), came_to]
        return self._settle([*stopped, *self._making.read(), came_to], now_ns)

    def dropped(self, now_ns: int) -> list[Effect]:
        """What was provisional never was a turn."""
        turn = self._hearing.current
        if turn is None or not turn.provisional:
            return []
        return self._settle(self._hearing.discard(), now_ns)

    def saying(self, now_ns: int) -> Saying:
        """What of ours the caller hears about now, and whether they may interrupt it."""
        is_sounding, words = self._speaking.is_sounding(now_ns), self._speaking.words_about(now_ns)
        return Saying(is_sounding, self.settings.speech_interrupts, words)

    def speech_paused(self, sample: int) -> list[Effect]:
        """Silence since `sample`: perhaps the end of the turn."""
        return self._hearing.pause(sample) if self._hearing.current else []

    def speech_resumed(self, now_ns: int) -> list[Effect]:
        turn = self._hearing.current
        return self._go_on(turn, now_ns) if turn else []

    def _go_on(self, turn: Turn, now_ns: int) -> list[Effect]:
        """The caller speaks on in `turn`, which may have paused."""
        if not turn.is_paused:
            return []
        effects = self._hearing.resume()
        if self._speaking.prepared:
            effects += [*self._speaking.withdraw(now_ns), *self._making.read()]
        return effects

    def speech_ended(self, sample: int, speech_end_ns: int, now_ns: int) -> list[Effect]:
        """The turn is over; its last sound came in at `speech_end_ns`."""
        turn = self._hearing.current
        if turn is None:
            return []
        turn.answer = self.settings.speech_is_answered
        return self._end_turn(turn, sample, speech_end_ns, now_ns)

    def beeped(self, beep: Beep, now_ns: int) -> list[Effect]:
        """The line has beeped behind a voice, and is quiet."""
        return self._settle(self._understanding.beeped(beep, now_ns), now_ns)

    def buffered(self, start: int, end: int) -> list[Effect]:
        """Sound has come up to `end` that its client will commit; what no turn has had begins at `start` (16 kHz)."""
        return self._hearing.buffer(start, end, self.epoch)

    def commit_input(self, start: int, end: int, now_ns: int) -> list[Effect]:
        """The client commits its input up to `end`; where there is no turn yet, since `start` (16 kHz)."""
        turn, effects = self._hearing.take_up(), list[Effect]()
        if turn is None:
            if end <= start:
                return [Tell(CommandRefused("input_audio_buffer_commit_empty", "there is no audio to commit"))]
            effects = self._hearing.start(start, start, self.epoch, answer=False)
            turn = self._hearing.current
        assert turn is not None, "a turn was just started"
        turn.answer = turn.provisional = False
        return [*effects, ResetGate(), *self._end_turn(turn, end, now_ns, now_ns)]

    def _end_turn(self, turn: Turn, sample: int, speech_end_ns: int, now_ns: int) -> list[Effect]:
        heard = self._hearing.end(sample, speech_end_ns, now_ns, self._remembered.last_told)
        effects = [*heard, *self._remembered.add_turn(Item(turn.item, "user", "", spoken=True, span=turn.span))]
        if turn.lost is not None:
            effects += self._hearing.failed(turn.tag, *turn.lost)
        return self._settle(effects, now_ns)

    def heard_again(self, since: int) -> list[Effect]:
        """What the caller said from sample `since` on (16 kHz), to an owner before, comes once more."""
        return self._remembered.hear_again(since)

    def clear_input(self, now_ns: int) -> list[Effect]:
        """The client throws its uncommitted input away. Never raises the epoch."""
        discarded = self._hearing.discard()
        return self._settle([*discarded, *self._making.stop_reading(), ResetGate(), Tell(InputCleared())], now_ns)

    # ---- the stages answer -------------------------------------------------------------------------

    def published(self, tag: Tag, event: Event, now_ns: int) -> list[Effect]:
        """A stage has published `event` for `tag`."""
        if isinstance(event, Transcript):
            return self._settle(self._understanding.transcript(tag, event, now_ns), now_ns)
        return self._settle(self._speaking.published(tag, event, now_ns), now_ns)

    def opened(self, tag: Tag, stage: str, now_ns: int) -> list[Effect]:
        return self._settle(self._speaking.opened(tag, stage, now_ns), now_ns) if tag.response else []

    def refused(self, tag: Tag, stage: str, code: str, message: str, now_ns: int) -> list[Effect]:
        """`stage` would not open `tag`."""
        if tag.response:
            return self._settle(self._speaking.refused(tag, stage, code, message, now_ns), now_ns)
        if stage == self._route.encoder:
            return self._settle(self._hearing.failed(tag, code, message), now_ns)
        self._making.gone(tag)
        return []

    def closed(
        self, tag: Tag, stage: str, released: dict[str, int], failure: tuple[str, str] | None, now_ns: int
    ) -> list[Effect]:
        """`stage` holds nothing of `tag` any more; `failure` is (code, message) where it could not go on."""
        if tag.response:
            return self._settle(self._speaking.closed(tag, stage, released, failure, now_ns), now_ns)
        if stage != self._route.encoder:
            self._making.gone(tag)
            return []
        if failure:
            return self._settle(self._hearing.failed(tag, *failure), now_ns)
        self._hearing.let_go(tag, now_ns)
        return []

    def lost(self, tag: Tag, stage: str, now_ns: int, input_kept_from: int = 0) -> list[Effect]:
        """The process at `stage` that had `tag` is out of reach. Once it is dead for certain, `closed` follows. The
        input is kept from sample `input_kept_from` on (16 kHz)."""
        if tag.response:
            return self._settle(self._speaking.lost(tag, stage, now_ns), now_ns)
        if stage == self._route.encoder:
            return self._settle(self._hearing.lost(tag, input_kept_from), now_ns)
        self._making.gone(tag)
        return []

    # ---- the client commands -----------------------------------------------------------------------

    def create_item(self, item: Item, previous: str | None) -> list[Effect]:
        if item.role == "user":
            self._silence.prompts.caller_is_there()
        if item.kind == "function_call" and self._serving.calls.knows(item.call_id):
            return [Tell(service_has(item.call_id))]  # also where the call itself has left the history
        return self._remembered.create(item, previous)

    def answer_call(self, output: Item, now_ns: int) -> list[Effect]:
        """The client says what came of a call, however late. No response is started by it; one that has not begun yet
        reads it."""
        if self._serving.calls.knows(output.call_id):
            return [Tell(service_answers(output.call_id))]
        return self._settle([*self._remembered.create(output, None), *self._making.ask_again(now_ns)], now_ns)

    # ---- calls that the service carries out ---------------------------------------------------------

    def call_stored(self, call_id: str, now_ns: int) -> list[Effect]:
        """The store has what `SaveCallBegun` was to tell it."""
        return self._settle(self._serving.calls.stored(call_id), now_ns)

    def call_answered(self, call_id: str, answer: Result | Failure, now_ns: int) -> list[Effect]:
        """What has come of a `RequestTool` or `FollowTool`."""
        return self._settle(self._serving.answered(call_id, answer), now_ns)

    def recover(self, now_ns: int) -> list[Effect]:
        """The client is there: go on with what the owner before was carrying out, or was saying."""
        self._silence.returning.client_is_back()
        return self._settle(self._serving.recover(now_ns), now_ns)

    # ---- items ---------------------------------------------------------------------------------------

    def delete_item(self, item_id: str) -> list[Effect]:
        return self._remembered.delete(item_id)

    def retrieve_item(self, item_id: str) -> list[Effect]:
        return self._remembered.retrieve(item_id)

    def truncate_item(self, item_id: str, audio_end_ms: int, now_ns: int) -> list[Effect]:
        """The client says how much of an item it played, whether or not that is over."""
        return [*self._remembered.truncate(item_id, audio_end_ms, now_ns), *self._making.ask_again(now_ns)]

    def create_response(self, spec: ResponseSpec, now_ns: int) -> list[Effect]:
        """Begin a response; one that is asked for amid the words before a call, or the caller's, begins behind them."""
        refusal = self._speaking.why_not(in_conversation=spec.in_conversation)
        self._serving.said()
        if spec.in_conversation:
            turn = None if refusal else self._hearing.amid_speech
            if self._owing.is_asked_for:
                refusal = refusal or ASKED_ALREADY
            elif turn or self._speaking.has_called:
                self._owing.ask(spec, turn, now_ns)
                return []
        if refusal:
            return [Tell(refusal)]
        return self._settle(self._making.start(spec, Marks(), self._hearing.next_turn(), now_ns), now_ns)

    def cancel_response(self, response_id: str | None, now_ns: int) -> list[Effect]:
        """End a response: the active one, or the one named. Who ends the active one wants no other in its place."""
        active = self._speaking.active
        is_coming = self._owing.is_asked_for or self._serving.calls.is_waited_for
        if active is None and response_id is None and is_coming:
            stopped = [*self._stop("client_cancelled", now_ns), *self._serving.interrupt()]  # the stages are told first
            return self._settle([*stopped, *self._owing.withdraw("client_cancelled")], now_ns)
        wanted = response_id or (active.id if active else None)
        if wanted is None and self._speaking.is_sounding(now_ns):
            return self.stop_speaking("client_cancelled", now_ns)
        if wanted is None or all(view.id != wanted for view in self._speaking.running):
            if cut_off := self._cut_off(now_ns, wanted):
                return cut_off  # it is over, and its client stops playing it
            message = f"response {wanted!r} is not in progress" if wanted else "no response is in progress"
            return [Tell(CommandRefused("response_cancel_not_active", message, "response_id"))]
        if active and active.id == wanted:
            return self.stop_speaking("client_cancelled", now_ns)
        return self._settle(self._speaking.cancel(wanted, "client_cancelled", now_ns), now_ns)

    def stop_speaking(self, why: StopWhy, now_ns: int) -> list[Effect]:
        """Nothing more of what is being said shall be heard, also where it is over and its end still sounds. It needs
        no speech and waits for no decision, and where nothing is said it is no fault.

        Who ends the active response wants no other in its place.
        """
        is_active = self._speaking.active is not None
        stopped = self._stop(why, now_ns)
        stopped += self._owing.withdraw(why) if is_active else []
        return self._settle(stopped, now_ns) if stopped else []

    def close(self, now_ns: int) -> list[Effect]:
        """The call is over: everything that runs for it ends. What is still understood is saved and not answered."""
        self._is_over = True
        effects: list[Effect] = [
            *self._hearing.discard(),
            *self._speaking.withdraw(now_ns),
            *self._making.stop_reading(),
        ]
        if self._speaking.active:
            effects += [*self._raise_epoch(CALL_ENDED, now_ns), *self._cancel_active(CALL_ENDED, now_ns)]
        for view in self._speaking.running:
            effects += self._speaking.cancel(view.id, CALL_ENDED, now_ns)
        effects += [*self._cut_off(now_ns, gone=True), *self._owing.withdraw(CALL_ENDED)]  # the stages are told first
        effects += self._serving.calls.close()
        return self._settle(effects, now_ns)

    # ---- sound goes out ----------------------------------------------------------------------------

    def heard(self, response: str, samples: int, now_ns: int) -> list[Effect]:
        """The client reports that its caller has heard so much of `response`."""
        self._speaking.heard(response, samples, now_ns)
        if self._speaking.is_sounding(now_ns):
            self._silence.prompts.put_off(now_ns)
        return self._refine(now_ns)

    def _refine(self, now_ns: int) -> list[Effect]:
        """More is known of what was heard of a reply that was cut."""
        refined = self._remembered.refine()
        return [*refined, *self._making.ask_again(now_ns)] if refined else []

    def path_seen(self, path: Path, now_ns: int) -> list[Effect]:
        """The path to the caller's ear is now this."""
        self._speaking.go_by(path, now_ns)
        return self._refine(now_ns)

    def written(self, response: str, samples: int, now_ns: int) -> list[Effect]:
        """Of `response`, whose epoch has just ended, no more than `samples` have left, though more were handed out."""
        self._speaking.written(response, samples)
        return self._refine(now_ns)

    def take_due(self, now_ns: int) -> list[Effect]:
        """The next frame for the client and what follows from it; empty where none is due."""
        effects = self._speaking.take_due(now_ns)
        return self._settle(effects, now_ns) if effects else []

    # ---- responses ---------------------------------------------------------------------------------

    def _raise_epoch(self, reason: str, now_ns: int) -> list[Effect]:
        """End all that is being said, and prepared, at every stage; what follows tells of it."""
        epoch = self._making.epoch = self.epoch + 1
        dropped = self._speaking.withdraw(now_ns)
        return [EndEpoch(epoch), SaveEpoch(epoch), Measured("epochs_ended", 1, reason), *dropped]

    def _cancel_active(self, reason: str, now_ns: int) -> list[Effect]:
        active = self._speaking.active
        return [*self._speaking.cancel(active.id, reason, now_ns), *self._enter_ended(now_ns)] if active else []

    def _stop(self, reason: str, now_ns: int, before: Sequence[Effect] = ()) -> list[Effect]:
        """End the epoch of what is being said, or of what the caller still hears the end of; empty where that is
        nothing. The client is told what is to come `before` once its stages know."""
        cut_off = self._speaking.cut_off(now_ns)
        if self._speaking.active is None and not cut_off:
            return []
        cut = self._remembered.cut_off(cut_off)
        effects = [*self._raise_epoch(reason, now_ns), *before, *cut, *self._cancel_active(reason, now_ns)]
        return effects + self._serving.interrupt()

    def _cut_off(self, now_ns: int, response: str | None = None, *, gone: bool = False) -> list[Effect]:
        """The rest of replies that are over is heard no more. All of it was sent, so no epoch ends with it."""
        return self._remembered.cut_off(self._speaking.cut_off(now_ns, response, gone=gone))

    def _settle(self, effects: list[Effect], now_ns: int) -> list[Effect]:
        """Draw the conclusions of what has just ended, failed or been understood: every input of the core ends here."""
        written = self._speaking.take_written()
        if written:  # and now being said: what the next prompt begins with is read while there is time
            effects = effects + self._making.read(self._remembered.read_ahead(*written))
        effects = effects + self._enter_ended(now_ns) + self._serving.settle(now_ns) + self._refine(now_ns)
        for turn in self._hearing.take_failed():
            self._owing.failed(turn, now_ns)
        effects = effects + self._owing.begin(now_ns, is_over=self._is_over) + self._enter_ended(now_ns)
        self._silence.look(now_ns, is_over=self._is_over)
        return effects + self._making.admit_accepted(now_ns)

    def _enter_ended(self, now_ns: int) -> list[Effect]:
        """Enter responses and calls that have just ended into the history."""
        ended = [ended for ended in self._speaking.take_ended() if ended.plan.view.in_conversation]
        for one in ended:
            self._silence.prompts.reply_ended(can_speak=one.phase in (Phase.SUCCEEDED, Phase.CANCELLED))
        remembered = [effect for one in ended for effect in self._remembered.remember(one)]
        for called in self._speaking.take_called():
            remembered += [*self._remembered.remember_call(called), *self._serving.called(called, now_ns)]
        return remembered

    # ---- prefill -----------------------------------------------------------------------------------

    def warm_up(self) -> list[Effect]:
        """Read the prompt into the Thinker's KV before anybody speaks."""
        return [*self._remembered.take_over(), *self._making.read()]
