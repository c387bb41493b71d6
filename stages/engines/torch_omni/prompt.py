"""Prompts as the Thinker reads them: a position for each token of text and each embedding of sound.

Theory of operation
    A message becomes `<im_start> role \\n content <im_end> \\n`. What was said aloud has the turn's sound for content,
    between `<audio_start>` and `<audio_end>`. Every position has a key: the token's id, or for sound a negative
    number that no other embedding of the session ever has. Prompts that agree in their first n keys agree in their
    first n positions of KV.

Rules
* A prompt that is still growing ends in the middle of its last message; what comes later only adds to it.
* The Talker speaks from the callers' messages and from the header of the answer, and from nothing else.

What it cannot represent: words. There is no tokenizer for random weights: text is read byte by byte, and every token
is written as its number, `<700>`. What was written so is read back as the same tokens, so a reply that returns as
history finds its KV.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stages.contracts import Message

PROMPT_FORM = "qwen3-omni-1"  # a change of what is rendered here makes it another
SOUND_POSITIONS_MAX = 1 << 20  # of one sound: far beyond any context

_WRITTEN = re.compile(r"<(\d{1,6})>|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of special tokens, of the 256 bytes (`first_byte` on), and how many ids there are.

    `<audio_end>` follows `<audio_start>`, as it does in Qwen3-Omni's own vocabulary.
    """

    size: int
    first_byte: int
    im_start: int
    im_end: int
    audio_start: int
    roles: Mapping[str, int]

    def read(self, text: str) -> list[int]:
        """The tokens of `text`. A number in brackets that names a special token is read byte by byte."""
        return [token for match in _WRITTEN.finditer(text) for token in self._tokens(match[0], match[1])]

    def _tokens(self, text: str, number: str | None) -> Sequence[int]:
        if number is not None and self.first_byte <= int(number) < self.size and number == str(int(number)):
            return (int(number),)
        return [self.first_byte + byte for byte in text.encode("utf-8", "replace")]

    @staticmethod
    def write(token: int) -> str:
        return f"<{token}>"


@dataclass(slots=True)
class Sound:
    """The embeddings of what was said in one turn, as far as they have come. `number` is never given twice."""

    number: int
    rows: list[object] = field(default_factory=list)
    complete: bool = False

    def key(self, index: int) -> int:
        return -1 - (self.number * SOUND_POSITIONS_MAX + index)


def sound_place(key: int) -> tuple[int, int]:
    """The number of the sound and the index in it that `key`, a negative one, stands for."""
    return divmod(-1 - key, SOUND_POSITIONS_MAX)


@dataclass(slots=True)
class Rendered:
    """The keys of a prompt's positions, and of which of them the Talker speaks."""

    keys: list[int] = field(default_factory=list)
    spoken: list[bool] = field(default_factory=list)

    def add(self, keys: Sequence[int], *, spoken: bool) -> None:
        self.keys += keys
        self.spoken += [spoken] * len(keys)


def render(
    messages: Sequence[Message], sounds: Mapping[int, Sound], vocabulary: Vocabulary, *, answer: bool
) -> Rendered:
    """The prompt of `messages`. With `answer` it ends in the header of the answer, else it may still grow."""
    rendered = Rendered()
    newline = vocabulary.read("\n")
    for number, message in enumerate(messages, 1):
        is_open = number == len(messages) and not answer
        is_spoken = message.role == "user"
        rendered.add([vocabulary.im_start, vocabulary.roles[message.role], *newline], spoken=is_spoken)
        rendered.add(list(_content(message, sounds, vocabulary)), spoken=is_spoken)
        if not is_open:
            rendered.add([vocabulary.im_end, *newline], spoken=is_spoken)
    if answer:
        rendered.add([vocabulary.im_start, vocabulary.roles["assistant"], *newline], spoken=True)
    return rendered


def _content(message: Message, sounds: Mapping[int, Sound], vocabulary: Vocabulary) -> Iterator[int]:
    sound = None if message.audio_turn is None else sounds.get(message.audio_turn)
    if sound is None:
        yield from vocabulary.read(message.content)
        return
    yield vocabulary.audio_start
    yield from (sound.key(index) for index in range(len(sound.rows)))
    if sound.complete:
        yield vocabulary.audio_start + 1


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many keys two prompts share from their start."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])
