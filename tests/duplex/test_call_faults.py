"""What is wrong in one call is the end of that call, and of nothing that other calls share with it."""

from __future__ import annotations

from typing import NoReturn

import pytest

from stages.contracts import Tag, TextDelta
from stages.messages import Closed, CloseSession, Published
from tests.duplex.test_call import EPOCH, NS_PER_S, SESSION, STAGES, Bench, play

HOUR_NS = 3_600 * NS_PER_S


class OurFault(Exception):
    """What no code expects."""


def at_fault(*_args: object, **_named: object) -> NoReturn:
    raise OurFault


# What drives all calls of the process, and the part of the conversation that it drives.
SHARED = {
    "tick": lambda one: one.call.pace(HOUR_NS),
    "take_due": lambda one: one.call.pace(0),
    "published": lambda one: one.call.frame("thinker", Published(Tag(SESSION, EPOCH, 1, "resp_1"), TextDelta("Well"))),
    "closed": lambda one: one.call.frame("thinker", Closed(Tag(SESSION, EPOCH, 1, "resp_1"), "finished", {})),
    "lost": lambda one: one.call.lost("thinker", Tag(SESSION, EPOCH, 1, "resp_1")),
}


@pytest.mark.parametrize("part", SHARED)
@pytest.mark.parametrize("also", ["", "close"])
def test_livekit_agents_3637_a_fault_of_ours_ends_its_call_and_no_other(part: str, also: str) -> None:
    """`also`: what is spoilt so far that not even its end can be worked out."""

    async def scenario(one: Bench) -> None:
        one.start_reply()
        for broken in filter(None, (part, also)):
            setattr(one.call.conversation, broken, at_fault)
        SHARED[part](one)
        SHARED[part](one)  # nothing that is spoilt is touched again
        assert one.call.end_reason == "internal_error"
        assert one.call.ended.is_set()
        for stage in STAGES:
            assert one.at(stage)[-1] == CloseSession(SESSION)
        assert one.metric('duplex_errors_total{code="internal_error",owner="service"}') == 1 + bool(also)
        await one.call.until_drained()
        one.call.end("connection_closed")

    play(scenario)


def test_a_call_ends_though_its_end_cannot_be_worked_out() -> None:
    async def scenario(one: Bench) -> None:
        one.call.conversation.close = at_fault  # type: ignore[method-assign]
        one.call.end("service_shutdown")
        assert one.call.end_reason == "service_shutdown"
        assert one.call.ended.is_set()
        assert one.at("vocoder")[-1] == CloseSession(SESSION)

    play(scenario)
