"""Speaking: responses from their start to the empty ledger, and the frames they put out.

Theory of operation
    One response of the conversation is active at a time; one out-of-band response may run beside it. Each has a
    `Response` (its life and ledger), a `Reply` (its words) and, with audio, a place in the call's `Playout`. A stop is
    carried out in this order: abort at all stages, cut of the playout, then the client's terminal; `drained` follows
    by itself when the last holder has let go.

    A reply may also call tools (`sessions.tool_calls`): a call that is whole is the client's at once, and stays so
    whatever becomes of the words before it.

    A response may be *prepared*: begun in a pause that will perhaps end the caller's turn. Nobody is told of it and
    nothing of it is sent. It is confirmed if the turn does end so, and withdrawn without a trace if not.

Rules
* What arrives for a response that has ended is dropped and counted; it changes no state.
* Samples are granted back to who made them as they are sent, and never otherwise.
* Text, words and sound come over links without a common order. What was said of a reply that was cut, and not told as
  text before, is told before its end.
* Word times are taken until the response has drained, and aligned ones mostly come after its end: what was said of a
  reply that was cut is then known better.
* Sound of the conversation waits until its words are stored, unless the store is known to take nothing
  (`sessions.saving`).
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from media.chunk import BYTES_PER_SAMPLE, AudioChunk, ChunkError, ms_to_samples, samples_to_ms
from media.playout import Frame, LedgerView, Reports
from sessions import response as life
from sessions.effects import (
    CancelStream,
    CutStream,
    Effect,
    FeedStream,
    GrantCredit,
    Measured,
    OpenStream,
    SaveHeard,
    SaveLate,
    Tell,
)
from sessions.events import (
    ReplyAudio,
    ResponseDrained,
)
from sessions.heard import Cut
from sessions.items import History
from sessions.plan import Ended, Marks, Plan
from sessions.quotas import Allowance
from sessions.response import Deadlines, Phase
from sessions.responses import Responses
from sessions.route import Leg
from sessions.run import Run
from sessions.tool_calls import Called, CallError
from stages.contracts import (
    AudioOut,
    CallDelta,
    CallDone,
    Clause,
    Options,
    Reading,
    Tag,
    TextDelta,
    TextDone,
    WordTimes,
    label_of,
)
from stages.event_log import EventKind, EventLog, Trail

CALL_ENDED = "call_ended"  # why a response is cancelled whose caller is gone

Published = Reading | TextDelta | CallDelta | CallDone | TextDone | WordTimes | AudioOut


class Speaking(Responses):
    """`events`: the log of the process, for which the responses are those of `tenant`; without one, nothing is
    recorded. `filler`: what bridges a long wait for a first word. `allowance`: what the tokens of responses are entered
    in; without one, there are enough. `history` gives what it says its place."""

    def __init__(
        self,
        transport_lead_ms: int,
        deadlines: Deadlines,
        events: EventLog | None = None,
        tenant: str = "",
        *,
        recalls: bool = True,
        reports: Reports = "acked",
        filler: str = "",
        allowance: Allowance | None = None,
        history: History | None = None,
    ) -> None:
        super().__init__(transport_lead_ms, recalls=recalls, reports=reports)
        self._allowance = allowance or Allowance()
        self._deadlines = deadlines
        self._events = events or EventLog(0)
        self._tenant = tenant
        self._filler = filler
        self._history = history or History()
        self._stale = 0
        self._ended: list[Ended] = []
        self._called: list[Called] = []
        self._store_is_away = False

    @property
    def stale_dropped(self) -> int:
        return self._stale

    def take_ended(self) -> list[Ended]:
        """Responses that have ended since the last call; history is made of them."""
        ended, self._ended = self._ended, []
        return ended

    def take_called(self) -> list[Called]:
        """Calls of the conversation that have ended since the last call, whole or not; history has them."""
        called, self._called = self._called, []
        return called

    def take_written(self) -> tuple[Plan, str] | None:
        """The active response and its text, without a filler, once, when that is whole and still being said."""
        run = self._runs.get(self._active or "")
        if run is None or not run.is_written:
            return None
        run.is_written = False
        return run.plan, run.reply.answer

    # ---- life --------------------------------------------------------------------------------------

    def accept(self, plan: Plan, marks: Marks, now_ns: int) -> list[Effect]:
        """Tell the client of a response; it is made once it is admitted."""
        assert not plan.view.in_conversation or self._active is None, "one response of the conversation at a time"
        run = self._run(plan, marks, now_ns)
        if plan.view.in_conversation:
            self._active = plan.tag.response
        return run.started()

    def admit(self, response: str, stages: tuple[tuple[Leg, Options], ...], now_ns: int) -> list[Effect]:
        """Have an accepted response made, with the options that are known now."""
        run = self._runs[response]
        run.plan = replace(run.plan, stages=stages)
        return self._admit(run, now_ns)

    def reject(self, response: str, code: str, message: str, now_ns: int) -> list[Effect]:
        """An accepted response is not to be made."""
        run = self._runs[response]
        return self._carry(run, run.life.reject(code, message, now_ns), now_ns)

    def _admit(self, run: Run, now_ns: int) -> list[Effect]:
        self._trail(run, now_ns).add(EventKind.ADMITTED, len(run.plan.stages))
        return self._carry(run, run.life.admit(now_ns), now_ns)

    def ask_again(self, stages: tuple[tuple[Leg, Options], ...], now_ns: int) -> list[Effect]:
        """Have the active response, of which nothing has come yet, made with these options instead."""
        assert self._active is not None, "who asks again has seen what has not begun"
        run = self._runs[self._active]
        run.plan = replace(run.plan, stages=stages)
        return self._carry(run, run.life.ask_again(), now_ns)

    def item_left(self, item: str) -> None:
        """`item` has left the history."""
        self._heard.forget(item)

    def _run(self, plan: Plan, marks: Marks, now_ns: int, state: str = "") -> Run:
        assert not self.is_full, "who starts a response has asked"
        trail = self._events.of(plan.tag.session, plan.tag.response, self._tenant)
        run = Run.begun(plan, self._deadlines, trail, marks, self._history, filler=self._filler, now_ns=now_ns)
        self._runs[plan.tag.response] = run
        self._trail(run, now_ns).add(EventKind.ACCEPTED, len(self._runs), state=state)
        if plan.with_audio:
            self._playout.open(plan.tag.response, plan.sample_rate)
        return run

    def prepare(self, plan: Plan, now_ns: int) -> list[Effect]:
        """Begin `plan`, which speaks, behind the client's back."""
        assert self._active is None, "nothing is prepared while something is said"
        assert self._prepared is None, "one response is prepared at a time"
        assert plan.with_audio, "a text would be whole, and told, before it is confirmed"
        run = self._run(plan, Marks(), now_ns, "prepared")
        run.is_prepared = True
        self._prepared = plan.tag.response
        self._playout.withhold(plan.tag.response)
        return self._admit(run, now_ns)

    def confirm(self, previous_item: str | None, marks: Marks, now_ns: int) -> list[Effect]:
        """The prepared response is the answer: tell the client what there is of it, and let it be heard."""
        assert self._prepared is not None, "only what was prepared can be confirmed"
        run = self._runs[self._prepared]
        self._active, self._prepared = self._prepared, None
        run.is_prepared = False
        run.plan = replace(run.plan, previous_item=previous_item)
        marks.first_text_ns, marks.first_words_ns = run.marks.first_text_ns, run.marks.first_words_ns
        marks.first_audio_ns = run.marks.first_audio_ns
        run.marks = marks
        self._playout.release()
        effects = run.started()
        if run.reply.raw_text:
            effects += run.text(run.reply.raw_text)
        effects += self._save(run, now_ns)
        return [*effects, *run.news(), *self._tell_calls(run), Measured("prepared_replies", 1, "confirmed")]

    def withdraw(self, now_ns: int) -> list[Effect]:
        """The turn goes on, or is another one: the prepared response never was."""
        run = self._runs.get(self._prepared or "")
        self._prepared = None
        self._playout.release()
        if run is None:
            return []
        steps = run.life.cancel("withdrawn", now_ns)
        return [*self._carry(run, steps, now_ns), Measured("prepared_replies", 1, "withdrawn")]

    def cancel(self, response: str, reason: str, now_ns: int) -> list[Effect]:
        run = self._runs[response]
        return self._carry(run, run.life.cancel(reason, now_ns), now_ns)

    def opened(self, tag: Tag, stage: str, now_ns: int) -> list[Effect]:
        run = self._runs.get(tag.response)
        if run is None:
            return self._drop_stale(tag, "opened", now_ns, stage)
        self._trail(run, now_ns).add(EventKind.OPENED, tag.attempt, stage)
        return self._carry(run, run.life.opened(stage, tag.attempt), now_ns)

    def refused(self, tag: Tag, stage: str, code: str, message: str, now_ns: int) -> list[Effect]:
        run = self._runs.get(tag.response)
        if run is None:
            return self._drop_stale(tag, "refused", now_ns, stage)
        self._trail(run, now_ns).add(EventKind.REFUSED, tag.attempt, stage, cause=code)
        return self._carry(run, run.life.refused(stage, code, message, now_ns, tag.attempt), now_ns)

    def closed(
        self, tag: Tag, stage: str, released: dict[str, int], failure: tuple[str, str] | None, now_ns: int
    ) -> list[Effect]:
        """The stage has let go of the response; `failure` is (code, message) where it had to."""
        run = self._runs.get(tag.response)
        if run is None:
            return self._drop_stale(tag, "closed", now_ns, stage)
        cause = failure[0] if failure else "process_exit" if "process_exit" in released else ""
        self._trail(run, now_ns).add(EventKind.CLOSED, tag.attempt, stage, cause=cause)
        run.is_touched |= run.plan.tag == tag
        steps = run.life.closed(stage, released, now_ns, tag.attempt)
        if failure is not None:
            steps += run.life.stage_failed(stage, *failure, now_ns, tag.attempt)
        return self._carry(run, steps, now_ns)

    def lost(self, tag: Tag, stage: str, now_ns: int) -> list[Effect]:
        """No word reaches the response at `stage` any more: what was being made there cannot be finished."""
        run = self._runs.get(tag.response)
        if run is None:
            return self._drop_stale(tag, "lost", now_ns, stage)
        self._trail(run, now_ns).add(EventKind.LOST, tag.attempt, stage)
        return self._carry(run, run.life.stage_lost(stage, now_ns, tag.attempt), now_ns)

    def next_deadline_ns(self) -> int | None:
        waits = (run.next_deadline_ns() for run in self._runs.values())
        return min((at for at in waits if at is not None), default=None)

    def tick(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for run in list(self._runs.values()):
            # Of what has ended and has yet to drain, the ledger may be forgotten by now.
            view = None if run.life.ended else self.ledger(run.plan.tag.response, now_ns)
            reader_waits = view is not None and view.unsent > 0
            effects += self._carry(run, run.life.tick(now_ns, reader_waits=reader_waits), now_ns)
            if view is not None and not run.life.ended:
                effects += [*self._keep_up(run, view, now_ns), *run.bridge(run.cue.tick(now_ns))]
        return effects

    # ---- output ------------------------------------------------------------------------------------

    def published(self, tag: Tag, event: Published, now_ns: int) -> list[Effect]:
        """Take what a stage has made of a response."""
        run = self._runs.get(tag.response)
        looks_back = isinstance(event, WordTimes)
        if run is None or run.plan.tag != tag or (run.life.ended and not looks_back):
            return self._drop_stale(tag, label_of(event), now_ns)
        run.is_touched = True
        samples = len(event.pcm) // BYTES_PER_SAMPLE if isinstance(event, AudioOut) else 0
        self._trail(run, now_ns).add(EventKind.RECEIVED, samples, state=label_of(event))
        return [*self._begin_words(run, now_ns), *self._take(run, event, now_ns)]

    def _begin_words(self, run: Run, now_ns: int) -> list[Effect]:
        """What nobody has to write is its text once something of it has come."""
        words = "" if run.reply.raw_text or run.life.ended else run.plan.spec.words
        return self._text(run, TextDelta(words), now_ns) if words else []

    def _take(self, run: Run, event: Published, now_ns: int) -> list[Effect]:
        match event:
            case Reading(_, predicted_ns):
                effects = run.bridge(run.cue.wait(predicted_ns, now_ns))
            case TextDelta():
                effects = self._text(run, event, now_ns)
            case TextDone():
                effects = self._carry(run, run.life.final("text", now_ns, run.written(event)), now_ns)
            case WordTimes():
                effects = self._words(run, event, now_ns)
            case CallDelta() | CallDone():
                effects = self._call(run, event, now_ns)
            case _:
                effects = self._audio(run, event, now_ns)
        return effects

    def _words(self, run: Run, times: WordTimes, now_ns: int) -> list[Effect]:
        run.marks.first_words_ns = run.marks.first_words_ns or now_ns
        run.reply.add_words(times)
        cut = self._heard.cut_of(run.plan.item)
        if cut is not None and not cut.whole:
            self._refined.append(run.plan.item)
        return [*self._save(run, now_ns), *run.news()]

    def _text(self, run: Run, delta: TextDelta, now_ns: int) -> list[Effect]:
        run.marks.first_text_ns = run.marks.first_text_ns or now_ns
        run.life.output(now_ns)
        run.deltas += 1
        run.add_text(delta)
        return [] if run.is_prepared else [*run.text(delta.text), *run.news()]

    def _call(self, run: Run, event: CallDelta | CallDone, now_ns: int) -> list[Effect]:
        try:
            run.calls.add(event)
        except CallError as error:  # a fault of the stage ends this response and no call
            return self._carry(run, run.life.fail("invalid_call", str(error), now_ns), now_ns)
        run.life.output(now_ns)
        return self._tell_calls(run)

    def _tell_calls(self, run: Run) -> list[Effect]:
        told, called = run.news_of_calls()
        self._called += called
        return told

    def _audio(self, run: Run, audio: AudioOut, now_ns: int) -> list[Effect]:
        run.marks.first_audio_ns = run.marks.first_audio_ns or now_ns
        try:
            chunk = AudioChunk(audio.seq, audio.sample_rate, audio.start_sample, audio.pcm, audio.final)
            self._playout.push(run.plan.tag.response, chunk)
        except ChunkError as error:  # a fault of the stage ends this response and no call
            return self._carry(run, run.life.fail("invalid_audio", str(error), now_ns), now_ns)
        run.life.output(now_ns)
        if audio.final:
            run.life.came("audio")
        return [*self._save(run, now_ns), *run.news()]

    def take_due(self, now_ns: int) -> list[Effect]:
        """The next frame that may go to the client now; empty where none may. A frame given counts as sent."""
        frame = self._playout.due(now_ns)
        if frame is None:
            return []
        run = self._runs[frame.response]
        effects = self._send(run, frame, now_ns)
        if frame.final:
            effects += self._carry(run, run.life.final("audio", now_ns), now_ns)
        return effects

    def _send(self, run: Run, frame: Frame, now_ns: int) -> list[Effect]:
        if not frame.samples:
            return []
        run.life.output(now_ns)
        self._trail(run, now_ns).add(EventKind.SENT, frame.samples)
        return [
            *run.message(),
            Tell(ReplyAudio(run.plan.item, run.plan.tag.epoch, frame, frame.end_sample, run.plan.output_format)),
            GrantCredit(run.plan.finals["audio"], run.plan.tag, frame.samples),
            *run.first_sent(now_ns),
        ]

    # ---- the response's own effects ----------------------------------------------------------------

    def _carry(self, run: Run, steps: list[life.Effect], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for step in steps:
            match step:
                case life.OpenStage(stage, attempt):
                    leg, options = next(each for each in run.plan.stages if each[0].stage == stage)
                    tag = structs.replace(run.plan.tag, attempt=attempt)
                    self._trail(run, now_ns).add(EventKind.ASKED, attempt, stage)
                    effects.append(OpenStream(stage, tag, options, leg.edges, run.life.lasts_ns_max(stage, now_ns)))
                    if run.plan.spec.words and stage == run.plan.stages[0][0].stage:
                        effects.append(FeedStream(stage, tag, Clause(0, run.plan.spec.words, final=True)))
                case life.Abort(stage, attempt):
                    self._trail(run, now_ns).add(EventKind.CANCELLED, attempt, stage, cause="abort")
                    effects.append(CancelStream(stage, structs.replace(run.plan.tag, attempt=attempt)))
                case life.Cut(stage):
                    sent, tag = self._sent(run, now_ns), run.plan.tag
                    cause = "cut" if sent else "abort"
                    self._trail(run, now_ns).add(EventKind.CANCELLED, tag.attempt, stage, cause=cause)
                    effects.append(CutStream(stage, tag, sent) if sent else CancelStream(stage, tag))
                case life.Retry(attempt, cause):
                    self._trail(run, now_ns).add(EventKind.RETRIED, attempt, cause=cause)
                    run.begin_anew(attempt)
                    if cause == life.STAGE_LOST:
                        effects.append(Measured("responses_retried", 1))
                case life.Done():
                    effects += self._done(run, step, now_ns)
                case _:
                    self._trail(run, now_ns).add(EventKind.DRAINED, step.lag_ns, state=step.status)
                    effects += self._drained(run, step)
        return effects

    def _done(self, run: Run, done: life.Done, now_ns: int) -> list[Effect]:
        response = run.plan.tag.response
        if self._active == response:
            self._active = None
        succeeded = done.phase is Phase.SUCCEEDED
        steps: list[life.Effect] = []
        sent, dropped, cut = 0, 0, Cut(0, run.reply.text)
        if run.plan.with_audio:
            ledger, cut = self._end_sound(run, done, now_ns)
            sent, dropped = ledger.sent, ledger.unsent
            steps = run.life.playout_released(dropped, now_ns)
        state, cause = done.phase.name.lower(), done.code or done.reason
        self._allowance.settle(response, run.tokens)
        self._trail(run, now_ns).add(EventKind.TERMINAL, sent, state=state, cause=cause)
        if run.is_prepared:
            return self._carry(run, steps, now_ns)
        was_cut = run.plan.with_audio and not cut.whole
        whole = succeeded and not done.reason and not was_cut
        run.calls.abandon()
        rest = run.reply.rest_of(cut.text)
        untold = [*(run.text(rest) if rest else []), *self._tell_calls(run)]
        view = run.terminal(done, cut, sent, was_cut=was_cut)
        finished = run.finished(view)
        known, kept = cut if was_cut else None, (run.saving.is_begun, run.reply.filler)
        broke_off = done.reason == CALL_ENDED
        self._ended.append(
            Ended(run.plan, done.phase, whole, cut.text, sent, known, view.leaves_nothing, *kept, broke_off)
        )
        wasted = [Measured("wasted_audio_seconds", dropped / run.plan.sample_rate)] if dropped else []
        return [*untold, *finished, *wasted, *self._carry(run, steps, now_ns)]

    def _end_sound(self, run: Run, done: life.Done, now_ns: int) -> tuple[LedgerView, Cut]:
        response = run.plan.tag.response
        if run.is_prepared:
            return self._playout.cut(response, now_ns), Cut(0, "")
        whole, recalled = done.phase is Phase.SUCCEEDED, done.phase is Phase.CANCELLED
        gone, item, outside = done.reason == CALL_ENDED, run.plan.item, not run.plan.view.in_conversation
        return self._heard.ended(
            response, item, run.reply, whole=whole, recalled=recalled, now_ns=now_ns, gone=gone, outside=outside
        )

    def _drained(self, run: Run, drained: life.Drained) -> list[Effect]:
        response = run.plan.tag.response
        del self._runs[response]
        lag = Measured("drain_lag_seconds", drained.lag_ns / 1e9, drained.status)
        audits = run.audits() if drained.status == "complete" else []  # what is orphaned is known to be held
        if run.is_prepared:
            self._playout.forget(response)
            return [lag, *audits]
        lag_ms = round(drained.lag_ns / 1e6, 1)
        return [Tell(ResponseDrained(response, drained.status, lag_ms, drained.released)), lag, *audits]

    # ---- what is stored ----------------------------------------------------------------------------

    def _save(self, run: Run, now_ns: int) -> list[Effect]:
        """Have stored what is new of what it says; its sound waits for that."""
        if not run.is_said_to_conversation:
            return []
        generated = self._playout.view(run.plan.tag.response, now_ns).generated
        part = run.saving.part(run.reply, generated, now_ns)
        self._let_go(run)
        return [run.save(part)] if part else []

    def _let_go(self, run: Run) -> None:
        if self._store_is_away:
            run.saving.all_saved()
        if run.is_said_to_conversation:
            self._playout.keep_back(run.plan.tag.response, run.saving.kept_back)

    def _keep_up(self, run: Run, view: LedgerView, now_ns: int) -> list[Effect]:
        """What was heard of it is stored each second, while the store takes anything. What that takes too long over is
        waited for no more."""
        effects: list[Effect] = []
        if run.saving.heard(view, now_ns) and not self._store_is_away:
            effects.append(SaveHeard(run.plan.item, view.heard, view.basis, view.error_samples))
        if run.saving.is_late(now_ns):
            self.store_is_away(True)
            effects.append(SaveLate())
        return effects

    def saved(self, item: str, part: int) -> None:
        """The store has `part` of what is said as `item`."""
        for run in self._runs.values():
            if run.plan.item == item:
                run.saving.saved(part)
                self._let_go(run)

    def store_is_away(self, is_away: bool) -> None:
        """The store fails, or is too slow: nothing waits for it. Or it has everything again."""
        self._store_is_away = is_away
        for run in self._runs.values():
            run.saving.all_saved()
            self._let_go(run)

    # ---- what is recorded --------------------------------------------------------------------------

    def _trail(self, run: Run, now_ns: int) -> Trail:
        """Where that is entered which happens to `run` now."""
        self._events.at(now_ns)
        return run.trail

    def _drop_stale(self, tag: Tag, what: str, now_ns: int, stage: str = "") -> list[Effect]:
        self._stale += 1
        self._events.at(now_ns)
        self._events.of(tag.session, tag.key, self._tenant).add(EventKind.STALE, 1, stage, what)
        return []

    # ---- the ear -----------------------------------------------------------------------------------

    def want_cut(self, item: str, audio_end_ms: int, now_ns: int) -> int:
        """The client has stopped playing a spoken reply there that is being made. Gives where that is in what was sent
        so far, in ms."""
        run = next(run for run in self._runs.values() if run.plan.item == item)
        samples = min(ms_to_samples(audio_end_ms, run.plan.sample_rate), self._sent(run, now_ns))
        self._heard.want(item, samples)
        return samples_to_ms(samples, run.plan.sample_rate)
