"""`duplex call` from the command line to the exit code, against the scripted server."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import signal
import ssl
import wave
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from duplex import call_command as module
from duplex.call_command import Console, LocalVoice, add_call_parser, run_call
from duplex.config import Config
from duplex.tls_dev import DevelopmentTls, development_tls
from media.wav import read_wav, write_wav
from stages.stream import StageFailure
from tests.loadtest.fake_realtime_server import FakeRealtimeServer, Refusal, ReplyScript, Script, serving
from tests.loadtest.link import tone
from tests.loadtest.lockstep import LockstepClock

RATE = 24_000


class InterruptingClock(LockstepClock):
    """Ctrl-C, as the terminal sends it, amid the call."""

    async def sleep_until(self, deadline_ns: int) -> None:
        if self._frames == 30:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()  # until the cancel
        await super().sleep_until(deadline_ns)


@dataclass
class Terminal:
    """One invocation: what it was given and what it wrote."""

    server: FakeRealtimeServer = field(default_factory=FakeRealtimeServer)
    environment: Mapping[str, str] = field(default_factory=dict)
    clock_type: type[LockstepClock] = LockstepClock
    spoken: list[str] = field(default_factory=list)
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def call(self, *words: str, url: str | None = None) -> int:
        """The exit code of `duplex call URL words...`."""
        with self.server.listen() as listening:

            async def with_server(placed: Coroutine[Any, Any, None]) -> None:
                async with serving(self.server, listening):
                    await placed

            return run_call(
                parse("call", url or self.server.url, *words),
                environment=self.environment,
                console=Console(self.out, self.err),
                clock=self.clock_type(self.server),
                say=self.say,
                run_loop=lambda placed: asyncio.run(with_server(placed)),
            )

    def say(self, text: str, sample_rate: int) -> bytes:
        assert sample_rate == RATE
        self.spoken.append(text)
        return tone(100) if text else bytes(4_800)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="duplex")
    add_call_parser(parser.add_subparsers(required=True))
    return parser.parse_args(words)


@pytest.fixture
def clip(tmp_path: Path) -> str:
    path = tmp_path / "clip.wav"
    write_wav(path, tone(100), RATE)
    return str(path)


def test_utterances_are_said_in_the_order_given(clip: str) -> None:
    terminal = Terminal()
    assert terminal.call("--say", "one", "--wav", clip, "--say", "three", "--json") == module.EXIT_OK

    report = json.loads(terminal.out.getvalue())
    assert [turn["utterance"] for turn in report["turns"]] == ["one", "clip.wav", "three"]
    assert terminal.spoken == ["one", "three"]
    assert "turn 3: saying three" in terminal.err.getvalue()


def test_the_table_is_the_default_and_the_replies_are_written(clip: str, tmp_path: Path) -> None:
    terminal = Terminal()
    reply = tmp_path / "reply.wav"
    assert terminal.call("--wav", clip, "--out", str(reply)) == module.EXIT_OK

    assert "turn 1  clip.wav: answered" in terminal.out.getvalue()
    assert read_wav(reply, RATE).endswith(tone(400))


def test_the_session_is_set_up_as_asked(clip: str) -> None:
    terminal = Terminal()
    terminal.call("--wav", clip, "--silence-ms", "300", "--instructions", "Be brief.")

    session = terminal.server.conversations[0].received[0]["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300


@pytest.mark.parametrize(("name", "rate"), [("pcm", 24_000), ("pcmu", 8_000), ("pcma", 8_000)])
def test_a_call_over_a_telephone_hears_and_counts_as_any_other(clip: str, tmp_path: Path, name: str, rate: int) -> None:
    terminal, reply = Terminal(), tmp_path / "reply.wav"
    assert terminal.call("--wav", clip, "--format", name, "--json", "--out", str(reply)) == module.EXIT_OK

    turn = json.loads(terminal.out.getvalue())["turns"][0]
    assert (turn["outcome"], turn["reply_ms"], turn["heard_ms"]) == ("answered", 400, 400)
    with wave.open(str(reply)) as written:
        assert written.getframerate() == rate
    conversation = terminal.server.conversations[0]
    acks = [message for message in conversation.received if message["type"] == "playback.ack"]
    assert (acks[-1]["played_samples"], acks[-1]["sample_rate"]) == (400 * rate // 1000, rate)
    assert conversation.format.name == f"audio/{name}"


def test_a_barge_in_and_a_cancel(clip: str) -> None:
    long = Script((ReplyScript(chunks=50), ReplyScript()))
    terminal = Terminal(FakeRealtimeServer(long))
    assert terminal.call("--wav", clip, "--wav", clip, "--barge-in-after", "0.2") == module.EXIT_OK
    assert "clip.wav: interrupted" in terminal.out.getvalue()

    terminal = Terminal(FakeRealtimeServer(long))
    assert terminal.call("--wav", clip, "--cancel-after", "0.2") == module.EXIT_OK
    assert "clip.wav: cancelled" in terminal.out.getvalue()


def test_a_turn_without_reply_goes_wrong(clip: str) -> None:
    terminal = Terminal(FakeRealtimeServer(Script((ReplyScript(mute=True),))))
    assert terminal.call("--wav", clip, "--turn-timeout", "1") == module.EXIT_WENT_WRONG
    assert "no_reply" in terminal.out.getvalue()


def test_the_token_comes_from_a_file_or_the_environment(clip: str, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("from-file\n")
    terminal = Terminal(environment={"DUPLEX_TOKEN": "from-environment"})
    terminal.call("--wav", clip)
    terminal.call("--wav", clip, "--token-file", str(secret))

    assert terminal.server.authorizations == ["Bearer from-environment", "Bearer from-file"]
    assert "from-" not in terminal.out.getvalue() + terminal.err.getvalue()


@pytest.mark.parametrize("words", [("--resume", "sess_0:ticket"), ()])
def test_a_session_is_taken_up_again(clip: str, words: tuple[str, ...]) -> None:
    terminal = Terminal(environment={"DUPLEX_RESUME": "sess_0:ticket"})
    terminal.call("--wav", clip, *words)

    assert terminal.server.conversations[0].received[0] == {
        "type": "session.resume",
        "session_id": "sess_0",
        "token": "ticket",
    }


def test_a_lost_connection_says_how_to_go_on(clip: str) -> None:
    terminal = Terminal(FakeRealtimeServer(Script((ReplyScript(vanish_at_chunk=3),))))
    assert terminal.call("--wav", clip) == module.EXIT_WENT_WRONG

    assert "call connection_lost" in terminal.out.getvalue()
    assert "DUPLEX_RESUME=sess_1:r-token" in terminal.err.getvalue()
    assert "r-token" not in terminal.out.getvalue()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """As in a foreground job: a shell starts background ones with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_leaves_a_partial_report(clip: str) -> None:
    terminal = Terminal(clock_type=InterruptingClock)
    assert terminal.call("--wav", clip, "--wav", clip, "--json") == module.EXIT_WENT_WRONG

    report = json.loads(terminal.out.getvalue())
    assert report["outcome"] == "interrupted_by_user"
    assert "stopped; this is what was measured until then" in terminal.err.getvalue()
    assert [turn["outcome"] for turn in report["turns"]][1] == "not_said"


