"""The shell of the evaluation: voices, a service of its own, a few calls at once, two files at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from benchmarks.service import running_service
from benchmarks.turn_taking import corpus, report
from benchmarks.turn_taking.examiner import INSTRUCTIONS, Examiner
from benchmarks.turn_taking.labels import TURNS, Event
from benchmarks.turn_taking.voices import Voices
from loadtest import realtime_wire as wire
from loadtest.caller import MonotonicClock
from loadtest.errors import CallError
from loadtest.line import Line
from loadtest.realtime_client import RealtimeConnection, Target, connect, open_session
from media.audio_format import FormatName

CALLS_MAX = 4
EVENTS_MAX = 1_000
# The longest that an event can take, twice, with all waits at their limits.
EVENT_S_MAX = 150
# A reply must last longer than an event over it.
REPLY_TOKENS = 160
SYNTHETIC_PROFILE = "[thinker]\nreply_words = 60\n"
SCRIPTED_REPLY = " ".join(["word"] * 60)

Say = Callable[[str], None]


class TurnEnd(StrEnum):
    """What ends the caller's turn: the silence of `server_vad`, or `semantic_vad` by words, or by words and sound."""

    SILENCE = "silence"
    WORDS = "words"
    SOUND = "sound"


class LineKind(StrEnum):
    """How sound travels, both ways: PCM16 of 24 kHz, or mu-law of 8 kHz."""

    WIDEBAND = "wideband"
    TELEPHONE = "telephone"


FORMATS: dict[LineKind, FormatName] = {LineKind.WIDEBAND: "audio/pcm", LineKind.TELEPHONE: "audio/pcmu"}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be evaluated. `turns_only`: of the events only the caller's turns, which are made in silence."""

    engine: str
    events: int
    seed: int
    calls: int
    out: Path
    cache: Path
    turn_end: TurnEnd = TurnEnd.SILENCE
    turns_only: bool = False
    line: LineKind = LineKind.WIDEBAND

    @property
    def stem(self) -> str:
        """What its report is called: all that is not as usual has a place in it."""
        unusual = {self.turn_end, self.line} - {TurnEnd.SILENCE, LineKind.WIDEBAND}
        return "-".join([self.engine, str(self.seed), *sorted(unusual)])


async def evaluate(order: Order, say: Say) -> bool:
    """Whether every event happened. Raises `VoicesMissing`; RuntimeError where no service comes about, TimeoutError."""
    plans = [one for one in corpus.plan(order.seed, order.events) if one.kind in TURNS or not order.turns_only]
    voices = Voices(order.cache)
    events = [await asyncio.to_thread(corpus.build, one, voices.speak) for one in plans]
    say(f"{len(events)} events, seed {order.seed} ({corpus.part_of(order.seed)}); starting the service")
    order.out.mkdir(parents=True, exist_ok=True)
    began_ns = time.monotonic_ns()
    async with running_service(order.engine, **_settings(order)) as service:
        progress = _Progress(len(events), say)
        shares = [events[call :: order.calls] for call in range(order.calls)]
        async with asyncio.timeout(EVENT_S_MAX * len(shares[0])), asyncio.TaskGroup() as calls:
            talks = [calls.create_task(_talk(service.url, share, order, progress)) for share in shares]
    examiners = [talk.result() for talk in talks]
    run = report.Evaluation(
        *(order.engine, order.seed, order.calls, (time.monotonic_ns() - began_ns) / 1e9),
        max(one.lateness_p99_ms for one in examiners),
        tuple(error for one in examiners for error in one.errors),
        tuple(seen for one in examiners for seen in one.observations),
        order.turn_end,
        order.line,
    )
    stem = order.out / order.stem
    stem.with_suffix(".json").write_text(report.to_json(run), encoding="utf-8")
    stem.with_suffix(".md").write_text(report.to_markdown(run), encoding="utf-8")
    say(report.short(run))
    say(f"{stem}.md and .json hold the figures")
    return len(run.observations) == len(events) and not any(seen.spoilt for seen in run.observations)


def _settings(order: Order) -> dict[str, str]:
    """Long replies, and places for the callers. Before the first one the examples are read: a filler would bridge that,
    and be taken for the reply that an event is over."""
    settings = {"max_output_tokens": str(REPLY_TOKENS), "calls_max": str(CALLS_MAX), "filler": ""}
    settings["turn_end_by_sound"] = str(order.turn_end is TurnEnd.SOUND)
    if order.engine == "scripted":
        settings["scripted_replies"] = SCRIPTED_REPLY
    if order.engine == "synthetic":
        profile = order.out / "synthetic.toml"
        profile.write_text(SYNTHETIC_PROFILE, encoding="utf-8")
        settings["synthetic_profile"] = str(profile.absolute())
    return settings


class _Progress:
    """Tells a person what the calls do."""

    def __init__(self, total: int, say: Say) -> None:
        self._total = total
        self._done = 0
        self.say = say

    def tell(self, examiner: Examiner, told: int) -> int:
        """Tell of the observations from `told` on; how many there are now."""
        for seen in examiner.observations[told:]:
            self._done += 1
            outcome = seen.spoilt or ("heard over a reply" if seen.over else "heard in silence")
            self.say(f"{self._done:>4}/{self._total}  {seen.kind}: {seen.label}  ({outcome})")
        return len(examiner.observations)


def _session(order: Order) -> wire.SessionSettings:
    """What the caller asks for."""
    asked = wire.settings(INSTRUCTIONS, None, FORMATS[order.line])
    if order.turn_end is TurnEnd.SILENCE:
        return asked
    heard = msgspec.structs.replace(asked.audio.input, turn_detection=wire.TurnDetection(type="semantic_vad"))
    return msgspec.structs.replace(asked, audio=wire.Audio(heard, asked.audio.output))


async def _talk(url: str, events: Sequence[Event], order: Order, progress: _Progress) -> Examiner:
    """One call. Where it breaks, what was seen until then is kept, and the other calls go on."""
    examiner, clock = Examiner(events, Line(FORMATS[order.line])), MonotonicClock()
    try:
        async with connect(Target.parse(url)) as connection:
            opened = await open_session(connection, _session(order), None)
            for message in examiner.begin(clock.now_ns()):
                await connection.send(message)
            for event in opened.events:
                examiner.on_event(event, clock.now_ns())
            await _converse(connection, examiner, clock, progress)
    except CallError as fault:
        progress.say(f"a call broke: {fault}")
    return examiner


async def _converse(
    connection: RealtimeConnection, examiner: Examiner, clock: MonotonicClock, progress: _Progress
) -> None:
    """Speak and listen until all has happened. Raises `CallError`."""
    listening = asyncio.create_task(_listen(connection, examiner, clock))
    index = told = 0
    try:
        while not examiner.finished and not listening.done():
            await clock.sleep_until(examiner.deadline_ns(index))
            for message in examiner.frame(index, clock.now_ns()):
                await connection.send(message)
            told = progress.tell(examiner, told)
            index += 1
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


async def _listen(connection: RealtimeConnection, examiner: Examiner, clock: MonotonicClock) -> None:
    while True:
        examiner.on_event(await connection.receive(), clock.now_ns())
