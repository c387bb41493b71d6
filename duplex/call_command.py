"""`duplex call`: place one simulated call to a running service and report what the caller heard.

Rules
* Results go to standard output, progress to standard error.
* Secrets come from a file or the environment (`DUPLEX_TOKEN`, `DUPLEX_RESUME`), never from the URL. Those of carriers
  are in the files that the service itself is given (`DUPLEX_TWILIO_AUTH_TOKEN_FILE` and so on).
* A carrier calls as if a telephone rang there: it needs no account and no network but the way to the service.
* Exit codes: 0 all turns answered and no fault in the sound, 1 the call went wrong, 2 bad usage, 3 no connection.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from duplex import config
from duplex.config import Config
from duplex.pipeline import voice_options
from loadtest.caller import Call, Clock, MonotonicClock
from loadtest.carriers.doors import AsteriskDoor, TelnyxDoor, TwilioDoor
from loadtest.carriers.phone_call import Door, PhoneCall, PhonePlan
from loadtest.errors import CallError, TargetError
from loadtest.realtime_client import ResumeTicket, Target
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.report import to_json, to_text
from loadtest.timeline import CallPlan
from loadtest.turns import CallOutcome, SilentUtteranceError, Utterance
from media.audio_format import FORMATS, FormatName
from media.wav import WavError, read_wav, write_wav
from stages.stream import StageFailure, StageModel
from stages.weights import WeightsError

EXIT_OK = 0
EXIT_WENT_WRONG = 1
EXIT_USAGE = 2
EXIT_NO_CONNECTION = 3

TURN_TIMEOUT_S = 30.0

RESUMABLE = frozenset({CallOutcome.CONNECTION_LOST, CallOutcome.INTERRUPTED_BY_USER})

CARRIERS = {
    "twilio": "call as Twilio: URL is the voice webhook (http, https), or a media stream (ws, wss)",
    "telnyx": "call as Telnyx, whose media stream URL takes",
    "asterisk": "call as Asterisk, whose WebSocket channel connects to URL",
}
DOORS: dict[str, Callable[[str, str | None, Path | None], Door]] = {
    "twilio": TwilioDoor,
    "telnyx": TelnyxDoor,
    "asterisk": AsteriskDoor,
}
# What only a Realtime session has, and only a telephone.
REALTIME_OPTIONS = ("cancel_after", "resume", "return_for", "silence_ms", "instructions", "format")
PHONE_OPTIONS = ("keys", "keys_after", "hang_up_after")
KEYS = frozenset("0123456789*#")

FORMAT_NAMES: dict[str, FormatName] = {name.removeprefix("audio/"): name for name in FORMATS}

# Makes PCM16 mono at the given rate from text.
Say = Callable[[str, int], bytes]


@dataclass(frozen=True, slots=True)
class Console:
    """Where a command writes: results to `out`, everything else to `err`."""

    out: TextIO
    err: TextIO

    def result(self, text: str) -> None:
        self.out.write(text if text.endswith("\n") else text + "\n")
        self.out.flush()

    def progress(self, line: str) -> None:
        self.err.write(line + "\n")
        self.err.flush()


@dataclass(frozen=True, slots=True)
class WavSource:
    """An utterance from a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class SaySource:
    """An utterance to be spoken by the local voice."""

    text: str


class UsageError(Exception):
    """The command line asks for what cannot be done: the user must act."""


