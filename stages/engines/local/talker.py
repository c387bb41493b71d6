"""The Talker stage: clauses of text to latent frames and word times, with the acoustic half of a Piper voice.

Theory of operation
    A clause is written out as words, phonemes and ids, and cut into phrases that one bounded run of the model can say.
    A step says one phrase. Its durations place every display word on the response's sample clock and show how much
    silence surrounds the speech; what is too much is cut off in whole latent frames:

        before   at most `LEAD_MS_MAX`; `LEAD_MS_FIRST_MAX` at the start of the response and amid a sentence
        after    at most `TAIL_MS_…_MAX`, by the mark that ends the phrase; none marks a cut amid a sentence

    The voice itself makes the pauses: it was taught what a comma and a full stop sound like.

Rules
* The words of a phrase are published before its latents are emitted. A clause that is cut into phrases publishes
  several `WordTimes`; a word is published with the phrase in which it ends.
* Words never overlap and never run past the frames that are emitted. A silent word has no length.
* The same clauses, options and voice give the same latents: noise is drawn from (seed, clause, phrase).
* The credit of a clause's characters goes back when its last phrase has been said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.contracts import Clause, Item, Latents, Options, Tag, TalkerOptions, Word, WordTimes
from stages.engines.local.acoustics import Acoustics, Plan, Speech, load_acoustics
from stages.engines.local.loaded_voices import LoadedVoices, voice_name
from stages.engines.local.voice import ITEM_FRAMES_MAX, Phrase
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream, StepContext

# OpenAI's range of `speed` (API reference, audio.output.speed).
SPEED_MIN, SPEED_MAX = 0.25, 1.5

# The bytes of an item: what a link's frame of 16 KiB has room for beside the envelope.
ITEM_BYTES_MAX = 15 * 1024

# A clause is a few dozen characters; this only bounds what a faulty producer can make us hold.
CLAUSE_CHARS_MAX = 4_096
CLAUSES_WAITING_MAX = 256

# Silence before speech adds to the time to first audible sample. Sound starts up to 17 ms (1.5 frames) after the
# frames of the start symbol, so 24 ms (2 frames) of them leave at most 40 ms; at least 1 frame keeps the onset whole.
LEAD_MS_FIRST_MAX = 24
LEAD_MS_MAX = 60
# Measured natural pauses of Piper voices after a sentence are 140-300 ms and after a comma 130-260 ms; with the lead
# of the next clause these leave about 280 ms, 220 ms and, amid a sentence, 90 ms.
SENTENCE_MARKS = ".?!"
TAIL_MS_SENTENCE_MAX = 220
TAIL_MS_COMMA_MAX = 165
TAIL_MS_CUT_MAX = 70


class TalkerModel:
    """`StageModel` of the Talker for the Piper voices in `voices`, each configured by its file's name plus `.json`.

    The first one speaks where none is asked for. Halves are kept in `cache_dir`. Raises `UnsupportedVoiceError` and
    `OSError`.
    """

    def __init__(
        self, voices: Sequence[Path], cache_dir: Path, load: Callable[[Path, Path], Acoustics] = load_acoustics
    ) -> None:
        self._voices = LoadedVoices({voice_name(path): load(path, cache_dir) for path in voices})

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def revision(self) -> str:
        return self._voices.digest

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """A response to be spoken. Raises `StageFailure("wrong_options")` for another stage's options, another voice
        or a speed that no model can speak at."""
        if not isinstance(options, TalkerOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the Talker")
        return TalkerStream(self._voices.find(options.voice), options)

    def close(self) -> None:
        """The session ends with its last reference."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a step brings back: a clause's plan, and its next phrase said."""

    plan: Plan
    speech: Speech


@dataclass(frozen=True, slots=True)
class SayPhrase:
    """Say phrase `number` of a clause; writes the clause out first where that was not done."""

    acoustics: Acoustics
    clause: Clause
    plan: Plan | None
    number: int
    options: TalkerOptions
    urgency: int
    kind: str = "acoustic"
    units: int = 0

    def run(self, context: StepContext) -> Said | None:  # noqa: ARG002 - bounded, so it need not ask
        """None: words are still being guessed, so the step is to be run again."""
        speed = self.options.speed
        plan = self.plan or self.acoustics.plan(self.clause.text, speed)
        if plan is None:
            return None
        seed = (self.options.seed, self.clause.index, self.number)
        return Said(plan, self.acoustics.say(plan.phrases[self.number], speed, seed))


