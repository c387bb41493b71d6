"""Whisper (CTranslate2 weights) on one CPU thread: audio in, plausible text out.

Theory of operation
    The model is given a window of features: the audio, then silence. It was trained on 30 s windows, which
    cost a CPU too much; below about 8 s it falls into loops. `window_seconds` (10) or the audio and 0.3 s of
    silence, whichever is longer, is both quick and as accurate. Decoding is greedy, without timestamps, and
    suppresses the tokens that the model's configuration names.

Rules for what is believed
* Silence: no sample above 3 steps of 16 bits is not worth a decode: empty text.
* Noise: text without letter or digit is empty; so is text where the model itself sees no speech
  (`no_speech` ≥ 0.6) and is unsure (mean log probability < -1), the rule of Radford et al. 2022, section 4.5.
  What it is known to say to silence (`ARTEFACTS`) is empty if either one is so, with `no_speech` ≥ 0.5.
* Loops: a text is suspicious if a phrase stands in it `LOOP_COPIES_MIN` times in a row, or if it has more tokens
  than can be said in its time. Another window is then tried. Two windows that agree on a sayable text are
  believed (people do say "no, no, no, no"); if neither is plausible, repeated phrases are cut to one copy.
"""

from __future__ import annotations

import hashlib
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ctranslate2
import numpy as np
from numpy.typing import NDArray

from media.mel import HOP_SAMPLES, SAMPLE_RATE, log_mel
from stages.engines.local.utterance import Heard
from stages.stream import StageFailure

SILENT_SAMPLES = 3 * SAMPLE_RATE // 10
RETRY_SAMPLES = 2 * SAMPLE_RATE

SILENCE_PEAK = 3 / 32768
NO_SPEECH_MIN = 0.6
NO_SPEECH_ARTEFACT_MIN = 0.5
LOG_PROB_UNSURE = -1.0
ARTEFACTS = frozenset({"you", "thank you", "thanks", "bye", "thanks for watching", "thank you for watching"})

# The fastest sustained speech is near 5 words, or 7 tokens, a second (digits cost two each).
TOKENS_PER_SECOND_MAX = 7
TOKENS_BASE = 8
TOKENS_PER_SECOND_SAYABLE = 5
LOOP_COPIES_MIN = 4
LOOP_TOKENS_MAX = 24

Cancelled = Callable[[], bool]