def add_call_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Define `call`."""
    parser = subparsers.add_parser(
        "call",
        help="talk to a running service and measure what a caller hears",
        description="Place one call over the Realtime WebSocket, or as a telephone carrier does. Utterances are said "
        "in the order given; each waits for the reply to the one before, or interrupts it.",
    )
    add = parser.add_argument
    add("url", help="http(s):// or ws(s)://host:port, with or without a path")
    carriers = parser.add_mutually_exclusive_group()
    for carrier, what in CARRIERS.items():
        carriers.add_argument(f"--{carrier}", dest="carrier", action="store_const", const=carrier, help=what)
    add("--wav", dest="sources", action="append", type=_wav_source, metavar="FILE", help="say this file; repeatable")
    add("--say", dest="sources", action="append", type=SaySource, metavar="TEXT", help="say this text; repeatable")
    stops = parser.add_mutually_exclusive_group()
    stops.add_argument(
        "--barge-in-after", type=_seconds, metavar="SECONDS", help="interrupt each reply with the next utterance"
    )
    stops.add_argument("--cancel-after", type=_seconds, metavar="SECONDS", help="cancel each reply by command")
    add("--out", type=Path, metavar="FILE", help="write the replies as heard, on the call's timeline, as WAV")
    add("--json", action="store_true", help="report as JSON")
    add("--turn-timeout", type=_seconds, default=TURN_TIMEOUT_S, metavar="SECONDS", help="longest wait for a reply")
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the bearer token, otherwise DUPLEX_TOKEN is used; or the carrier's secret (for Asterisk "
        "USER:PASSWORD), otherwise the service's own settings are used",
    )
    add("--cacert", type=Path, metavar="FILE", help="certificates to trust (PEM), for https with one of one's own")
    add(
        "--resume", metavar="SESSION_ID:TOKEN", help="take up that session; DUPLEX_RESUME keeps it off the command line"
    )
    add("--return-for", type=_seconds, metavar="SECONDS", help="come back for so long where the connection breaks")
    add("--silence-ms", type=_milliseconds, metavar="MS", help="silence that ends a turn, for the server's detection")
    add("--instructions", metavar="TEXT", help="instructions of the session")
    add("--format", choices=list(FORMAT_NAMES), help="of sound, both ways: pcm (the default), or as telephones have it")
    add("--keys", default="", metavar="KEYS", help="keys to press on the telephone: 0 to 9, * and #")
    add("--keys-after", type=_seconds, default=0.0, metavar="SECONDS", help="when, from the beginning of the call")
    add("--hang-up-after", type=_seconds, metavar="SECONDS", help="end a telephone call then, whatever is said")
    parser.set_defaults(run=run_call)
    return parser


def _wav_source(text: str) -> WavSource:
    return WavSource(Path(text))


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise ValueError(text)
    return seconds


def _milliseconds(text: str) -> int:
    milliseconds = int(text)
    if not 0 < milliseconds <= 60_000:
        raise ValueError(text)
    return milliseconds


class LocalVoice:
    """The configured voice in this process; its models are loaded at the first text."""

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        self._models: tuple[StageModel, StageModel] | None = None

    def __call__(self, text: str, sample_rate: int) -> bytes:
        """`text` as PCM16 mono. Raises `StageFailure` where the models cannot say it, `WeightsError` without them."""
        from stages.engines.local.say import speak
        from stages.engines.registry import build

        if self._models is None:
            engine, options = self._settings.engine, voice_options(self._settings)
            self._models = build(engine, "talker", options), build(engine, "vocoder", options)
        pcm, _words = speak(text, *self._models, sample_rate)
        return pcm


def run_call(
    args: argparse.Namespace,
    *,
    environment: Mapping[str, str] = os.environ,
    console: Console | None = None,
    clock: Clock | None = None,
    say: Say | None = None,
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> int:
    """Place the call that `args` describe; the exit code. `run_loop` runs the call in an event loop to its end."""
    console = console or Console(sys.stdout, sys.stderr)
    try:
        _check_out(args.out)
        _check_options(args)
        settings = config.load(environment)
        say = say or LocalVoice(settings)
        call: Call | PhoneCall
        if args.carrier is None:
            target = _target(args, environment)
            call = Call(target, _plan(args, say), clock or MonotonicClock(), console.progress)
        else:
            door = _door(args, settings)
            call = PhoneCall(door, _phone_plan(args, say), clock or MonotonicClock(), console.progress)
    except (UsageError, TargetError, config.ConfigError, WeightsError) as fault:
        console.progress(f"duplex call: {fault}")
        return EXIT_USAGE
    try:
        run_loop(call.run())
    except CallError as fault:
        console.progress(f"duplex call: {fault}. {fault.advice}")
        return EXIT_NO_CONNECTION
    except KeyboardInterrupt:
        console.progress("stopped; this is what was measured until then")
    return _report(args, call, console)


def _report(args: argparse.Namespace, call: Call | PhoneCall, console: Console) -> int:
    result = call.result()
    if result.resume_token is not None and result.outcome in RESUMABLE:
        console.progress(f"to take the session up again: DUPLEX_RESUME={result.session_id}:{result.resume_token}")
    console.result(to_json(result) if args.json else to_text(result))
    if args.out is not None:
        try:
            write_wav(args.out, call.recording.pcm, call.recording.sample_rate)
        except OSError as fault:
            console.progress(f"duplex call: --out: {fault}")
            return EXIT_WENT_WRONG
    return EXIT_OK if result.went_well else EXIT_WENT_WRONG


def _check_out(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"--out: there is no folder {path.parent}")


def _check_options(args: argparse.Namespace) -> None:
    foreign, where = (
        (PHONE_OPTIONS, "a telephone") if args.carrier is None else (REALTIME_OPTIONS, "a Realtime session")
    )
    for name in foreign:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} is for {where} only")
    if not KEYS.issuperset(args.keys):
        raise UsageError("--keys: 0 to 9, * and #")


def _door(args: argparse.Namespace, settings: Config) -> Door:
    """How the carrier comes to the service. Raises `UsageError`, `TargetError`."""
    files = {
        "twilio": settings.twilio_auth_token_file,
        "telnyx": settings.telnyx_token_file,
        "asterisk": settings.asterisk_password_file,
    }
    secret = _secret_in(args.token_file or files[args.carrier])
    if args.carrier == "asterisk" and secret is not None and args.token_file is None:
        secret = f"{settings.asterisk_user}:{secret}"
    return DOORS[args.carrier](args.url, secret, args.cacert)


def _secret_in(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"--token-file: {fault}") from fault
    if not secret:
        raise UsageError(f"--token-file: {path} is empty")
    return secret


def _target(args: argparse.Namespace, environment: Mapping[str, str]) -> Target:
    token = _secret_in(args.token_file) or environment.get("DUPLEX_TOKEN")
    ticket = args.resume or environment.get("DUPLEX_RESUME")
    target = Target.parse(
        args.url, token or None, ResumeTicket.parse(ticket) if ticket else None, certificates=args.cacert
    )
    target.tls()  # what is wrong with it is the command line's fault
    return target


def _plan(args: argparse.Namespace, say: Say) -> CallPlan:
    if not args.sources:
        raise UsageError("nothing to say: give --wav FILE or --say TEXT")
    return CallPlan(
        utterances=tuple(_utterance(source, say) for source in args.sources),
        barge_in_after_ms=_to_ms(args.barge_in_after),
        cancel_after_ms=_to_ms(args.cancel_after),
        turn_timeout_ms=round(args.turn_timeout * 1000),
        instructions=args.instructions,
        silence_ms=args.silence_ms,
        format_name=FORMAT_NAMES[args.format or "pcm"],
        return_ms_max=_to_ms(args.return_for) or 0,
    )


def _phone_plan(args: argparse.Namespace, say: Say) -> PhonePlan:
    keys_after_ms = round(args.keys_after * 1000)
    return PhonePlan(_plan(args, say), args.keys, keys_after_ms, _to_ms(args.hang_up_after))


def _utterance(source: WavSource | SaySource, say: Say) -> Utterance:
    try:
        if isinstance(source, SaySource):
            return Utterance.from_pcm(source.text, say(source.text, SAMPLE_RATE))
        return Utterance.from_pcm(source.path.name, read_wav(source.path, SAMPLE_RATE))
    except (WavError, OSError, StageFailure, SilentUtteranceError) as fault:
        raise UsageError(str(fault)) from fault


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
