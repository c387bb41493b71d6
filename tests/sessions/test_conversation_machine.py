"""A conversation under any order of what callers, clients and stages do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sessions.conversation import StopWhy
from sessions.effects import Effect
from sessions.events import CallerIdle
from sessions.items import ROOT, Item
from sessions.response import Deadlines
from sessions.service_calls import Failure, Result, ServiceTool
from sessions.settings import OUTPUT_RATE, ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import output_item
from stages.contracts import AudioOut, CallDelta, CallDone, Tag, TextDelta, TextDone, Transcript, Word, WordTimes
from tests.sessions.conversation_watch import Held, Watch
from tests.sessions.talk import CITY, EPOCH, MS, WEATHER, Talk, silence, told

WORD_SAMPLES = 960
LEAD_MS = 60_000  # all that there is may be sent at once
SPEECH = ("speak", "speak", "fall silent", "speak on", "end the turn", "end the turn")
OVER_OURS = ("go on, you", "interrupt", "interrupt", "never mind")
CHOICE = st.integers(0, 1_000)
SPECS = (
    ResponseSpec(),
    ResponseSpec(modalities=("text",)),
    ResponseSpec(in_conversation=False),
    ResponseSpec(in_conversation=False, modalities=("text",), messages=(("user", "say it"),)),
)
WAIT = "w1 w2 w3"
SERVED = ((ServiceTool(WEATHER, True, WAIT),), (ServiceTool(WEATHER, False, WAIT),))
DEADLINES = Deadlines(5_000 * MS, 5_000 * MS, 20_000 * MS, 4_000 * MS, 500 * MS, 500 * MS, 2_000 * MS)


class Made:
    """What the stages have made of one stream's response."""

    def __init__(self) -> None:
        self.words = self.told = self.timed = self.sound = self.seq = 0
        self.calls = self.called = 0  # that it makes; that are whole
        self.calls_begun = 0
        self.text_done = self.text_told = self.sound_done = False


