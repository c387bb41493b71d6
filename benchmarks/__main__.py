"""`python -m benchmarks NAME`: measures a service of its own, or a part of it, and prints the figures; exit code 1 on a
fault."""

from __future__ import annotations

from duplex import telemetry_off

telemetry_off.apply()

import argparse  # noqa: E402 - telemetry is switched off before anything else is imported
import asyncio  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Coroutine  # noqa: E402

from benchmarks import events, hearing, hop, leaks, page, scheduler, vocoder_batches, webrtc_cpu  # noqa: E402
from benchmarks import turns as voice  # noqa: E402


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _torch_omni(say: Callable[[str], None]) -> bool:
    # Only this one needs torch.
    from benchmarks.torch_omni import torch_omni

    return await torch_omni(say)


# Each takes how many turns (0: its own number) and how many calls at once.
MEASUREMENTS: dict[str, Callable[[int, int], Coroutine[None, None, bool]]] = {
    "voice-to-voice": lambda turns, calls: voice.voice_to_voice(_say, turns=turns or 50, calls=calls),
    "barge-in": lambda turns, _: voice.barge_in(_say, times=turns or 100),
    "cancel": lambda turns, _: voice.cancel(_say, times=turns or 100),
    "recovery": lambda _turns, _calls: voice.recovery(_say),
    "hearing": lambda _turns, _calls: hearing.hearing(_say),
    "page": lambda turns, _: page.page(_say, turns=turns or 10),
    "leaks": lambda turns, _: leaks.leaks(_say, calls=turns or 200),
    "hop": lambda chunks, _: hop.hop(_say, chunks or hop.CHUNKS),
    "hop-busy": lambda chunks, _: hop.hop(_say, chunks or hop.CHUNKS, busy=True),
    "torch-omni": lambda _turns, _calls: _torch_omni(_say),
    "webrtc-cpu": lambda _turns, _calls: webrtc_cpu.webrtc_cpu(_say),
    "events": lambda replies, _: events.events(_say, replies or events.REPLIES),
    "scheduler": lambda _turns, _calls: scheduler.scheduler(_say),
    "vocoder-batches": lambda _turns, _calls: vocoder_batches.vocoder_batches(_say),
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure the service from the caller's ear.")
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument("--turns", type=int, default=0, help="how many turns, interruptions or calls; 0: the usual")
    parser.add_argument("--calls", type=int, default=1, help="voice-to-voice: calls at once")
    parser.add_argument("--busy", action="store_true", help="hop: the reader's loop is busy 8 of every 20 ms")
    arguments = parser.parse_args()
    name = "hop-busy" if arguments.busy and arguments.name == "hop" else arguments.name
    return 0 if asyncio.run(MEASUREMENTS[name](arguments.turns, arguments.calls)) else 1


if __name__ == "__main__":
    sys.exit(main())