def test_text_that_cannot_be_said_is_bad_usage() -> None:
    class HoarseTerminal(Terminal):
        def say(self, text: str, sample_rate: int) -> bytes:
            raise StageFailure("options", "no voice for this")

    terminal = HoarseTerminal()
    assert terminal.call("--say", "hi") == module.EXIT_USAGE
    assert "no voice for this" in terminal.err.getvalue()


def test_a_server_that_is_full_or_wants_a_token(clip: str) -> None:
    full = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "5"})
    terminal = Terminal(FakeRealtimeServer(refusal=full))
    assert terminal.call("--wav", clip) == module.EXIT_NO_CONNECTION
    assert "Call again in 5 s" in terminal.err.getvalue()

    terminal = Terminal(FakeRealtimeServer(refusal=Refusal(HTTPStatus.UNAUTHORIZED)))
    assert terminal.call("--wav", clip) == module.EXIT_NO_CONNECTION
    assert "--token-file" in terminal.err.getvalue()
    assert terminal.out.getvalue() == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "nothing to say"),
        (("--wav", "/nowhere/at/all.wav"), "/nowhere/at/all.wav"),
        (("--say", ""), "nothing in it is audible"),
        (("--say", "hi", "--out", "/nowhere/reply.wav"), "there is no folder /nowhere"),
        (("--say", "hi", "--token-file", "/nowhere/token"), "--token-file"),
        (("--say", "hi", "--token-file", "/dev/null"), "is empty"),
        (("--say", "hi", "--resume", "half"), "SESSION_ID:TOKEN"),
    ],
)
def test_bad_usage_is_explained(words: tuple[str, ...], complaint: str) -> None:
    terminal = Terminal()
    assert terminal.call(*words) == module.EXIT_USAGE
    assert complaint in terminal.err.getvalue()


