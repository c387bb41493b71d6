"""The Talker stage: clauses of text to latent frames and word times, with the acoustic half of a Piper voice.

Theory of operation
    A clause is written out as words, phonemes and ids, and cut into phrases that one bounded run of the model can say.
    A step says one phrase. Its durations place every display word on the response's sample clock and show how much
    silence surrounds the speech; what is too much is cut off in whole latent frames:

        before   at most `LEAD_MS_FIRST_MAX` where it would be waited for, `LEAD_MS_MAX` elsewhere
        after    at most `TAIL_MS_MAX`, by the mark that ends the phrase; none marks a cut amid a sentence

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stages.contracts import Clause, Item, Latents, Options, Tag, TalkerOptions, Word, WordTimes
from stages.engines.local.onnx_session import OnnxSession, open_session
from stages.engines.local.phonemes import Phonemizer, PhonemeWord
from stages.engines.local.piper_split import split_voice
from stages.engines.local.text_normal import SpokenWord, spoken_words
from stages.engines.local.voice import Phrase, VoiceConfig, load_voice
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream, StepContext

# OpenAI's range of `speed` (API reference, audio.output.speed).
SPEED_MIN, SPEED_MAX = 0.25, 1.5

# A run costs about 0.4 ms per id at natural speed (0.6 on a busy core), half of it for the ids and half for the frames
# that they stretch to: 160 ids are at most 100 ms.
IDS_PER_STEP_MAX = 160

# An item must fit into a link's frame (16 KiB) beside its envelope.
PIECE_FRAMES_MAX = 16
PIECE_BYTES_MAX = 15 * 1024

# A clause is a few dozen characters; this only bounds what a faulty producer can make us hold.
CLAUSE_CHARS_MAX = 4_096
CLAUSES_WAITING_MAX = 256

# Silence before speech adds to the time to first audible sample. Sound starts up to 17 ms (1.5 frames) after the
# frames of the start symbol, so 24 ms (2 frames) of them leave at most 40 ms; at least 1 frame keeps the onset whole.
LEAD_MS_FIRST_MAX = 24
LEAD_MS_MAX = 60
# Measured natural pauses of Piper voices after a sentence are 140-300 ms and after a comma 130-260 ms; with the lead
# of the next clause these leave about 300 ms, 220 ms and, amid a sentence, 90 ms.
TAIL_MS_SENTENCE_MAX = 245
TAIL_MS_COMMA_MAX = 165
TAIL_MS_CUT_MAX = 70

# Values of noise per run; a run that needs more reads them again from the start. 65,536 cover 341 frames of 192
# channels, more than a run of `IDS_PER_STEP_MAX` has at natural speed.
NOISE_VALUES = 65_536


class Speaker(Protocol):
    """What turns spoken words into phonemes: `phonemes.Phonemizer`, or a fake."""

    def warm_up(self) -> None: ...

    def phonemes(self, words: Sequence[SpokenWord]) -> tuple[PhonemeWord, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A clause written out. `unknown` counts symbols that the voice does not have."""

    words: tuple[SpokenWord, ...]
    phrases: tuple[Phrase, ...]
    unknown: int


@dataclass(frozen=True, slots=True)
class Speech:
    """A phrase as the model said it: float32 latents (frame, channel), and int64 durations in frames, one per id."""

    latents: npt.NDArray[np.float32]
    durations: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Acoustics:
    """One voice's acoustic half and all that it takes to feed it. `frame_samples` is at `config.audio.sample_rate`."""

    config: VoiceConfig
    speaker: Speaker
    session: OnnxSession
    channels: int
    frame_samples: int

    def plan(self, text: str, speed: float) -> Plan | None:
        """What is said for `text`; None: come again (see `Phonemizer`)."""
        words = spoken_words(text)
        phonemes = self.speaker.phonemes(words)
        if phonemes is None:
            return None
        # Half of the cost of an id lies in its frames, which slow speech multiplies.
        ids_max = int(2 * IDS_PER_STEP_MAX / (1 + max(1.0, 1 / speed)))
        phrases, unknown = self.config.phrases(phonemes, ids_max)
        return Plan(words, phrases, unknown)

    def say(self, phrase: Phrase, speed: float, seed: Sequence[int]) -> Speech:
        """Run the model. `phrase` has ids."""
        noise = np.random.default_rng(seed).standard_normal(NOISE_VALUES, dtype=np.float32)
        inference = self.config.inference
        scales = (inference.noise_scale, inference.length_scale / speed, inference.noise_w)
        latents, durations = self.session.run(
            None,
            {
                "input": np.array([phrase.ids], dtype=np.int64),
                "input_lengths": np.array([len(phrase.ids)], dtype=np.int64),
                "scales": np.array(scales, dtype=np.float32),
                "duration_noise": noise[: 2 * len(phrase.ids)],
                "latent_noise": noise[2 * len(phrase.ids) :],
            },
        )
        return Speech(np.ascontiguousarray(latents[0].T), durations.reshape(-1).astype(np.int64))

    def frames(self, milliseconds: int) -> int:
        """Whole frames in `milliseconds`, rounded down."""
        return milliseconds * self.config.audio.sample_rate // (1000 * self.frame_samples)


