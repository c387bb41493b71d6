"""The queue of Asterisk's channel, and its levels."""

from __future__ import annotations

from loadtest.carriers.frame_queue import (
    LENGTH_MAX,
    NOTICES_MAX,
    XOFF_LEVEL,
    XON_LEVEL,
    FrameQueue,
    Notice,
    Taken,
)

MARK, OTHER = Notice("MARK", "a"), Notice("MARK", "b")


def test_a_tick_takes_one_frame_and_what_stands_before_it() -> None:
    queue = FrameQueue()
    queue.note(MARK)
    queue.note(OTHER)
    queue.put(b"1")
    queue.note(MARK)
    queue.put(b"2")

    assert queue.take() == Taken((MARK, OTHER), b"1")
    assert queue.take() == Taken((MARK,), b"2")
    assert queue.take() == Taken(ran_dry=True)


def test_the_levels_turn_the_sender_off_and_on_again_once() -> None:
    queue = FrameQueue()
    turned_off = [queue.put(b"1") for _ in range(LENGTH_MAX)]
    assert [index for index, off in enumerate(turned_off) if off] == [XOFF_LEVEL - 1]
    assert (queue.takes_more, queue.is_full) == (False, True)
    turned_on = [queue.take().turned_on for _ in range(LENGTH_MAX)]
    assert [index for index, on in enumerate(turned_on) if on] == [LENGTH_MAX - XON_LEVEL]
    assert (queue.takes_more, queue.is_full) == (True, False)


def test_a_flush_leaves_it_to_the_next_tick_whether_there_is_room() -> None:
    queue = FrameQueue()
    for _ in range(XOFF_LEVEL):
        queue.put(b"1")
    queue.note(MARK)
    frames, notices = queue.flush()

    assert (len(frames), notices, queue.frames) == (XOFF_LEVEL, [MARK], 0)
    assert queue.is_full
    assert queue.take() == Taken(turned_on=True, ran_dry=True)


def test_notices_are_bounded() -> None:
    queue = FrameQueue()
    queue.put(b"1")
    assert all(queue.note(MARK) for _ in range(NOTICES_MAX))
    assert not queue.note(MARK)