def test_a_url_that_is_none() -> None:
    terminal = Terminal()
    assert terminal.call("--say", "hi", url="localhost:8000") == module.EXIT_USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("--turn-timeout", "0"),
        ("--silence-ms", "-5"),
        ("--barge-in-after", "soon"),
        ("--barge-in-after", "1", "--cancel-after", "1"),
    ],
)
def test_values_out_of_range_are_refused_at_once(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("call", "http://host", *words)
    assert caught.value.code == module.EXIT_USAGE


def test_the_local_voice_speaks_with_the_configured_engine() -> None:
    voice = LocalVoice(Config(engine="scripted"))
    pcm = voice("hello there", RATE)

    assert pcm
    assert len(pcm) % 2 == 0
    assert voice("hello there", RATE) == pcm


def test_a_reply_file_that_cannot_be_written(clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path, _pcm: bytes, _rate: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(module, "write_wav", full_disk)
    terminal = Terminal()
    assert terminal.call("--wav", clip, "--out", str(tmp_path / "reply.wav")) == module.EXIT_WENT_WRONG
    assert "No space left" in terminal.err.getvalue()
    assert "answered" in terminal.out.getvalue()


@pytest.fixture
def tls(tmp_path: Path) -> DevelopmentTls:
    return development_tls(tmp_path / "tls", datetime.now(UTC), ["127.0.0.1"])


@pytest.fixture
def secured(tls: DevelopmentTls) -> FakeRealtimeServer:
    """The server with a certificate that signs itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    return FakeRealtimeServer(tls=context)


def test_a_certificate_that_is_named_is_trusted(clip: str, tls: DevelopmentTls, secured: FakeRealtimeServer) -> None:
    terminal = Terminal(server=secured)
    assert terminal.call("--wav", clip, "--cacert", str(tls.certificate)) == module.EXIT_OK
    assert "answered" in terminal.out.getvalue()


def test_an_unknown_certificate_is_refused_with_the_mend(clip: str, secured: FakeRealtimeServer) -> None:
    terminal = Terminal(server=secured)
    assert terminal.call("--wav", clip) == module.EXIT_NO_CONNECTION
    assert "is not trusted: self-signed certificate" in terminal.err.getvalue()
    assert "--cacert" in terminal.err.getvalue()


@pytest.mark.parametrize("file", ["missing.pem", "empty.pem"])
def test_a_file_without_certificates_is_refused(clip: str, tmp_path: Path, file: str) -> None:
    (tmp_path / "empty.pem").touch()
    terminal = Terminal()
    assert terminal.call("--wav", clip, "--cacert", str(tmp_path / file), url="https://host") == module.EXIT_USAGE
    assert file in terminal.err.getvalue()
