"""One call of the plan by telephone: as any other, but that keys can be pressed, and that carriers can be asked when
what was being said has left their queues."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from benchmarks.heard_error.line import CallHeard, Conversing, Spoken
from benchmarks.heard_error.plan import CallPlan, Cut
from loadtest.carriers.asterisk_channel import AsteriskChannel
from loadtest.carriers.doors import new_channel_call, new_stream_call
from loadtest.carriers.media_stream import MediaStream
from tests.live.caller import calling
from tests.live.coded_phone import CodedPhoneLine, Talk, talking
from tests.live.phone import Core
from tests.live.service import Service

LATE_MS_MAX = 40  # two frames
KEY = "#"  # interrupts, and is no number that would be answered


class ConversingByPhone(Conversing):
    """`line` is a telephone."""

    def __init__(self, line: CodedPhoneLine, plan: CallPlan) -> None:
        super().__init__(line, plan)
        self._phone = line

    def _press(self) -> None:
        self._phone.press(KEY)

    def _spoken(self, number: int, response: str, cut: Cut) -> Spoken:
        stop = self._phone.stop(number)
        late = stop.late_ms > LATE_MS_MAX or stop.dry > 0
        return Spoken(response, self._item(response), cut, 0, stop.after_ms, stop.cleared_sample, late)


async def over_telephone(service: Service, plan: CallPlan, threads: Executor) -> CallHeard:
    """Carry the plan out, over the emulated carrier that it names. Raises `NoAnswerError`."""
    loop, since = asyncio.get_running_loop(), len(service.lines)
    core = _core(plan)
    async with talking(service.address, f"/v1/telephony/{plan.transport}", core) as talk:
        return await loop.run_in_executor(threads, _converse, service, plan, talk, loop, since)


def _core(plan: CallPlan) -> Core:
    return MediaStream(new_stream_call()) if plan.transport == "twilio" else AsteriskChannel(new_channel_call())


def _converse(service: Service, plan: CallPlan, talk: Talk, loop: asyncio.AbstractEventLoop, since: int) -> CallHeard:
    began = service.wait_for_event("phone_call_began", since=since, call=talk.phone.core.call_id)
    with calling(service, query=f"?extensions=1&call_id={began['session']}") as side:
        return ConversingByPhone(CodedPhoneLine(talk, side, loop), plan).run()
