"""The bounds between which the ear is, by the pace of sending and what a transport sees of its path."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.chunk import AudioChunk
from media.heard_estimate import (
    DELAY_NS_MAX,
    ROUND_TRIP_NS_UNKNOWN,
    SILENCE_NS_MAX,
    SPANS_MAX,
    WEBRTC_LATENCY,
    WEBSOCKET_LATENCY,
    Latency,
    Pacing,
    Path,
    Probe,
    path_of,
)
from media.playout import REPORT_NS_MAX, Playout

MS = 1_000_000
RATE = 1_000  # a sample is a millisecond
NEAR = Latency(10 * MS, 50 * MS)
NOW_NS = 60_000 * MS

# ---- the path --------------------------------------------------------------------------------------------------


def test_of_a_path_that_nobody_has_measured_the_longest_is_assumed() -> None:
    assert path_of(NEAR, Probe(), NOW_NS) == Path(
        10 * MS, 50 * MS + ROUND_TRIP_NS_UNKNOWN, report_ns_max=ROUND_TRIP_NS_UNKNOWN
    )


def test_a_round_trip_may_have_been_spent_on_the_way_there_and_late_packets_come_later() -> None:
    probe = Probe(30 * MS, jitter_ns=5 * MS, arrived_ns=7)
    assert path_of(NEAR, probe, NOW_NS) == Path(10 * MS, 100 * MS, 30 * MS, arrived_ns=7)


def test_a_question_without_an_answer_has_taken_as_long_as_it_is_waited_for() -> None:
    asked = Probe(30 * MS, asked_ns=NOW_NS - 20 * MS)
    assert path_of(NEAR, asked, NOW_NS).delay_ns_max == 80 * MS
    assert path_of(NEAR, asked, NOW_NS + 300 * MS).delay_ns_max == 370 * MS
    assert path_of(NEAR, replace(asked, asked_ns=NOW_NS + 5), NOW_NS).delay_ns_max == 80 * MS


def test_what_was_due_after_a_peer_fell_silent_has_not_been_heard() -> None:
    asked = Probe(30 * MS, asked_ns=NOW_NS)
    in_time = path_of(NEAR, asked, NOW_NS + SILENCE_NS_MAX)
    assert (in_time.silent_ns, in_time.heard_by(NOW_NS + SILENCE_NS_MAX)) == (None, NOW_NS)
    for later_ns in (1, 9_000 * MS):
        silent = path_of(NEAR, asked, NOW_NS + SILENCE_NS_MAX + later_ns)
        assert (silent.silent_ns, silent.heard_by(NOW_NS + SILENCE_NS_MAX + later_ns)) == (
            NOW_NS,
            min(NOW_NS, NOW_NS + later_ns),
        )
    alive = path_of(NEAR, replace(asked, alive_ns=NOW_NS - 900 * MS), NOW_NS + SILENCE_NS_MAX + 1)
    assert alive.silent_ns == NOW_NS - 900 * MS, "it was known to be there only before the question"
    assert path_of(NEAR, replace(asked, alive_ns=NOW_NS - 900 * MS), NOW_NS).silent_ns is None


@pytest.mark.parametrize(("round_trip_ns", "jitter_ns"), [(10**12, 0), (0, 10**12)])
def test_a_delay_is_bounded_whatever_is_measured(round_trip_ns: int, jitter_ns: int) -> None:
    path = path_of(NEAR, Probe(round_trip_ns, jitter_ns), NOW_NS)
    assert path.delay_ns_max == DELAY_NS_MAX
    assert path.report_ns_max <= DELAY_NS_MAX


def test_a_clock_that_was_set_back_makes_no_negative_way() -> None:
    assert path_of(NEAR, Probe(-5), NOW_NS).delay_ns_max == 50 * MS


@pytest.mark.parametrize("latency", [WEBSOCKET_LATENCY, WEBRTC_LATENCY])
def test_a_browser_as_it_was_measured_lies_within_the_model(latency: Latency) -> None:
    """60 ms to the track and 32 ms of output; over a WebSocket 32 ms and what its page gathers."""
    assert latency.ns_min <= 53 * MS + 32 * MS
    assert latency.ns_max >= 60 * MS + 32 * MS


# ---- pacing ----------------------------------------------------------------------------------------------------


def test_samples_are_due_one_after_the_other_and_after_each_gap() -> None:
    pacing = Pacing(RATE)
    assert (pacing.due_by(NOW_NS), pacing.due_ns(1)) == (0, None)
    for start_ms in (100, 120, 200):
        pacing.record(start_ms * MS, 20)
    for at_ms, samples in ((99, 0), (100, 0), (101, 1), (139, 39), (140, 40), (199, 40), (201, 41), (900, 60)):
        assert pacing.due_by(at_ms * MS) == samples
    for samples, at_ms in ((1, 101), (40, 140), (41, 201), (60, 220)):
        assert pacing.due_ns(samples) == at_ms * MS
    assert [pacing.due_ns(samples) for samples in (-1, 0, 61)] == [None, None, None]


def test_what_was_taken_back_is_never_due() -> None:
    for taken_at, samples in ((100, 60), (60, 60), (50, 50), (40, 40), (10, 10), (0, 0)):
        pacing = Pacing(RATE)
        assert pacing.end_ns == 0
        for start_ms in (100, 120, 200):
            pacing.record(start_ms * MS, 20)
        assert pacing.end_ns == 220 * MS
        pacing.take_back(taken_at)
        assert pacing.due_by(900 * MS) == samples
        assert pacing.due_ns(samples + 1) is None
    pacing.record(950 * MS, 20)
    assert pacing.due_by(960 * MS) == 10


def test_a_part_of_a_sample_is_none_and_the_moment_of_a_sample_is_its_end() -> None:
    pacing = Pacing(24_000)
    pacing.record(0, 480)
    assert pacing.due_by(41_666) == 0
    assert (pacing.due_ns(1), pacing.due_by(41_667)) == (41_667, 1)


def test_gaps_of_long_ago_are_forgotten_and_nothing_counts_as_earlier_than_it_was() -> None:
    pacing, all_of_it = Pacing(RATE), []
    for number in range(3 * SPANS_MAX):
        pacing.record(number * 30 * MS, 20)
        all_of_it.append(number * 30)
    assert len(pacing._spans) == SPANS_MAX
    newest_ms = all_of_it[-1] + 20
    for at_ms in range(0, newest_ms, 97):
        exact = sum(min(20, max(0, at_ms - start_ms)) for start_ms in all_of_it)
        assert pacing.due_by(at_ms * MS) <= exact
        if at_ms > newest_ms - DELAY_NS_MAX // MS:
            assert pacing.due_by(at_ms * MS) == exact


# ---- an ear behind a path --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ear:
    """Hears each sample `delay_ms` after it is due, which is what is to be found out."""

    delay_ms: int
    dues: list[int]  # the moment, in ms, at which each sample is due

    def heard(self, now_ms: int) -> int:
        return bisect_left(self.dues, now_ms - self.delay_ms)


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 300), st.sampled_from((20, 160)))
def test_the_ear_is_between_the_bounds_and_reports_close_them(
    seed: int, delay_ms_min: int, more_ms: int, lead_ms: int
) -> None:
    random = Random(seed)
    ear = Ear(random.randint(delay_ms_min, delay_ms_min + more_ms), [])
    playout = Playout(RATE, 20, lead_ms * MS)
    playout.open("r")
    path = Path(delay_ns_min=delay_ms_min * MS, delay_ns_max=(delay_ms_min + more_ms) * MS)
    playout.go_by(path, 0)
    seq = pushed = before = play_end_ms = 0
    stops_reporting_ms, ends_ms = random.randint(0, 800), 3_500
    for now_ms in range(0, ends_ms, 20):
        if random.random() < 0.3:
            samples = random.randint(1, 150)
            playout.push("r", AudioChunk(seq, RATE, pushed, bytes(2 * samples), final=False))
            seq, pushed = seq + 1, pushed + samples
        while (frame := playout.due(now_ms * MS)) is not None:
            play_end_ms = max(play_end_ms, now_ms)
            ear.dues += range(play_end_ms, play_end_ms + frame.samples)
            play_end_ms += frame.samples
        truth = ear.heard(now_ms)
        reports = now_ms < stops_reporting_ms and now_ms % 100 == 0
        if reports:
            playout.acknowledge("r", truth, now_ms * MS)
        view = playout.view("r", now_ms * MS)
        assert before <= view.heard <= truth <= view.heard + view.error_samples <= view.sent
        if reports:
            assert (view.heard, view.error_samples) == (truth, 0)
        before = view.heard


def test_a_path_that_becomes_longer_takes_nothing_back() -> None:
    playout = played()
    playout.go_by(Path(delay_ns_max=10 * MS), 0)
    assert playout.view("r", 60 * MS).heard == 50
    playout.go_by(Path(delay_ns_max=40 * MS), 60 * MS)
    assert playout.view("r", 60 * MS).heard == 50
    assert playout.view("r", 100 * MS).heard == 60


def test_what_was_estimated_to_have_reached_a_peer_that_took_nothing_any_more_was_not_heard() -> None:
    playout = played()
    playout.go_by(Path(delay_ns_max=10 * MS), 0)
    assert playout.view("r", 60 * MS).heard == 50
    playout.go_by(Path(delay_ns_max=40 * MS, silent_ns=30 * MS), 60 * MS)
    view = playout.view("r", 60 * MS)
    assert (view.heard, view.error_samples) == (30, 30)
    assert playout.arrived("r", 60 * MS) == (30, 30), "and no more will be"
    assert playout.view("r", 900 * MS).heard == 30, "nothing arrives any more"
    playout.go_by(Path(delay_ns_max=40 * MS), 900 * MS)
    assert playout.view("r", 900 * MS).heard == 100, "it did arrive, late"


@pytest.mark.parametrize(("silent_ms", "heard"), [(10, 25), (26, 26), (99, 99), (100, 100), (500, 100)])
def test_a_peer_that_falls_silent_has_had_what_it_reported_and_what_had_come_before(silent_ms: int, heard: int) -> None:
    playout = played()
    playout.acknowledge("r", 25, 25 * MS)
    assert playout.view("r", 200 * MS).heard == 100
    playout.go_by(Path(silent_ns=silent_ms * MS), 200 * MS)
    assert playout.view("r", 200 * MS).heard == heard


def test_of_a_reply_of_another_process_nothing_is_taken_back() -> None:
    playout = Playout(RATE, 20, 0)
    playout.remember("r", RATE, sent=100, heard=70)
    playout.go_by(Path(silent_ns=1), 60 * MS)
    assert playout.view("r", 60 * MS).heard == 70


def test_how_long_the_path_is_reports_know_better_than_any_model() -> None:
    playout = played()
    playout.go_by(Path(delay_ns_min=10 * MS, delay_ns_max=400 * MS), 0)
    playout.acknowledge("r", 20, 95 * MS)
    assert playout.view("r", 174 * MS).heard == 20
    playout.go_by(Path(delay_ns_min=10 * MS, delay_ns_max=300 * MS), 95 * MS)
    assert playout.view("r", 96 * MS + REPORT_NS_MAX).basis == "estimated"
    playout.open("s")
    playout.push("s", AudioChunk(0, RATE, 0, bytes(200), final=True))
    sent_ms = 5_000
    while playout.due(sent_ms * MS):
        pass
    assert playout.view("s", (sent_ms + 85) * MS).heard == 10, "75 ms after it is due, as before"


@pytest.mark.parametrize(("reported_ms", "delay_ms"), [(25, 50), (1_020, 1_000), (9_000, 2_000)])
def test_the_path_that_reports_show_is_no_shorter_nor_longer_than_one_can_be(reported_ms: int, delay_ms: int) -> None:
    playout = played(5_000)
    playout.go_by(Path(delay_ns_min=50 * MS, delay_ns_max=400 * MS), 0)
    playout.acknowledge("r", 20, reported_ms * MS)
    playout.open("s")
    playout.push("s", AudioChunk(0, RATE, 0, bytes(2 * 5_000), final=True))
    while playout.due(20_000 * MS):
        pass
    view = playout.view("s", (20_000 + 3_000) * MS)
    assert (view.heard, view.error_samples) == (3_000 - delay_ms, delay_ms - 50)


def test_a_buffer_that_ran_low_within_a_reply_is_full_again_before_the_next() -> None:
    """A pause of 60 ms in the sending is bridged by the ear's buffer: from then on reports come sooner."""
    playout = Playout(RATE, 20, 100 * MS)
    playout.go_by(Path(delay_ns_max=400 * MS), 0)
    playout.open("r")
    for seq, (sent_ms, heard_ms) in enumerate(((0, 150), (160, 250))):
        playout.push("r", AudioChunk(seq, RATE, 100 * seq, bytes(200), final=False))
        while playout.due(sent_ms * MS):
            pass
        playout.acknowledge("r", 100 * seq + 50, heard_ms * MS)
    playout.open("s")
    playout.push("s", AudioChunk(0, RATE, 0, bytes(200), final=True))
    playout.cut("r", 300 * MS)
    while playout.due(9_000 * MS):
        pass
    assert playout.view("s", 9_110 * MS).heard == 10, "100 ms after it is due, as at first"


