"""What one call over WebRTC costs the gateway, idle and while the service speaks, split by what the time goes to.

The whole is the kernel's count of the gateway's time on the CPU. The split is by samples of its stacks (py-spy), which
need the right to look into another process: of root, or where `kernel.yama.ptrace_scope` is 0.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path

from benchmarks.turns import Say
from tests.live.rtc_caller import RtcCaller, rtc_calling
from tests.live.service import Service, serving

SECONDS = 30
SAMPLES_PER_SECOND = 200
QUESTION = "Tell me a long story about a dog."
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# The innermost frame that one of these names (function, file) gives the part.
_PARTS = (
    ("Opus, encoding", "encode (duplex/webrtc/opus.py"),
    ("Opus, encoding", "silence (duplex/webrtc/opus.py"),
    ("Opus, decoding", "decode (duplex/webrtc/opus.py"),
    ("resampling", "media/resample.py"),
    ("voice activity", "media/vad.py"),
    ("voice activity", "duplex/vad_service.py"),
    ("RTP, SRTP, ICE, SCTP (aiortc)", "aiortc/"),
    ("RTP, SRTP, ICE, SCTP (aiortc)", "aioice/"),
    ("RTP, SRTP, ICE, SCTP (aiortc)", "OpenSSL/"),
    ("packets, playout, conversation (ours)", "duplex/"),
    ("packets, playout, conversation (ours)", "sessions/"),
    ("packets, playout, conversation (ours)", "media/"),
    ("packets, playout, conversation (ours)", "stages/"),
    ("store client", "redis/"),
)
_REST = "event loop and others"


async def webrtc_cpu(say: Say) -> bool:
    """One call for `SECONDS` in silence, then as long in conversation by typed questions, on the local engine."""
    with (
        tempfile.TemporaryDirectory(prefix="duplex-") as data_dir,
        serving(Path(data_dir), {}, engine="local") as service,
    ):
        await _measured(say, "no call", service, _nothing())
        async with rtc_calling(service) as caller:
            await caller.hear_frames(50)
            await _measured(say, "one idle call", service, _nothing())
            await _measured(say, "one call, the service speaking", service, _kept_speaking(caller))
    return True


async def _nothing() -> None:
    return


async def _kept_speaking(caller: RtcCaller) -> None:
    """Ask again whenever a reply is over."""
    while True:
        since = len(caller.events)
        await caller.ask(QUESTION)
        await caller.until("output_audio_buffer.stopped", since=since)


async def _measured(say: Say, name: str, service: Service, work: Coroutine[None, None, None]) -> None:
    """The gateway's share of a core over `SECONDS` beside `work`, and its parts."""
    pid = service.pid_of("gateway")
    working = asyncio.create_task(work)
    with tempfile.NamedTemporaryFile(prefix="duplex-") as samples:
        began_ticks, began_s = _ticks(pid), time.monotonic()
        await _sampled(pid, samples.name)
        share = (_ticks(pid) - began_ticks) / TICKS_PER_SECOND / (time.monotonic() - began_s)
        parts = _parts(samples.read().decode())
    working.cancel()
    await asyncio.wait([working])
    say(f"{name}: {100 * share:.1f} % of a core")
    for part, count in parts.most_common():
        say(f"    {part:<40} {100 * share * count / parts.total():5.2f} %")


async def _sampled(pid: int, file: str) -> None:
    command = ("record", "--pid", str(pid), "--duration", str(SECONDS), "--rate", str(SAMPLES_PER_SECOND))
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("py-spy")),
        *(*command, "--format", "raw", "--output", file),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the gateway's stacks cannot be sampled: {said.decode()[-300:]}")


def _ticks(pid: int) -> int:
    """The kernel's clock ticks that the process has had, of user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _parts(samples: str) -> Counter[str]:
    """Samples by part. A line is a stack, outermost frame first, and how often it was seen."""
    found: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        found[_part(stack.split(";"))] += int(count)
    return found


def _part(stack: list[str]) -> str:
    for frame in reversed(stack):
        for part, mark in _PARTS:
            if mark in frame:
                return part
    return _REST
