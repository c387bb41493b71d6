"""One service after the other, conversations with each, kills amid them, and then the comparison."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.session_kills.caller import BACK_S_MAX, Conversing, GivenUpError
from benchmarks.session_kills.judge import CallTold, effects_in_no_history, judge
from benchmarks.session_kills.plan import ServicePlan, plan_services
from benchmarks.session_kills.report import Result, is_good, report
from benchmarks.session_kills.striker import Striker
from benchmarks.turns import Say
from tests.duplex.tool_server import SECRET, Asked, ToolServer, tool_server
from tests.live.service import Service, serving

KILLS = 300
SEED = 20261130
CALLS_AT_ONCE = 4
END_S_MAX = 3 * BACK_S_MAX
TOOL_S = 0.3  # so long a call is under way
REPLIES = 200  # of the script: more than a Thinker's life has

# However long a caller speaks, it is one word. A reply has 10, which take 1 s to write and 2 s to say.
PROFILE = """
[encoder]
heard_word_ms = 60000
[thinker]
prefill_ms_per_token = 0.5
word_ms = 100
reply_words = 10
words_per_clause = 2
[talker]
concurrency = 32
[vocoder]
concurrency = 32
"""
REPLY = "One two three, four five six, seven eight nine ten."
THEN = "It is @result now."
TOOLS = """
hosts = ["{host}"]

[[tools]]
name = "book"
description = "Books a table."
url = "http://{host}/book"
secret_env = "TOOL_SECRET"
time_limit_s = 20
"""


async def session_kills(say: Say, *, kills: int, seed: int) -> bool:
    """`kills` in all; good as `report.is_good` says."""
    result = Result()
    began_s = time.monotonic()
    for plan in plan_services(kills, seed):
        await asyncio.to_thread(live_through, plan, result, say)
        say(f"{result.kills.total()} of {kills} kills, {time.monotonic() - began_s:.0f} s")
    for line in report(result):
        say(line)
    return is_good(result)


def live_through(plan: ServicePlan, result: Result, say: Say) -> None:
    """The life of one service, added to `result`; what is wrong is said at once."""
    with _service(plan) as (service, server), ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        calls = [Conversing(service, number, plan.seed) for number in range(CALLS_AT_ONCE)]
        running = [threads.submit(call.run) for call in calls]
        try:
            for call in calls:
                call.started.wait(BACK_S_MAX)
            striker = Striker(service, plan, calls)
            for kill in plan.kills:
                striker.strike(kill)
                result.kills[kill.victim] += 1
        finally:
            for call in calls:
                call.stop.set()
        told = _told(calls, running, striker, result)
        _judge(plan, told, server, result, say)


def _told(
    calls: list[Conversing], running: list[Future[None]], striker: Striker, result: Result
) -> dict[int, CallTold]:
    """By number of the conversation; those that were given up are counted."""
    told = {}
    for number, (call, future) in enumerate(zip(calls, running, strict=True)):
        try:
            future.result(END_S_MAX)
        except GivenUpError:
            result.faults["calls given up"] += 1
        told[number] = call.told(frozenset(striker.checkpoints[call.session]))
        result.returns[striker.gateways] += call.returns
        result.faults["waited in vain"] += call.in_vain
        result.ends.update(call.ends)
        result.durability.update(call.durability)
    return told


def _judge(plan: ServicePlan, told: dict[int, CallTold], server: ToolServer, result: Result, say: Say) -> None:
    asked = [one.key for one in server.asked]
    result.effects += len(asked)
    result.faults["effects in no history"] += effects_in_no_history([call.history for call in told.values()], asked)
    for number, call in told.items():
        finding = judge(call, asked)
        result.add(finding)
        if finding.faults:
            kills = ", ".join(kill.victim for kill in plan.kills)
            say(f"FAULT seed {plan.seed}, conversation {number}, kills {kills}: {dict(finding.faults)}")
            for missed in finding.missed:
                say(f"  {missed}")


@contextmanager
def _service(plan: ServicePlan) -> Iterator[tuple[Service, ToolServer]]:
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder, tool_server() as server:
        server.answer = _book
        profile, tools = Path(folder, "profile.toml"), Path(folder, "tools.toml")
        profile.write_text(PROFILE)
        tools.write_text(TOOLS.format(host=server.host))
        settings = {"gateways": str(plan.gateways), "synthetic_profile": str(profile), "log_level": "info"}
        if plan.tool:
            replies = "|".join([*[REPLY, REPLY, "@book {}"] * (REPLIES // 3), THEN])
            settings |= {"thinker": "scripted", "scripted_replies": replies, "tools_file": str(tools)}
        secrets = {"TOOL_SECRET": SECRET}
        with serving(Path(folder, "data"), settings, engine="synthetic", secrets=secrets) as service:
            yield service, server


def _book(_asked: Asked) -> tuple[int, bytes]:
    threading.Event().wait(TOOL_S)
    return 200, b"booked"
