"""A conversation without stages: the tests play the stages, the caller and the client, on a clock of their own.

Ids count up by kind (`resp_1`, `item_2`), so that tests can name them. Every effect is kept in the order it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from sessions.conversation import Conversation
from sessions.effects import CancelStream, Effect, FeedStream, OpenStream, SaveCallBegun, SaveSpeaking, Tell
from sessions.events import Event, ResponseFinished, ResponseStarted, ResponseView
from sessions.far_side import MachinePolicy
from sessions.items import Item
from sessions.planner import Identity, ReplyDefaults
from sessions.response import Deadlines
from sessions.return_policy import ReturnPolicy
from sessions.route import Route
from sessions.service_calls import ServiceTool
from sessions.settings import OUTPUT_RATE, SessionSettings, TurnDetection
from sessions.tool_calls import BegunCall, output_item
from stages.contracts import (
    AudioOut,
    CallDelta,
    CallDone,
    Message,
    Options,
    Prompt,
    Tag,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Tool,
    Transcript,
    Word,
    WordTimes,
)
from stages.contracts import Event as StageEvent

EPOCH = 1 << 20
MS = 1_000_000
WORD_SAMPLES = 4_800  # each word of a test's reply takes 200 ms
INSTRUCTIONS = "Be kind."
SYSTEM = Message("system", INSTRUCTIONS)
LINE = ("thinker", "talker", "vocoder")
WEATHER = Tool("get_weather", "The weather of a city.", '{"type":"object"}')
CITY = '{"city":"Paris"}'

Kind = TypeVar("Kind")


def of(effects: Sequence[object], kind: type[Kind]) -> list[Kind]:
    """The effects, or events, of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def told(effects: Sequence[Effect], kind: type[Kind]) -> list[Kind]:
    """The client's events of one kind among `effects`."""
    return of([effect.event for effect in of(effects, Tell)], kind)


def kinds(effects: Sequence[Effect]) -> list[str]:
    """The names of `effects`; a `Tell` by its event."""
    return [type(effect.event if isinstance(effect, Tell) else effect).__name__ for effect in effects]


def samples_of(ms: int) -> int:
    return ms * OUTPUT_RATE // 1000


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def silence(samples: int) -> bytes:
    return bytes(2 * samples)


