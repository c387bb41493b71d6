"""Clients that read nothing, or slowly: the service holds little for them, waits for a while, and serves the others."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.chaos.checks import SUCCESS, check_order, check_sound, terminal_of
from tests.chaos.house import WORDS, house
from tests.chaos.phases import AUDIO, is_sound, sounding
from tests.chaos.table import Table
from tests.live.caller import Caller, calling, slow_reader
from tests.live.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

LEAD_SAMPLES = 9_600  # generated and not sent: 400 ms at 24 kHz
# Two frames of ours, what the peer's window takes beyond that, and a segment on the way.
KERNEL_BYTES_MAX = 16 << 10
SLOW_FRAME_NS = 40_000_000  # half of the pace at which sound is played
SLOW_FRAMES = 60
LONG = 400
# What the Thinker may be ahead by: 320 characters before the Talker, and 1.4 s of sound behind that.
AHEAD_WORDS_MAX = 120


def unread_bytes(service: Service, connection: socket.socket) -> int:
    """What the kernel holds for the other end of `connection`, written or on its way (`tx_queue`, proc(5))."""
    ports = f"{int(service.address.partition(':')[2]):04X}", f"{connection.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if (local.partition(":")[2], remote.partition(":")[2]) == ports:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("there is no such connection")


def ask_all(caller: Caller) -> str:
    """Hear one whole reply; gives its terminal."""
    name = sounding(caller)
    caller.until(lambda event: event["type"] == "response.drained" and event["response_id"] == name)
    check_sound(caller.events, name, words=WORDS)
    return terminal_of(caller.events, name)


def test_who_reads_nothing_is_let_go_and_nobody_else_notices(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("client reads nothing")
    with house(tmp_path, {"client_stall_s": "4"}) as running:
        service = running.service
        with calling(service) as other, calling(service, max_queue=1, sock=(end := slow_reader(service))) as blocked:
            name, since = sounding(blocked), len(service.lines)
            assert ask_all(other) in SUCCESS  # 3.2 s, in which the first one waits
            found = service.metrics()
            assert 0 < found["duplex_credit_in_use_samples"] <= LEAD_SAMPLES
            assert unread_bytes(service, end) <= KERNEL_BYTES_MAX
            service.wait_for_event("call_ended", since=since, session=blocked.session, reason="slow_client")
            assert blocked.until_closed() == (1008, "slow_client")
            check_sound(blocked.events, name, words=None, reads=False)
            check_order(blocked)
            row.terminal = blocked.of_type("response.done")[-1]["response"]["status"]
            assert ask_all(other) in SUCCESS
        assert len(blocked.of_type("response.done")) == 1
        assert row.terminal == "cancelled"
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")


def test_who_reads_slowly_slows_the_stages_and_loses_nothing(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("client reads at half of the pace")
    with house(tmp_path, words=LONG, word_ms=1) as running:
        service = running.service
        before, since = words_written(service.metrics()), len(service.lines)
        with calling(service, max_queue=1, sock=slow_reader(service)) as caller:
            name = sounding(caller)
            leads = [read_late(service, caller, name) for _ in range(SLOW_FRAMES)]
            heard = sum(event["samples"] for event in caller.of_type(AUDIO)) // 4_800
            ahead = words_written(service.metrics()) - before - heard
            caller.send("response.cancel")
            caller.until("response.drained")
            row.terminal = terminal_of(caller.events, name)
            check_sound(caller.events, name, words=None)
            check_order(caller)
        assert max(leads) <= LEAD_SAMPLES
        assert 0 < ahead <= AHEAD_WORDS_MAX
        assert row.terminal == "cancelled"
        assert [line for line in service.lines[since:] if '"error"' in line] == [], "no stage is blamed"
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")


def read_late(service: Service, caller: Caller, response: str) -> float:
    """Read one more frame once it is late; the most that was made and not sent meanwhile, in samples."""
    due_ns = time.monotonic_ns() + SLOW_FRAME_NS
    unsent = [service.metric("duplex_credit_in_use_samples")]
    while time.monotonic_ns() < due_ns:
        unsent.append(service.metric("duplex_credit_in_use_samples"))
    caller.until(lambda event: is_sound(event, response))
    return max(unsent)


def words_written(found: dict[str, float]) -> float:
    """How many words the Thinker has made so far, of all replies."""
    return found['duplex_stage_service_seconds_count{kind="word",stage="thinker"}']


def test_who_reports_slowly_loses_nothing(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("client reports half of what it was sent")
    with house(tmp_path) as running:
        with calling(running.service) as caller:
            name = sounding(caller)
            while (event := caller.next())["type"] != "response.drained":
                if is_sound(event, name):
                    caller.send("playback.ack", response_id=name, played_samples=event["start_sample"] // 2)
            row.terminal = terminal_of(caller.events, name)
            check_sound(caller.events, name, words=WORDS)
            check_order(caller)
        assert row.terminal in SUCCESS
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")
