"""What a telephone call costs the gateway, both directions sounding, beside a bare echo of the same messages.

Theory of operation
    Emulated carriers call the service, whose synthetic engine makes replies in other processes; the caller speaks all
    the time and interrupts nothing. Then the same carriers call a WebSocket server on the same library, which sends
    each message back: as many of the same size go each way, but for the marks. Counted is what the kernel gave to the
    process that holds the sockets, less what it takes without calls.

Promises
* All of the sound came: what left the carrier's queue in the time is as long as the time.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks.heard_error.run import oracle_service
from benchmarks.processes import cpu_ns
from benchmarks.turns import Say
from loadtest.carriers.asterisk_channel import AsteriskChannel
from loadtest.carriers.doors import new_channel_call, new_stream_call
from loadtest.carriers.media_stream import MediaStream
from tests.live.caller import calling
from tests.live.coded_phone import CodedPhone, talking
from tests.live.phone import Core
from tests.live.service import Service

SECONDS = 20
CALLS = 4
MARGIN_S = 30  # for all to begin
HEARD_SHARE_MIN = 0.95
DETECTION = {"type": "server_vad", "create_response": False, "interrupt_response": False}

CORES: dict[str, Callable[[], Core]] = {
    "twilio": lambda: MediaStream(new_stream_call()),
    "asterisk": lambda: AsteriskChannel(new_channel_call()),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """ms of CPU for each second of each call; `heard`: of the time, how much sound left the carriers' queues."""

    ms_per_s: float
    heard: float


async def phone_cpu(say: Say, *, seconds: int, calls: int) -> bool:
    """`calls` at once over each carrier, for `seconds`; False where sound was missing."""
    good = True
    words = 5 * (seconds + MARGIN_S)
    with oracle_service(words, log_level="info", max_output_tokens=str(words)) as service:
        async with _echo_server() as (port, echo_pid):
            for carrier, core in CORES.items():
                gateway = await _measured(
                    service.pid_of("gateway"), seconds, _at_service(service, carrier, core, calls)
                )
                echo = await _measured(echo_pid, seconds, _at_echo(port, core, calls))
                ratio = gateway.ms_per_s / echo.ms_per_s
                say(
                    f"{carrier}, {calls} call(s): gateway {gateway.ms_per_s:.2f} ms/s a call, "
                    f"bare echo {echo.ms_per_s:.2f}, ratio {ratio:.2f}; heard {gateway.heard:.2f}, {echo.heard:.2f}"
                )
                good &= gateway.heard >= HEARD_SHARE_MIN and echo.heard >= HEARD_SHARE_MIN
    return good


async def _measured(pid: int, seconds: int, phones: AsyncIterator[list[CodedPhone]]) -> Cost:
    """What `pid` takes while `phones` sound, less what it takes before."""
    idle_ns = await _spent_ns(pid, seconds / 4) * 4
    async for talking_ones in phones:
        heard_before = [len(phone.heard) for phone in talking_ones]
        spent_ns = await _spent_ns(pid, seconds) - idle_ns
        frames = sum(len(phone.heard) - before for phone, before in zip(talking_ones, heard_before, strict=True))
        count = len(talking_ones)
        cost = Cost(spent_ns / 1e6 / seconds / count, frames * 0.02 / seconds / count)
    return cost


async def _spent_ns(pid: int, seconds: float) -> int:
    before_ns = cpu_ns(pid)
    await asyncio.sleep(seconds)
    return cpu_ns(pid) - before_ns


async def _at_service(
    service: Service, carrier: str, core: Callable[[], Core], calls: int
) -> AsyncIterator[list[CodedPhone]]:
    """Phones at the service, in whose calls both speak."""
    async with AsyncExitStack() as stack:
        phones = []
        for _ in range(calls):
            since = len(service.lines)
            talk = await stack.enter_async_context(talking(service.address, f"/v1/telephony/{carrier}", core()))
            await asyncio.to_thread(_begin_reply, service, since, talk.phone.core.call_id)
            talk.phone.talks = True
            phones.append(talk.phone)
        yield phones
    await asyncio.to_thread(service.wait_for_calls, 0)


def _begin_reply(service: Service, since: int, call: str) -> None:
    began = service.wait_for_event("phone_call_began", since=since, call=call)
    with calling(service, query=f"?extensions=1&call_id={began['session']}") as side:
        side.settle(audio={"input": {"turn_detection": DETECTION}})
        side.type_text("Tell me everything.")
        side.send("response.create")
        side.until("output_audio_buffer.started")


async def _at_echo(port: int, core: Callable[[], Core], calls: int) -> AsyncIterator[list[CodedPhone]]:
    async with AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(talking(f"127.0.0.1:{port}", "/", core())) for _ in range(calls)]
        for talk in talks:
            talk.phone.talks = True
            await talk.phone.sounding.wait()
        yield [talk.phone for talk in talks]


@asynccontextmanager
async def _echo_server() -> AsyncIterator[tuple[int, int]]:
    """Its port and its process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bare_echo", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None, "standard output is a pipe"
    try:
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()