class TalkerModel:
    """`StageModel` of the Talker for the Piper voice in `voice`, configured by the file of that name plus `.json`.

    Halves are kept in `cache_dir`. Raises `UnsupportedVoiceError` and `OSError`.
    """

    def __init__(self, voice: Path, cache_dir: Path) -> None:
        config = load_voice(voice.with_name(f"{voice.name}.json"))
        halves = split_voice(voice, cache_dir)
        speaker = Phonemizer()
        session = open_session(halves.acoustic)
        self._acoustics = Acoustics(config, speaker, session, halves.channels, halves.hop)
        self._revision = halves.digest
        self._voice = voice.name.removesuffix(".onnx")
        self._warm_up()

    def _warm_up(self) -> None:
        self._acoustics.speaker.warm_up()
        plan = self._acoustics.plan("Hello.", 1.0)
        assert plan is not None, "a greeting needs no guesses"
        self._acoustics.say(plan.phrases[0], 1.0, (0,))

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def revision(self) -> str:
        return self._revision

    @property
    def sample_rate(self) -> int:
        """The voice's own, that of `WordTimes`."""
        return self._acoustics.config.audio.sample_rate

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def open(self, tag: Tag, options: Options) -> StageStream:
        """A response to be spoken. Raises `StageFailure("wrong_options")` for another stage's options, another voice
        or a speed that no model can speak at."""
        if not isinstance(options, TalkerOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the Talker")
        if options.voice not in ("", self._voice):
            raise StageFailure("wrong_options", f"voice {options.voice!r}; this worker speaks as {self._voice!r}")
        return TalkerStream(self._acoustics, options)

    def close(self) -> None:
        """The session ends with its last reference."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a step brings back: no plan yet (words are still being guessed), or a plan and its next phrase said;
    a phrase without ids has no speech."""

    plan: Plan | None
    speech: Speech | None = None


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

    def run(self, context: StepContext) -> Said:  # noqa: ARG002 - bounded, so it need not ask
        speed = self.options.speed
        plan = self.plan or self.acoustics.plan(self.clause.text, speed)
        if plan is None or not plan.phrases[self.number].ids:
            return Said(plan)
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
        self._pauses = True
        self._word_start: int | None = None
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

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
        assert isinstance(result, Said), "only the result of a SayPhrase comes back"
        if result.plan is None:
            return ()
        self._plan = result.plan
        clause, phrase = self._waiting[0], result.plan.phrases[self._phrase]
        self._phrase += 1
        ends_clause = self._phrase == len(result.plan.phrases)
        outputs = self._outputs(clause, result.plan, phrase, result.speech, ends_clause)
        if ends_clause:
            self._waiting.popleft()
            self._plan, self._phrase = None, 0
            self._finished = clause.final
            outputs.append(Consumed(max(1, len(clause.text))))
        return outputs

    def held(self) -> dict[str, int]:
        return {"characters": sum(max(1, len(clause.text)) for clause in self._waiting)}

    def close(self) -> None:
        self._waiting.clear()
        self._plan = None

    # ---- from speech to outputs -----------------------------------------------------------------------------

    def _outputs(
        self, clause: Clause, plan: Plan, phrase: Phrase, speech: Speech | None, ends_clause: bool
    ) -> list[Output]:
        if speech is None:
            first = end = 0
            latents = np.zeros((0, self._acoustics.channels), dtype=np.float32)
            edges = np.zeros(1, dtype=np.int64)
        else:
            first, end = self._kept(phrase, speech)
            latents = speech.latents[first:end]
            edges = np.clip(np.concatenate(([0], np.cumsum(speech.durations))) - first, 0, end - first)
            self._pauses = bool(phrase.mark)
        outputs: list[Output] = []
        words = self._words(plan, phrase, edges)
        if words:
            outputs.append(Publish(WordTimes(clause.index, self._acoustics.config.audio.sample_rate, words)))
        outputs.extend(self._pieces(latents, ends_clause, clause.final and ends_clause))
        self._frames += end - first
        return outputs

    def _kept(self, phrase: Phrase, speech: Speech) -> tuple[int, int]:
        """The frames to keep, of all that were made: [first, end)."""
        made = len(speech.latents)
        lead = int(speech.durations[: phrase.spans[0].first].sum())
        tail = int(speech.durations[phrase.tail :].sum())
        is_waited_for = self._frames == 0 or not self._pauses
        lead_max = self._acoustics.frames(LEAD_MS_FIRST_MAX if is_waited_for else LEAD_MS_MAX)
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
        return (self._frames + frame) * self._acoustics.frame_samples

    def _pieces(self, latents: npt.NDArray[np.float32], ends_clause: bool, final: bool) -> list[Output]:
        size = min(PIECE_FRAMES_MAX, PIECE_BYTES_MAX // latents[:0].dtype.itemsize // latents.shape[1])
        starts = range(0, len(latents), size) or (range(1) if ends_clause and self._must_say_end(final) else ())
        pieces: list[Output] = []
        for start in starts:
            piece = latents[start : start + size]
            is_last = start + size >= len(latents)
            item = Latents(
                self._frames + start, len(piece), piece.tobytes(), is_last and ends_clause, is_last and final
            )
            pieces.append(Emit(item, len(piece)))
        return pieces
