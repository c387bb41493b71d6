"""An engine without models, for tests and demonstrations: it hears what it is told, and hums what it says.

Theory of operation
    The encoder "hears" the next of `heard` for each turn in which any sound came. The Thinker answers with the next of
    `replies` (the last one again once they are used up), word by word. A reply may end in a call, as in
    `Let me look. @get_weather {"city": "Paris"}`; one that says `@result` answers the result of a tool, which it says
    in that place, and nothing else. `@said` stands for what the prompt has us say last, as it stands there: what a
    model can presume to have been heard. The Talker gives each word `frames_per_word` frames, the vocoder makes each
    frame `FRAME_SAMPLES` of a tone. The observer finds each word where the Talker's pace puts it, as far as the sound
    goes.
    The same contracts, credit and cancels as real engines; no step takes measurable time.

Rules
* A step is computed when it is first planned, and stays the same until it has been run.
* The vocoder takes chunks of several streams at once, as one on a GPU does.
* A call of a tool that was not offered, or that must not be called now, is left out.

What it cannot represent: time, load, wrong transcripts, silence inside words, a call that must be made against the
script.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, cast

import msgspec
import numpy as np

from stages.call_writer import CallWriter, callable_now
from stages.clauses import ClauseSplitter
from stages.contracts import (
    AudioIn,
    AudioOut,
    Clause,
    EncoderOptions,
    EndOfTurn,
    Item,
    Latents,
    ObserverOptions,
    Options,
    Pause,
    PrefillOptions,
    Prompt,
    SpeechResumed,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Transcript,
    VocoderOptions,
    Word,
    WordTimes,
)
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream, Step, StepContext

FRAME_RATE = 100
LATENT_CHANNELS = 1
TONE_HZ = 440
TONE_LEVEL = 0.2
FRAMES_PER_ITEM_MAX = 16
WORDS_PER_STEP = 4
CALL_CHARACTERS_PER_STEP = 16
COUNT_MAX = 1_000  # of anything that a script sets
RESULT = "@result"
SAID = "@said"
_CALL = re.compile(r"(?P<words>.*?)\s*@(?P<name>[\w-]+)\s*(?P<arguments>\{.*\})\s*", re.DOTALL)
VOCODER_BATCH_MAX = 8


@dataclass(frozen=True, slots=True)
class _Ready:
    """A step that was computed when it was planned. `last`: the stream is finished by it."""

    kind: str
    outputs: tuple[Output, ...]
    urgency: int = 1
    units: int = 0
    last: bool = False

    def run(self, context: StepContext) -> object:  # noqa: ARG002 - nothing to cancel
        return self


@dataclass(slots=True)
class _Scripted:
    """A stream whose steps are planned by `_plan` out of what was fed."""

    takes: ClassVar[tuple[type, ...]] = ()

    finished: bool = False
    items: deque[Item] = field(default_factory=deque)
    planned: _Ready | None = None

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, self.takes):
            raise StageFailure("wrong_item", f"a scripted {type(self).__name__[1:]} takes no {type(item).__name__}")
        self.items.append(item)
        return ()

    def next_step(self) -> Step | None:
        if self.planned is None and not self.finished:
            self.planned = self._plan()
        return self.planned

    def finish_step(self, result: object) -> Sequence[Output]:
        step = cast("_Ready", result)
        self.planned = None
        self.finished = step.last
        return step.outputs

    def held(self) -> dict[str, int]:
        return {"items": len(self.items)}

    def close(self) -> None:
        self.items.clear()

    def _plan(self) -> _Ready | None:
        raise AssertionError("a scripted stream plans its steps")


@dataclass(slots=True)
class _Encoder(_Scripted):
    takes: ClassVar[tuple[type, ...]] = (EndOfTurn,)

    text: str = ""
    samples: int = 0
    pauses: bool = False  # and what was said by then has yet to be told

    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case AudioIn(start, pcm):
                self.samples = start + len(pcm) // 2
                return (Consumed(len(pcm) // 2),)
            case Pause():
                self.pauses = True
                return ()
            case SpeechResumed():
                self.pauses = False
                return ()
        return _Scripted.feed(self, item)

    def _plan(self) -> _Ready | None:
        if not (self.items or self.pauses):
            return None
        is_last = bool(self.items)
        self.items.clear()
        self.pauses = False
        heard = Transcript(self.text if self.samples else "", self.samples, settled=True, final=is_last)
        return _Ready("final" if is_last else "settle", (Publish(heard),), urgency=0, last=is_last)


@dataclass(slots=True)
class _Thinker(_Scripted):
    words: deque[str] = field(default_factory=deque)
    splitter: ClauseSplitter = field(default_factory=ClauseSplitter)
    said: list[str] = field(default_factory=list)
    clauses: int = 0
    prompt_tokens: int = 0
    limit: int = 0
    call: tuple[str, str] | None = None  # name and arguments, of which the rest is still to be written
    writer: CallWriter = field(default_factory=lambda: CallWriter(()))

    def _plan(self) -> _Ready | None:
        if self.writer.is_writing:
            return self._go_on_calling()
        outputs: list[Output] = []
        for _ in range(min(WORDS_PER_STEP, len(self.words))):
            delta = (" " if self.said else "") + self.words.popleft()
            self.said.append(delta)
            outputs.append(Publish(TextDelta(delta)))
            outputs += [self._clause(text, final=False) for text in self.splitter.feed(delta)]
        if self.words:
            return _Ready("words", tuple(outputs))
        outputs.append(self._clause(self.splitter.finish(), final=True))
        if self.call is not None:
            return _Ready("words", (*outputs, *self.writer.begin(self.call[0])))
        return _Ready("words", (*outputs, self._done()), last=True)

    def _go_on_calling(self) -> _Ready:
        assert self.call is not None, "a call is being written"
        name, rest = self.call
        piece, rest = rest[:CALL_CHARACTERS_PER_STEP], rest[CALL_CHARACTERS_PER_STEP:]
        self.call = (name, rest)
        outputs = self.writer.add(piece)
        if rest:
            return _Ready("call", tuple(outputs))
        return _Ready("call", (*outputs, *self.writer.finish(), self._done()), last=True)

    def _done(self) -> Output:
        reason = "max_output_tokens" if len(self.said) >= self.limit else "stop"
        return Publish(TextDone("".join(self.said), reason, self.prompt_tokens, 0, len(self.said)))

    def _clause(self, text: str, *, final: bool) -> Emit:
        self.clauses += 1
        return Emit(Clause(self.clauses - 1, text, final), max(1, len(text)))


@dataclass(slots=True)
class _Prefill(_Scripted):
    """Takes prompts and keeps none. It ends when it is cancelled or closed."""

    takes: ClassVar[tuple[type, ...]] = (Prompt,)

    def _plan(self) -> _Ready | None:
        self.items.clear()
        return None


@dataclass(slots=True)
class _Talker(_Scripted):
    takes: ClassVar[tuple[type, ...]] = (Clause,)

    frames_per_word: int = 20
    chunk_first: int = FRAMES_PER_ITEM_MAX
    chunk_then: int = FRAMES_PER_ITEM_MAX
    frames: int = 0

    def _plan(self) -> _Ready | None:
        if not self.items:
            return None
        clause = cast("Clause", self.items[0])
        start, words = self.frames, clause.text.split()
        times = tuple(
            Word(word, start + i * self.frames_per_word, start + (i + 1) * self.frames_per_word)
            for i, word in enumerate(words)
        )
        outputs: list[Output] = [Publish(WordTimes(clause.index, FRAME_RATE, times))] if words else []
        end = start + len(words) * self.frames_per_word
        first = start
        while first < end:
            count = min(self.chunk_then if first else self.chunk_first, end - first)
            data = np.zeros((count, LATENT_CHANNELS), np.float32).tobytes()
            outputs.append(Emit(Latents(first, count, data, clause_end=first + count == end), count))
            first += count
        if clause.final:
            outputs.append(Emit(Latents(end, 0, b"", clause_end=True, final=True), 0))
        return _Ready("clause", (*outputs, Consumed(max(1, len(clause.text)))), last=clause.final)

    def finish_step(self, result: object) -> Sequence[Output]:
        clause = cast("Clause", self.items.popleft())
        self.frames += len(clause.text.split()) * self.frames_per_word
        return _Scripted.finish_step(self, result)


@dataclass(slots=True)
class _Vocoder(_Scripted):
    takes: ClassVar[tuple[type, ...]] = (Latents,)

    sample_rate: int = 24_000
    seq: int = 0
    samples: int = 0

    def _plan(self) -> _Ready | None:
        if not self.items:
            return None
        latents = cast("Latents", self.items[0])
        count = latents.frames * self.sample_rate // FRAME_RATE
        clock = np.arange(self.samples, self.samples + count) / self.sample_rate
        pcm = (np.sin(2 * np.pi * TONE_HZ * clock) * TONE_LEVEL * 32767).astype("<i2").tobytes()
        audio = AudioOut(self.seq, self.sample_rate, self.samples, pcm, latents.final)
        return _Ready("chunk", (Consumed(latents.frames), Publish(audio, count)), units=count, last=latents.final)

    def finish_step(self, result: object) -> Sequence[Output]:
        latents = cast("Latents", self.items.popleft())
        self.seq += 1
        self.samples += latents.frames * self.sample_rate // FRAME_RATE
        return _Scripted.finish_step(self, result)


@dataclass(slots=True)
class _Observer(_Scripted):
    """Is given text and sound once each, in either order."""

    takes: ClassVar[tuple[type, ...]] = (Clause, AudioOut)

    frames_per_word: int = 20

    def _plan(self) -> _Ready | None:
        text = next((item.text for item in self.items if isinstance(item, Clause)), None)
        sound = next((item for item in self.items if isinstance(item, AudioOut)), None)
        if text is None or sound is None:
            return None
        pace = self.frames_per_word * sound.sample_rate // FRAME_RATE
        whole_words = len(sound.pcm) // 2 // pace
        words = tuple(Word(word, at * pace, (at + 1) * pace) for at, word in enumerate(text.split()[:whole_words]))
        return _Ready("align", (Publish(WordTimes(0, sound.sample_rate, words, "aligned")),), last=True)


_Texts = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the script says. `sessions_max`: as the slots of a real Thinker.

    `chunk_first`, `chunk_then`: the most frames in the Talker's first item, and in all others.
    """

    heard: _Texts = ("hello",)
    replies: _Texts = ("Hello. How can I help you today?",)
    frames_per_word: _Count = 20
    sessions_max: _Count = 64
    chunk_first: _Count = FRAMES_PER_ITEM_MAX
    chunk_then: _Count = FRAMES_PER_ITEM_MAX


