"""The caller who examines and a service, as a pair of cores: what is seen of each manner, and what is spoilt."""

from __future__ import annotations

import pytest

from benchmarks.turn_taking import score
from benchmarks.turn_taking.examiner import EXAMPLES
from benchmarks.turn_taking.labels import NOT_FOR_IT, TURNS, Clip, Event, Kind
from benchmarks.turn_taking.observation import Mark, Observation
from loadtest.realtime_wire import SAMPLE_RATE
from tests.benchmarks.turn_taking.fake_service import FRAME_NS, Habits, Manner, examine

MS = 1_000_000


def event(kind: Kind, *lengths_ms: int, number: int = 0, moment_ms: int | None = 1_000) -> Event:
    """Loud for the first length, silent for the second, and so on."""
    pcm, voiced = b"", []
    for place, ms in enumerate(lengths_ms):
        start, samples = len(pcm) // 2, ms * SAMPLE_RATE // 1_000
        pcm += (b"\0\0" if place % 2 else b"\0\x20") * samples
        if not place % 2:
            voiced.append((start, start + samples))
    in_silence = kind in TURNS
    clip = Clip(f"{kind} {number}", pcm, tuple(voiced))
    return Event(number, kind, clip, None if in_silence else moment_ms, kind not in NOT_FOR_IT)


def observe(one: Event, habits: Habits) -> Observation:
    examiner, _ = examine([one], habits)
    (seen,) = examiner.observations
    assert not examiner.errors
    return seen


def ms(ns: int | None) -> int | None:
    return None if ns is None else ns // MS


def test_a_reply_that_is_given_up_is_seen_to_stop_and_its_answer_to_come() -> None:
    """160 ms to notice it, at the end of the eighth frame; 500 of silence behind 1,000 of speech."""
    seen = observe(event(Kind.INTERRUPTION, 1_000), Habits())
    assert seen.spoilt == ""
    assert ms(score.silent_after_ns(seen)) == 160
    assert not score.kept(seen)
    assert ms(score.answer_ns(seen)) == 500
    assert score.takes_over(seen)
    assert [note.mark for note in seen.notes] == [Mark.YIELDED, Mark.COMMITTED]


def test_the_event_comes_at_its_moment_of_the_reply() -> None:
    seen = observe(event(Kind.BACKCHANNEL, 400, moment_ms=1_240), Habits(Manner.TALK_ON))
    assert seen.start_ns - seen.sounds[0].start_ns == pytest.approx(1_240 * MS, abs=FRAME_NS)


def test_a_reply_that_is_held_is_seen_to_stand_still_and_go_on() -> None:
    """Noticed after 160 ms; what was sent a frame ahead of that is still heard."""
    seen = observe(event(Kind.BACKCHANNEL, 400), Habits(Manner.HOLD, hold_ms=300))
    held = score.hold(seen)
    assert held is not None
    assert ms(held.at_ns - seen.start_ns) == 160
    assert ms(score.pause_ns(seen)) == 300
    assert score.kept(seen)
    assert score.errs(seen)  # longer than a tick
    assert [note.mark for note in seen.notes] == [Mark.HELD, Mark.RESUMED]
    assert score.decision_ns(seen) is not None


def test_a_reply_that_is_talked_through_never_stops() -> None:
    seen = observe(event(Kind.BACKCHANNEL, 400), Habits(Manner.TALK_ON))
    assert score.stops(seen) == []
    assert len(seen.sounds) == 1
    assert score.kept(seen)


def test_a_turn_is_spoken_in_silence_and_answered() -> None:
    seen = observe(event(Kind.QUESTION, 1_500), Habits())
    assert seen.over is None
    assert ms(score.answer_ns(seen)) == 500
    assert score.takes_over(seen)


