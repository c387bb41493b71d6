"""A player that plays one response after the other, stands still, and says where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.chunk import AudioChunk
from media.heard_estimate import Path
from media.play_order import Between, Reported
from media.playout import REPORT_NS_MAX, LedgerView, Playout, Reports

MS = 1_000_000
RATE = 1_000  # a sample is a millisecond


def sent(*lengths: int, reports: Reports = "acked", final: bool = True) -> Playout:
    """Responses `r1`, `r2` and so on, of which all went out at time 0."""
    playout = Playout(RATE, 20, 100_000 * MS, reports)
    for number, length in enumerate(lengths, start=1):
        playout.open(f"r{number}")
        playout.push(f"r{number}", AudioChunk(0, RATE, 0, bytes(2 * length), final=final))
    while playout.due(0):
        pass
    return playout


def between(first_ms: int, last_ms: int) -> Between:
    return Between(first_ms * MS, last_ms * MS)


def heard(playout: Playout, response: str, now_ms: int) -> tuple[int, int, str]:
    view = playout.view(response, now_ms * MS)
    return view.heard, view.error_samples, view.basis


# ---- moments ---------------------------------------------------------------------------------------------------


def test_of_two_moments_one_is_sooner_and_one_later_at_either_end() -> None:
    one, other = Between(3, 10), Between(5, 7)
    assert (one.or_sooner(other), one.or_later(other), one.after(2)) == (Between(3, 7), Between(5, 10), Between(5, 12))
    assert one.or_sooner(None) == one.or_later(None) == one


def test_what_was_never_reported_tells_nothing_of_what_follows() -> None:
    reported = Reported(RATE)
    assert reported.begun(None) is None
    assert reported.over(None, 100) is None
    assert reported.over(between(1, 2), 100) == between(101, 102)


def test_what_was_reported_goes_on_from_there_whatever_was_before_it() -> None:
    reported = Reported(RATE)
    reported.report(40, between(50, 60), end=None)
    assert reported.over(between(900, 950), 400) == between(410, 420)


def test_what_waits_at_its_beginning_still_waits_for_what_is_before_it() -> None:
    reported = Reported(RATE)
    reported.report(0, between(50, 60), end=400)
    assert reported.over(between(40, 70), 400) == between(450, 470)


@pytest.mark.parametrize(
    ("before", "first_ms"),
    [(None, 0), (80, 70), (0, 150)],
)
def test_what_is_reported_to_its_end_may_have_come_there_before_its_client_said_so(
    before: int | None, first_ms: int
) -> None:
    reported = Reported(RATE)
    if before is not None:
        reported.report(before, between(50, 60), end=100)
    reported.report(100, between(190, 200), end=100)
    assert reported.at == between(first_ms, 200)
    reported.report(100, between(290, 300), end=100)
    assert reported.over(None, 100) == between(first_ms, 500), "it is still there, and had come there before"


@pytest.mark.parametrize(
    ("free_ms", "reported", "over_ms"),
    [
        (None, (40, 50), (130, 250)),  # it has ended before that
        (None, (40, 90), (150, 290)),
        (None, (40, 120), (150, 320)),
        (None, (40, 900), (150, 1_100)),  # its client has yet to get to something else
        ((20, 110), None, (150, 200)),
        ((400, 450), None, (400, 450)),  # its turn had not come
        ((400, 450), (0, 300), (400, 500)),
        ((100, 110), (0, 300), (150, 500)),
        ((400, 450), (40, 120), (150, 320)),
    ],
)
def test_what_was_thrown_away_takes_no_time_from_then_on(
    free_ms: tuple[int, int] | None, reported: tuple[int, int] | None, over_ms: tuple[int, int]
) -> None:
    response = Reported(RATE, thrown=between(150, 200))
    if reported is not None:
        samples, at_ms = reported
        response.report(samples, between(at_ms - 20, at_ms), end=140)
    assert response.over(between(*free_ms) if free_ms else None, 140) == between(*over_ms)


# ---- the ledger ------------------------------------------------------------------------------------------------


def test_what_follows_a_response_that_its_player_stands_at_was_not_heard() -> None:
    playout = sent(1_000, 1_000, 1_000)
    for now_ms in range(300, 5_000, 100):
        playout.acknowledge("r1", 300, now_ms * MS)
        for late_ms in (0, 99):
            assert heard(playout, "r1", now_ms + late_ms) == (300, min(late_ms, 700), "acked")
            assert heard(playout, "r2", now_ms + late_ms) == (0, 0, "estimated")
            assert heard(playout, "r3", now_ms + late_ms) == (0, 0, "estimated")


def test_where_it_goes_on_what_follows_begins_when_that_has_ended() -> None:
    playout = sent(1_000, 1_000, 1_000)
    playout.acknowledge("r1", 700, 5_000 * MS)
    assert [heard(playout, "r2", now_ms)[0] for now_ms in (5_300, 5_350, 6_300, 9_000)] == [0, 50, 1_000, 1_000]
    assert [heard(playout, "r3", now_ms)[0] for now_ms in (6_300, 6_350, 7_300)] == [0, 50, 1_000]
    assert heard(playout, "r1", 5_300) == (1_000, 0, "estimated")


def test_its_own_reports_tell_more_than_those_of_what_is_before_it() -> None:
    playout = sent(1_000, 1_000, 1_000)
    playout.acknowledge("r2", 400, 5_000 * MS)
    playout.acknowledge("r1", 900, 5_010 * MS)
    assert heard(playout, "r2", 5_010) == (400, 10, "acked")
    assert heard(playout, "r3", 5_600) == (0, 0, "estimated")
    assert heard(playout, "r3", 5_650) == (50, 0, "estimated")


def test_where_it_falls_silent_it_is_taken_to_go_on_from_there() -> None:
    playout = sent(5_000, 1_000)
    playout.acknowledge("r1", 500, 9_000 * MS)
    silent_ms = 9_001 + REPORT_NS_MAX // MS
    assert heard(playout, "r1", silent_ms - 1) == (500, 2_000, "acked")
    assert heard(playout, "r1", silent_ms) == (2_501, 0, "estimated")
    assert heard(playout, "r2", 13_499)[0] == 0
    assert heard(playout, "r2", 13_550)[0] == 50


def test_what_was_thrown_away_holds_up_what_follows_for_as_long_as_its_client_may_not_know() -> None:
    playout = sent(5_000, 1_000)
    playout.go_by(Path(delay_ns_max=80 * MS, report_ns_max=30 * MS), 0)
    playout.acknowledge("r1", 500, 8_000 * MS)
    playout.cut("r1", 8_010 * MS)
    playout.recall("r1", 8_010 * MS)
    lag_ms = 2_000  # by its report, the path is as long as one can be
    assert heard(playout, "r2", 8_010) == (0, 30, "estimated")
    assert heard(playout, "r2", 8_010 + lag_ms)[0] == 0
    assert heard(playout, "r2", 8_060 + lag_ms)[0] == 50


def test_what_is_thrown_away_again_was_thrown_away_before() -> None:
    playout = sent(5_000, 1_000)
    playout.acknowledge("r1", 500, 5_500 * MS)  # by this, the path is as long as one can be: two seconds
    for now_ms in (6_000, 6_900):
        playout.recall("r1", now_ms * MS)
    assert heard(playout, "r2", 8_500)[0] == 500


def test_a_report_takes_back_what_was_estimated_of_what_follows() -> None:
    playout = sent(1_000, 1_000, 1_000)
    playout.acknowledge("r1", 900, 900 * MS)
    playout.go_by(Path(), 1_500 * MS)
    assert heard(playout, "r2", 1_500)[0] == 400, "though it may have been heard since 1,000"
    playout.acknowledge("r1", 950, 1_510 * MS)
    assert heard(playout, "r2", 1_510) == (0, 0, "estimated")
    playout.acknowledge("r2", 700, 2_300 * MS)
    playout.acknowledge("r1", 1_000, 2_310 * MS)
    assert heard(playout, "r2", 2_310)[0] == 700, "what was reported stays"


def test_a_client_that_stands_behind_what_it_has_played_says_so() -> None:
    playout = sent(1_000, 1_000)
    for now_ms in range(1_000, 4_000, 100):
        playout.acknowledge("r1", 1_000, now_ms * MS)
    view = playout.view("r2", 3_900 * MS)
    assert (view.heard, view.basis) == (0, "estimated")
    assert view.error_samples == 1_000, "it may not have stood, and have said the same"


def test_marks_of_a_telephone_hold_up_what_follows_as_well() -> None:
    playout = sent(3_000, 3_000, reports="mark")
    playout.acknowledge("r1", 500, 2_900 * MS)
    assert heard(playout, "r2", 5_001) == (0, 0, "mark"), "until one is overdue"
    assert heard(playout, "r2", 5_500) == (100, 0, "estimated")


def test_what_another_process_has_sent_may_still_sound_or_not() -> None:
    playout = Playout(RATE, 20, 10_000 * MS)
    playout.remember("r1", RATE, sent=900, heard=200)
    playout.open("r2")
    playout.push("r2", AudioChunk(0, RATE, 0, bytes(2 * 400), final=True))
    while playout.due(0):
        pass
    playout.acknowledge("r1", 300, 50 * MS)
    assert [playout.view("r2", now_ms * MS).heard for now_ms in (400, 650, 700)] == [0, 0, 50]
    assert playout.view("r2", 400 * MS) == LedgerView(400, 400, 0, True, "estimated", 400)
    playout.recall("r1", 400 * MS)
    assert playout.view("r2", 460 * MS).heard == 60, "that its client has thrown it away is known now"


def test_without_reports_all_is_heard_at_the_pace_of_sending() -> None:
    playout = sent(300, 300, 300)
    assert [heard(playout, "r2", now_ms) for now_ms in (300, 450, 9_000)] == [
        (0, 0, "estimated"),
        (150, 0, "estimated"),
        (300, 0, "estimated"),
    ]


# ---- a player --------------------------------------------------------------------------------------------------

FRAME = 20
REPORT_MS = 100


@dataclass(slots=True)
class Player:
    """Plays in order what has come, ms by ms, but where it stands; `way_ms` there, up to `back_ms` back."""

    way_ms: int
    back_ms: int
    waiting: list[tuple[int, str]] = field(default_factory=list)  # each sample, and when it comes
    heard: dict[str, int] = field(default_factory=dict)
    flushes: list[tuple[int, str]] = field(default_factory=list)
    at: str | None = None

    def step(self, now_ms: int, *, stands: bool) -> None:
        """From `now_ms` to the next."""
        for at_ms, response in self.flushes:
            if at_ms == now_ms:
                self.waiting = [one for one in self.waiting if one[1] != response]
        if self.waiting and self.waiting[0][0] <= now_ms:
            self.at = self.waiting[0][1]
            if not stands:
                self.waiting.pop(0)
                self.heard[self.at] += 1


class Talk:
    """Responses that are sent in time to a player that stands at times, and is told to throw some away."""

    def __init__(self, random: Random, lead_ms: int) -> None:
        self.random = random
        self.player = Player(random.randint(0, 200), random.randint(0, 60))
        self.playout = Playout(RATE, FRAME, lead_ms * MS)
        self.playout.go_by(Path(0, self.player.way_ms * MS, self.player.back_ms * MS), 0)
        self.coming: list[tuple[int, str, int]] = []  # reports
        self.lengths: dict[str, int] = {}
        self.thrown: set[str] = set()
        self.reports = False  # of one that stands before it has said anything nobody knows
        self.last_ms = 0
        self.until_ms = 0  # the player stands

    def open(self) -> None:
        name, length = f"r{len(self.lengths) + 1}", self.random.randint(1, 1_500)
        self.lengths[name] = length
        self.player.heard[name] = 0
        self.playout.open(name)
        self.playout.push(name, AudioChunk(0, RATE, 0, bytes(2 * length), final=True))

    def cut(self, now_ms: int) -> None:
        names = list(self.lengths)
        place = self.random.randrange(len(names))
        name, behind = names[place], names[place + 1 :]
        self.playout.cut(name, now_ms * MS)
        is_last = not any(self.playout.view(one, 0).sent for one in behind)
        # What follows and was sent stays where it is due, though it may sound sooner.
        may_be_thrown = is_last or self.playout.played_out_ns() <= now_ms * MS
        if may_be_thrown and self.random.random() < 0.7:  # else it plays on
            self.thrown.add(name)
            self.playout.recall(name, now_ms * MS)
            self.player.flushes.append((now_ms + self.player.way_ms, name))

    def send(self, now_ms: int) -> None:
        while (frame := self.playout.due(now_ms * MS)) is not None:
            arrives_ms = now_ms + self.player.way_ms
            self.player.waiting += [(arrives_ms, frame.response)] * frame.samples

    def report(self, now_ms: int) -> None:
        """The player says where it is; what has come of earlier reports is applied."""
        if self.player.at is not None and now_ms % REPORT_MS == 0:
            self.last_ms = max(self.last_ms, now_ms + self.random.randint(0, self.player.back_ms))
            self.coming.append((self.last_ms, self.player.at, self.player.heard[self.player.at]))

    def hear(self, now_ms: int) -> None:
        while self.coming and self.coming[0][0] <= now_ms:
            _, response, samples = self.coming.pop(0)
            self.reports = True
            self.playout.acknowledge(response, samples, now_ms * MS)

    def check(self, now_ms: int) -> None:
        for response, truth in self.player.heard.items():
            view = self.playout.view(response, now_ms * MS)
            assert truth <= view.heard + view.error_samples, (response, now_ms, truth, view)
            left = view.sent - truth
            # A player that stands so near to the end that it cannot say so before is taken to have come there.
            is_near = view.complete and 0 < left <= REPORT_MS + self.player.back_ms and response == self.player.at
            if response not in self.thrown and not is_near:
                assert view.heard <= truth, (response, now_ms, truth, view)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((40, 160, 1_000)), st.booleans())
def test_the_ear_is_between_the_bounds_of_each_response_wherever_a_player_stands(
    seed: int, lead_ms: int, reports: bool
) -> None:
    random = Random(seed)
    talk = Talk(random, lead_ms)
    talk.open()
    for now_ms in range(9_000):
        if random.random() < 0.001 and len(talk.lengths) < 8:
            talk.open()
        if random.random() < 0.0005:
            talk.cut(now_ms)
        if talk.reports and now_ms > talk.until_ms and random.random() < 0.002:
            talk.until_ms = now_ms + random.randint(1, 4_000)
        talk.send(now_ms)
        if reports:
            talk.report(now_ms)
            talk.hear(now_ms)
        if now_ms % 10 == 0:
            talk.check(now_ms)
        talk.player.step(now_ms, stands=now_ms < talk.until_ms)
