"""What many calls leave behind: nothing, in any process of the service, however they come and however they go."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from websockets.exceptions import InvalidStatus

from tests.live.caller import calling
from tests.live.census import Census, census_of, least_census
from tests.live.rtc_caller import SDP, offer_of_nobody, rtc_calling, until_free
from tests.live.service import Service, descendants, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

LINES = 4
REPLY = " ".join(f"word{number}" for number in range(60))  # none is heard to its end
PROCESSES = ("gateway", "encoder", "thinker", "talker", "vocoder")
ROUNDS = 12  # of a cycle; each has as many calls as there are lines, and one round in three is of browsers
# Of the memory that a process has allocated, what is free for the next use goes up and down. The least of some cycles
# in a row hardly does: where nothing leaks it rises by 4 MiB in the first five cycles, as caches and pools fill, and
# from then on by 0.4 MiB in four. (Resident memory moves by 3 MiB either way, with files that the kernel keeps mapped.)
WINDOW = 4
# Where the first two windows differ, a later pair may show that all is level. What leaks grows in each.
CYCLES_MAX = 1 + 2 * WINDOW + 4
# A quarter of what the calls of a window leave behind if each leaves the least that a session or a connection has: up
# to a half of that goes where other memory was free.
LEAK_BYTES_MIN = 16 << 10
WINDOW_BYTES_MAX = WINDOW * ROUNDS * LINES * LEAK_BYTES_MIN // 4
# Requests of the test itself are connections, and those of `/metrics` may end a moment later.
DESCRIPTORS_MORE_MAX = 2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_replies": REPLY, "calls_max": str(LINES), "webrtc_silence_s": "2"}
    with serving(tmp_path_factory.mktemp("leaks"), settings) as running:
        yield running


def call_and_vanish(service: Service) -> None:
    """Over a WebSocket, amid the reply, without a close frame."""
    with calling(service) as caller:
        caller.type_text("Tell me everything.")
        caller.send("response.create")
        caller.until("response.output_audio.delta")
        caller.socket.socket.shutdown(socket.SHUT_RDWR)


async def browse_and_vanish(service: Service) -> None:
    """Over WebRTC, amid the reply."""
    async with rtc_calling(service) as caller:
        await caller.ask("Tell me everything.")
        await caller.until("output_audio_buffer.started")


async def browsers(service: Service) -> None:
    await asyncio.gather(*(browse_and_vanish(service) for _ in range(LINES)))
    await until_free(service)


def cycle(service: Service) -> None:
    for number in range(ROUNDS):
        if number % 3 == 0:
            asyncio.run(browsers(service))
            continue
        with ThreadPoolExecutor(LINES) as callers:
            for done in [callers.submit(call_and_vanish, service) for _ in range(LINES)]:
                done.result()
        service.wait_for_calls(0)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of the whole service while no call is on, by process where `parts` has it."""

    parts: dict[str, Census]
    processes: list[int]
    tasks: float

    def more_than(self, before: Holdings) -> list[str]:
        """What has grown."""
        grown = [
            f"{name}: {held} became {now}"
            for (name, held), now in zip(before.parts.items(), self.parts.values(), strict=True)
            if now.threads > held.threads
            or now.descriptors > held.descriptors + DESCRIPTORS_MORE_MAX
            or now.anonymous_bytes > held.anonymous_bytes + WINDOW_BYTES_MAX
        ]
        grown += [f"{self.tasks} tasks"] if self.tasks > before.tasks else []
        return grown + ([f"processes {self.processes}"] if self.processes != before.processes else [])


def holdings(service: Service) -> Holdings:
    """Without what the gateway keeps for callers who come back: they are fewer than fill it, and come
    for a shorter time than it is kept, so that it grows to the end."""
    parts = {name: census_of(service.pid_of(name)) for name in PROCESSES}
    gateway, kept = parts["gateway"], int(service.metrics()["duplex_replay_bytes"])
    parts["gateway"] = replace(gateway, anonymous_bytes=gateway.anonymous_bytes - kept)
    return Holdings(parts, descendants(service.process.pid), service.metric("duplex_tasks"))


def least_of(window: Sequence[Holdings]) -> Holdings:
    """The least of each figure."""
    parts = {name: least_census([held.parts[name] for held in window]) for name in PROCESSES}
    return Holdings(parts, window[-1].processes, min(held.tasks for held in window))


def test_pipecat_5350_calls_leave_no_process_thread_task_descriptor_or_memory_behind(service: Service) -> None:
    cycle(service)
    held: list[Holdings] = []
    grown = ["nothing was compared"]
    while grown and len(held) < CYCLES_MAX - 1:
        cycle(service)
        held.append(holdings(service))
        if len(held) >= 2 * WINDOW:
            grown = least_of(held[-WINDOW:]).more_than(least_of(held[-2 * WINDOW : -WINDOW]))
    assert not grown
    assert service.metric("duplex_undrained_responses") == 0
    assert service.metric("duplex_credit_in_use_samples") == 0


def arrive(service: Service, offer: bytes, number: int, together: threading.Barrier) -> str:
    """One of many who come at the same moment, and stay until all have been answered: what became of it."""
    together.wait()
    if number % 2:
        answer = service.send("POST", "/v1/realtime/calls", offer, SDP)
        together.wait()
        if answer.status != 201:
            return refusal(answer.status, answer.headers["retry-after"], answer.json["error"]["code"])
        service.send("DELETE", answer.headers["location"], None, {})
        return "admitted"
    try:
        with calling(service):
            together.wait()
            return "admitted"
    except InvalidStatus as refused:
        together.wait()
        body = refused.response.body or b""
        code = "capacity_exceeded" if b"capacity_exceeded" in body else "?"
        return refusal(refused.response.status_code, refused.response.headers["Retry-After"], code)


def refusal(status: int, retry_after: str, code: str) -> str:
    return f"{status} {code}, again in {retry_after} s"


def test_livekit_agents_4884_of_many_who_come_at_once_as_many_are_let_in_as_there_are_lines(service: Service) -> None:
    """And over and over: whoever was refused has taken nothing (livekit/python-sdks#449)."""
    offer, callers = asyncio.run(offer_of_nobody()), 6 * LINES
    for _ in range(3):
        together = threading.Barrier(callers, timeout=20)
        with ThreadPoolExecutor(callers) as crowd:
            arrived = [crowd.submit(arrive, service, offer, number, together) for number in range(callers)]
            became = Counter(one.result() for one in arrived)
        assert became == {"admitted": LINES, "503 capacity_exceeded, again in 15 s": callers - LINES}
        service.wait_for_calls(0)
    with calling(service) as caller:
        caller.type_text("Are you there?")
        caller.send("response.create", response={"max_output_tokens": 1})
        assert caller.until("response.done")["response"]["status"] == "incomplete"
