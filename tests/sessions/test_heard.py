"""What was heard of replies, and where history ends in them, whatever comes first."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.chunk import AudioChunk
from media.heard_estimate import Path
from media.playout import Playout, Reports
from sessions.heard import REPLIES_MAX, Cut, Heard, shortened
from sessions.items import Item
from sessions.reply import Reply
from sessions.settings import OUTPUT_RATE
from stages.contracts import Word, WordTimes

MS = 1_000_000
WORD = 2_400  # 100 ms
FRAME = 480
MS_SINCE_REPORT = 24  # as much more may have been heard by now
WHOLE = Cut(300 * 24, "w0 w1 w2", whole=True, status="completed")  # a reply of three words


class Call:
    """One reply of ten words, sent as fast as the lead of 200 ms allows."""

    def __init__(self, *, recalls: bool = True, words: int = 10, reports: Reports = "acked") -> None:
        self.playout = Playout(OUTPUT_RATE, FRAME, 200 * MS, reports)
        self.heard = Heard(self.playout, recalls=recalls)
        self.begin("r1", words)

    def begin(self, response: str, words: int = 10, rate: int = OUTPUT_RATE) -> None:
        self.playout.open(response, rate)
        self.reply = Reply(rate)
        times = tuple(Word(f"w{n}", n * WORD, (n + 1) * WORD) for n in range(words))
        self.reply.add_words(WordTimes(0, OUTPUT_RATE, times))
        self.reply.add_text(" ".join(word.text for word in times))
        samples = WORD * words * rate // OUTPUT_RATE
        self.playout.push(response, AudioChunk(0, rate, 0, bytes(2 * samples), final=True))

    def play_until(self, ms: int) -> None:
        """Frames go out every 20 ms up to then."""
        for now_ms in range(0, ms + 1, 20):
            while self.playout.due(now_ms * MS):
                pass

    def end(
        self, at_ms: int, *, whole: bool = False, recalled: bool = True, gone: bool = False, response: str = "r1"
    ) -> Cut:
        item, now_ns = f"item_{response}", at_ms * MS
        _, cut = self.heard.ended(response, item, self.reply, whole=whole, recalled=recalled, now_ns=now_ns, gone=gone)
        return cut


def test_a_cut_stands_at_the_rate_of_its_reply() -> None:
    call = Call(words=0)
    call.begin("r2", rate=8_000)
    call.play_until(340)
    cut = call.end(340, response="r2")
    assert cut == Cut(340 * 8, "w0 w1 w2", "w3", sample_rate=8_000)
    assert cut.ms == 340
    item = Item("item_r2", "assistant", "", spoken=True, audio_samples=540 * 8, sample_rate=8_000)
    assert cut.applied_to(item).sample_rate == 8_000
    whole = replace(item, text="w0 w1 w2 w3 w4")
    assert shortened(whole, 270 * 8) == Cut(270 * 8, "w0 w1", "w2", error_samples=108 * 8, sample_rate=8_000)


def test_a_telephone_s_marks_move_a_cut_forward_and_are_named() -> None:
    call = Call(reports="mark")
    call.play_until(340)
    call.heard.report("r1", 200 * 24, 340 * MS)
    ended = call.end(340)
    assert (ended.samples, ended.basis) == (200 * 24, "mark")
    assert call.heard.report("r1", 260 * 24, 350 * MS) == "item_r1"
    cut = call.heard.cut_of("item_r1")
    assert cut is not None
    assert (cut.samples, cut.basis) == (260 * 24, "mark")
    assert call.heard.report("r1", 100 * 24, 360 * MS) is None, "what was reported does not move back"


@pytest.mark.parametrize(("samples", "ms"), [(0, 0), (23, 0), (24, 1), (24_000, 1_000)])
def test_samples_are_told_in_whole_milliseconds(samples: int, ms: int) -> None:
    assert Cut(samples, "").ms == ms


def test_where_the_peer_plays_on_all_that_was_sent_is_history() -> None:
    call = Call(recalls=False)
    call.play_until(340)
    assert call.end(340) == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", error_samples=200 * 24)


def test_a_cut_at_what_was_sent_is_the_surer_the_more_has_arrived() -> None:
    call = Call(recalls=False)
    call.heard.go_by(Path(delay_ns_max=40 * MS), 0)
    call.play_until(340)
    call.end(340)
    assert call.heard.go_by(Path(delay_ns_max=40 * MS, arrived_ns=300 * MS), 340 * MS) == [], (
        "less than was heard anyway"
    )
    for arrived_ms, error_ms in ((400, 140), (520, 20), (900, 0)):
        assert call.heard.go_by(Path(arrived_ns=arrived_ms * MS), 400 * MS) == ["item_r1"]
        assert call.heard.cut_of("item_r1") == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", error_samples=error_ms * 24)
    assert call.heard.go_by(Path(arrived_ns=950 * MS), 960 * MS) == []


def test_what_was_sent_to_a_peer_that_has_fallen_silent_is_no_history_until_it_is_seen_to_have_arrived() -> None:
    call = Call(recalls=False)
    call.heard.go_by(Path(delay_ns_max=100 * MS), 0)
    call.play_until(340)
    call.heard.go_by(Path(delay_ns_max=100 * MS, arrived_ns=150 * MS, silent_ns=310 * MS), 340 * MS)
    assert call.end(340) == Cut(310 * 24, "w0 w1 w2", "w3", error_samples=230 * 24)
    assert call.heard.go_by(Path(arrived_ns=420 * MS), 420 * MS) == ["item_r1"]
    assert call.heard.cut_of("item_r1") == Cut(420 * 24, "w0 w1 w2 w3", "w4", error_samples=120 * 24)


def test_what_has_arrived_says_nothing_of_a_cut_whose_rest_is_thrown_away() -> None:
    call = Call()
    call.play_until(340)
    cut = call.end(340)
    assert call.heard.go_by(Path(arrived_ns=520 * MS), 520 * MS) == []
    assert call.heard.cut_of("item_r1") == cut


def test_without_reports_history_ends_at_the_least_that_was_heard_and_says_how_much_more_it_may_be() -> None:
    call = Call()
    call.heard.go_by(Path(delay_ns_min=20 * MS, delay_ns_max=150 * MS), 0)
    call.play_until(340)
    assert call.end(340) == Cut(190 * 24, "w0", "w1", error_samples=130 * 24)
    assert call.heard.report("r1", 250 * 24, 360 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(250 * 24, "w0 w1", "w2", "acked", error_samples=70 * 24)
    assert call.heard.report("r1", 400 * 24, 380 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(400 * 24, "w0 w1 w2 w3", "", "acked")


def test_where_the_peer_throws_the_rest_away_history_ends_at_the_ear() -> None:
    call = Call()
    call.play_until(340)
    assert call.end(340) == Cut(340 * 24, "w0 w1 w2", "w3")


def test_what_fails_is_played_as_far_as_it_came() -> None:
    call = Call()
    call.play_until(340)
    assert call.end(340, recalled=False) == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", error_samples=200 * 24)


def test_what_fails_and_still_sounds_may_be_interrupted_like_any_reply() -> None:
    """Its client plays on what it has, until it hears that somebody speaks, and throws the rest away."""
    call = Call()
    call.play_until(340)
    call.end(340, recalled=False)
    assert call.heard.unplayed(360 * MS) == ["item_r1"]
    assert call.heard.last_words(360 * MS) == "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9"
    assert call.heard.stop(360 * MS) == [("item_r1", Cut(360 * 24, "w0 w1 w2", "w3"))]
    assert call.heard.report("r1", 350 * 24, 400 * MS) == "item_r1", "which it may put right"
    assert call.heard.unplayed(400 * MS) == []


def test_what_fails_has_been_heard_as_far_as_it_came_in_time() -> None:
    call = Call()
    call.play_until(340)
    call.end(340, recalled=False)
    assert call.heard.unplayed(540 * MS) == []


@pytest.mark.parametrize("who", ["we", "the client"])
def test_what_follows_a_cut_sounds_at_once(who: str) -> None:
    """The client has thrown away the 200 ms that were ahead of the ear."""
    call = Call()
    call.play_until(340)
    call.end(340, recalled=who == "we")
    if who == "the client":
        call.heard.truncate("item_r1", 340 * 24, 340 * MS)
    call.begin("r2")
    call.play_until(340)
    assert call.playout.view("r2", 400 * MS).heard == 60 * 24


def test_a_cut_between_two_words_falls_into_none() -> None:
    call = Call()
    call.play_until(300)
    assert call.end(300) == Cut(300 * 24, "w0 w1 w2")


def test_what_the_client_reports_is_believed_within_what_was_sent() -> None:
    call = Call()
    call.play_until(340)
    assert call.heard.report("r1", 450 * 24, 340 * MS) is None, "nothing is cut yet"
    assert call.end(341) == Cut(450 * 24, "w0 w1 w2 w3", "w4", "acked")


@pytest.mark.parametrize("samples", [450 * 24, 10**9])
def test_a_report_that_comes_after_the_end_says_the_same_as_one_before(samples: int) -> None:
    before, after = Call(), Call()
    for call in (before, after):
        call.play_until(340)
    before.heard.report("r1", samples, 340 * MS)
    wanted = before.end(341)
    after.end(341)
    assert after.heard.report("r1", samples, 342 * MS) == "item_r1"
    assert after.heard.cut_of("item_r1") == wanted
    assert after.heard.report("r1", samples, 343 * MS) is None, "nothing new"


def test_a_report_of_less_than_was_reported_takes_nothing_back() -> None:
    call = Call()
    call.play_until(340)
    call.heard.report("r1", 340 * 24, 340 * MS)
    call.end(340)
    assert call.heard.report("r1", 100 * 24, 341 * MS) is None
    assert call.heard.cut_of("item_r1") == Cut(340 * 24, "w0 w1 w2", "w3", "acked")


def test_a_report_of_less_than_was_estimated_is_believed_before_the_end_and_after() -> None:
    """What was on its way to a distant client was estimated as heard."""
    before, after = Call(), Call()
    for call in (before, after):
        call.play_until(340)
    before.heard.report("r1", 100 * 24, 340 * MS)
    before.end(341)
    after.end(341)
    assert after.heard.report("r1", 100 * 24, 342 * MS) == "item_r1"
    # How old the later report is, nobody knows: by the pace of sending the caller may have heard 341 ms.
    for call, error_ms in ((before, 1), (after, 241)):
        assert call.heard.cut_of("item_r1") == Cut(100 * 24, "w0", "", "acked", error_ms * 24)


@pytest.mark.parametrize("recalls", [False, True])
def test_nobody_who_is_gone_hears_what_was_on_its_way(recalls: bool) -> None:
    call = Call(recalls=recalls)
    call.play_until(340)
    call.heard.report("r1", 250 * 24, 340 * MS)
    assert call.end(341, gone=True) == Cut(250 * 24, "w0 w1", "w2", "acked", MS_SINCE_REPORT)


def test_a_reply_that_is_over_and_was_not_played_is_cut_where_its_caller_goes() -> None:
    call = Call(recalls=False, words=5)
    call.play_until(320)
    call.end(320, whole=True)
    call.heard.report("r1", 250 * 24, 340 * MS)
    assert call.heard.unplayed(341 * MS) == []
    assert call.heard.unplayed(341 * MS, gone=True) == ["item_r1"]
    assert call.heard.stop(341 * MS, gone=True) == [("item_r1", Cut(250 * 24, "w0 w1", "w2", "acked", MS_SINCE_REPORT))]


def test_a_reply_that_was_cut_and_played_on_is_cut_again_where_its_caller_goes() -> None:
    call = Call(recalls=False)
    call.play_until(340)
    call.heard.report("r1", 250 * 24, 340 * MS)
    assert call.end(341) == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", "acked", 290 * 24)
    assert call.heard.unplayed(342 * MS, gone=True) == ["item_r1"]
    assert call.heard.stop(342 * MS, gone=True) == [
        ("item_r1", Cut(250 * 24, "w0 w1", "w2", "acked", 2 * MS_SINCE_REPORT))
    ]
    assert call.heard.unplayed(342 * MS, gone=True) == []


def test_what_was_taken_back_before_it_was_written_was_not_heard() -> None:
    call = Call(recalls=False)
    call.play_until(340)
    assert call.end(340).samples == 540 * 24
    assert call.heard.written("r1", 540 * 24) is None
    assert call.heard.written("r1", 480 * 24) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(480 * 24, "w0 w1 w2 w3", "w4", error_samples=140 * 24)
    assert call.heard.written("r9", 0) is None
    # Its packets carry silence now. That they have arrived, and what is reported of them, says nothing of the reply.
    assert call.heard.go_by(Path(arrived_ns=900 * MS), 900 * MS) == ["item_r1"]
    assert call.heard.report("r1", 540 * 24, 901 * MS) is None
    assert call.heard.cut_of("item_r1") == Cut(480 * 24, "w0 w1 w2 w3", "w4")
    assert call.heard.unplayed(901 * MS, gone=True) == []


def test_only_the_reply_that_is_meant_is_unplayed() -> None:
    call = Call(words=5)
    call.play_until(320)
    call.end(320, whole=True)
    assert call.heard.unplayed(320 * MS, "r1") == ["item_r1"]
    assert call.heard.unplayed(320 * MS, "r2") == []


def test_where_nothing_is_recalled_reports_move_no_cut_and_make_it_surer() -> None:
    call = Call(recalls=False)
    call.play_until(340)
    call.end(340)
    assert call.heard.report("r1", 440 * 24, 400 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", error_samples=100 * 24)
    assert call.heard.report("r1", 10**9, 500 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", "acked")
    assert call.heard.report("r1", 10**9, 600 * MS) is None, "nothing new"


def test_where_nothing_is_recalled_a_truncation_stands_whatever_arrives() -> None:
    call = Call(recalls=False)
    call.play_until(340)
    call.end(340)
    cut = call.heard.truncate("item_r1", 150 * 24, 400 * MS)
    assert cut == Cut(150 * 24, "w0", "w1", "acked")
    assert call.heard.go_by(Path(arrived_ns=900 * MS), 900 * MS) == []
    assert call.heard.report("r1", 10**9, 900 * MS) is None
    assert call.heard.cut_of("item_r1") == cut


def test_reports_about_nobody_are_about_nothing() -> None:
    assert Call().heard.report("r9", 100, 0) is None


@pytest.mark.parametrize(("ms", "text", "word"), [(0, "", ""), (150, "w0", "w1"), (520, "w0 w1 w2 w3 w4", "w5")])
def test_a_truncation_moves_the_cut_either_way(ms: int, text: str, word: str) -> None:
    call = Call()
    call.play_until(340)
    call.end(340)
    assert call.heard.truncate("item_r1", ms * 24, 400 * MS) == Cut(ms * 24, text, word, "acked")
    assert call.heard.cut_of("item_r1") == Cut(ms * 24, text, word, "acked")


def test_more_than_was_sent_cannot_have_been_played() -> None:
    call = Call()
    call.play_until(340)
    call.end(340)
    cut = call.heard.truncate("item_r1", 10**9, 400 * MS)
    assert cut is not None
    assert cut.samples == 540 * 24
    assert call.heard.truncate("item_r9", 0, 400 * MS) is None


def test_a_client_that_stopped_playing_before_the_end_was_told_is_believed_at_the_end() -> None:
    call = Call()
    call.play_until(340)
    call.heard.want("item_r1", 150 * 24)
    assert call.end(340) == Cut(150 * 24, "w0", "w1", "acked")


@pytest.mark.parametrize(("ms", "is_cut"), [(299, True), (300, False), (60_000, False)])
def test_a_client_that_stopped_playing_behind_the_end_has_cut_nothing(ms: int, is_cut: bool) -> None:
    call = Call(words=3)
    call.play_until(300)
    call.heard.want("item_r1", ms * 24)
    assert call.end(300, whole=True).whole is not is_cut
    assert call.heard.unplayed(250 * MS) == [], "it plays no more"


def test_a_reply_that_was_said_to_its_end_is_not_cut() -> None:
    call = Call(words=3)
    call.play_until(300)
    assert call.end(300, whole=True) == WHOLE
    assert call.heard.cut_of("item_r1") == WHOLE
    assert call.heard.unplayed(300 * MS) == []


def test_a_caller_may_interrupt_what_is_over_and_still_sounds() -> None:
    call = Call(words=5)
    call.play_until(320)
    call.end(320, whole=True)
    assert call.heard.unplayed(320 * MS) == ["item_r1"]
    assert call.heard.last_words(320 * MS) == "w0 w1 w2 w3 w4"
    assert call.heard.stop(340 * MS) == [("item_r1", Cut(340 * 24, "w0 w1 w2", "w3"))]
    assert call.heard.cut_of("item_r1") == Cut(340 * 24, "w0 w1 w2", "w3")
    assert call.heard.unplayed(340 * MS) == []
    assert call.heard.last_words(340 * MS) == ""


def over_and_believed_heard() -> Call:
    """A reply of three words is over; by the pace of sending it was heard at 300 ms."""
    call = Call(words=3)
    call.play_until(200)
    call.end(200, whole=True)
    return call


def test_a_report_of_what_is_over_and_plays_on_cuts_nothing() -> None:
    call = over_and_believed_heard()
    assert call.heard.report("r1", 150 * 24, 310 * MS) is None
    assert call.heard.cut_of("item_r1") == WHOLE


def test_a_client_that_is_told_to_stop_says_where_it_did_though_all_was_believed_to_be_heard() -> None:
    """Its store was larger than anybody knew. The first report had been on its way before it stopped."""
    call = over_and_believed_heard()
    assert call.heard.stop(310 * MS) == []
    assert call.heard.cut_of("item_r1") == WHOLE, "as far as is known"
    for played_ms, text, word in ((150, "w0", "w1"), (273, "w0 w1", "w2")):
        assert call.heard.report("r1", played_ms * 24, 400 * MS) == "item_r1"
        cut = Cut(played_ms * 24, text, word, "acked", error_samples=(300 - played_ms) * 24)
        assert call.heard.cut_of("item_r1") == cut
    assert call.heard.report("r1", 200 * 24, 420 * MS) is None, "said before, and late"
    assert call.heard.unplayed(420 * MS) == [], "it will not hear the rest"


def test_a_client_that_had_stopped_reporting_says_where_it_stopped_though_all_was_believed_to_be_heard() -> None:
    """Its earlier report told nothing of its end."""
    call = Call(words=3)
    call.play_until(200)
    call.heard.report("r1", 150 * 24, 200 * MS)
    call.end(200, whole=True)
    assert call.heard.stop(351 * MS) == []
    assert call.heard.report("r1", 273 * 24, 400 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(273 * 24, "w0 w1", "w2", "acked", error_samples=27 * 24)


def test_a_player_that_stood_still_unnoticed_is_believed_however_late_it_says_so() -> None:
    call = over_and_believed_heard()
    call.heard.stop(310 * MS)
    assert call.heard.report("r1", 100 * 24, 60_000 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(100 * 24, "w0", "", "acked", error_samples=200 * 24)


def test_where_the_report_comes_before_the_stop_history_ends_at_the_same_sample() -> None:
    call = over_and_believed_heard()
    call.heard.report("r1", 150 * 24, 305 * MS)
    ((item, cut),) = call.heard.stop(310 * MS)
    assert (item, cut.samples, cut.basis) == ("item_r1", 150 * 24, "acked")
    assert call.heard.report("r1", 273 * 24, 400 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(273 * 24, "w0 w1", "w2", "acked")


def test_a_reply_that_was_heard_to_its_end_after_all_is_whole_again() -> None:
    """It was played out by the time its client was told to stop."""
    call = over_and_believed_heard()
    call.heard.stop(310 * MS)
    assert call.heard.report("r1", 150 * 24, 320 * MS) == "item_r1"
    assert call.heard.report("r1", 300 * 24, 330 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == replace(WHOLE, basis="acked")
    assert call.heard.report("r1", 300 * 24, 340 * MS) is None
    assert call.heard.report("r1", 200 * 24, 350 * MS) is None, "what is reported is not taken back"


def test_a_reply_that_was_interrupted_and_heard_to_its_end_after_all_is_whole_again() -> None:
    call = Call(words=3)
    call.play_until(200)
    call.end(200, whole=True)
    assert call.heard.stop(250 * MS) == [("item_r1", Cut(250 * 24, "w0 w1", "w2"))]
    assert call.heard.report("r1", 300 * 24, 320 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == replace(WHOLE, basis="acked")


def test_a_reply_that_failed_is_never_whole_and_ends_where_its_client_stopped() -> None:
    call = Call()
    call.play_until(340)
    call.end(340, recalled=False)
    assert call.heard.stop(600 * MS) == [], "all that came of it is believed to be heard"
    assert call.heard.report("r1", 450 * 24, 650 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(450 * 24, "w0 w1 w2 w3", "w4", "acked", error_samples=90 * 24)
    assert call.heard.report("r1", 540 * 24, 660 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(540 * 24, "w0 w1 w2 w3 w4", "w5", "acked")


def test_where_nothing_is_recalled_nobody_stops() -> None:
    call = Call(recalls=False, words=3)
    call.play_until(200)
    call.end(200, whole=True)
    assert call.heard.stop(310 * MS) == []
    assert call.heard.report("r1", 150 * 24, 320 * MS) is None


def test_only_the_reply_that_is_meant_is_stopped() -> None:
    call = over_and_believed_heard()
    call.heard.stop(310 * MS, "r2")
    assert call.heard.report("r1", 150 * 24, 320 * MS) is None


def test_a_reply_that_reached_its_limit_is_incomplete_and_not_cut() -> None:
    call = Call(words=3)
    call.reply.is_limited = True
    call.play_until(300)
    assert call.end(300, whole=True) == replace(WHOLE, status="incomplete")


def test_what_is_over_and_was_taken_back_before_it_was_written_was_not_heard() -> None:
    """Its last frames waited for a client that did not read, and a stop threw them away."""
    call = over_and_believed_heard()
    call.heard.stop(310 * MS)
    assert call.heard.written("r1", 260 * 24) == "item_r1"
    cut = Cut(260 * 24, "w0 w1", "w2", error_samples=60 * 24)
    assert call.heard.cut_of("item_r1") == cut, "by the pace of sending 200 ms were heard when it was over"


def test_the_words_of_what_is_over_may_still_come_back_as_an_echo() -> None:
    call = Call(words=3)
    call.play_until(200)
    call.end(200, whole=True)
    assert call.heard.last_words(250 * MS) == "w0 w1 w2"
    assert call.heard.last_words(310 * MS) == ""


def test_what_cannot_be_recalled_is_played_to_its_end() -> None:
    call = Call(recalls=False, words=5)
    call.play_until(320)
    call.end(320, whole=True)
    assert call.heard.unplayed(320 * MS) == []


def test_a_client_that_stops_reporting_at_its_end_has_heard_it_all_in_time() -> None:
    call = Call(words=3)
    call.play_until(200)
    call.heard.report("r1", 100, 200 * MS)
    call.end(200, whole=True)
    assert call.heard.unplayed(400 * MS) == ["item_r1"], "as far as it has said"
    assert call.heard.unplayed(500 * MS) == [], "100 samples, and 300 ms"


def test_the_last_replies_are_known_and_no_others() -> None:
    call = Call()
    call.end(0)
    for number in range(2, REPLIES_MAX + 2):
        call.begin(f"r{number}")
        call.end(0, response=f"r{number}")
    assert call.heard.cut_of("item_r1") is None
    assert call.heard.cut_of("item_r2") is not None
    assert call.playout.open_responses() == tuple(f"r{number}" for number in range(2, REPLIES_MAX + 2))


def test_a_cut_item_says_how_far_it_was_heard_and_how_that_is_known() -> None:
    item = Item("i", "assistant", "one two three", spoken=True, audio_samples=1_000)
    assert Cut(700, "one two", "three", "acked").applied_to(item) == Item(
        "i", "assistant", "one two", True, "incomplete", 1_000, True, 700, "acked", "three"
    )


def test_an_item_that_is_whole_after_all_is_as_if_it_had_never_been_cut() -> None:
    item = Item("i", "assistant", "w0 w1 w2", spoken=True, audio_samples=300 * 24)
    cut = Cut(150 * 24, "w0", "w1", "acked").applied_to(item)
    assert cut != item
    assert WHOLE.applied_to(cut) == item


FACTS = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 10 * WORD)),
    st.tuples(st.just("late words"), st.just(0)),
    st.tuples(st.just("arrived"), st.integers(0, 900)),
    st.tuples(st.just("end"), st.just(0)),
)


@given(
    st.lists(FACTS, max_size=6).map(lambda facts: [*facts, ("end", 0)]),
    st.booleans(),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_in_every_order_the_same_facts_end_at_the_same_cut(
    facts: list[tuple[str, int]], recalls: bool, frames: int, random: Random
) -> None:
    """Reports, late word times, arrivals and the end, all at one moment: only how much is known counts, not in which
    order it came."""
    facts = list(dict.fromkeys(facts))
    shuffled = random.sample(facts, len(facts))
    cuts = []
    for order in (facts, shuffled):
        call = Call(recalls=recalls)
        words, call.reply = tuple(call.reply._words), Reply() if ("late words", 0) in facts else call.reply
        now_ns = frames * 20 * MS
        call.heard.go_by(Path(delay_ns_min=10 * MS, delay_ns_max=120 * MS), 0)
        call.play_until(frames * 20)
        for fact, amount in order:
            match fact:
                case "report":
                    call.heard.report("r1", amount, now_ns)
                case "late words":
                    times = tuple(Word(word.text, word.start, word.end) for word in words)
                    call.reply.add_words(WordTimes(0, OUTPUT_RATE, times))
                case "arrived":
                    call.heard.go_by(Path(10 * MS, 120 * MS, arrived_ns=amount * MS), now_ns)
                case _:
                    call.end(frames * 20)
        cut = call.heard.cut_of("item_r1")
        assert cut is not None
        cuts.append((cut.samples, cut.text, cut.word))
    assert cuts[0] == cuts[1]


@given(st.integers(0, 2**32))
def test_in_any_order_a_cut_lies_between_what_is_known_to_be_heard_and_what_was_sent(seed: int) -> None:
    random, call = Random(seed), Call()
    ended_ms = random.randrange(0, 1_200, 20)
    reported = 0
    for now_ms in range(0, ended_ms + 600, 20):
        if now_ms < ended_ms:
            while call.playout.due(now_ms * MS):
                pass
        elif now_ms == ended_ms:
            call.end(now_ms)
        if random.random() < 0.3:
            samples = random.randint(0, 12 * WORD)
            reported = max(reported, min(samples, call.playout.view("r1", now_ms * MS).sent))
            call.heard.report("r1", samples, now_ms * MS)
    cut = call.heard.cut_of("item_r1")
    assert cut is not None
    assert reported <= cut.samples <= call.playout.view("r1", 10**12).sent
    assert cut.text.split() == [f"w{n}" for n in range(cut.samples // WORD)]
    assert cut.word == (f"w{cut.samples // WORD}" if cut.samples % WORD else "")
