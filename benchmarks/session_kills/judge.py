"""One conversation against its history: what was promised of it, and what of that was broken.

Rules
* A checkpoint is an item that the store had when something was killed: it stays. What the client was told is complete,
  and was not stored yet, is counted apart (`told_lost`): no more is promised than what the store has acknowledged.
* A word counts as heard when nothing of it is missing but what the ear cannot tell (`EDGE_SAMPLES`).
* Sound that comes late on a machine that is full tears words, and loses none of them.
* A turn is answered once: by one message, and one more for what came of each call, which may come turns later.
* *Stale* is sound of a response whose end the client had been told, or that belongs to a connection before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.coded_ear import WordHeard
from media.chunk import ms_to_samples
from media.coded_tones import EAR_RATE, EDGE_SAMPLES

# Two neighbouring pieces of a word may each be reported a little long (`media.coded_tones`).
REPEATED_MS_MAX = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """An item of the history, as a client that resumes gets it. `text`: of a message, or the output of a call."""

    id: str
    kind: str
    role: str = ""
    text: str = ""
    possibly_heard: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """What reached the ear of one response, whose item is `item`. `end`: how it ended, as the client was told on the
    same connection; empty where it was not. `gapless`: all that came of it follows on each other, so what the ear lacks
    came too late, in pieces too short to be told."""

    item: str
    words: tuple[WordHeard, ...]
    stale_samples: int = 0
    end: str = ""
    gapless: bool = False


@dataclass(frozen=True, slots=True)
class CallTold:
    """Of one conversation, over all of its connections. `told`: ids of the caller's items that were said to be
    complete, in that order; `checkpoints`: of the items that the store had at a kill."""

    told: tuple[str, ...]
    checkpoints: frozenset[str]
    replies: tuple[ReplyHeard, ...]
    history: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one conversation, and what is wrong with it; `possibly_heard` counts words that are marked so. `missed` tells
    of each reply of which words are in no history."""

    turns: int
    words_heard: int
    possibly_heard: int
    faults: Mapping[str, int]
    told_lost: int
    missed: tuple[str, ...] = ()


def judge(call: CallTold, asked: Sequence[str]) -> Finding:
    """`asked`: the idempotency keys of all requests that the tool's server got in the service's life, in any call."""
    by_id = {kept.id: kept for kept in call.history}
    spoken = [_words_of(reply) for reply in call.replies]
    unaccounted = [
        _unaccounted(words, by_id.get(reply.item)) for words, reply in zip(spoken, call.replies, strict=True)
    ]
    counts = {
        "checkpoints lost": len(call.checkpoints - by_id.keys()),
        "out of order": _out_of_order(call),
        "words in no history": sum(unaccounted),
        "heard twice or with a gap": sum(map(_is_broken, spoken, call.replies)),
        "duplicate turns": _duplicates(call.history),
        "stale samples": sum(reply.stale_samples for reply in call.replies),
        "repeated side effects": _repeated(call.history, asked),
        "calls without outcome": len(_calls(call.history) - _outputs(call.history)),
    }
    return Finding(
        turns=sum(kept.role == "user" for kept in call.history),
        words_heard=sum(map(len, spoken)),
        possibly_heard=sum(len(kept.possibly_heard.split()) for kept in call.history),
        faults={name: count for name, count in counts.items() if count},
        told_lost=len(set(call.told) - by_id.keys() - call.checkpoints),
        missed=tuple(
            _missed(reply, by_id.get(reply.item))
            for reply, missing in zip(call.replies, unaccounted, strict=True)
            if missing
        ),
    )


def effects_in_no_history(histories: Sequence[Sequence[Kept]], asked: Sequence[str]) -> int:
    """Calls that the tool's server was asked for, and that no conversation knows of."""
    known = {call for history in histories for call in _calls(history)}
    return len(set(asked) - known)


# ---- words -------------------------------------------------------------------------------------------------


def _words_of(reply: ReplyHeard) -> list[WordHeard]:
    return [word for word in reply.words if word.lost_samples <= EDGE_SAMPLES]


def _unaccounted(words: Sequence[WordHeard], kept: Kept | None) -> int:
    """The voice names words by their place in the reply: those beyond as many as history has are in none."""
    known = 0 if kept is None else len(f"{kept.text} {kept.possibly_heard}".split())
    return sum(word.word >= known for word in words)


def _missed(reply: ReplyHeard, kept: Kept | None) -> str:
    heard = [(word.word, word.lost_samples) for word in reply.words]
    return f"{reply.item}, {reply.end or 'not ended'}: heard (word, samples lost) {heard}, in history {kept}"


def _is_broken(words: Sequence[WordHeard], reply: ReplyHeard) -> bool:
    repeated = any(word.repeated_samples > ms_to_samples(REPEATED_MS_MAX, EAR_RATE) for word in words)
    numbers = [word.word for word in words]
    if reply.gapless:
        return repeated or numbers != sorted(set(numbers))
    return repeated or numbers != list(range(len(words)))


# ---- turns and calls ---------------------------------------------------------------------------------------


def _out_of_order(call: CallTold) -> int:
    """How many of the told items follow one that they preceded."""
    places = {kept.id: place for place, kept in enumerate(call.history)}
    told = [places[item] for item in call.told if item in places]
    return sum(later <= earlier for earlier, later in pairwise(told))


def _duplicates(history: Sequence[Kept]) -> int:
    """Ids and the caller's typed words that are there twice, and answers to a turn beyond those that it may have."""
    twice = sum(count - 1 for count in Counter(kept.id for kept in history).values())
    typed = Counter(kept.text for kept in history if kept.role == "user" and kept.kind == "typed")
    turns, outputs, more = 1, 0, 0
    for kept in history:
        if kept.role == "user":
            turns = 1
        elif kept.kind == "function_call_output":
            outputs += 1
        elif kept.role == "assistant" and kept.kind == "message":
            more += not (turns or outputs)
            turns, outputs = (0, outputs) if turns else (0, max(0, outputs - 1))
    return twice + sum(count - 1 for count in typed.values()) + more


def _repeated(history: Sequence[Kept], asked: Sequence[str]) -> int:
    times = Counter(asked)
    return sum(max(0, times[call] - 1) for call in _calls(history))


def _calls(history: Sequence[Kept]) -> set[str]:
    return {kept.call_id for kept in history if kept.kind == "function_call"}


def _outputs(history: Sequence[Kept]) -> set[str]:
    return {kept.call_id for kept in history if kept.kind == "function_call_output"}
