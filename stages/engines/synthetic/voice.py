"""The synthetic Talker and vocoder: they speak words of any text as coded tones (`media.coded_tones`).

Theory of operation
    A latent frame is one symbol of 12.5 ms: its number, or -1 for silence, in the first of the channels. The Talker
    counts the words of the response and gives each its sixteen symbols; the vocoder turns symbols into their tones. So
    each sample tells the response, whose number is `response_number` of its id, and the word, whose number is its place
    in the text.

Rules
* The Talker hands on items of `chunk_then` frames, the response's first of `chunk_first`; the vocoder makes one chunk
  of each. The last item is final and holds no frames.
* `speed`, `seed` and `voice` change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from media.coded_tones import RATES, SYMBOL_RATE, render, response_number
from media.pcm import float_to_pcm16
from media.word_code import FIELD, SYMBOLS, WORDS, Symbols, codeword
from stages.contracts import (
    AudioOut,
    Clause,
    Item,
    Latents,
    Options,
    Tag,
    TalkerOptions,
    VocoderOptions,
    Word,
    WordTimes,
)
from stages.engines.synthetic.profile import TalkerProfile, VocoderProfile
from stages.engines.synthetic.work import Cost, TimedModel, TimedStream, Want, Work, wrong_item, wrong_options
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream

SILENT_SYMBOL = -1
BYTES_PER_VALUE = 4


class Talker(TimedModel):
    """`StageModel`."""

    def __init__(self, profile: TalkerProfile) -> None:
        super().__init__(profile)
        self._profile = profile
        self._work = Work("talker", profile, {"clause": Cost(profile.clause_ms, profile.word_ms)})

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Raises `StageFailure("wrong_options")` for another stage's options."""
        if not isinstance(options, TalkerOptions):
            raise wrong_options("Talker", options)
        return _Speech(self._work, self._profile, response_number(tag.response))


class _Speech(TimedStream):
    def __init__(self, work: Work, profile: TalkerProfile, response: int) -> None:
        super().__init__(work)
        self._profile = profile
        self._response = response
        self._clauses: deque[Clause] = deque()
        self._taken = 0
        self._words = 0
        self._ended = False

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Clause) or self._ended or item.index != self._taken:
            raise wrong_item("Talker", item)
        self._taken += 1
        self._ended = item.final
        self._clauses.append(item)
        return ()

    def want(self) -> Want | None:
        if not self._clauses:
            return None
        clause = self._clauses[0]
        return Want("clause", len(clause.text.split()), about=clause.index, urgency=1 if clause.index else 0)

    def came(self, want: Want) -> Sequence[Output]:
        clause = self._clauses.popleft()
        words = clause.text.split()
        if self._words + want.count > WORDS:
            raise StageFailure("reply_too_long", f"a word of a response is one of {WORDS}")
        outputs = [*self._times(clause.index, words), *self._items(want.count)]
        self._words += want.count
        if clause.final:
            self.finished = True
            end = self._words * self._profile.frames_per_word
            outputs.append(Emit(Latents(end, 0, b"", clause_end=True, final=True), 0))
        return [*outputs, Consumed(max(1, len(clause.text)))]

    def _times(self, clause: int, words: list[str]) -> list[Output]:
        length = self._profile.frames_per_word
        starts = range(self._words * length, (self._words + len(words)) * length, length)
        # A word is over when its tones are: the pause behind it is not part of it.
        times = tuple(Word(text, start, start + SYMBOLS) for text, start in zip(words, starts, strict=True))
        return [Publish(WordTimes(clause, SYMBOL_RATE, times))] if times else []

    def _items(self, words: int) -> list[Output]:
        frames = np.full((words, self._profile.frames_per_word), SILENT_SYMBOL, dtype="<f4")
        for row in range(words):
            frames[row, :SYMBOLS] = codeword(self._response, self._words + row)
        first = self._words * self._profile.frames_per_word
        latents = np.zeros((frames.size, self._profile.channels), dtype="<f4")
        latents[:, 0] = frames.ravel()
        items: list[Output] = []
        at = 0
        while at < frames.size:
            size = self._profile.chunk_then if first + at else self._profile.chunk_first
            piece = latents[at : at + size]
            ends = at + size >= frames.size
            items.append(Emit(Latents(first + at, len(piece), piece.tobytes(), clause_end=ends), len(piece)))
            at += size
        return items

    def held(self) -> dict[str, int]:
        return {"characters": sum(max(1, len(clause.text)) for clause in self._clauses)}


class Vocoder(TimedModel):
    """`StageModel`."""

    def __init__(self, profile: VocoderProfile) -> None:
        super().__init__(profile)
        costs = {"first_chunk": Cost(profile.first_chunk_ms), "chunk": Cost(profile.chunk_ms), "final": Cost()}
        self._work = Work("vocoder", profile, costs)

    def open(self, tag: Tag, options: Options) -> StageStream:  # noqa: ARG002 - the symbols tell the response
        """Raises `StageFailure("wrong_options")` for another stage's options, or a rate without whole symbols."""
        if not isinstance(options, VocoderOptions):
            raise wrong_options("vocoder", options)
        if options.sample_rate not in RATES:
            raise StageFailure("wrong_options", f"sample rate {options.sample_rate} is not one of {RATES}")
        return _Sound(self._work, options.sample_rate)


class _Sound(TimedStream):
    def __init__(self, work: Work, sample_rate: int) -> None:
        super().__init__(work)
        self._rate = sample_rate
        self._items: deque[Latents] = deque()
        self._frames_taken = 0
        self._frames_made = 0
        self._ended = False
        self._seq = 0

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Latents) or self._ended or item.start_frame != self._frames_taken:
            raise wrong_item("vocoder", item)
        _symbols_in(item)
        self._frames_taken += item.frames
        self._ended = item.final
        self._items.append(item)
        return ()

    def want(self) -> Want | None:
        if not self._items:
            return None
        item = self._items[0]
        samples = item.frames * self._rate // SYMBOL_RATE
        kind = "final" if not item.frames else "chunk" if item.start_frame else "first_chunk"
        return Want(kind, about=self._seq, urgency=1 if item.start_frame else 0, units=samples)

    def came(self, want: Want) -> Sequence[Output]:
        item = self._items.popleft()
        start = self._frames_made * self._rate // SYMBOL_RATE
        audio = AudioOut(
            self._seq, self._rate, start, float_to_pcm16(render(_symbols_in(item), self._rate)), item.final
        )
        self._frames_made += item.frames
        self._seq += 1
        self.finished = item.final
        return (Publish(audio, want.units), Consumed(item.frames))

    def held(self) -> dict[str, int]:
        return {"frames": self._frames_taken - self._frames_made}


def _symbols_in(item: Latents) -> Symbols:
    """Raises `StageFailure("wrong_item")` where these are no symbols, such as latents of another engine's Talker."""
    channels, rest = divmod(len(item.data), max(1, item.frames) * BYTES_PER_VALUE)
    if rest or bool(channels) != bool(item.frames):
        raise StageFailure("wrong_item", f"{len(item.data)} bytes for {item.frames} frames")
    values = np.frombuffer(item.data, dtype="<f4")[:: max(1, channels)]
    if not ((values >= SILENT_SYMBOL) & (values < FIELD)).all():
        raise StageFailure("wrong_item", "what came are no symbols of coded tones")
    return values.astype(np.int64)