def _parted(reply: str, options: ThinkerOptions) -> tuple[str, tuple[str, str] | None]:
    """The words of a scripted reply, and its call where it has one that may be made."""
    call = _CALL.fullmatch(reply)
    if call is None:
        return reply, None
    offered = any(tool.name == call["name"] for tool in callable_now(options.tools, options.tool_choice))
    return call["words"], (call["name"], call["arguments"]) if offered else None


class ScriptedModel:
    """A stage of the scripted engine; `kind` says which."""

    concurrency = 1
    revision = "scripted"

    def __init__(self, kind: str, options: ScriptedOptions) -> None:
        self._kind = kind
        self._options = options
        self._sessions: set[str] = set()
        self._turns: Counter[tuple[str, ...]] = Counter()

    def open_session(self, session: str) -> None:
        if session not in self._sessions and len(self._sessions) >= self._options.sessions_max:
            raise StageFailure("capacity", f"{self._options.sessions_max} sessions are open")
        self._sessions.add(session)

    def close_session(self, session: str) -> None:
        self._sessions.discard(session)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its place; see `StageModel`."""
        return {"sessions": int(session in self._sessions)}

    def open(self, tag: Tag, options: Options) -> StageStream:  # noqa: ARG002 - scripted streams do not differ by tag
        """Raises `StageFailure("wrong_options")` for another stage's options."""
        match self._kind, options:
            case "encoder", EncoderOptions():
                return _Encoder(text=self._next_of(self._options.heard))
            case "thinker", PrefillOptions():
                return _Prefill()
            case "thinker", ThinkerOptions():
                return self._thinker(options)
            case "talker", TalkerOptions():
                script = self._options
                return _Talker(
                    frames_per_word=script.frames_per_word,
                    chunk_first=script.chunk_first,
                    chunk_then=script.chunk_then,
                )
            case "vocoder", VocoderOptions(sample_rate):
                return _Vocoder(sample_rate=sample_rate)
            case "observer", ObserverOptions():
                return _Observer(frames_per_word=self._options.frames_per_word)
        raise StageFailure("wrong_options", f"a scripted {self._kind} takes no {type(options).__name__}")

    def _thinker(self, options: ThinkerOptions) -> StageStream:
        answers = bool(options.messages) and options.messages[-1].role == "tool"
        fitting = tuple(text for text in self._options.replies if (RESULT in text) == answers)
        reply = self._next_of(fitting or self._options.replies)
        text, call = _parted(reply, options)
        if answers:
            text = text.replace(RESULT, options.messages[-1].content)
        said = next((message.content for message in reversed(options.messages) if message.role == "assistant"), "")
        text = text.replace(SAID, said)
        return _Thinker(
            words=deque(text.split()[: options.max_output_tokens]),
            prompt_tokens=sum(len(message.content.split()) for message in options.messages),
            limit=options.max_output_tokens,
            call=call,
            writer=CallWriter(callable_now(options.tools, options.tool_choice)),
        )

    def _next_of(self, texts: tuple[str, ...]) -> str:
        turns = self._turns[texts] = self._turns[texts] + 1
        return texts[min(turns, len(texts)) - 1]

    def close(self) -> None:
        self._sessions.clear()


class ScriptedVocoder(ScriptedModel):
    """`BatchingModel` of the scripted vocoder."""

    batch_max = VOCODER_BATCH_MAX

    def batch_key(self, step: Step) -> str:  # noqa: ARG002 - chunks of any length go together
        return "any"

    def run_batch(self, steps: Sequence[Step], contexts: Sequence[StepContext]) -> Sequence[object]:
        return [step.run(context) for step, context in zip(steps, contexts, strict=True)]


def _build(kind: str, options: Mapping[str, object]) -> ScriptedModel:
    return ScriptedModel(kind, msgspec.convert(options, ScriptedOptions))


def build_encoder(options: Mapping[str, object]) -> ScriptedModel:
    return _build("encoder", options)


def build_thinker(options: Mapping[str, object]) -> ScriptedModel:
    return _build("thinker", options)


def build_talker(options: Mapping[str, object]) -> ScriptedModel:
    return _build("talker", options)


def build_vocoder(options: Mapping[str, object]) -> ScriptedVocoder:
    return ScriptedVocoder("vocoder", msgspec.convert(options, ScriptedOptions))


def build_observer(options: Mapping[str, object]) -> ScriptedModel:
    return _build("observer", options)
