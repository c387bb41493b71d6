"""What a published chunk costs each process in CPU, with one reply and with fifty, beside the bare transport of it.

Theory of operation
    The synthetic engine waits as a GPU would, so nearly all that is measured is ours: steps, links, playout, protocol.
    Callers ask again when a reply is over. Over a window, the CPU of each process is divided by the chunks of sound
    that the vocoder published; each is 187.5 ms of sound, and some nine frames for the caller. The floor sends as many
    bytes through as many processes at the same pace (`benchmarks.bare_chain`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.bare_chain import ROLES, Chain, running_chain
from benchmarks.drain import CALLERS, drained_service
from benchmarks.processes import cpu_ns
from benchmarks.turns import Say
from media.coded_tones import render
from media.pcm import float_to_pcm16
from media.word_code import codeword
from stages.contracts import AudioOut, Clause, Latents, Tag
from stages.engines.synthetic.profile import ITEM_FRAMES_MAX
from stages.messages import Feed, Published, encode
from tests.live.cancelling import CancellingCaller, cancelling
from tests.live.deeds import BETWEEN_CALLS_S
from tests.live.service import Service

WORDS = 20  # of a reply: as many as the service's profile gives
RATE = 24_000
CHUNK_S = 0.1875
CHUNK_SAMPLES = int(CHUNK_S * RATE)
FRAMES_PER_CHUNK = 9
WINDOW_S = {1: 20.0, CALLERS: 10.0}
SETTLE_S = 4.0
STAGES = ("thinker", "talker", "vocoder")


async def chunk_cpu(say: Say) -> bool:
    """µs of CPU for each chunk, by process."""
    with drained_service() as service:
        for calls, window_s in WINDOW_S.items():
            ours, frame_bytes = await _measure_service(service, calls, window_s)
            floor = await _measure_floor(calls, window_s / 2, frame_bytes)
            _report(say, calls, ours, floor)
    say(f"of the vocoder's, making the tones takes {_tones_us():.0f} us")
    return True


async def _measure_service(service: Service, calls: int, window_s: float) -> tuple[dict[str, float], int]:
    """CPU in µs for each chunk, and the bytes of a frame's message to the caller."""
    callers: list[CancellingCaller] = []
    asking = [asyncio.create_task(_keep_asking(service.address, number, callers)) for number in range(calls)]
    await asyncio.sleep(calls * BETWEEN_CALLS_S + SETTLE_S)
    pids = {part: service.pid_of(part) for part in ("gateway", *STAGES, "encoder", "store")}
    chunks, before = _chunks(service), {part: cpu_ns(pid) for part, pid in pids.items()}
    await asyncio.sleep(window_s)
    made = _chunks(service) - chunks
    cost = {part: (cpu_ns(pid) - before[part]) / made / 1_000 for part, pid in pids.items()}
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return cost, sum(one.sound_bytes for one in callers) // sum(one.frames for one in callers)


async def _keep_asking(address: str, number: int, callers: list[CancellingCaller]) -> None:
    await asyncio.sleep(number * BETWEEN_CALLS_S)
    async with cancelling(address) as caller:
        callers.append(caller)
        while True:
            await caller.ask(WORDS)
            await caller.drained(await caller.started())


def _chunks(service: Service) -> float:
    kinds = ("first_chunk", "chunk")
    return sum(service.metric(f'duplex_stage_service_seconds_count{{kind="{kind}",stage="vocoder"}}') for kind in kinds)


async def _measure_floor(streams: int, window_s: float, frame_bytes: int) -> dict[str, float]:
    frames = 0

    def count(_stream: int) -> None:
        nonlocal frames
        frames += 1

    with tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        chain = Chain(folder, streams, CHUNK_S, FRAMES_PER_CHUNK, _sizes(frame_bytes))
        async with running_chain(chain, count) as pids:
            await asyncio.sleep(2 * CHUNK_S)
            sent, before, began_s = frames, {role: cpu_ns(pid) for role, pid in pids.items()}, time.monotonic()
            await asyncio.sleep(window_s)
            used = {role: cpu_ns(pid) - before[role] for role, pid in pids.items()}
            chunks = (frames - sent) / FRAMES_PER_CHUNK
            wanted = streams * (time.monotonic() - began_s) / CHUNK_S
            assert chunks > 0.9 * wanted, "the floor keeps the pace"
    return {role: ns / chunks / 1_000 for role, ns in used.items()}


def _sizes(frame_bytes: int) -> dict[str, int]:
    """Of what each process hands on for a chunk, as our links carry it."""
    tag = Tag("sess_0123456789abcdef01234567", 1 << 20, 1, "resp_0123456789abcdef01234567")
    frames: Sequence[tuple[str, Feed | Published]] = (
        ("thinker", Feed(tag, Clause(0, "w0 w1 w2 w3 w4 w5,"), 18)),
        ("talker", Feed(tag, Latents(0, ITEM_FRAMES_MAX, bytes(4 * ITEM_FRAMES_MAX)), ITEM_FRAMES_MAX)),
        ("vocoder", Published(tag, AudioOut(0, RATE, 0, bytes(2 * CHUNK_SAMPLES)))),
    )
    return {role: 4 + len(encode(frame)) for role, frame in frames} | {"gateway": frame_bytes}


def _report(say: Say, calls: int, ours: dict[str, float], floor: dict[str, float]) -> None:
    say(f"{calls} {'reply' if calls == 1 else 'replies'} at once: us of CPU for each chunk of {1_000 * CHUNK_S} ms")
    say(f"    {'process':<10}{'service':>10}{'floor':>10}{'ratio':>8}")
    for role in reversed(ROLES):
        say(f"    {role:<10}{ours[role]:>10.0f}{floor[role]:>10.0f}{ours[role] / floor[role]:>8.1f}")
    total, least = sum(ours[role] for role in ROLES), sum(floor.values())
    say(f"    {'all four':<10}{total:>10.0f}{least:>10.0f}{total / least:>8.1f}")
    say(f"    {'encoder':<10}{ours['encoder']:>10.0f}\n    {'store':<10}{ours['store']:>10.0f}")


def _tones_us() -> float:
    """What the engine itself takes for a chunk: no cost of ours."""
    symbols = np.resize(np.asarray(codeword(1, 1), dtype=np.int64), ITEM_FRAMES_MAX)
    times = 200
    began_ns = time.thread_time_ns()
    for _ in range(times):
        float_to_pcm16(render(symbols, RATE))
    return (time.thread_time_ns() - began_ns) / times / 1_000