def never() -> bool:
    """The default of `cancelled`."""
    return False


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the model said: token ids below the end-of-text token, the mean of their natural log
    probabilities, and the probability that there is no speech."""

    ids: tuple[int, ...]
    mean_log_prob: float
    no_speech: float


class Vocabulary:
    """Byte-level BPE tokens, one a line; decodes ids to text."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """`tokens[i]` is token `i`, its bytes written as printable characters (Radford et al. 2019, GPT-2)."""
        self._tokens = tokens
        self._ids = {token: number for number, token in enumerate(tokens)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in set(printable)]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + order): byte for order, byte in enumerate(others)}

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        return cls(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))

    def id_of(self, token: str) -> int:
        """Raises `KeyError` for a token that is not in the vocabulary."""
        return self._ids[token]

    def text(self, ids: Sequence[int]) -> str:
        """Ids of ordinary tokens as text, blanks at its ends removed; a torn UTF-8 sequence becomes U+FFFD."""
        spelled = "".join(self._tokens[number] for number in ids)
        return bytes(self._bytes[character] for character in spelled).decode("utf-8", "replace").strip()


# ---- what is believed -------------------------------------------------------------------------------


def tokens_max(seconds: float) -> int:
    """More tokens than anybody says in `seconds`."""
    return TOKENS_BASE + math.ceil(TOKENS_PER_SECOND_MAX * seconds)


def is_noise(decoded: Decoded, text: str) -> bool:
    """The text stands for no speech (rules of this module)."""
    if not any(character.isalnum() for character in text):
        return True
    unsure = decoded.mean_log_prob < LOG_PROB_UNSURE
    if unsure and decoded.no_speech >= NO_SPEECH_MIN:
        return True
    artefact = text.strip(string.punctuation).lower() in ARTEFACTS
    return artefact and decoded.no_speech >= NO_SPEECH_ARTEFACT_MIN


def repeated_run(ids: Sequence[int], copies_min: int = LOOP_COPIES_MIN) -> tuple[int, int, int] | None:
    """The first of the shortest phrases said `copies_min` times or more in a row: (start, tokens, copies), or None."""
    for size in range(1, min(LOOP_TOKENS_MAX, len(ids) // copies_min) + 1):
        same = 0
        for index in range(size, len(ids) + 1):
            if index < len(ids) and ids[index] == ids[index - size]:
                same += 1
                continue
            if same >= (copies_min - 1) * size:
                return index - same - size, size, same // size + 1
            same = 0
    return None


def single_copies(ids: tuple[int, ...], copies_min: int = LOOP_COPIES_MIN) -> tuple[int, ...]:
    """`ids` with each phrase that `repeated_run` finds said once; a torn copy at the end is dropped."""
    while (run := repeated_run(ids, copies_min)) is not None:
        start, size, copies = run
        phrase, rest = ids[start : start + size], ids[start + copies * size :]
        torn = phrase[: len(rest)] == rest
        ids = ids[: start + size] + (() if torn else rest)
    return ids


def hear(
    decode: Callable[[int], Decoded],
    vocabulary: Vocabulary,
    *,
    samples: int,
    window_samples: int,
    thorough: bool,
    cancelled: Cancelled,
) -> Heard:
    """Decode `samples` of audio in a window of `window_samples`, judge the result, and mend it if need be.

    `decode` takes the length of a window. With `thorough` a suspicious result is tried again in a longer one.
    """
    limit = tokens_max(samples / SAMPLE_RATE)
    sayable = TOKENS_BASE + TOKENS_PER_SECOND_SAYABLE * samples / SAMPLE_RATE
    first = decode(window_samples)
    if not _suspicious(first, limit):
        return _believed(first, vocabulary)
    if thorough and not cancelled():
        second = decode(window_samples + RETRY_SAMPLES)
        agreed = second.ids == first.ids and len(first.ids) < sayable
        if agreed or not _suspicious(second, limit):
            return _believed(second, vocabulary)
    # Where the limit ended the text, two copies are a loop too.
    copies_min = 2 if len(first.ids) >= limit else LOOP_COPIES_MIN
    text = vocabulary.text(single_copies(first.ids, copies_min))
    return Heard("" if is_noise(first, text) else text, looped=True)


def _suspicious(decoded: Decoded, tokens_limit: int) -> bool:
    return len(decoded.ids) >= tokens_limit or repeated_run(decoded.ids) is not None


def _believed(decoded: Decoded, vocabulary: Vocabulary) -> Heard:
    text = vocabulary.text(decoded.ids)
    return Heard("" if is_noise(decoded, text) else text)


# ---- the model --------------------------------------------------------------------------------------


class Whisper:
    """A Whisper model in CTranslate2's format (`model.bin`, `config.json`, `vocabulary.txt`), English only.

    One call at a time, on one thread. Raises `StageFailure`: `bad_model` when it cannot be loaded,
    `recogniser` when a run fails.
    """

    def __init__(self, model_dir: Path, *, window_seconds: int = 10) -> None:
        self._window_samples = window_seconds * SAMPLE_RATE
        try:
            self._load(model_dir)
        except (OSError, KeyError, ValueError, RuntimeError, StageFailure) as error:
            raise StageFailure("bad_model", f"{model_dir} holds no usable Whisper model: {error}") from error

    def _load(self, model_dir: Path) -> None:
        self._vocabulary = Vocabulary.load(model_dir / "vocabulary.txt")
        self._prompt = [self._vocabulary.id_of(token) for token in ("<|startoftranscript|>", "<|notimestamps|>")]
        self._end_of_text = self._vocabulary.id_of("<|endoftext|>")
        self._revision = _digest(model_dir / "model.bin")
        self._model = ctranslate2.models.Whisper(
            str(model_dir), device="cpu", compute_type="int8", intra_threads=1, inter_threads=1
        )
        if self._model.is_multilingual:
            raise ValueError("it is multilingual, and its prompt would need a language")
        self._warm_up()

    @property
    def revision(self) -> str:
        """Names the weights: the first 12 hex digits of their SHA-256."""
        return self._revision

    def transcribe(self, pcm: NDArray[np.float32], *, thorough: bool = True, cancelled: Cancelled = never) -> Heard:
        """Text of `pcm`, float32 mono within ±1 at 16 kHz, shape `(samples,)`, at most 28 s.

        Each encoder and each decoder pass runs to its end; `cancelled` is asked between them, and then the
        result means nothing.
        """
        if len(pcm) == 0 or float(np.abs(pcm).max()) < SILENCE_PEAK:
            return Heard("")
        needed = math.ceil((len(pcm) + SILENT_SAMPLES) / HOP_SAMPLES) * HOP_SAMPLES
        return hear(
            lambda window_samples: self._decode(pcm, window_samples, cancelled),
            self._vocabulary,
            samples=len(pcm),
            window_samples=max(self._window_samples, needed),
            thorough=thorough,
            cancelled=cancelled,
        )

    def close(self) -> None:
        """Unload the weights."""
        self._model.unload_model()

    def _decode(self, pcm: NDArray[np.float32], window_samples: int, cancelled: Cancelled) -> Decoded:
        features = ctranslate2.StorageView.from_array(log_mel(pcm, window_samples)[None])
        try:
            encoded = self._model.encode(features)
            if cancelled():
                return Decoded((), 0.0, 1.0)
            result = self._model.generate(
                encoded,
                [self._prompt],
                beam_size=1,
                # CTranslate2 splits this limit evenly between the prompt and what is generated.
                max_length=2 * tokens_max(len(pcm) / SAMPLE_RATE),
                return_scores=True,
                return_no_speech_prob=True,
            )[0]
        except (RuntimeError, ValueError) as error:
            raise StageFailure("recogniser", str(error)) from error
        ids = tuple(number for number in result.sequences_ids[0] if number < self._end_of_text)
        return Decoded(ids, float(result.scores[0]), float(result.no_speech_prob))

    def _warm_up(self) -> None:
        """The first run of each kernel is several times slower: let no caller wait for it."""
        tone = np.sin(np.arange(SAMPLE_RATE, dtype=np.float32)) * np.float32(0.1)
        self._decode(tone, self._window_samples, never)


def _digest(path: Path) -> str:
    with path.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()[:12]