class ConversationMachine(RuleBasedStateMachine):
    """Stages answer when they like, or never, and lose what they have; callers and clients do as they please."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Tag, Made] = {}
        self.input_sample = 16_000
        self.items = 0

    @initialize(
        interrupts=st.booleans(), prepare=st.booleans(), recalls=st.booleans(), tools=st.sampled_from((*SERVED, ()))
    )
    def begin(self, interrupts: bool, prepare: bool, recalls: bool, tools: tuple[ServiceTool, ...]) -> None:
        """A tool is the client's, or the service's own."""
        self.detection = TurnDetection(interrupt_response=interrupts, idle_timeout_ms=1_000)
        chosen = SessionSettings(turn_detection=self.detection, tools=() if tools else (WEATHER,))
        self.talk = Talk(
            chosen, deadlines=DEADLINES, prepare=prepare, recalls=recalls, lead_ms=LEAD_MS, service_tools=tools
        )
        self.talk.are_calls_stored = False
        self.watch = Watch(EPOCH)
        self.see(self.talk.core.warm_up())

    def see(self, effects: list[Effect]) -> None:
        if told(effects, CallerIdle):
            core = self.talk.core
            assert core.hearing.current is None
            assert not core.hearing.is_awaited
            assert not self.watch.are_answering, "nothing is said or made"
        self.watch.see(self.talk.do(effects))

    @property
    def now_ns(self) -> int:
        return self.talk.now_ns

    def one(self, choice: int, held: list[Held]) -> Held:
        return held[choice % len(held)]

    def held(self, stage: str = "", *, answers: bool = False) -> list[Held]:
        wanted = [(name, tag) for name, tag in self.watch.held if name == stage or not stage]
        return sorted((held for held in wanted if held[1].response or not answers), key=str)

    # ---- the caller and the client -----------------------------------------------------------------

    @rule(deed=st.sampled_from((*SPEECH, *OVER_OURS)))
    def the_caller(self, deed: str) -> None:
        core = self.talk.core
        self.input_sample += 8_000
        turn = core.hearing.current
        match deed:
            case "speak" if turn is not None and not turn.provisional:
                pass
            case "speak" if core.saying(self.now_ns).may_be_held:
                self.see(core.held(self.input_sample, self.now_ns))
            case "speak":
                self.see(core.speech_started(self.input_sample, self.now_ns))
            case "go on, you" if turn is not None and turn.provisional:
                self.see(core.resumed("short"))
            case "interrupt" if turn is not None and turn.provisional:
                self.see(core.interrupted(self.input_sample, "words", self.now_ns))
            case "never mind" if turn is not None and turn.provisional:
                self.see(core.resumed("short"))
                self.see(core.dropped(self.now_ns))
            case "fall silent" if turn is None or not turn.is_paused:
                self.see(core.speech_paused(self.input_sample))
            case "speak on":
                self.see(core.speech_resumed(self.now_ns))
            case "end the turn" if turn is None or not turn.provisional:
                self.see(core.speech_ended(self.input_sample, self.now_ns, self.now_ns))

    @rule(detects=st.booleans())
    def switch(self, detects: bool) -> None:
        core = self.talk.core
        changed = replace(core.settings, turn_detection=self.detection if detects else None)
        self.see(core.update(changed, self.input_sample, self.now_ns))

    @rule()
    def push(self) -> None:
        self.input_sample += 4_000
        if self.talk.core.settings.turn_detection is None:
            self.see(self.talk.core.buffered(self.input_sample - 4_000, self.input_sample))

    @rule(spec=st.sampled_from(SPECS))
    def ask(self, spec: ResponseSpec) -> None:
        self.see(self.talk.core.create_response(spec, self.now_ns))
        self.open_all()

    @rule(deed=st.sampled_from(("client_cancelled", "dtmf")))
    def stop(self, deed: StopWhy) -> None:
        """Whatever goes on: nothing of it sounds any more."""
        core = self.talk.core
        self.see(core.stop_speaking(deed, self.now_ns))
        assert core.speaking.active is None
        assert not core.speaking.is_sounding(self.now_ns)

    @rule(ms=st.sampled_from((0, 100, 10_000)), choice=CHOICE)
    def truncate(self, ms: int, choice: int) -> None:
        names = ["item_never", *(item.id for item in self.talk.core.items)]
        self.see(self.talk.core.truncate_item(names[choice % len(names)], ms, self.now_ns))

    @rule(samples=st.integers(0, 4 * WORD_SAMPLES), choice=CHOICE)
    def report(self, samples: int, choice: int) -> None:
        names = ["resp_never", *self.watch.answers]
        self.see(self.talk.core.heard(names[choice % len(names)], samples, self.now_ns))

    @rule(deed=st.sampled_from(("commit", "clear", "cancel", "cancel one", "type", "answer", "delete")), choice=CHOICE)
    def the_client(self, deed: str, choice: int) -> None:
        core = self.talk.core
        items = [item.id for item in core.items]
        answers = [*self.watch.answers, "resp_never"]
        match deed:
            case "commit":
                self.see(core.commit_input(self.input_sample - 4_000, self.input_sample, self.now_ns))
            case "clear":
                self.see(core.clear_input(self.now_ns))
            case "cancel":
                self.see(core.cancel_response(None, self.now_ns))
            case "cancel one":
                self.see(core.cancel_response(answers[choice % len(answers)], self.now_ns))
            case "type":
                self.items += 1
                item = Item(f"typed_{self.items}", "user", f"typed {self.items}", spoken=False)
                places = [None, None, ROOT, "item_never", *self.watch.client.items]
                self.see(core.create_item(item, places[choice % len(places)]))
            case "answer":
                self.items += 1
                calls = ["call_never", *(call.call_id for call in self.watch.calls.values()), *self.watch.begun]
                output = output_item(f"output_{self.items}", calls[choice % len(calls)], "sunny")
                self.see(core.answer_call(output, self.now_ns))
            case _:
                names = ["item_never", *items]
                self.see(core.delete_item(names[choice % len(names)]))

    # ---- tools of the service ------------------------------------------------------------------------

    @precondition(lambda self: bool(self.watch.begun))
    @rule(choice=CHOICE)
    def store_call(self, choice: int) -> None:
        begun = [*self.watch.begun]
        self.see(self.talk.core.call_stored(begun[choice % len(begun)], self.now_ns))

    @precondition(lambda self: bool(self.watch.requested))
    @rule(choice=CHOICE, fails=st.booleans())
    def answer_call(self, choice: int, fails: bool) -> None:
        """Or somebody answers once more."""
        asked = [*self.watch.requested]
        call = asked[choice % len(asked)]
        self.watch.requested[call] = False
        answer = Failure("timeout") if fails else Result("sunny")
        self.see(self.talk.core.call_answered(call, answer, self.now_ns))

    # ---- the stages --------------------------------------------------------------------------------

    @precondition(lambda self: self.held("encoder"))
    @rule(choice=CHOICE, text=st.sampled_from(("", "go on", "well")), final=st.booleans(), settled=st.booleans())
    def understand(self, choice: int, text: str, final: bool, settled: bool) -> None:
        _, tag = self.one(choice, self.held("encoder"))
        transcript = Transcript(text, self.input_sample, settled=settled, final=final)
        self.see(self.talk.core.published(tag, transcript, self.now_ns))

    @precondition(lambda self: self.held(answers=True))
    @rule()
    def open_all(self) -> None:
        for stage in ("vocoder", "talker", "thinker"):
            for _, tag in self.held(stage, answers=True):
                self.see(self.talk.core.opened(tag, stage, self.now_ns))

    @precondition(lambda self: self.held("thinker", answers=True))
    @rule(choice=CHOICE, words=st.integers(0, 3), done=st.booleans(), calls=st.sampled_from((0, 0, 1, 2)))
    def think(self, choice: int, words: int, done: bool, calls: int) -> None:
        made = self.making(self.one(choice, self.held("thinker", answers=True)))
        if not made.text_done:
            made.words, made.text_done, made.calls = made.words + words, done, calls

    @precondition(lambda self: self.held("thinker", answers=True))
    @rule(choice=CHOICE, words=st.integers(1, 3))
    def write(self, choice: int, words: int) -> None:
        """Text goes by a link of its own, and may come before or after its sound."""
        held = self.one(choice, self.held("thinker", answers=True))
        tag, made = held[1], self.making(held)
        if made.text_told:
            return
        for _ in range(min(words, made.words - made.told)):
            made.told += 1
            self.see(self.talk.core.published(tag, TextDelta(f" w{made.told}"), self.now_ns))
        if made.text_done and made.told == made.words and made.called < made.calls:
            self.call(tag, made)
        elif made.text_done and made.told == made.words:
            made.text_told = True
            self.see(self.talk.core.published(tag, TextDone("", "stop", 1, 0, 1), self.now_ns))

    def call(self, tag: Tag, made: Made) -> None:
        """A call is begun, or made whole."""
        if made.calls_begun == made.called:
            made.calls_begun += 1
            self.see(self.talk.core.published(tag, CallDelta(made.called, WEATHER.name, CITY), self.now_ns))
            return
        made.called += 1
        self.see(self.talk.core.published(tag, CallDone(made.called - 1, CITY), self.now_ns))

    @precondition(lambda self: self.held("thinker", answers=True))
    @rule(choice=CHOICE, words=st.sampled_from((0, 0, 2)), waits=st.booleans())
    def call_a_tool(self, choice: int, words: int, waits: bool) -> None:
        """As a whole, and perhaps nothing happens for a while."""
        self.open_all()
        self.think(choice, words, True, 1)
        for _ in range(3):
            self.write(choice, words or 1)
        if self.held("vocoder", answers=True):
            self.sound(choice, 2 * WORD_SAMPLES, timed=True)
        self.play(4)
        for call in [*self.watch.begun]:
            self.see(self.talk.core.call_stored(call, self.now_ns))
        if waits:
            self.wait(3_000)

    @precondition(lambda self: self.held("thinker", answers=True))
    @rule(choice=CHOICE, done=st.booleans())
    def make_more(self, choice: int, done: bool) -> None:
        """All stages do their part, and the caller hears it."""
        self.think(choice, 2, done, choice % 2)
        self.write(choice, 2)
        if self.held("vocoder", answers=True):
            self.sound(choice, 2 * WORD_SAMPLES, timed=True)
        self.play(4)

    @precondition(lambda self: self.held("vocoder", answers=True))
    @rule(choice=CHOICE, samples=st.integers(1, 2 * WORD_SAMPLES), timed=st.booleans())
    def sound(self, choice: int, samples: int, timed: bool) -> None:
        """The Talker tells of its words, and the vocoder makes sound of them."""
        held = self.one(choice, self.held("vocoder", answers=True))
        tag, made = held[1], self.making(held)
        if timed and made.timed < made.words:
            numbers = range(made.timed, made.words)
            spans = tuple(Word(f"w{n + 1}", n * WORD_SAMPLES, (n + 1) * WORD_SAMPLES) for n in numbers)
            made.timed = made.words
            self.see(self.talk.core.published(tag, WordTimes(0, OUTPUT_RATE, spans), self.now_ns))
        whole = made.words * WORD_SAMPLES
        samples = min(samples, whole - made.sound)
        is_last = made.text_done and made.sound + samples == whole
        if not made.sound_done and (samples or is_last):
            chunk = AudioOut(made.seq, OUTPUT_RATE, made.sound, silence(samples), is_last)
            made.seq, made.sound, made.sound_done = made.seq + 1, made.sound + samples, is_last
            self.see(self.talk.core.published(tag, chunk, self.now_ns))

    @precondition(lambda self: self.held())
    @rule(choice=CHOICE, failure=st.sampled_from((None, None, ("engine", "it broke"), ("stage_lost", "gone"))))
    def let_go(self, choice: int, failure: tuple[str, str] | None) -> None:
        stage, tag = self.one(choice, self.held())
        if failure is None and (stage, tag) not in self.watch.cancelled and not self.is_finished(stage, tag):
            return  # who was asked for something finishes it, unless it cannot
        self.watch.let_go(stage, tag)
        self.see(self.talk.core.closed(tag, stage, {"items": 1}, failure, self.now_ns))

    def is_finished(self, stage: str, tag: Tag) -> bool:
        made = self.made.get(tag)
        if made is None:
            return not tag.response
        return {"thinker": made.text_told, "vocoder": made.sound_done}.get(stage, made.timed == made.words)

    @precondition(lambda self: self.held())
    @rule(choice=CHOICE, deed=st.sampled_from(("open", "open", "lose", "refuse")))
    def one_stage(self, choice: int, deed: str) -> None:
        stage, tag = self.one(choice, self.held())
        match deed:
            case "open":
                self.see(self.talk.core.opened(tag, stage, self.now_ns))
            case "lose":
                self.see(self.talk.core.lost(tag, stage, self.now_ns))
            case "refuse" if tag not in self.made:
                self.watch.let_go(stage, tag)
                self.see(self.talk.core.refused(tag, stage, "capacity", "full", self.now_ns))

    def making(self, held: Held) -> Made:
        made = self.made.setdefault(held[1], Made())
        if held[1] in self.watch.said:
            made.words, made.text_done, made.text_told = len(WAIT.split()), True, True
        return made

    # ---- sound and time ----------------------------------------------------------------------------

    @rule(frames=st.integers(1, 30))
    def play(self, frames: int) -> None:
        for _ in range(frames):
            self.see(self.talk.core.take_due(self.now_ns))

    @rule(ms=st.sampled_from((1, 20, 20, 200, 200, 3_000)))
    def wait(self, ms: int) -> None:
        self.talk.later(ms)
        self.see(self.talk.core.tick(self.now_ns, 0))

    # ---- what holds --------------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "talk"))
    @invariant()
    def what_is_saved_is_the_history(self) -> None:
        assert tuple(self.watch.saved) == self.talk.core.items
        assert self.watch.epoch == self.talk.core.epoch

    @precondition(lambda self: hasattr(self, "talk"))
    @invariant()
    def who_places_items_by_what_is_told_has_the_history(self) -> None:
        assert self.watch.client.history == [item.id for item in self.talk.core.items]

    @precondition(lambda self: hasattr(self, "talk"))
    @invariant()
    def what_runs_is_what_the_client_knows_of(self) -> None:
        running = {view.id for view in self.talk.core.speaking.running}
        assert running == {name for name, answer in self.watch.answers.items() if not answer.status}

    def teardown(self) -> None:
        """Once the call is over and all stages have let go, nothing is left and nothing is due."""
        if not hasattr(self, "talk"):
            return
        self.see(self.talk.core.close(self.now_ns))
        for _ in range(3):  # what is lost meanwhile may be asked for once more
            for stage, tag in self.held():
                self.watch.let_go(stage, tag)
                self.see(self.talk.core.closed(tag, stage, {}, None, self.now_ns))
            self.talk.later(10_000)
            self.see(self.talk.core.tick(self.now_ns, 0))
        assert not self.watch.held
        assert all(answer.status and answer.drained for answer in self.watch.answers.values())
        assert self.talk.core.speaking.undrained == 0
        assert self.talk.core.next_deadline_ns() is None
        assert self.talk.core.speaking.active is None


ConversationMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=100, deadline=None)
TestConversationMachine = pytest.mark.slow(ConversationMachine.TestCase)
