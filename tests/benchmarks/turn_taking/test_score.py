"""The figures of timelines whose right values were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.turn_taking import score
from benchmarks.turn_taking.labels import Kind
from benchmarks.turn_taking.observation import Mark, Note, Observation, Sound
from benchmarks.turn_taking.score import Rate, Stop, Times
from tests.benchmarks.turn_taking.timelines import MS, at, seen

YIELDED = (Mark.YIELDED, 250, "reply")

# The reply is cut 250 ms after the first voiced sample, and answered 600 ms after the last.
BARGED_IN = seen(reply=[(-1_500, 250)], answer=[(1_400, 2_600)], notes=[YIELDED])
# It stands still from 200 to 550 ms, and goes on.
HELD = seen(
    Kind.BACKCHANNEL,
    voiced=[(0, 400)],
    reply=[(-1_500, 200), (550, 3_000)],
    notes=[(Mark.HELD, 40, ""), (Mark.RESUMED, 500, "")],
)
# The same within one tick: 200 to 390 ms.
HELD_BRIEFLY = seen(Kind.BACKCHANNEL, voiced=[(0, 400)], reply=[(-1_500, 200), (390, 3_000)])
TALKED_THROUGH = seen(Kind.BACKCHANNEL, voiced=[(0, 400)], reply=[(-1_500, 3_000)])
# Nothing tells that the reply was given up: it stands still for as long as was looked.
STANDS_STILL = seen(reply=[(-1_500, 300)], closed=6_800)
# Made already, and heard to its own end at 2,400 ms.
ENDED_BY_ITSELF = seen(Kind.BACKCHANNEL, reply=[(-1_500, 2_400)], notes=[(Mark.MADE, 1_900, "reply")])
# Made already, and flushed on the service's word.
FLUSHED = seen(reply=[(-1_500, 270)], notes=[(Mark.MADE, -100, "reply"), (Mark.YIELDED, 270, "reply")])


def turn(kind: Kind = Kind.PAUSED, **changes: object) -> Observation:
    """A turn from 0 to 1,000 ms, a pause, and on from 1,700 to 3,000 ms."""
    settings: dict[str, object] = {"over": False, "voiced": [(0, 1_000), (1_700, 3_000)], "closed": 9_000}
    return seen(kind, **(settings | changes))  # type: ignore[arg-type]


ANSWERED = turn(answer=[(3_700, 4_800)], notes=[(Mark.COMMITTED, 3_550, "")])
# Committed within the pause; an answer of 300 ms and two words is cut by the turn's going on.
CUT_IN = turn(
    answer=[(1_650, 1_950)],
    notes=[(Mark.COMMITTED, 1_550, ""), (Mark.YIELDED, 1_950, "answer")],
    words={"answer": 2},
)

TIMELINES = (
    *(BARGED_IN, HELD, HELD_BRIEFLY, TALKED_THROUGH, STANDS_STILL, ENDED_BY_ITSELF, FLUSHED, ANSWERED, CUT_IN),
)


# ---- one timeline -----------------------------------------------------------------------------------


def test_a_reply_stops_where_its_samples_do() -> None:
    assert score.stops(BARGED_IN) == [Stop(at(250), None)]
    assert score.stops(HELD) == [Stop(at(200), at(550))]
    assert score.stops(TALKED_THROUGH) == []
    assert score.stops(STANDS_STILL) == [Stop(at(300), None)]


def test_the_own_end_of_a_reply_is_no_stop() -> None:
    assert score.stops(ENDED_BY_ITSELF) == []
    assert score.stops(FLUSHED) == [Stop(at(270), None)]


def test_what_stood_still_before_the_event_does_not_count() -> None:
    early = seen(reply=[(-1_500, -900), (-700, 3_000)])
    assert score.stops(early) == []
    across = seen(reply=[(-1_500, -100), (300, 3_000)])
    assert score.stops(across) == [Stop(at(-100), at(300))]
    assert score.silent_after_ns(across) == 0


@pytest.mark.parametrize(
    ("timeline", "silent_ms"),
    [
        (BARGED_IN, 250),
        (HELD, 200),
        (HELD_BRIEFLY, None),
        (TALKED_THROUGH, None),
        (STANDS_STILL, 300),
        (FLUSHED, 270),
        (seen(reply=[(-1_500, 300), (500, 3_000)]), None),  # a tick exactly is grouped
        (seen(reply=[(-1_500, 100), (180, 700), (1_000, 3_000)]), 700),  # the first gap is too short
    ],
)
def test_silence_is_what_lasts_longer_than_a_tick(timeline: Observation, silent_ms: int | None) -> None:
    assert score.silent_after_ns(timeline) == (None if silent_ms is None else silent_ms * MS)


def test_a_yield_comes_within_two_seconds() -> None:
    assert score.yields(seen(reply=[(-500, 2_000)], closed=5_000))
    assert not score.yields(seen(reply=[(-500, 2_001)], closed=5_000))
    assert not score.yields(TALKED_THROUGH)


def test_a_yield_within_a_second_is_an_error_where_it_was_not_asked_for() -> None:
    assert score.errs(seen(Kind.TIC, reply=[(-500, 1_000)], closed=5_000))
    assert not score.errs(seen(Kind.TIC, reply=[(-500, 1_001)], closed=5_000))
    assert score.errs(HELD)
    assert not score.errs(HELD_BRIEFLY)
    assert not score.errs(TALKED_THROUGH)


def test_in_silence_the_error_is_to_answer_within_two_seconds_of_the_end() -> None:
    assert score.errs(seen(Kind.TIC, over=False, answer=[(2_800, 3_000)]))
    assert not score.errs(seen(Kind.TIC, over=False, answer=[(2_801, 3_000)]))
    assert not score.errs(seen(Kind.TIC, over=False))


def test_a_hold_is_a_gap_of_more_than_three_frames() -> None:
    assert score.hold(HELD) == Stop(at(200), at(550))
    assert score.hold(seen(reply=[(-500, 100), (160, 3_000)])) is None
    assert score.hold(seen(reply=[(-500, 100), (161, 3_000)])) == Stop(at(100), at(161))
    assert score.hold(BARGED_IN) == Stop(at(250), None)


@pytest.mark.parametrize(
    ("timeline", "decided_ms"),
    [(BARGED_IN, 250), (HELD, 500), (HELD_BRIEFLY, 390), (TALKED_THROUGH, None), (STANDS_STILL, None)],
)
def test_a_decision_is_told_or_heard(timeline: Observation, decided_ms: int | None) -> None:
    assert score.decision_ns(timeline) == (None if decided_ms is None else decided_ms * MS)


def test_a_hold_is_told_from_the_first_voiced_sample_on() -> None:
    assert (score.held_ns(HELD), score.held_ns(BARGED_IN)) == (40 * MS, None)
    before = seen(reply=[(-1_500, 3_000)], notes=[(Mark.HELD, -40, ""), (Mark.HELD, 90, ""), (Mark.HELD, 400, "")])
    assert score.held_ns(before) == 90 * MS


def test_a_reply_is_kept_that_goes_on() -> None:
    kept = (HELD, HELD_BRIEFLY, TALKED_THROUGH, ENDED_BY_ITSELF)
    assert all(score.kept(timeline) for timeline in kept)
    assert not any(score.kept(timeline) for timeline in (BARGED_IN, STANDS_STILL, FLUSHED))


def test_the_pause_is_the_sum_of_the_holds() -> None:
    assert score.pause_ns(HELD) == 350 * MS
    assert score.pause_ns(TALKED_THROUGH) == 0
    twice = seen(reply=[(-500, 100), (300, 400), (450, 900), (1_000, 3_000)])  # 200 and 100; 50 is no hold
    assert score.pause_ns(twice) == 300 * MS


def test_the_answer_counts_from_the_last_voiced_sample() -> None:
    assert score.answer_ns(BARGED_IN) == 600 * MS
    assert score.answer_ns(ANSWERED) == 700 * MS
    assert score.answer_ns(CUT_IN) is None
    assert score.answer_ns(HELD) is None
    # What was begun before the event is no answer to it.
    assert score.answers(seen(over=False, answer=[(-300, 2_000)])) == []


@pytest.mark.parametrize(
    ("heard", "words", "taken"),
    [
        ([(1_000, 1_999)], 3, False),
        ([(1_000, 2_000)], 3, True),
        ([(1_000, 1_500), (1_700, 2_200)], 1, True),
        ([(1_000, 1_400)], 4, True),
        ([], 20, False),
    ],
)
def test_a_second_or_more_than_three_words_take_the_turn(heard: list[tuple[int, int]], words: int, taken: bool) -> None:
    assert score.takes_turn(seen(answer=heard, words={"answer": words}), "answer") == taken
    assert score.takes_over(seen(answer=heard, words={"answer": words})) == taken


def test_the_turn_may_be_taken_before_its_end() -> None:
    assert not score.takes_early(CUT_IN)
    assert score.takes_early(turn(answer=[(1_650, 1_950)], words={"answer": 4}))
    assert not score.takes_early(ANSWERED)


def test_both_speak_at_once_until_one_of_them_stops() -> None:
    assert score.overlap_ns(BARGED_IN) == 250 * MS
    assert score.overlap_ns(seen(voiced=[(0, 300)], reply=[(-500, 900)], closed=3_000)) == 300 * MS


def test_the_service_talks_over_the_caller_where_it_begins_while_something_is_voiced() -> None:
    assert score.talks_over(CUT_IN) == 0
    assert score.talks_over(turn(answer=[(1_700, 1_950)])) == 1
    assert score.talks_over(turn(answer=[(1_000, 1_950)])) == 0
    assert score.talks_over(ANSWERED) == 0


def test_a_turn_ends_early_that_is_committed_before_its_last_voiced_sample() -> None:
    assert score.ends_early(CUT_IN)
    assert not score.ends_early(ANSWERED)
    assert not score.ends_early(turn(notes=[(Mark.COMMITTED, -20, ""), (Mark.COMMITTED, 3_000, "")]))


def test_false_holds_are_heard_or_told() -> None:
    noise = seen(Kind.NOISE, voiced=[(0, 4_000)], reply=[(-500, 1_000), (1_300, 2_000), (2_200, 5_000)], closed=5_000)
    assert score.false_holds(noise) == 2
    late = seen(Kind.NOISE, voiced=[(0, 4_000)], reply=[(-500, 4_000), (4_300, 5_000)], closed=5_000)
    assert score.false_holds(late) == 0
    marks = [(Mark.HELD, ms, "") for ms in (-1, 0, 3_999, 4_000)]
    assert score.false_holds(seen(Kind.NOISE, voiced=[(0, 4_000)], reply=[(-500, 5_000)], notes=marks)) == 2


@given(st.sampled_from(TIMELINES), st.integers(0, 10**12))
def test_no_figure_depends_on_where_the_clock_began(timeline: Observation, later_ns: int) -> None:
    moved = replace(
        timeline,
        voiced=tuple((start + later_ns, end + later_ns) for start, end in timeline.voiced),
        sounds=tuple(Sound(one.response, one.start_ns + later_ns, one.end_ns + later_ns) for one in timeline.sounds),
        notes=tuple(Note(one.mark, one.at_ns + later_ns, one.response) for one in timeline.notes),
        closed_ns=timeline.closed_ns + later_ns,
    )
    assert score.score([moved]) == score.score([timeline])


@given(st.lists(st.integers(1, 400), min_size=2, max_size=30))
def test_a_stop_lies_between_sounds_and_pauses_add_up(lengths_ms: list[int]) -> None:
    """Sounds and gaps take turns from -200 ms on; what lies behind the first voiced sample is either."""
    places = list(accumulate(lengths_ms, initial=-200))
    sounds = [(start, end) for start, end in pairwise(places)][::2]
    timeline = seen(reply=sounds, closed=places[-1] + 1_000, notes=[(Mark.MADE, 0, "reply")])
    gaps = [(end, start) for (_, end), (start, _) in pairwise(sounds) if start > 0]
    assert score.stops(timeline) == [Stop(at(end), at(start)) for end, start in gaps]
    assert score.pause_ns(timeline) == sum(start - end for end, start in gaps if start - end > 60) * MS
    assert score.kept(timeline)


# ---- all of them ------------------------------------------------------------------------------------


def test_times_are_nearest_ranks_in_milliseconds() -> None:
    assert score.times([]) == Times(0, None, None, None)
    assert score.times([None, 3 * MS, 1 * MS]) == Times(2, 2.0, 1.0, 3.0)
    assert score.times(ms * MS for ms in range(1, 101)) == Times(100, 50.5, 50.0, 95.0)


def test_what_has_fewer_than_ten_events_is_not_shown() -> None:
    assert not Rate(9, 1.0).shown
    assert Rate(10, 1.0).shown
    assert not Times(9, 1.0, 1.0, 1.0).shown
    assert Times(10, 1.0, 1.0, 1.0).shown
    assert score.rate([], score.kept) == Rate(0, None)


def test_nothing_seen_gives_no_figures() -> None:
    scores = score.score([])
    assert scores.r_y == Rate(0, None)
    assert scores.false_holds_noise == Rate(0, None)
    assert scores.halts_undisturbed == Rate(0, None)
    assert scores.l_r == Times(0, None, None, None)
    assert set(scores.counts.values()) == {0}


def test_the_figures_of_a_small_evaluation() -> None:
    ignored = seen(reply=[(-500, 3_000)], wants_answer=False)
    question = turn(Kind.QUESTION, voiced=[(0, 1_000)], answer=[(1_300, 2_400)])
    noise = seen(Kind.NOISE, voiced=[(0, 4_000)], reply=[(-1_000, 1_000), (1_300, 5_000)], closed=5_000)
    lost = seen(reply=[(-500, 100)], spoilt="the reply ended meanwhile")
    tic, side_talk = seen(Kind.TIC, reply=[(-500, 3_000)]), seen(Kind.SIDE_TALK, over=False, answer=[(900, 2_000)])
    scores = score.score(
        [BARGED_IN, ignored, HELD, TALKED_THROUGH, ANSWERED, CUT_IN, question, noise, lost, tic, side_talk]
    )
    assert (scores.counts[Kind.INTERRUPTION], scores.spoilt[Kind.INTERRUPTION]) == (2, 1)
    # tau-voice: turns are answered after 700 and 300 ms and once not at all; the resolved interruption after 600.
    assert scores.r_r == Rate(4, 0.75)
    assert scores.l_r == Times(3, 533.3, 600.0, 700.0)
    assert (scores.r_y, scores.l_y) == (Rate(2, 0.5), Times(1, 250.0, 250.0, 250.0))
    assert scores.i_a == Rate(3, 0.0)
    assert (scores.s_bc, scores.s_vt, scores.s_nd) == (Rate(2, 0.5), Rate(1, 1.0), Rate(1, 0.0))
    # Full-Duplex-Bench
    assert scores.tor_interruption == Rate(1, 1.0)
    assert scores.tor_interruption_latency.mean == 600.0
    assert (scores.tor_question, scores.tor_question_latency.mean) == (Rate(1, 1.0), 300.0)
    assert scores.tor_pause == Rate(2, 0.0)
    assert scores.stop_latency.mean == 250.0
    # our own
    assert scores.held_interruption == Times(0, None, None, None)
    assert scores.held_backchannel == Times(1, 40.0, 40.0, 40.0)
    assert scores.hold_latency_interruption == Times(1, 250.0, 250.0, 250.0)
    assert scores.hold_latency_backchannel == Times(1, 200.0, 200.0, 200.0)
    assert scores.decision_backchannel.p50 == 500.0
    assert scores.pause_backchannel == Times(2, 175.0, 0.0, 350.0)
    assert (scores.kept_backchannel, scores.kept_tic, scores.kept_side_talk) == (
        Rate(2, 1.0),
        Rate(1, 1.0),
        Rate(0, None),
    )
    assert scores.false_holds_noise == Rate(1, 15.0)  # one in four seconds
    assert scores.false_end_of_turn == Rate(2, 0.5)
    assert scores.response_latency == Times(2, 500.0, 300.0, 700.0)


def test_what_halts_before_anything_happens_is_counted_apart() -> None:
    """100 ms of standing still in 3 s of reply; what comes at the event itself does not count."""
    halted = seen(reply=[(-3_000, -2_000), (-1_900, -500), (-450, 3_000)])
    assert score.halts_undisturbed([halted]) == Rate(1, 25.0)  # one in 2.4 s
    assert score.halts_undisturbed([TALKED_THROUGH]) == Rate(1, None)
