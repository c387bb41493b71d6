"""`duplex call` as a telephone carrier, from the command line to the exit code, against a scripted service."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from duplex import call_command as module
from duplex.call_command import Console, run_call
from loadtest.carriers.twiml import signature
from media.wav import read_wav, write_wav
from tests.duplex.test_call_command import parse
from tests.loadtest.carriers.scripted_service import Kind, Script, ScriptedService, serving
from tests.loadtest.link import tone
from tests.loadtest.lockstep import LockstepClock

RATE = 24_000


@dataclass
class Terminal:
    """One invocation: what it was given and what it wrote."""

    service: ScriptedService = field(default_factory=ScriptedService)
    environment: Mapping[str, str] = field(default_factory=dict)
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def call(self, *words: str) -> int:
        """The exit code of `duplex call URL words...`, whose URL the service takes up when the call begins."""
        with self.service.listen() as listening:

            async def with_service(placed: Coroutine[Any, Any, None]) -> None:
                async with serving(self.service, listening):
                    await placed

            return run_call(
                parse("call", *words, self.service.url),
                environment=self.environment,
                console=Console(self.out, self.err),
                clock=LockstepClock(self.service),
                run_loop=lambda placed: asyncio.run(with_service(placed)),
            )


@pytest.fixture
def clip(tmp_path: Path) -> str:
    path = tmp_path / "clip.wav"
    write_wav(path, tone(100), RATE)
    return str(path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("t-1\n")
    return path


@pytest.mark.parametrize("kind", ["twilio", "telnyx", "asterisk"])
def test_a_carrier_calls_and_reports_what_was_heard(clip: str, tmp_path: Path, kind: Kind) -> None:
    terminal, reply = Terminal(ScriptedService(kind=kind)), tmp_path / "reply.wav"
    assert terminal.call(f"--{kind}", "--wav", clip, "--json", "--out", str(reply)) == module.EXIT_OK

    report = json.loads(terminal.out.getvalue())
    assert [turn["outcome"] for turn in report["turns"]] == ["answered"]
    assert report["turns"][0]["heard_ms"] == 300
    assert "turn 1: saying clip.wav" in terminal.err.getvalue()
    assert len(read_wav(reply, 8_000)) >= 300 * 16


def test_what_the_carrier_complains_of_is_told(clip: str) -> None:
    terminal = Terminal(ScriptedService(Script(mistake='{"event":"bye"}')))
    assert terminal.call("--twilio", "--wav", clip) == module.EXIT_WENT_WRONG
    assert "FAULTS  the carrier complains: 31924 an unknown event" in terminal.out.getvalue()


def test_interruptions_keys_and_the_planned_end(clip: str) -> None:
    terminal = Terminal(ScriptedService(Script((2_000, 300))))
    words = ("--twilio", "--wav", clip, "--wav", clip, "--barge-in-after", "0.2")
    assert terminal.call(*words, "--keys", "5#", "--keys-after", "0.1") == module.EXIT_OK
    assert "clip.wav: interrupted" in terminal.out.getvalue()
    received = terminal.service.conversations[0].received
    assert [event["dtmf"]["digit"] for event in received if event["event"] == "dtmf"] == ["5", "#"]

    terminal = Terminal()
    assert terminal.call("--twilio", "--wav", clip, "--hang-up-after", "0.3") == module.EXIT_WENT_WRONG
    assert "call completed: hung up as planned" in terminal.out.getvalue()


def headers_of(terminal: Terminal) -> Mapping[str, str]:
    (request,) = terminal.service.requests
    return request.headers


def test_the_secret_comes_from_the_settings_of_the_service(clip: str, secret: Path) -> None:
    public = {"DUPLEX_PUBLIC_URL": "https://voice.example.com", "DUPLEX_TOKEN": "right"}
    terminal = Terminal(environment=public | {"DUPLEX_TWILIO_AUTH_TOKEN_FILE": str(secret)})
    terminal.call("--twilio", "--wav", clip)
    url = f"{terminal.service.url}/v1/telephony/twilio"
    assert headers_of(terminal)["X-Twilio-Signature"] == signature("t-1", url)

    terminal = Terminal(ScriptedService(kind="telnyx"), {"DUPLEX_TELNYX_TOKEN_FILE": str(secret)})
    terminal.call("--telnyx", "--wav", clip)
    assert headers_of(terminal)["x-telnyx-streaming-auth-token"] == "t-1"

    login = {"DUPLEX_ASTERISK_USER": "pbx", "DUPLEX_ASTERISK_PASSWORD_FILE": str(secret)}
    terminal = Terminal(ScriptedService(kind="asterisk"), login)
    terminal.call("--asterisk", "--wav", clip)
    assert headers_of(terminal)["Authorization"] == "Basic cGJ4OnQtMQ=="
    assert "t-1" not in terminal.out.getvalue() + terminal.err.getvalue()


def test_or_from_a_file_of_its_own(clip: str, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("pbx:word")
    terminal = Terminal(ScriptedService(kind="asterisk"))
    terminal.call("--asterisk", "--wav", clip, "--token-file", str(login))
    assert headers_of(terminal)["Authorization"] == "Basic cGJ4OndvcmQ="


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--keys", "1"), "--keys is for a telephone only"),
        (("--twilio", "--cancel-after", "1"), "--cancel-after is for a Realtime session only"),
        (("--asterisk", "--format", "pcmu"), "--format is for a Realtime session only"),
        (("--twilio", "--keys", "1a"), "--keys: 0 to 9, * and #"),
        (("--twilio", "--token-file", "/nowhere/token"), "--token-file"),
        (("--twilio",), "nothing to say"),
    ],
)
def test_bad_usage_is_explained(clip: str, words: tuple[str, ...], complaint: str) -> None:
    terminal = Terminal()
    said = () if complaint == "nothing to say" else ("--wav", clip)
    assert terminal.call(*words, *said) == module.EXIT_USAGE
    assert complaint in terminal.err.getvalue()


def test_nobody_there(clip: str) -> None:
    errors = io.StringIO()
    arguments = parse("call", "http://127.0.0.1:1", "--twilio", "--wav", clip)
    console = Console(io.StringIO(), errors)
    assert run_call(arguments, environment={}, console=console) == module.EXIT_NO_CONNECTION
    assert "no webhook at http://127.0.0.1:1/v1/telephony/twilio/voice" in errors.getvalue()
