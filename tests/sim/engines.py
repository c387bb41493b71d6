"""The engines of a simulated world: the scripted ones, made fallible, and ears that guess.

Theory of operation
    The encoder guesses in pauses, hears nothing in coughs, and says each thing once: every stream hears words of its
    own (`turn 7`), so that a prompt tells which turns it knows of. `Chance` says of everything that may go wrong
    whether it does.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from media.chunk import rescale
from sessions.settings import OUTPUT_RATE
from stages.call_writer import callable_now
from stages.contracts import (
    AudioIn,
    AudioOut,
    EndOfTurn,
    Item,
    Latents,
    Options,
    Pause,
    SpeechResumed,
    Tag,
    ThinkerOptions,
    Transcript,
    VocoderOptions,
)
from stages.engines.scripted import FRAME_RATE, ScriptedModel, ScriptedOptions
from stages.stream import (
    BatchingModel,
    Consumed,
    Output,
    Publish,
    StageFailure,
    StageModel,
    StageStream,
    Step,
    StepContext,
)
from tests.sim.minds import Mind
from tests.sim.tools import BOOK, LOOK_UP, SHOW

SAMPLES_PER_FRAME = OUTPUT_RATE // FRAME_RATE
TOO_LARGE = 10**6
_TURN = re.compile(r"turn (\d+)")
TOOL_OF_TURN = (BOOK.tool.name, LOOK_UP.tool.name, BOOK.tool.name, "", SHOW.name)
STORY = "And then, and then, " * 20


class Chance(Protocol):
    def happens(self, what: str, /) -> bool: ...


# ---- the ears ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hear:
    """Makes `transcript` of what came in before `asked`."""

    asked: Pause | EndOfTurn
    transcript: Transcript
    kind: str = "hear"
    urgency: int = 0
    units: int = 0

    def run(self, context: StepContext) -> object:
        return self


@dataclass(slots=True)
class _Utterance:
    text: str
    guess: str
    finished: bool = False
    first_sample: int = -1
    next_sample: int = 0
    asked: deque[Pause | EndOfTurn] = field(default_factory=deque)

    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case AudioIn(start, pcm):
                if self.first_sample < 0:
                    self.first_sample = self.next_sample = start
                assert start == self.next_sample, "audio is contiguous"
                self.next_sample += len(pcm) // 2
                return (Consumed(len(pcm) // 2),)
            case Pause() | EndOfTurn():
                self.asked.append(item)
            case SpeechResumed():
                self.asked.clear()
            case _:
                raise StageFailure("wrong_item", f"an encoder does not take {type(item).__name__}")
        return ()

    def next_step(self) -> Step | None:
        if self.finished or not self.asked:
            return None
        asked = self.asked[0]
        if isinstance(asked, Pause):
            return _Hear(asked, Transcript(self.guess, asked.sample, settled=True))
        assert self.next_sample >= asked.sample, "the end comes after its audio"
        return _Hear(asked, Transcript(self.text, asked.sample, settled=True, final=True))

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, _Hear)
        if not self.asked or self.asked[0] is not result.asked:
            return ()  # the caller went on meanwhile: a guess amid speech is void
        self.asked.popleft()
        self.finished = result.transcript.final
        return (Publish(result.transcript),)

    def held(self) -> dict[str, int]:
        return {"items": len(self.asked)}

    def close(self) -> None:
        self.asked.clear()


class Ears:
    """The encoder's model; `next_words` gives words that nobody has said before."""

    concurrency = 2
    revision = "ears"

    def __init__(self, mishaps: Chance, next_words: Callable[[], str]) -> None:
        self._mishaps = mishaps
        self._next_words = next_words

    def open_session(self, session: str) -> None:
        pass

    def close_session(self, session: str) -> None:
        pass

    def kept_for(self, session: str) -> dict[str, int]:
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        words = self._next_words()
        guess = f"{words} or" if self._mishaps.happens("short guesses") else words
        if self._mishaps.happens("coughs"):
            words = ""
        return _Utterance(words, guess)

    def close(self) -> None:
        pass


# ---- the mind ----------------------------------------------------------------------------------------


def _call_wanted(options: ThinkerOptions) -> str:
    """The tool that is to be called for what the caller has said last; empty where there is none for it, or where
    something was called since."""
    asked = ""
    for message in options.messages:
        if message.role == "user":
            asked = message.content
        elif message.calls:
            asked = ""
    turn = _TURN.match(asked)
    wanted = TOOL_OF_TURN[int(turn[1]) % len(TOOL_OF_TURN)] if turn else ""
    is_offered = any(tool.name == wanted for tool in callable_now(options.tools, options.tool_choice))
    return f'{wanted} {{"turn": {turn[1]}}}' if turn and is_offered else ""


class Talkative(ScriptedModel):
    """The Thinker's model: now and then it has more to say than it has time. Where it has tools, the turn's number says
    which it calls; it calls none twice."""

    def __init__(self, script: ScriptedOptions, mishaps: Chance) -> None:
        super().__init__("thinker", script)
        self._script = script
        self._mishaps = mishaps

    def open(self, tag: Tag, options: Options) -> StageStream:
        if not isinstance(options, ThinkerOptions):
            return super().open(tag, options)
        call = _call_wanted(options)
        if not call and not self._mishaps.happens("long replies"):
            return super().open(tag, options)
        reply = f"Let me see. @{call}" if call else STORY
        return ScriptedModel("thinker", structs.replace(self._script, replies=(reply,))).open(tag, options)


