"""What waits for a carrier: in order, bounded, and its sound can be taken back."""

from __future__ import annotations

import asyncio

from duplex.telephony.outbound import MESSAGES_WAITING_MAX, Outbound

STALL_NS = 1_000


def test_messages_go_in_their_order_and_sound_has_little_room() -> None:
    async def scenario() -> None:
        outbound, room = Outbound(STALL_NS), []
        for message, start in ((b"one", 0), (b"two", 160)):
            outbound.put(message, start, is_sound=True)
            room.append(outbound.has_room)
        assert room == [True, False]
        outbound.put("mark", 320)
        assert [await outbound.next() for _ in range(3)] == [b"one", b"two", "mark"]
        assert outbound.has_room
        assert outbound.waiting == 0

    asyncio.run(scenario())


def test_who_waits_is_woken() -> None:
    async def scenario() -> None:
        outbound = Outbound(STALL_NS)
        waiting = asyncio.create_task(outbound.next())
        await asyncio.sleep(0)
        outbound.put("late")
        assert await waiting == "late"

    asyncio.run(scenario())


def test_sound_and_its_marks_are_taken_back_and_commands_are_not() -> None:
    async def scenario() -> None:
        outbound = Outbound(STALL_NS)
        outbound.put("pause")
        outbound.put(b"one", 160, is_sound=True)
        outbound.put("mark", 320)
        outbound.put(b"two", 320, is_sound=True)
        room = [outbound.has_room]
        assert outbound.drop_sound() == 160
        assert outbound.drop_sound() is None
        assert [*room, outbound.has_room] == [False, True]
        assert outbound.waiting == 1
        assert await outbound.next() == "pause"

    asyncio.run(scenario())


def test_a_mark_alone_is_taken_back_without_a_place() -> None:
    outbound = Outbound(STALL_NS)
    outbound.put("mark", 320)
    assert outbound.drop_sound() is None
    assert outbound.waiting == 0


def test_a_carrier_that_takes_nothing_is_noticed() -> None:
    async def scenario() -> None:
        outbound = Outbound(STALL_NS)
        outbound.pace(0)
        outbound.put("one")
        outbound.put("two")
        outbound.pace(10)
        outbound.pace(STALL_NS - 1)
        assert not outbound.overflowed.is_set()
        await outbound.next()
        outbound.pace(STALL_NS)
        outbound.pace(2 * STALL_NS - 1)
        assert not outbound.overflowed.is_set()
        outbound.pace(2 * STALL_NS)
        assert outbound.overflowed.is_set()

    asyncio.run(scenario())


def test_too_many_messages_are_noticed() -> None:
    outbound = Outbound(STALL_NS)
    for _ in range(MESSAGES_WAITING_MAX):
        outbound.put("command")
    assert not outbound.overflowed.is_set()
    outbound.put("one more")
    assert outbound.overflowed.is_set()
    assert outbound.waiting == MESSAGES_WAITING_MAX
