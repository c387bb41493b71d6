"""What short calls leave behind: threads, tasks, descriptors and memory of the gateway, cycle by cycle.

A call asks in text, hears the beginning of the reply and is gone in the middle of it, which leaves most to clean up.
A cycle is as many calls over WebRTC and then over WebSocket. The first fills caches and the allocator's free lists;
what the second adds is what a service would gain for as long as it runs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.turns import Say
from tests.live.caller import calling
from tests.live.rtc_caller import rtc_calling, until_free
from tests.live.service import Service, serving

CYCLES = 2
GROWTH_MAX = 0.01  # of the second cycle
REPLY = "This is a reply that goes on until the caller has had enough of it."
KIB = 1024


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the gateway's process holds while no call is on; memory in bytes, resident."""

    threads: float
    tasks: float
    descriptors: float
    memory: float

    @property
    def counts(self) -> tuple[float, ...]:
        return self.threads, self.tasks, self.descriptors

    def __str__(self) -> str:
        counts = f"threads {self.threads:3.0f}   tasks {self.tasks:3.0f}   descriptors {self.descriptors:3.0f}"
        return f"{counts}   memory {self.memory / KIB / KIB:7.2f} MiB"


async def leaks(say: Say, *, calls: int) -> bool:
    """Cycles of `calls` over each transport; good where the second added nothing but 1 % of memory."""
    settings = {"scripted_replies": REPLY, "webrtc_silence_s": "2"}
    with tempfile.TemporaryDirectory(prefix="duplex-") as data_dir, serving(Path(data_dir), settings) as service:
        held = [_holdings(service)]
        say(f"before                  {held[0]}")
        for cycle in range(1, CYCLES + 1):
            for transport, one_call in (("WebRTC", _over_webrtc), ("WebSocket", _over_websocket)):
                for _ in range(calls):
                    await one_call(service)
                await until_free(service)
                held.append(_holdings(service))
                say(f"cycle {cycle}, {calls} {transport:<9} {held[-1]}")
    return _is_level(say, held)


def _is_level(say: Say, held: Sequence[Holdings]) -> bool:
    before, after = held[-3], held[-1]
    growth = after.memory / before.memory - 1
    counts = "the same" if after.counts == before.counts else "CHANGED"
    say(f"the second cycle added {growth:.2%} of memory; counts {counts}")
    return after.counts <= before.counts and growth <= GROWTH_MAX


def _holdings(service: Service) -> Holdings:
    names = ("duplex_threads", "duplex_tasks", "process_open_fds", "process_resident_memory_bytes")
    return Holdings(*map(service.metric, names))


async def _over_webrtc(service: Service) -> None:
    async with rtc_calling(service) as caller:
        await caller.ask("Talk to me.")
        await caller.until("output_audio_buffer.started")
        await caller.wait_for(caller.is_audible)
    await until_free(service)


async def _over_websocket(service: Service) -> None:
    await asyncio.to_thread(_call_websocket, service)
    await until_free(service)


def _call_websocket(service: Service) -> None:
    with calling(service) as caller:
        caller.type_text("Talk to me.")
        caller.send("response.create")
        caller.until("response.output_audio.delta")
