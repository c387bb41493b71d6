"""Speak a text from beginning to end in this process, without workers, links or credit.

For the command line and for test audio. The streams are driven exactly as a worker drives them, only that every step
runs at once and nothing ever has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from media.chunk import rescale
from stages.contracts import AudioOut, Clause, Item, Tag, TalkerOptions, VocoderOptions, Word, WordTimes
from stages.engines.local.text_normal import spoken_words
from stages.stream import Emit, Output, Publish, StageModel, StageStream

# Text that never pauses is cut after this many characters.
CLAUSE_CHARS_MAX = 200


def speak(
    text: str,
    talker: StageModel,
    vocoder: StageModel,
    sample_rate: int,
    options: TalkerOptions = TalkerOptions(),  # noqa: B008 - frozen
) -> tuple[bytes, tuple[Word, ...]]:
    """Say `text`: PCM16 mono at `sample_rate`, and its words, `start` and `end` in samples at `sample_rate`.

    Raises `StageFailure` for options or a sample rate that the models cannot serve.
    """
    tag = Tag("say", 0, 0, "say")
    talking, voicing = talker.open(tag, options), vocoder.open(tag, VocoderOptions(sample_rate))
    pcm: list[bytes] = []
    words: list[Word] = []

    def hear(output: Output) -> None:
        match output:
            case Publish(AudioOut(pcm=part)):
                pcm.append(part)
            case Publish(WordTimes(sample_rate=rate, words=said)):
                words.extend(_rescaled(word, rate, sample_rate) for word in said)
            case Emit(item):
                _drive(voicing, item, hear)

    for clause in _clauses(text):
        _drive(talking, clause, hear)
    assert talking.finished, "the final clause has been said"
    assert voicing.finished, "the final latents have been heard"
    talking.close()
    voicing.close()
    return b"".join(pcm), tuple(words)


def _drive(stream: StageStream, item: Item, hear: Callable[[Output], None]) -> None:
    """Feed `item` and run every step that it makes possible."""
    _each(stream.feed(item), hear)
    while (step := stream.next_step()) is not None:
        _each(stream.finish_step(step.run(Undisturbed())), hear)


def _each(outputs: Sequence[Output], hear: Callable[[Output], None]) -> None:
    for output in outputs:
        hear(output)


class Undisturbed:
    """The `StepContext` of a step that nobody cancels and nothing stalls."""

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:  # noqa: ARG002 - no time passes
        return False

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError(f"{len(outputs)} outputs early: these stages hand over at the end of a step")


def _rescaled(word: Word, from_rate: int, to_rate: int) -> Word:
    return Word(word.text, rescale(word.start, from_rate, to_rate), rescale(word.end, from_rate, to_rate))


def _clauses(text: str) -> Iterator[Clause]:
    """`text` cut behind each word that a pause follows."""
    parts, part = list[str](), ""
    for word in spoken_words(text):
        part = f"{part} {word.display}".strip()
        if word.mark or len(part) >= CLAUSE_CHARS_MAX:
            parts.append(part)
            part = ""
    if part or not parts:
        parts.append(part)
    for index, part in enumerate(parts):
        yield Clause(index, part, index == len(parts) - 1)
