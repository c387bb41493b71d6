"""What a carrier has played, by its marks and the clock; and how full its queue is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from duplex.telephony.carrier_queue import NS_PER_S, CarrierQueue

MS = NS_PER_S // 1_000
RATE = 8_000
PER_MS = RATE // 1_000


def sending(*ends_ms: int, at_ms: int = 0) -> CarrierQueue:
    """Sound that ends there, with a mark behind each."""
    queue = CarrierQueue(RATE)
    for end_ms in ends_ms:
        queue.sent(end_ms * PER_MS, at_ms * MS)
        queue.marked()
    return queue


def heard_ms(queue: CarrierQueue, at_ms: int) -> int | None:
    heard = queue.heard(at_ms * MS)
    return None if heard is None else heard // PER_MS


def test_before_the_first_mark_nothing_is_known() -> None:
    queue = sending(120)
    assert heard_ms(queue, 10_000) is None
    assert queue.is_playing
    assert queue.end == 120 * PER_MS


def test_behind_a_mark_it_goes_on_in_real_time_up_to_the_next() -> None:
    queue = sending(120, 240, 360)
    queue.played(120 * PER_MS, 130 * MS)
    assert [heard_ms(queue, at) for at in (130, 180, 250, 900)] == [120, 170, 240, 240]
    queue.played(240 * PER_MS, 251 * MS)
    queue.played(360 * PER_MS, 371 * MS)
    assert heard_ms(queue, 900) == 360
    assert not queue.is_playing


def test_it_goes_on_to_what_was_sent_where_no_mark_follows() -> None:
    queue = sending(120)
    queue.sent(200 * PER_MS, 0)
    queue.played(120 * PER_MS, 130 * MS)
    assert [heard_ms(queue, at) for at in (150, 900)] == [140, 200]


def test_a_queue_that_may_have_run_dry_has_gone_on_when_a_mark_says_so() -> None:
    queue = sending(120)
    queue.played(120 * PER_MS, 130 * MS)
    assert not queue.sent(180 * PER_MS, 900 * MS)
    queue.marked()
    assert queue.sent(240 * PER_MS, 900 * MS)
    assert [heard_ms(queue, at) for at in (900, 960, 2_000)] == [120, 120, 120]
    queue.played(180 * PER_MS, 2_000 * MS)
    assert [heard_ms(queue, at) for at in (2_000, 2_030, 2_900)] == [180, 210, 240]


def test_a_break_stands_while_no_mark_behind_it_has_come_back() -> None:
    queue = sending(120)
    queue.sent(140 * PER_MS, 300 * MS)
    queue.played(120 * PER_MS, 310 * MS)
    assert heard_ms(queue, 900) == 120
    queue.sent(200 * PER_MS, 900 * MS)
    queue.flush(200 * PER_MS, 910 * MS)
    queue.sent(300 * PER_MS, 920 * MS)
    queue.played(280 * PER_MS, 1_000 * MS)
    assert heard_ms(queue, 1_010) == 290


def test_of_a_carrier_that_counts_the_clock_says_nothing() -> None:
    queue = CarrierQueue(RATE, is_counted=True)
    queue.sent(240 * PER_MS, 0)
    assert heard_ms(queue, 100) is None
    queue.played(120 * PER_MS, 130 * MS)
    assert [heard_ms(queue, at) for at in (130, 180, 900)] == [120, 120, 120]


def test_a_mark_of_long_ago_moves_nothing_back() -> None:
    queue = sending(120, 240)
    queue.played(240 * PER_MS, 250 * MS)
    queue.played(120 * PER_MS, 260 * MS)
    assert heard_ms(queue, 260) == 240


def test_no_more_is_played_than_was_sent() -> None:
    queue = sending(120)
    queue.played(999 * PER_MS, 130 * MS)
    assert heard_ms(queue, 130) == 120


def test_behind_a_flush_all_begins_anew() -> None:
    queue = sending(120, 240)
    queue.played(120 * PER_MS, 130 * MS)
    queue.flush(240 * PER_MS, 140 * MS)
    assert (heard_ms(queue, 900), queue.is_playing, queue.lead_ns(140 * MS)) == (None, False, 0)
    queue.played(240 * PER_MS, 150 * MS)
    assert heard_ms(queue, 900) is None, "the mark of what was thrown away tells nothing"
    queue.sent(360 * PER_MS, 200 * MS)
    assert queue.is_playing
    queue.marked()
    queue.played(360 * PER_MS, 330 * MS)
    assert heard_ms(queue, 330) == 360


def test_what_is_taken_back_was_never_sent() -> None:
    queue = sending(120, 240)
    queue.flush(120 * PER_MS, 20 * MS)
    assert (queue.end, queue.is_playing) == (120 * PER_MS, False)
    queue.sent(360 * PER_MS, 30 * MS)
    assert queue.lead_ns(30 * MS) == 240 * MS
    queue.played(200 * PER_MS, 130 * MS)
    assert [heard_ms(queue, at) for at in (130, 180, 900)] == [200, 250, 360], "no mark of before bounds it"


def test_nor_was_a_break_in_what_is_taken_back() -> None:
    queue = sending(120)
    queue.sent(160 * PER_MS, 500 * MS)
    queue.sent(240 * PER_MS, 900 * MS)
    queue.flush(120 * PER_MS, 910 * MS)
    queue.sent(360 * PER_MS, 920 * MS)
    queue.played(140 * PER_MS, 950 * MS)
    assert heard_ms(queue, 2_000) == 360


def test_the_queue_empties_in_real_time() -> None:
    queue = sending(120)
    assert [queue.lead_ns(at * MS) // MS for at in (0, 50, 120, 500)] == [120, 70, 0, 0]
    queue.sent(140 * PER_MS, 500 * MS)
    assert queue.lead_ns(500 * MS) == 20 * MS


def test_asterisk_2115_a_burst_that_waits_at_the_carrier_shows_by_its_marks() -> None:
    queue = sending(80, 160)
    assert queue.lead_ns(300 * MS) == 0, "as far as the clock knows"
    queue.played(80 * PER_MS, 300 * MS)
    assert queue.lead_ns(300 * MS) == 0, "how old that is cannot be told"
    queue.played(80 * PER_MS, 300 * MS, 10 * MS)
    assert queue.lead_ns(300 * MS) == 50 * MS
    queue.played(160 * PER_MS, 380 * MS, 10 * MS)
    assert queue.lead_ns(380 * MS) == 0


def test_a_carrier_that_plays_faster_than_our_clock_shows_by_its_marks() -> None:
    queue = sending(120, 240)
    queue.played(120 * PER_MS, 115 * MS)
    assert (queue.lead_ns(115 * MS), queue.gained_ns) == (120 * MS, 5 * MS)
    queue.played(240 * PER_MS, 230 * MS)
    assert (queue.lead_ns(230 * MS), queue.gained_ns) == (0, 10 * MS)
    queue.sent(360 * PER_MS, 230 * MS)
    assert queue.gained_ns == 0, "it begins anew"


def test_what_a_carrier_has_gained_is_gone_with_a_flush() -> None:
    queue = sending(120, 240)
    queue.played(120 * PER_MS, 115 * MS)
    queue.flush(240 * PER_MS, 120 * MS)
    assert queue.gained_ns == 0


def test_a_mark_that_comes_in_time_changes_nothing() -> None:
    queue = sending(120, 240)
    queue.played(120 * PER_MS, 140 * MS, 10 * MS)
    assert queue.lead_ns(140 * MS) == 100 * MS


def test_a_pause_stops_both_and_they_go_on_where_they_were() -> None:
    queue = sending(120, 240)
    queue.played(120 * PER_MS, 130 * MS)
    queue.pause(150 * MS)
    queue.pause(160 * MS)
    assert queue.is_paused
    assert [heard_ms(queue, at) for at in (150, 700)] == [140, 140]
    assert queue.lead_ns(700 * MS) == 90 * MS
    queue.resume(700 * MS)
    queue.resume(710 * MS)
    assert [heard_ms(queue, at) for at in (700, 750)] == [140, 190]
    assert queue.lead_ns(750 * MS) == 40 * MS


def test_a_flush_ends_a_pause() -> None:
    queue = sending(120)
    queue.pause(20 * MS)
    queue.flush(120 * PER_MS, 50 * MS)
    assert not queue.is_paused
    queue.sent(240 * PER_MS, 60 * MS)
    assert queue.lead_ns(70 * MS) == 110 * MS


@given(st.lists(st.tuples(st.sampled_from(["send", "mark", "back", "flush", "pause", "resume"]), st.integers(0, 300))))
@example([("send", 1), ("mark", 0), ("flush", 1), ("back", 0)])
def test_what_is_heard_never_passes_what_was_sent_nor_what_was_flushed(steps: list[tuple[str, int]]) -> None:
    queue, now_ns, marks, flushed = CarrierQueue(RATE), 0, [0], 0
    for step, ms in steps:
        now_ns += ms * MS
        match step:
            case "send":
                queue.sent(queue.end + ms * PER_MS, now_ns)
            case "mark":
                queue.marked()
                marks.append(queue.end)
            case "back":
                queue.played(marks.pop() if marks else 0, now_ns)
            case "flush":
                queue.flush(max(flushed, queue.end - ms), now_ns)
                flushed = queue.end
            case "pause":
                queue.pause(now_ns)
            case _:
                queue.resume(now_ns)
        heard = queue.heard(now_ns)
        assert heard is None or flushed < heard <= queue.end
        assert queue.lead_ns(now_ns) >= 0
