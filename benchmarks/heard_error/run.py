"""A service with the synthetic engine, waves of calls, and after each wave the comparison with the store."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.heard_error.judge import Finding, judge
from benchmarks.heard_error.line import WORDS, CallHeard, Conversing, NoAnswerError
from benchmarks.heard_error.phone import over_telephone
from benchmarks.heard_error.plan import CallPlan, Transport, plan_calls
from benchmarks.heard_error.report import is_good, report
from benchmarks.turns import Say
from loadtest.coded_ear import CodedEar
from tests.live.caller import calling
from tests.live.coded_caller import CodedCaller, read_items
from tests.live.coded_rtc_caller import RtcLine, coded_rtc_calling
from tests.live.service import Service, serving

CUTS = 1_000
WEBRTC_SHARE = 0.4
SEED = 20261130
SHOWN_MS = 50  # of sound that was not heard, where the client reports
# As many as leave half of two cores idle: a caller that gets no CPU in time plays late.
CALLS_AT_ONCE: dict[Transport, int] = {"websocket": 12, "webrtc": 5, "twilio": 3, "asterisk": 3}

# However long a caller speaks, it is one word: more would make two short sounds an interruption.
PROFILE = """
[encoder]
heard_word_ms = 60000
[thinker]
prefill_ms_per_token = 0.5
reply_words = {words}
[talker]
concurrency = 32
[vocoder]
concurrency = 32
"""


@contextmanager
def oracle_service(words: int = WORDS, **settings: str) -> Iterator[Service]:
    """A service whose every reply has so many words of coded tones; of `settings`, see `Service`."""
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        profile = Path(folder, "profile.toml")
        profile.write_text(PROFILE.format(words=words))
        usual = {"synthetic_profile": str(profile), "calls_max": "32", "log_level": "warning"}
        with serving(Path(folder, "data"), usual | settings, engine="synthetic") as service:
            yield service


async def heard_error(say: Say, *, cuts: int) -> bool:
    """`cuts` in all, over both transports; good as `is_good` says."""
    over_webrtc = round(cuts * WEBRTC_SHARE)
    findings: list[Finding] = []
    with oracle_service() as service:
        findings += await measure(say, service, plan_calls("websocket", cuts - over_webrtc, SEED))
        findings += await measure(say, service, plan_calls("webrtc", over_webrtc, SEED))
    for line in report(findings):
        say(line)
    for finding in findings:
        if finding.faults or (finding.is_told and finding.ms_error > SHOWN_MS):
            say(_told(finding))
    return is_good(findings) and len(findings) >= cuts


def _told(finding: Finding) -> str:
    """All that is known of one reply."""
    one, plan = finding.spoken, finding.plan
    kind = "FAULT" if finding.faults or finding.presumes else "note"
    told = f"{kind} {plan.transport} {plan.reports} {plan.conditions} {one.cut.deed} {one.cut.moment}"
    error = f"{finding.words_error} words, {finding.ms_error:.1f} ms, {finding.basis or 'not in history'}"
    return f"{told}: {error}, {', '.join(finding.faults) or 'no fault'}; heard (word, lost): {finding.heard}"


async def measure(say: Say, service: Service, plans: Sequence[CallPlan]) -> list[Finding]:
    """Carry `plans` of one transport out, in waves."""
    at_once = CALLS_AT_ONCE[plans[0].transport] if plans else 1
    findings: list[Finding] = []
    began_s = time.monotonic()
    with ThreadPoolExecutor(at_once) as threads:
        for first in range(0, len(plans), at_once):
            wave = plans[first : first + at_once]
            calls = await asyncio.gather(*(_call(say, service, plan, threads) for plan in wave))
            await asyncio.to_thread(service.wait_for_calls, 0)
            for call in calls:
                findings += await _judged(service, call) if call is not None else []
            done, elapsed_s = first + len(wave), time.monotonic() - began_s
            say(f"{plans[0].transport}: {done} of {len(plans)} calls, {len(findings)} cuts, {elapsed_s:.0f} s")
    return findings


async def _call(say: Say, service: Service, plan: CallPlan, threads: ThreadPoolExecutor) -> CallHeard | None:
    """The call; None where it waited in vain for an answer."""
    loop = asyncio.get_running_loop()
    try:
        if plan.transport == "websocket":
            return await loop.run_in_executor(threads, _over_websocket, service, plan)
        if plan.transport != "webrtc":
            return await over_telephone(service, plan, threads)
        async with coded_rtc_calling(service, plan.network(), reports=plan.reports == "acks") as caller:
            return await loop.run_in_executor(threads, Conversing(RtcLine(caller, loop), plan).run)
    except NoAnswerError as error:
        say(f"FAULT {error}")
        return None


def _over_websocket(service: Service, plan: CallPlan) -> CallHeard:
    with calling(service) as caller:
        return Conversing(CodedCaller(caller, plan.network(), plan.reports), plan).run()


async def _judged(service: Service, call: CallHeard) -> list[Finding]:
    items = await read_items(service, call.resume_token)
    ear = await asyncio.to_thread(CodedEar, call.pcm, call.rate)
    return [judge(call.plan, spoken, items.get(spoken.item), ear) for spoken in call.replies]