def test_a_reply_whose_buffer_was_low_throughout_makes_the_path_no_shorter_for_the_next() -> None:
    playout = Playout(RATE, 20, 100 * MS)
    for response, sent_ms, lag_ms in (("r", 0, 100), ("s", 1_000, 30)):
        playout.open(response)
        playout.push(response, AudioChunk(0, RATE, 0, bytes(200), final=True))
        while playout.due(sent_ms * MS):
            pass
        playout.acknowledge(response, 50, (sent_ms + 50 + lag_ms) * MS)
    playout.go_by(Path(delay_ns_max=400 * MS), 1_090 * MS)
    playout.open("t")
    playout.push("t", AudioChunk(0, RATE, 0, bytes(200), final=True))
    while playout.due(9_000 * MS):
        pass
    assert playout.view("t", 9_110 * MS).heard == 10, "100 ms after it is due"


def test_a_report_that_is_ahead_of_every_path_makes_none_shorter_than_it_can_be() -> None:
    playout = played()
    playout.go_by(Path(delay_ns_min=10 * MS, delay_ns_max=400 * MS), 0)
    playout.acknowledge("r", 50, 0)
    assert playout.view("r", REPORT_NS_MAX + MS).error_samples == 0


def test_between_reports_more_is_heard_in_as_much_time_and_no_more() -> None:
    playout = played(5_000)
    playout.go_by(Path(delay_ns_max=400 * MS, report_ns_max=30 * MS), 0)
    playout.acknowledge("r", 20, 200 * MS)
    view = playout.view("r", 250 * MS)
    assert (view.heard, view.basis, view.error_samples) == (20, "acked", 80)


def test_a_client_that_stops_reporting_stops_nothing() -> None:
    """What is sent goes by its own pace: a client that said it heard nothing, and then no more, gets it all."""
    playout = Playout(RATE, 20, 160 * MS)
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(2 * 10_000), final=True))
    for now_ms in range(0, 10_000, 20):
        while playout.due(now_ms * MS):
            pass
        if now_ms < 500:
            playout.acknowledge("r", 0, now_ms * MS)
        assert playout.view("r", now_ms * MS).sent == min(now_ms + 160, 10_000)
    assert playout.view("r", 12_000 * MS).heard == 10_000


def played(samples: int = 100) -> Playout:
    """One response of which `samples` went out, at time 0."""
    playout = Playout(RATE, 20, 10_000 * MS)
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(2 * samples), final=True))
    while playout.due(0):
        pass
    return playout