# ---- the voice ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sound:
    latents: Latents
    units: int
    kind: str = "chunk"
    urgency: int = 1

    def run(self, context: StepContext) -> object:
        return self


@dataclass(slots=True)
class _Voice:
    """The scripted vocoder without its tone: silence of the right length."""

    rate: int
    finished: bool = False
    items: deque[Latents] = field(default_factory=deque)
    seq: int = 0
    samples: int = 0

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Latents):
            raise StageFailure("wrong_item", f"a voice does not take {type(item).__name__}")
        self.items.append(item)
        return ()

    def next_step(self) -> Step | None:
        if self.finished or not self.items:
            return None
        return _Sound(self.items[0], self._samples_in(self.items[0]))

    def _samples_in(self, latents: Latents) -> int:
        return rescale(latents.frames * SAMPLES_PER_FRAME, OUTPUT_RATE, self.rate)

    def finish_step(self, result: object) -> Sequence[Output]:
        latents = self.items.popleft()
        count = self._samples_in(latents)
        audio = AudioOut(self.seq, self.rate, self.samples, bytes(2 * count), latents.final)
        self.seq += 1
        self.samples += count
        self.finished = latents.final
        return (Consumed(latents.frames), Publish(audio, count))

    def held(self) -> dict[str, int]:
        return {"items": len(self.items)}

    def close(self) -> None:
        self.items.clear()


class Voice:
    """The vocoder's model: it makes pieces of several replies at once."""

    concurrency = 1
    revision = "voice"
    batch_max = 3

    def batch_key(self, step: Step) -> str:
        return "any"

    def run_batch(self, steps: Sequence[Step], contexts: Sequence[StepContext]) -> Sequence[object]:
        return [step.run(context) for step, context in zip(steps, contexts, strict=True)]

    def open_session(self, session: str) -> None:
        pass

    def close_session(self, session: str) -> None:
        pass

    def kept_for(self, session: str) -> dict[str, int]:
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        assert isinstance(options, VocoderOptions)
        return _Voice(options.sample_rate)

    def close(self) -> None:
        pass


# ---- what goes wrong ---------------------------------------------------------------------------------


class Fallible:
    """A model whose streams fail by chance: when they are fed, when they plan, and by what they put out."""

    def __init__(self, model: StageModel, mishaps: Chance) -> None:
        self._model = model
        self._mishaps = mishaps

    @property
    def concurrency(self) -> int:
        return self._model.concurrency

    @property
    def revision(self) -> str:
        return self._model.revision

    def open_session(self, session: str) -> None:
        self._model.open_session(session)

    def close_session(self, session: str) -> None:
        self._model.close_session(session)

    def kept_for(self, session: str) -> dict[str, int]:
        return self._model.kept_for(session)

    def open(self, tag: Tag, options: Options) -> StageStream:
        if self._mishaps.happens("streams refused"):
            raise StageFailure("capacity", "by chance")
        return _FallibleStream(self._model.open(tag, options), self._mishaps)

    def close(self) -> None:
        self._model.close()


class FallibleMind(Fallible):
    """The same of a model that keeps KV."""

    def __init__(self, mind: Mind, mishaps: Chance) -> None:
        super().__init__(mind, mishaps)
        self.kv = mind.kv


class FallibleBatches(Fallible):
    """The same of a model that batches."""

    def __init__(self, model: BatchingModel, mishaps: Chance) -> None:
        super().__init__(model, mishaps)
        self._batching = model

    @property
    def batch_max(self) -> int:
        return self._batching.batch_max

    def batch_key(self, step: Step) -> str:
        return self._batching.batch_key(step)

    def run_batch(self, steps: Sequence[Step], contexts: Sequence[StepContext]) -> Sequence[object]:
        return self._batching.run_batch(steps, contexts)


@dataclass(slots=True)
class _FallibleStream:
    stream: StageStream
    mishaps: Chance

    @property
    def finished(self) -> bool:
        return self.stream.finished

    def feed(self, item: Item) -> Sequence[Output]:
        if self.mishaps.happens("feeds failed"):
            raise StageFailure("feed_failed", "by chance")
        return self.stream.feed(item)

    def next_step(self) -> Step | None:
        if self.mishaps.happens("plans failed"):
            raise StageFailure("plan_failed", "by chance")
        return self.stream.next_step()

    def finish_step(self, result: object) -> Sequence[Output]:
        outputs = self.stream.finish_step(result)
        costly = [output for output in outputs if not isinstance(output, Consumed) and output.units]
        if costly and self.mishaps.happens("outputs too large"):
            return [replace(output, units=TOO_LARGE) if output is costly[0] else output for output in outputs]
        return outputs

    def held(self) -> dict[str, int]:
        return self.stream.held()

    def close(self) -> None:
        self.stream.close()
