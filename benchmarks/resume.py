"""How long a caller is left without an answer when a gateway is killed under the call.

Theory of operation
    A caller listens to a reply, and the process that serves the call is killed. The client comes back as soon as its
    connection breaks: from its first attempt until it hears the next sample of speech, of an answer that it asks for
    once it is told that the session is resumed. With one gateway that takes as long as the supervisor needs to start
    another; where a second one is alive, it takes no longer than a call does to begin.

    A gateway that dies often is started again ever later, which is no matter of this measurement: so each service
    lives for few kills, and with one gateway for one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from websockets.exceptions import InvalidStatus

from benchmarks import figures
from benchmarks.turns import Say
from tests.live.caller import BROKEN, Caller, calling
from tests.live.service import Reached, Service, serving

KILLS = 30
PART_S_MAX = 75  # of each measurement; what was not measured by then is not
KILLS_PER_SERVICE = {1: 1, 2: 6}
SPEECH_MS_MAX = 1_000  # p95, where another gateway is alive
REPLY = " ".join(f"word{number}" for number in range(30))
AUDIO = "response.output_audio.delta"


@dataclass(frozen=True, slots=True)
class _Return:
    """Of one kill, in ms since the client's first attempt to come back."""

    resumed_ms: float
    speech_ms: float
    attempts: int


async def resume(say: Say, *, kills: int) -> bool:
    """`kills` with one gateway, and as many with two. False where the target was missed, or a call was lost."""
    good = True
    for gateways, name in ((1, "one gateway, started again"), (2, "a second gateway is alive")):
        returns = await asyncio.to_thread(_measure, gateways, kills)
        say(f"{name}: {len(returns)} kills, attempts at most {max(one.attempts for one in returns)}")
        say(figures.line("first attempt to session.resumed", [one.resumed_ms for one in returns]))
        speech_ms = [one.speech_ms for one in returns]
        say(figures.line("first attempt to the next speech sample", speech_ms))
        if gateways > 1:
            p95_ms = figures.percentile(speech_ms, 0.95)
            say(f"target: p95 at most {SPEECH_MS_MAX} ms: {p95_ms:.0f}")
            good = p95_ms <= SPEECH_MS_MAX
    return good


def _measure(gateways: int, kills: int) -> list[_Return]:
    returns: list[_Return] = []
    until_s = time.monotonic() + PART_S_MAX
    while len(returns) < kills and time.monotonic() < until_s:
        with _service(gateways) as service:
            numbers = range(min(KILLS_PER_SERVICE[gateways], kills - len(returns)))
            returns += [_kill_under_a_call(service, gateways, number) for number in numbers]
    return returns


@contextmanager
def _service(gateways: int) -> Iterator[Service]:
    settings = {"gateways": str(gateways), "scripted_replies": REPLY, "log_level": "info"}
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder, serving(Path(folder, "data"), settings) as service:
        yield service


def _kill_under_a_call(service: Service, gateways: int, number: int) -> _Return:
    victim = "gateway" if gateways == 1 else f"gateway-{number % gateways + 1}"
    since = len(service.lines)
    with calling(service if gateways == 1 else service.alone(victim)) as caller:
        token: str = caller.events[0]["session"]["resume_token"]
        _ask(caller)
        service.kill(victim)
        assert caller.until_closed() == BROKEN
        came_back = _come_back(service, token)
    service.wait_for_event("child_restarted", since=since, child=victim)
    return came_back


def _ask(caller: Caller) -> None:
    """For a reply, and wait for its first sound."""
    caller.type_text("Tell me everything.")
    caller.send("response.create")
    caller.until(AUDIO)


def _come_back(door: Reached, token: str) -> _Return:
    began_ns, attempts = time.monotonic_ns(), 0
    while True:
        attempts += 1
        # One that was killed with us in its queue breaks the connection, one that is not ready refuses the call.
        query = f"?extensions=1&resume={token.partition('.')[0]}"
        with suppress(OSError, EOFError, InvalidStatus), calling(door, query=query) as caller:
            caller.send("session.resume", token=token)
            caller.until("session.resumed")
            resumed_ns = time.monotonic_ns()
            _ask(caller)
            speech_ns = time.monotonic_ns()
            return _Return((resumed_ns - began_ns) / 1e6, (speech_ns - began_ns) / 1e6, attempts)