class Talk:
    """`lead_ms`: by default so long that all audio may go at once; and what was sent counts as heard, unless the client
    `recalls` it."""

    def __init__(
        self,
        settings: SessionSettings | None = None,
        *,
        items: tuple[Item, ...] = (),
        deadlines: Deadlines | None = None,
        lead_ms: int = 60_000,
        recalls: bool = False,
        prepare: bool = False,
        examples: tuple[Message, ...] = (),
        route: Route | None = None,
        ids_from: int = 1,
        service_tools: tuple[ServiceTool, ...] = (),
        calls: tuple[BegunCall, ...] = (),
        filler: str = "",
        machines: MachinePolicy | None = None,
        returns: ReturnPolicy | None = None,
        leaves: bool = False,
    ) -> None:
        self._ids: Counter[str] = Counter()
        self._ids_from = ids_from
        self.now_ns = 1_000 * MS
        self.effects: list[Effect] = []
        self.is_stored = True  # the store takes what is said at once,
        self.are_calls_stored = True  # and that a call is about to be carried out
        self.core = Conversation(
            Identity("sess", EPOCH, self._new_id),
            settings or SessionSettings(),
            ReplyDefaults(
                INSTRUCTIONS,
                max_output_tokens=100,
                examples=examples,
                prepare=prepare,
                voices=("joe", "amy"),
                service_tools=service_tools,
                filler=filler,
                machines=machines or MachinePolicy(),
                returns=returns or ReturnPolicy(),
            ),
            transport_lead_ms=lead_ms,
            recalls=recalls,
            items=items,
            calls=calls,
            deadlines=deadlines,
            route=route,
            leaves=leaves,
        )

    def _new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids_from + self._ids[prefix] - 1}"

    def do(self, effects: list[Effect]) -> list[Effect]:
        """Keep `effects` of a call of the core, and give them back."""
        self.effects += effects
        for saved in of(effects, SaveSpeaking) if self.is_stored else ():
            self.core.speaking.saved(saved.item, saved.part.number)
        for begun in of(effects, SaveCallBegun) if self.is_stored and self.are_calls_stored else ():
            self.do(self.core.call_stored(begun.call.id, self.now_ns))
        return effects

    def later(self, ms: float) -> None:
        self.now_ns += int(ms * MS)

    # ---- what has come of it -----------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        return [effect.event for effect in of(self.effects, Tell)]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The history as (role, text)."""
        return [(item.role, item.text) for item in self.core.items]

    @property
    def active(self) -> str:
        view = self.core.speaking.active
        assert view is not None, "nothing is being said"
        return view.id

    def finished(self, response: str) -> ResponseView:
        """The one terminal of `response`."""
        ends = [end.response for end in of(self.events, ResponseFinished) if end.response.id == response]
        assert len(ends) == 1, f"{response} has {len(ends)} terminals"
        return ends[0]

    def started(self) -> list[str]:
        return [start.response.id for start in of(self.events, ResponseStarted)]

    def opened_at(self, stage: str) -> list[OpenStream]:
        return [effect for effect in of(self.effects, OpenStream) if effect.stage == stage]

    def tag(self, response: str) -> Tag:
        """The tag under which `response` was opened last at any stage."""
        return [effect.tag for effect in of(self.effects, OpenStream) if effect.tag.response == response][-1]

    def options(self, response: str) -> dict[str, Options]:
        return {e.stage: e.options for e in of(self.effects, OpenStream) if e.tag.response == response}

    def prompt(self, response: str) -> tuple[Message, ...]:
        """What the Thinker is asked, once all stages are open."""
        self.open(response)
        options = self.options(response)["thinker"]
        assert isinstance(options, ThinkerOptions)
        return options.messages

    def prefilled(self) -> list[Prompt]:
        """Every prompt that was fed to a prefill."""
        return [e.item for e in of(self.effects, FeedStream) if isinstance(e.item, Prompt)]

    def cancelled(self, response: str) -> set[str]:
        return {e.stage for e in of(self.effects, CancelStream) if e.tag.response == response}

    # ---- the caller --------------------------------------------------------------------------------

    def start(self, onset: int = 16_000) -> list[Effect]:
        """Confident speech; over our own, an interruption where it may be one."""
        if not self.core.saying(self.now_ns).may_be_held:
            return self.do(self.core.speech_started(onset, self.now_ns))
        held = self.do(self.core.held(onset, self.now_ns))
        return held + self.do(self.core.interrupted(onset, "words", self.now_ns))

    def end(self, sample: int = 32_000) -> list[Effect]:
        return self.do(self.core.speech_ended(sample, self.now_ns - 500 * MS, self.now_ns))

    def turn_tag(self) -> Tag:
        """The encoder's stream of the newest turn."""
        return self.opened_at("encoder")[-1].tag

    def heard(self, text: str, tag: Tag | None = None, *, final: bool = True, settled: bool = True) -> list[Effect]:
        """A transcript comes in."""
        transcript = Transcript(text, 32_000, settled=settled, final=final)
        return self.do(self.core.published(tag or self.turn_tag(), transcript, self.now_ns))

    def say(self, text: str) -> list[Effect]:
        """The caller says `text`, and is understood."""
        self.start()
        self.later(1_000)
        self.end()
        self.later(100)
        return self.heard(text)

    def update(self, settings: SessionSettings, input_end: int = 32_000) -> list[Effect]:
        return self.do(self.core.update(settings, input_end, self.now_ns))

    def commit(self, start: int = 0, end: int = 16_000) -> list[Effect]:
        """The client commits its input."""
        return self.do(self.core.commit_input(start, end, self.now_ns))

    def truncate(self, item: str, ms: int) -> list[Effect]:
        """The client has stopped playing `item` at `ms`."""
        return self.do(self.core.truncate_item(item, ms, self.now_ns))

    # ---- the stages --------------------------------------------------------------------------------

    def publish(self, response: str, event: StageEvent) -> list[Effect]:
        return self.do(self.core.published(self.tag(response), event, self.now_ns))

    def open(self, response: str) -> None:
        """All stages of `response` say that they are open, followers first."""
        for stage in (*LINE[1:], LINE[0]):
            if any(e.stage == stage for e in of(self.effects, OpenStream) if e.tag.response == response):
                self.do(self.core.opened(self.tag(response), stage, self.now_ns))

    def text(self, response: str, text: str) -> list[Effect]:
        return self.publish(response, TextDelta(text))

    def text_done(self, response: str, reason: str = "stop") -> list[Effect]:
        return self.publish(response, TextDone("", reason, 7, 3, 5))

    def calling(self, response: str, arguments: str = "", index: int = 0) -> list[Effect]:
        """More of a call of the weather is written."""
        return self.publish(response, CallDelta(index, WEATHER.name, arguments))

    def called(self, response: str, arguments: str = CITY, index: int = 0) -> list[Effect]:
        """A call of the weather is written as a whole."""
        begun = self.calling(response, arguments, index)
        return begun + self.publish(response, CallDone(index, arguments))

    def publish_call(self, response: str, name: str, index: int) -> list[Effect]:
        """A call of another tool is written as a whole."""
        begun = self.publish(response, CallDelta(index, name, "{}"))
        return begun + self.publish(response, CallDone(index, "{}"))

    def words(self, response: str, text: str, first: int = 0, clause: int = 0) -> list[Effect]:
        """`text` is spoken from word number `first` on, `WORD_SAMPLES` each."""
        spans = [(first + at) * WORD_SAMPLES for at in range(len(text.split()) + 1)]
        words = tuple(Word(*word) for word in zip(text.split(), spans, spans[1:], strict=False))
        return self.publish(response, WordTimes(clause, OUTPUT_RATE, words))

    def audio(self, response: str, samples: int, *, seq: int = 0, start: int = 0, final: bool = False) -> list[Effect]:
        return self.publish(response, AudioOut(seq, OUTPUT_RATE, start, silence(samples), final))

    def send(self, frames: int = 10_000) -> list[Effect]:
        """Up to `frames` frames go to the client."""
        sent: list[Effect] = []
        for _ in range(frames):
            effects = self.do(self.core.take_due(self.now_ns))
            sent += effects
            if not effects:
                break
        return sent

    def reply(self, response: str, text: str) -> None:
        """`response` is made as a whole, and nothing of it is sent yet."""
        self.open(response)
        self.text(response, text)
        self.text_done(response)
        self.words(response, text)
        self.audio(response, len(text.split()) * WORD_SAMPLES, final=True)

    def only_calls(self, response: str, calls: int = 1) -> None:
        """`response` says nothing and calls so many tools; the client is told of its end."""
        self.open(response)
        for index in range(calls):
            self.called(response, index=index)
        self.text_done(response)
        self.audio(response, 0, final=True)
        self.send()

    def answer(self, call_id: str, output: str) -> list[Effect]:
        """The client says what came of a call."""
        return self.do(self.core.answer_call(output_item(f"output_{call_id}", call_id, output), self.now_ns))

    def let_go(self, response: str, stages: Sequence[str] = LINE) -> list[Effect]:
        """The stages hold nothing of `response` any more."""
        effects: list[Effect] = []
        for stage in stages:
            effects += self.do(self.core.closed(self.tag(response), stage, {}, None, self.now_ns))
        return effects

    def answered(self, said: str, reply: str) -> str:
        """One whole exchange; gives the response's id."""
        self.say(said)
        response = self.active
        self.reply(response, reply)
        self.send()
        self.let_go(response)
        return response


def without_interruption() -> SessionSettings:
    return SessionSettings(turn_detection=TurnDetection(interrupt_response=False))


def with_tools(*, interrupt_response: bool = True) -> SessionSettings:
    detection = TurnDetection(interrupt_response=interrupt_response)
    return SessionSettings(turn_detection=detection, tools=(WEATHER,))


def over_and_unplayed() -> tuple[Talk, int]:
    """A reply of three words has ended, of which its caller has heard so many ms, two words and more."""
    talk = Talk(recalls=True, lead_ms=200)
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    began_ns = talk.now_ns
    while told(talk.send(), ResponseFinished) == []:
        talk.later(20)
    talk.let_go("resp_1")
    talk.later(10)
    return talk, (talk.now_ns - began_ns) // MS
