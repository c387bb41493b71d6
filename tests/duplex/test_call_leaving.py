"""A call that is to leave its gateway, and one whose process stood still."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from duplex.call import STILL_NS_MAX, Call
from sessions.effects import EndCall
from sessions.events import ReplyAudio
from stages.messages import Closed
from tests.duplex.test_call import FAR_NS, NS_PER_S, Bench, play, silence, tone


def test_a_call_that_is_to_leave_does_so_in_its_next_pause() -> None:
    async def scenario(one: Bench) -> None:
        one.client.has_room = False
        tag = one.start_reply()
        await one.written()
        one.client.has_room = True
        one.call.end_in_pause("service_shutdown", FAR_NS)
        one.call.pace(1)
        assert one.call.end_reason is None
        one.call.frame("vocoder", Closed(tag, "failed", {}, "engine_fault", "lost"))  # a reply that failed plays on
        one.call.pace(2)
        assert one.call.end_reason is None, "the caller still hears it"
        one.call.pace(10 * NS_PER_S)
        assert one.call.end_reason == "service_shutdown"

    play(scenario)


def test_what_sounds_outside_the_conversation_is_heard_to_its_end_before_a_call_leaves() -> None:
    async def scenario(one: Bench) -> None:
        one.client.has_room = True
        tag = one.start_reply(in_conversation=False)
        one.call.pace(1)
        assert one.call.conversation.speaking.played_out_ns > 2
        one.call.frame("vocoder", Closed(tag, "failed", {}, "engine_fault", "lost"))
        one.call.end_in_pause("service_shutdown", FAR_NS)
        one.call.pace(2)
        assert one.call.conversation.speaking.running == ()
        assert one.call.end_reason is None
        one.call.pace(one.call.conversation.speaking.played_out_ns)
        assert one.call.end_reason == "service_shutdown"

    play(scenario)


def test_a_call_that_finds_no_pause_leaves_when_its_time_is_over() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply()
        one.call.end_in_pause("service_shutdown", 2)
        one.call.pace(1)
        assert one.call.end_reason is None
        one.call.pace(2)
        assert one.call.end_reason == "service_shutdown"

    play(scenario)


def test_a_conversation_may_end_its_call() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply()
        one.call.carry_out([EndCall("answering_machine", 2)])
        one.call.pace(1)
        assert one.call.end_reason is None
        one.call.pace(2)
        assert one.call.end_reason == "answering_machine"

    play(scenario)


def test_a_call_in_which_nobody_speaks_leaves_at_once_and_not_while_its_caller_speaks() -> None:
    async def scenario(one: Bench) -> None:
        await one.call.listening.hear(silence(300) + tone(500))
        await until_turn(one)
        one.call.end_in_pause("service_shutdown", FAR_NS)
        one.call.pace(time.monotonic_ns())
        assert one.call.end_reason is None
        one.call.carry_out(one.call.conversation.clear_input(time.monotonic_ns()))
        one.call.pace(time.monotonic_ns())
        assert one.call.end_reason == "service_shutdown"

    async def until_turn(one: Bench) -> None:
        while one.call.conversation.hearing.current is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)

    play(scenario)


def test_after_standing_still_nothing_is_said_until_the_session_is_known_to_be_ours() -> None:
    async def scenario(one: Bench) -> None:
        doubted: list[Call] = []
        one.call._services = replace(one.call._services, doubt=lambda call, _refusal: doubted.append(call))
        one.client.has_room = False
        tag = one.start_reply()
        await one.written()
        one.call.pace(1)
        one.client.has_room = True
        late_ns = 2 + STILL_NS_MAX
        for _ in range(2):
            one.call.pace(late_ns)
        assert doubted == [one.call], "it is asked once"
        assert one.told(ReplyAudio) == []
        one.call.trust()
        one.call.pace(late_ns)
        assert one.told(ReplyAudio)
        assert one.call.conversation.speaking.knows(tag.response)

    play(scenario)


def test_what_comes_first_after_standing_still_may_be_a_stages_sound() -> None:
    async def scenario(one: Bench) -> None:
        doubted: list[Call] = []
        one.call._services = replace(one.call._services, doubt=lambda call, _refusal: doubted.append(call))
        one.call.pace(1)  # long ago
        one.start_reply()
        assert doubted == [one.call]
        assert one.told(ReplyAudio) == []

    play(scenario)
