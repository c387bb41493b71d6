"""What the event log costs: an event by itself, and a reply through real processes with the log and without.

Theory of operation
    First this process writes into a log, and in turn calls what stands in for one where nothing is recorded. Then two
    services run side by side, with the synthetic engine and steps that take no time, so that all of their CPU is the
    pipeline's own: one records events, the other (`events_max = 0`) does not. They answer the same question in turn;
    counted is what the kernel gave to the threads of each one's processes while it answered.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import percentile
from stages.event_log import EventKind, EventLog, Trail
from tests.live.caller import Caller, calling
from tests.live.service import Service, serving

Say = Callable[[str], None]

EVENTS = 200_000
ROUNDS = 7
REPLIES = 20
WORDS = 15  # 3 s of speech
WORKERS = ("thinker", "talker", "vocoder")
PROFILE = f"""
[encoder]
final_ms = 0
settle_ms = 0
[thinker]
prefill_ms_per_token = 0
word_ms = 0
reply_words = {WORDS}
[talker]
clause_ms = 0
word_ms = 0
[vocoder]
first_chunk_ms = 0
chunk_ms = 0
"""


@dataclass(slots=True)
class Side:
    """One of the two services. CPU in ns, of the workers and of the gateway, for each chunk of each reply."""

    service: Service
    caller: Caller
    workers_ns: list[float] = field(default_factory=list)
    gateway_ns: list[float] = field(default_factory=list)
    chunks: float = 0
    events: float = 0

    def answer(self) -> None:
        before = self._counts()
        self.caller.type_text("Talk to me.")
        self.caller.send("response.create")
        self.caller.until("response.drained")
        workers_ns, gateway_ns, chunks, events = (b - a for a, b in zip(before, self._counts(), strict=True))
        self.workers_ns.append(workers_ns / chunks)
        self.gateway_ns.append(gateway_ns / chunks)
        self.chunks += chunks
        self.events += events

    def _counts(self) -> tuple[float, float, float, float]:
        """CPU of the workers and of the gateway, chunks made, events recorded, all so far."""
        figures = self.service.get("/metrics").body.decode().splitlines()
        named = [line.rsplit(" ", 1) for line in figures if line.startswith("duplex_")]
        chunks = sum(float(value) for name, value in named if "service_seconds_count" in name and "vocoder" in name)
        events = sum(float(value) for name, value in named if name.startswith("duplex_events_recorded"))
        workers_ns = sum(cpu_ns(self.service.pid_of(worker)) for worker in WORKERS)
        return workers_ns, cpu_ns(self.service.pid_of("gateway")), chunks, events


def cpu_ns(pid: int) -> int:
    """What the kernel has given to the threads of a process so far (proc(5), schedstat)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads)


def written_ns(trail: Trail) -> float:
    """CPU of one call that enters an event."""
    began_ns = time.process_time_ns()
    for number in range(EVENTS):
        trail.add(EventKind.CREDIT_TAKEN, number, "gateway", "audio")
    return (time.process_time_ns() - began_ns) / EVENTS


async def events(say: Say, replies: int) -> bool:
    """Print the cost of an event, and of the chunks of `replies` replies of each service."""
    event_ns = _by_itself(say)
    with ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duplex-"))) / "profile.toml"
        profile.write_text(PROFILE, encoding="ascii")
        with_log, without = (_side(stack, profile, **more) for more in ({}, {"events_max": "0"}))
        for turn in range(replies + 1):
            for side in (with_log, without) if turn % 2 else (without, with_log):
                side.answer()
    return _report(say, with_log, without, event_ns)


def _by_itself(say: Say) -> float:
    log, none = EventLog(), EventLog(0)
    recorded, nothing = log.of("sess_1", "resp_1"), none.of("sess_1", "resp_1")
    rounds = [(written_ns(recorded), written_ns(nothing)) for _ in range(ROUNDS)]
    on_ns, off_ns = (percentile(side, 0.5) for side in zip(*rounds, strict=True))
    say(f"one event: {on_ns:.0f} ns of CPU, call and loop included; {off_ns:.0f} ns where nothing is recorded")
    began_ns = time.process_time_ns()
    for _ in range(ROUNDS):
        log.read(session="nobody")
    say(f"a reading through the whole log: {(time.process_time_ns() - began_ns) / ROUNDS / 1e6:.2f} ms")
    return on_ns


def _side(stack: ExitStack, profile: Path, **more: str) -> Side:
    data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duplex-")))
    settings = {"synthetic_profile": str(profile), "max_output_tokens": str(WORDS), **more}
    service = stack.enter_context(serving(data_dir, settings, engine="synthetic"))
    return Side(service, stack.enter_context(calling(service)))


def _report(say: Say, with_log: Side, without: Side, event_ns: float) -> bool:
    """Medians over the replies, the first of each service left out. False where the log of neither, or of both, ran."""
    say(f"CPU for each chunk of a reply, us, medians of {len(with_log.workers_ns) - 1} replies each")
    for name, on, off in (
        ("three workers", with_log.workers_ns, without.workers_ns),
        ("gateway", with_log.gateway_ns, without.gateway_ns),
    ):
        on_us, off_us = (percentile(values[1:], 0.5) / 1e3 for values in (on, off))
        ratios = [one / other for one, other in zip(on[1:], off[1:], strict=True)]
        low, middle, high = (percentile(ratios, share) for share in (0.25, 0.5, 0.75))
        say(
            f"{name:<14} with the log {on_us:6.0f}   without {off_us:6.0f}   "
            f"ratio reply by reply {middle:.3f}, quartiles {low:.3f} and {high:.3f}"
        )
    each = with_log.events / with_log.chunks
    whole_us = (percentile(without.workers_ns[1:], 0.5) + percentile(without.gateway_ns[1:], 0.5)) / 1e3
    reckoned_us = each * event_ns / 1e3
    say(
        f"events for each chunk: {each:.0f}; at {event_ns:.0f} ns, {reckoned_us:.1f} us or {reckoned_us / whole_us:.2%}"
    )
    return with_log.events > 0 and without.events == 0
