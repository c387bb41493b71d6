"""Timelines written by hand, in milliseconds from the first voiced sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.turn_taking.labels import Kind
from benchmarks.turn_taking.observation import Mark, Note, Observation, Sound

MS = 1_000_000
START_MS = 60_000  # where the first voiced sample lies on the clock; no figure may depend on it

Times = tuple[int, int]


def at(ms: int) -> int:
    return (START_MS + ms) * MS


def seen(
    kind: Kind = Kind.INTERRUPTION,
    *,
    over: bool = True,
    voiced: Sequence[Times] = ((0, 800),),
    reply: Sequence[Times] = (),
    answer: Sequence[Times] = (),
    notes: Sequence[tuple[Mark, int, str]] = (),
    words: Mapping[str, int] | None = None,
    closed: int = 3_000,
    wants_answer: bool = True,
    spoilt: str = "",
) -> Observation:
    """`reply` are sounds of the response that is spoken over, `answer` those of another."""
    sounds = [Sound("reply", at(start), at(end)) for start, end in reply]
    sounds += [Sound("answer", at(start), at(end)) for start, end in answer]
    return Observation(
        number=0,
        kind=kind,
        label="said",
        wants_answer=wants_answer,
        over="reply" if over else None,
        voiced=tuple((at(start), at(end)) for start, end in voiced),
        sounds=tuple(sorted(sounds, key=lambda sound: sound.start_ns)),
        notes=tuple(Note(mark, at(ms), response) for mark, ms, response in notes),
        words=words or {},
        closed_ns=at(closed),
        spoilt=spoilt,
    )
