"""`python -m benchmarks NAME`: starts a service of its own, measures it, prints the figures; exit code 1 on a fault."""

from __future__ import annotations

from duplex import telemetry_off

telemetry_off.apply()

import argparse  # noqa: E402 - telemetry is switched off before anything else is imported
import asyncio  # noqa: E402
import sys  # noqa: E402

from benchmarks import hearing, leaks, page, turns, webrtc_cpu  # noqa: E402


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _run(arguments: argparse.Namespace) -> bool:
    match arguments.name:
        case "voice-to-voice":
            return await turns.voice_to_voice(_say, turns=arguments.turns or 50, calls=arguments.calls)
        case "barge-in":
            return await turns.barge_in(_say, times=arguments.turns or 100)
        case "cancel":
            return await turns.cancel(_say, times=arguments.turns or 100)
        case "recovery":
            return await turns.recovery(_say)
        case "leaks":
            return await leaks.leaks(_say, calls=arguments.turns or 200)
        case "webrtc-cpu":
            return await webrtc_cpu.webrtc_cpu(_say)
        case "page":
            return await page.page(_say, turns=arguments.turns or 10)
        case _:
            return await hearing.hearing(_say)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure the service from the caller's ear.")
    parser.add_argument("name", choices=("voice-to-voice", "barge-in", "cancel", "recovery", "hearing", "leaks", "page", "webrtc-cpu"))
    parser.add_argument("--turns", type=int, default=0, help="how many (default: 50 turns, 100 interruptions, 200 calls, 10 turns in the page)")
    parser.add_argument("--calls", type=int, default=1, help="voice-to-voice: calls at once")
    return 0 if asyncio.run(_run(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
