"""What waits to be written to a client: in which order, how much, for how long."""

from __future__ import annotations

import asyncio
import json

from duplex.realtime.connection import AUDIO_WAITING_MAX, MESSAGES_WAITING_MAX, Outbox
from media.playout import Frame
from media.rtp_map import Position
from sessions.events import InputCleared, ReplyAudio
from stages.contracts import OUT_OF_BAND
from tests.duplex.realtime.test_connection import EPOCH, NS_PER_S, Bench, play


def has_room(outbox: Outbox) -> bool:
    """A frame is taken now, at whatever moment that is; no silence ever is."""
    assert not outbox.pad()
    return outbox.next_frame_ns(NS_PER_S) == NS_PER_S


def sound(start: int = 0, *, epoch: int = EPOCH) -> ReplyAudio:
    return ReplyAudio("item_1", epoch, Frame("resp_1", start, b"\0\0" * 480, final=False), start + 480)


def test_messages_leave_in_their_order() -> None:
    async def scenario(one: Bench) -> None:
        one.outbox.tell(InputCleared())
        one.outbox.tell(sound())
        one.outbox.post({"type": "of_our_own"})
        assert one.outbox.waiting == 3
        kinds = [json.loads(await one.outbox.next())["type"] for _ in range(3)]
        assert kinds == ["input_audio_buffer.cleared", "response.output_audio.delta", "of_our_own"]
        waiting = asyncio.create_task(one.outbox.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        one.outbox.post({"type": "late"})
        assert json.loads(await waiting)["type"] == "late"

    play(scenario)


def test_audio_takes_room_until_it_is_written() -> None:
    async def scenario(one: Bench) -> None:
        assert has_room(one.outbox)
        room = []
        for number in range(AUDIO_WAITING_MAX):
            one.outbox.tell(sound(480 * number))
            room.append(has_room(one.outbox))
        assert room == [True, False]
        await one.outbox.next()
        assert has_room(one.outbox)
        for _ in range(10):
            one.outbox.tell(InputCleared())
        assert has_room(one.outbox), "only audio takes room"

    play(scenario)


def test_audio_that_is_dropped_leaves_the_rest() -> None:
    async def scenario(one: Bench) -> None:
        one.outbox.tell(sound())
        one.outbox.tell(InputCleared())
        one.outbox.tell(sound(480))
        assert one.outbox.drop_audio() == Position("resp_1", 0, 0)
        assert has_room(one.outbox)
        assert one.outbox.waiting == 1
        assert json.loads(await one.outbox.next())["type"] == "input_audio_buffer.cleared"
        for number in range(AUDIO_WAITING_MAX):
            one.outbox.tell(sound(480 * number))
        assert not has_room(one.outbox)

    play(scenario)


def test_of_what_is_dropped_it_is_known_where_it_began() -> None:
    """That was counted as sent, and perhaps as heard, and never left."""

    async def scenario(one: Bench) -> None:
        one.outbox.tell(sound(480))
        await one.outbox.next()
        assert one.outbox.drop_audio() is None, "all has left"
        one.outbox.tell(ReplyAudio("item_0", EPOCH, Frame("resp_0", 960, b"\0\0" * 480, final=True), 1_440))
        one.outbox.tell(sound(960))
        one.outbox.tell(sound(1_440))
        assert one.outbox.drop_audio() == Position("resp_1", 960, 960)

    play(scenario)


def test_what_is_dropped_leaves_no_gap_in_the_numbers() -> None:
    async def scenario(one: Bench) -> None:
        one.outbox.tell(InputCleared())
        one.outbox.tell(sound())
        one.outbox.tell(InputCleared())
        one.outbox.drop_audio()
        numbers = [json.loads(await one.outbox.next())["server_event_seq"] for _ in range(2)]
        assert numbers == [1, 2]

    play(scenario)


def test_a_message_that_was_not_handed_over_is_the_next_again() -> None:
    async def scenario(one: Bench) -> None:
        await one.open()
        one.outbox.tell(InputCleared())
        one.outbox.post({"type": "of_our_own"})
        one.socket.reads.clear()
        serving = asyncio.create_task(one.serve())
        await one.socket.offered.wait()
        one.call.end("session_replaced")
        assert await serving == "session_replaced"
        left = [json.loads(await one.outbox.next()) for _ in range(one.outbox.waiting)]
        assert [message["type"] for message in left] == ["input_audio_buffer.cleared", "of_our_own"]
        assert [message["server_event_seq"] for message in left] == [1, 2]
        one.outbox.put_back("{}")
        one.outbox.clear()
        assert one.outbox.waiting == 0

    play(scenario)


def test_a_client_that_takes_nothing_for_too_long_is_too_slow() -> None:
    async def scenario(one: Bench) -> None:
        outbox = Outbox(one.dialect, stall_ns_max=4)
        outbox.pace(0)
        outbox.tell(InputCleared())
        outbox.tell(InputCleared())
        outbox.pace(3)
        await outbox.next()  # it moves
        for now_ns in (4, 7):
            outbox.pace(now_ns)
            assert not outbox.overflowed.is_set()
        outbox.pace(8)
        assert outbox.overflowed.is_set()

    play(scenario)


def test_a_client_for_whom_messages_wait_from_the_start_has_its_time_too() -> None:
    async def scenario(one: Bench) -> None:
        outbox = Outbox(one.dialect, stall_ns_max=4)
        outbox.tell(InputCleared())
        for now_ns in (1_000, 1_003):
            outbox.pace(now_ns)
            assert not outbox.overflowed.is_set()
        outbox.pace(1_004)
        assert outbox.overflowed.is_set()

    play(scenario)


def test_a_client_for_whom_nothing_waits_is_not_slow() -> None:
    async def scenario(one: Bench) -> None:
        outbox = Outbox(one.dialect, stall_ns_max=4)
        for now_ns in (0, 10, 20):
            outbox.pace(now_ns)
        one.outbox.tell(InputCleared())
        for now_ns in (0, 10**15):
            one.outbox.pace(now_ns)
        assert not outbox.overflowed.is_set()
        assert not one.outbox.overflowed.is_set(), "without a limit nobody is too slow"

    play(scenario)


def test_audio_out_of_band_belongs_to_no_epoch() -> None:
    async def scenario(one: Bench) -> None:
        one.outbox.tell(sound())
        one.outbox.tell(sound(480, epoch=OUT_OF_BAND))
        assert one.outbox.drop_audio() == Position("resp_1", 0, 0)
        assert one.outbox.drop_audio() is None
        assert one.outbox.waiting == 1
        one.outbox.tell(sound())
        assert not has_room(one.outbox)
        assert json.loads(await one.outbox.next())["epoch"] == OUT_OF_BAND

    play(scenario)


def test_a_full_outbox_takes_no_more_and_says_so() -> None:
    async def scenario(one: Bench) -> None:
        for _ in range(MESSAGES_WAITING_MAX):
            one.outbox.tell(InputCleared())
        assert not one.outbox.overflowed.is_set()
        one.outbox.tell(InputCleared())
        assert one.outbox.overflowed.is_set()
        assert one.outbox.waiting == MESSAGES_WAITING_MAX

    play(scenario)


async def messages(outbox: Outbox) -> list[tuple[str, int]]:
    """All that waits, as it is written."""
    told = [json.loads(await outbox.next()) for _ in range(outbox.waiting)]
    return [(one["type"], one["server_event_seq"]) for one in told]


def test_what_was_sent_and_what_waits_is_handed_over_numbered() -> None:
    async def scenario(one: Bench) -> None:
        one.outbox.post({"type": "before"})
        await one.outbox.next()
        one.outbox.keep_sent()
        one.outbox.keep_sent()  # it goes on
        one.outbox.post({"type": "sent"})
        one.outbox.put_back(await one.outbox.next())
        one.outbox.tell(sound())
        one.outbox.post({"type": "waiting"})
        sent = one.outbox.hand_over()
        assert sent is not None
        assert (one.outbox.waiting, has_room(one.outbox)) == (0, True)
        missed = sent.since(1)
        assert missed is not None
        assert [(m["type"], m["server_event_seq"]) for m in missed] == [("sent", 2), ("waiting", 3)]
        another = Bench()
        another.outbox.post(another.dialect.stamp({"type": "greeting"}))
        another.outbox.go_on_from(sent, missed)
        another.outbox.keep_sent()
        another.outbox.post({"type": "new"})
        assert await messages(another.outbox) == [("greeting", 1), ("sent", 2), ("waiting", 3), ("new", 4)]
        kept = another.outbox.hand_over()
        assert kept is sent
        assert [m["type"] for m in kept.since(3) or ()] == ["new"]

    play(scenario)


def test_what_was_dropped_or_never_kept_is_not_handed_over() -> None:
    async def scenario(one: Bench) -> None:
        assert one.outbox.hand_over() is None
        one.outbox.keep_sent()
        for _ in range(MESSAGES_WAITING_MAX + 1):
            one.outbox.post({"type": "of_our_own"})
        assert one.outbox.hand_over() is None

    play(scenario)