def test_a_pause_that_is_too_long_for_the_service_ends_the_turn_early() -> None:
    seen = observe(event(Kind.PAUSED, 800, 700, 900), Habits())
    assert score.ends_early(seen)
    assert ms(score.answer_ns(seen)) == 500
    assert not score.ends_early(observe(event(Kind.PAUSED, 800, 400, 900), Habits()))


def test_a_tic_in_silence_is_an_error_where_it_is_answered() -> None:
    one = event(Kind.TIC, 300, moment_ms=None)
    assert score.errs(observe(one, Habits()))
    assert not score.errs(observe(one, Habits(answers=False)))


def test_what_is_never_answered_is_given_up_after_a_while() -> None:
    seen = observe(event(Kind.QUESTION, 500), Habits(answers=False))
    assert score.answer_ns(seen) is None
    assert ms(seen.closed_ns - seen.end_ns) == pytest.approx(6_000, abs=40)


def test_every_event_is_seen_and_each_finds_the_same_history() -> None:
    events = [event(kind, 400, number=number) for number, kind in enumerate(Kind)]
    examiner, service = examine(events, Habits())
    assert [seen.number for seen in examiner.observations] == list(range(len(events)))
    assert not any(seen.spoilt for seen in examiner.observations)
    questions = [item for item in service.created if item.startswith("question_")]
    assert len(questions) == len(events) - len(TURNS)
    assert len(service.created) == len(EXAMPLES) + len(questions)
    assert set(questions) <= set(service.deleted)
    assert any(item.startswith("item_of_resp_") for item in service.deleted)
    assert any(item.startswith("turn_") for item in service.deleted)
    assert len(service.deleted) == len(set(service.deleted))


def test_what_has_been_heard_is_reported_and_only_rises() -> None:
    _, service = examine([event(Kind.BACKCHANNEL, 400)], Habits(Manner.TALK_ON))
    samples = [count for _, count in service.acknowledged]
    assert samples == sorted(set(samples))
    assert len(samples) > 10


def test_an_event_whose_reply_was_too_short_comes_again_earlier() -> None:
    habits = Habits(Manner.TALK_ON, reply_ms=(600, 8_000, 8_000))
    examiner, _ = examine([event(Kind.BACKCHANNEL, 400), event(Kind.TIC, 400, number=1)], habits)
    assert [(seen.number, seen.spoilt) for seen in examiner.observations] == [(1, ""), (0, "")]
    first = examiner.observations[1]
    assert first.start_ns - first.sounds[0].start_ns == pytest.approx(500 * MS, abs=FRAME_NS)


@pytest.mark.parametrize(
    ("reply_ms", "answers", "why"),
    [(300, True, "the reply was too short"), (2_000, True, "the reply ended meanwhile")],
)
def test_an_event_that_cannot_happen_is_spoilt_after_two_attempts(reply_ms: int, answers: bool, why: str) -> None:
    habits = Habits(Manner.TALK_ON, reply_ms=(reply_ms,), answers=answers)
    seen = observe(event(Kind.BACKCHANNEL, 400), habits)
    assert seen.spoilt == why


def test_a_question_without_an_answer_is_not_waited_for_for_ever() -> None:
    assert observe(event(Kind.BACKCHANNEL, 400), Habits(mute=True)).spoilt == "the question was not answered"


def test_a_service_that_does_not_stop_talking_does_not_stop_the_examination() -> None:
    """Rest is taken for fifteen seconds at most, and the next event happens anyway."""
    habits = Habits(Manner.TALK_ON, reply_ms=(60_000,), obeys=False)
    examiner, _ = examine([event(Kind.BACKCHANNEL, 400), event(Kind.QUESTION, 500, number=1)], habits)
    first, second = examiner.observations
    assert 15_000 <= (second.start_ns - first.closed_ns) // MS <= 15_040


def test_the_callers_own_lateness_is_known() -> None:
    examiner, _ = examine([event(Kind.QUESTION, 500)], Habits())
    assert examiner.lateness_p99_ms == 0