class TalkerStream:
    """`StageStream` of one response. Clauses in, word times and latents out."""

    def __init__(self, acoustics: Acoustics, options: TalkerOptions) -> None:
        if not SPEED_MIN <= options.speed <= SPEED_MAX:
            raise StageFailure("wrong_options", f"speed {options.speed} is not within {SPEED_MIN} to {SPEED_MAX}")
        if options.seed < 0:
            raise StageFailure("wrong_options", f"seed {options.seed} is negative")
        self._acoustics = acoustics
        self._options = options
        self._waiting: deque[Clause] = deque()
        self._clauses_taken = 0
        self._ended = False
        self._plan: Plan | None = None
        self._phrase = 0
        self._frames = 0
        self._pauses = False
        self._word_start: int | None = None
        self._finished = False
        self._unknown_symbols = 0

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def unknown_symbols(self) -> int:
        """Phonemes so far that the voice does not have and that were left out."""
        return self._unknown_symbols

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Clause):
            raise StageFailure("wrong_item", f"the Talker does not take {type(item).__name__}")
        if self._ended or item.index != self._clauses_taken:
            raise StageFailure("wrong_item", f"clause {item.index} after {self._clauses_taken}, ended: {self._ended}")
        if len(item.text) > CLAUSE_CHARS_MAX or len(self._waiting) >= CLAUSES_WAITING_MAX:
            raise StageFailure("input_overrun", f"{len(item.text)} characters with {len(self._waiting)} clauses before")
        self._clauses_taken += 1
        self._ended = item.final
        self._waiting.append(item)
        return ()

    def next_step(self) -> SayPhrase | None:
        if not self._waiting:
            return None
        clause = self._waiting[0]
        urgency = 0 if clause.index == 0 else 1
        return SayPhrase(self._acoustics, clause, self._plan, self._phrase, self._options, urgency)

    def finish_step(self, result: object) -> Sequence[Output]:
        if result is None:
            return ()
        assert isinstance(result, Said), "only the result of a SayPhrase comes back"
        clause, phrases = self._waiting[0], result.plan.phrases
        ends_clause = self._phrase + 1 == len(phrases)
        outputs = self._outputs(clause, phrases[self._phrase], result, ends_clause)
        self._unknown_symbols += result.plan.unknown if ends_clause else 0
        self._plan, self._phrase = (None, 0) if ends_clause else (result.plan, self._phrase + 1)
        if ends_clause:
            self._waiting.popleft()
            self._finished = clause.final
            outputs.append(Consumed(max(1, len(clause.text))))
        return outputs

    def held(self) -> dict[str, int]:
        return {"characters": sum(max(1, len(clause.text)) for clause in self._waiting)}

    def close(self) -> None:
        self._waiting.clear()
        self._plan = None

    # ---- from speech to outputs -----------------------------------------------------------------------------

    def _outputs(self, clause: Clause, phrase: Phrase, said: Said, ends_clause: bool) -> list[Output]:
        first, end = self._kept(phrase, said.speech)
        latents = said.speech.latents[first:end]
        edges = np.clip(np.concatenate(([0], np.cumsum(said.speech.durations))) - first, 0, end - first)
        words = self._words(said.plan, phrase, edges)
        outputs: list[Output] = []
        if words:
            outputs.append(Publish(WordTimes(clause.index, self._acoustics.config.audio.sample_rate, words)))
        outputs.extend(self._pieces(latents, ends_clause, clause.final and ends_clause))
        if len(latents):
            self._frames += len(latents)
            self._pauses = bool(phrase.mark)
        return outputs

    def _kept(self, phrase: Phrase, speech: Speech) -> tuple[int, int]:
        """The frames to keep, of all that were made: [first, end)."""
        made = len(speech.latents)
        lead = int(speech.durations[: phrase.lead].sum())
        tail = int(speech.durations[phrase.tail :].sum())
        follows_pause = self._frames > 0 and self._pauses
        lead_max = self._acoustics.frames(LEAD_MS_MAX if follows_pause else LEAD_MS_FIRST_MAX)
        tail_max = self._acoustics.frames(_tail_ms_max(phrase.mark))
        return max(0, lead - max(1, lead_max)), made - max(0, tail - tail_max)

    def _words(self, plan: Plan, phrase: Phrase, edges: npt.NDArray[np.int64]) -> tuple[Word, ...]:
        """The display words that end in `phrase`; `edges` are the frames at which its ids begin and end."""
        words = []
        for span in phrase.spans:
            start, end = (self._sample(int(edges[place])) for place in (span.first, span.end))
            start = start if self._word_start is None else self._word_start
            self._word_start = None if span.whole else start
            if span.whole:
                words.append(Word(plan.words[span.word].display, start, end))
        return tuple(words)

    def _sample(self, frame: int) -> int:
        return (self._frames + frame) * self._acoustics.hop

    def _pieces(self, latents: npt.NDArray[np.float32], ends_clause: bool, final: bool) -> list[Output]:
        if not len(latents):
            return [Emit(Latents(self._frames, 0, b"", final=True), 0)] if final else []
        size = min(ITEM_FRAMES_MAX, ITEM_BYTES_MAX // (latents.itemsize * latents.shape[1]))
        pieces: list[Output] = []
        for start in range(0, len(latents), size):
            piece = latents[start : start + size]
            is_last = start + size >= len(latents)
            item = Latents(
                self._frames + start, len(piece), piece.tobytes(), is_last and ends_clause, is_last and final
            )
            pieces.append(Emit(item, len(piece)))
        return pieces


def _tail_ms_max(mark: str) -> int:
    if not mark:
        return TAIL_MS_CUT_MAX
    return TAIL_MS_SENTENCE_MAX if mark in SENTENCE_MARKS else TAIL_MS_COMMA_MAX
