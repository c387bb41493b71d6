"""The playout ledger, against an ear that plays what it gets as soon as it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.chunk import AudioChunk, ChunkError
from media.playout import Frame, LedgerView, Playout

RATE = 1_000  # a sample is a millisecond
FRAME = 20
MS = 1_000_000
LEAD_MS = 50


def pcm(first: int, count: int) -> bytes:
    """`count` samples that say where they stand."""
    return b"".join((n % 30_000).to_bytes(2, "little") for n in range(first, first + count))


def chunk(seq: int, start: int, samples: int, *, final: bool = False, rate: int = RATE) -> AudioChunk:
    return AudioChunk(seq, rate, start, pcm(start, samples), final)


def make(*responses: str, lead_ms: int = LEAD_MS) -> Playout:
    playout = Playout(RATE, FRAME, lead_ms * MS)
    for response in responses:
        playout.open(response)
    return playout


def drain(playout: Playout, now_ms: int) -> list[Frame]:
    """All that may go now."""
    frames = []
    while (frame := playout.due(now_ms * MS)) is not None:
        frames.append(frame)
    return frames


def spans(frames: list[Frame]) -> list[tuple[str, int, int, bool]]:
    return [(frame.response, frame.start_sample, frame.end_sample, frame.final) for frame in frames]


# ---- frames -------------------------------------------------------------------------------------------------


def test_frames_go_while_less_than_the_lead_waits_at_the_ear() -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, 200))
    assert spans(drain(playout, 1_000)) == [("r", 0, 20, False), ("r", 20, 40, False), ("r", 40, 60, False)]
    assert drain(playout, 1_010) == []
    assert spans(drain(playout, 1_011)) == [("r", 60, 80, False)]
    assert playout.played_out_ns() == 1_080 * MS


def test_frames_are_cut_across_chunks_and_the_last_one_is_short() -> None:
    playout = make("r", lead_ms=1_000)
    playout.push("r", chunk(0, 0, 7))
    assert drain(playout, 0) == []
    playout.push("r", chunk(1, 7, 25))
    assert spans(drain(playout, 0)) == [("r", 0, 20, False)]
    playout.push("r", chunk(2, 32, 13, final=True))
    frames = drain(playout, 0)
    assert spans(frames) == [("r", 20, 40, False), ("r", 40, 45, True)]
    assert b"".join(frame.pcm for frame in frames) == pcm(20, 25)
    assert (frames[0].samples, frames[1].samples) == (20, 5)


def test_responses_of_different_rates_follow_each_other_on_one_clock() -> None:
    playout = make("r", lead_ms=1_000)
    playout.open("t", RATE // 4)
    playout.push("t", chunk(0, 0, 12, final=True, rate=RATE // 4))
    playout.push("r", chunk(0, 0, 40, final=True))
    frames = spans(drain(playout, 0))
    assert frames[:2] == [("r", 0, 20, False), ("r", 20, 40, True)]
    assert frames[2:] == [("t", 0, 5, False), ("t", 5, 10, False), ("t", 10, 12, True)]
    assert playout.played_out_ns() == (40 + 48) * MS
    assert [playout.view("t", ms * MS).heard for ms in (40, 44, 87, 88)] == [0, 1, 11, 12]
    assert (playout.lead_ns("t", 44 * MS), playout.lead_ns("r", 44 * MS)) == (44 * MS, 0)
    assert (playout.rate_of("r"), playout.rate_of("t")) == (RATE, RATE // 4)


def test_a_report_is_of_samples_at_the_responses_rate() -> None:
    playout = make(lead_ms=1_000)
    playout.open("t", RATE // 4)
    playout.push("t", chunk(0, 0, 50, rate=RATE // 4))
    drain(playout, 0)
    playout.acknowledge("t", 10, 48 * MS)
    view = playout.view("t", 60 * MS)
    assert (view.heard, view.basis, view.error_samples) == (10, "acked", 3), "12 ms are three samples"


def test_a_final_chunk_without_sound_closes_the_response() -> None:
    playout = make("r", lead_ms=1_000)
    playout.push("r", chunk(0, 0, FRAME))
    assert spans(drain(playout, 0)) == [("r", 0, FRAME, False)]
    assert not playout.view("r", 0).complete
    playout.push("r", chunk(1, FRAME, 0, final=True))
    assert drain(playout, 0) == [Frame("r", FRAME, b"", True, sounds_ns=20 * MS)]
    assert playout.view("r", 0).complete


def test_a_response_without_sound_has_one_empty_frame() -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, 0, final=True))
    assert drain(playout, 0) == [Frame("r", 0, b"", True)]


def test_responses_play_one_after_the_other() -> None:
    playout = make("a", "b", lead_ms=1_000)
    playout.push("b", chunk(0, 0, 30, final=True))
    assert drain(playout, 0) == []
    playout.push("a", chunk(0, 0, 25, final=True))
    assert spans(drain(playout, 0)) == [
        ("a", 0, 20, False),
        ("a", 20, 25, True),
        ("b", 0, 20, False),
        ("b", 20, 30, True),
    ]
    assert playout.open_responses() == ("a", "b")


def test_what_is_held_waits_with_all_behind_it() -> None:
    playout = make("a", "b")
    playout.push("a", chunk(0, 0, FRAME, final=True))
    playout.push("b", chunk(0, 0, FRAME, final=True))
    playout.withhold("a")
    assert drain(playout, 0) == []
    assert playout.view("a", 0) == LedgerView(generated=FRAME, sent=0, heard=0, complete=False)
    playout.release()
    assert spans(drain(playout, 0)) == [("a", 0, FRAME, True), ("b", 0, FRAME, True)]


# ---- the contract of chunks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (chunk(2, 10, 5), "r: chunk 2 at 10, wanted 1 at 10"),
        (chunk(0, 0, 10), "r: chunk 0 at 0, wanted 1 at 10"),
        (chunk(1, 11, 5), "r: chunk 1 at 11, wanted 1 at 10"),
        (chunk(1, 9, 5), "r: chunk 1 at 9, wanted 1 at 10"),
        (chunk(1, 10, 5, rate=8_000), "r: 8000 Hz on a 1000 Hz output"),
    ],
)
def test_a_chunk_that_breaks_the_contract_is_refused_and_changes_nothing(wrong: AudioChunk, message: str) -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, 10))
    with pytest.raises(ChunkError, match=message):
        playout.push("r", wrong)
    playout.push("r", chunk(1, 10, 10, final=True))
    assert [frame.pcm for frame in drain(playout, 0)] == [pcm(0, 20)]


def test_nothing_comes_after_the_final_chunk() -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, 10, final=True))
    with pytest.raises(ChunkError, match="chunk 1 after the final one"):
        playout.push("r", chunk(1, 10, 10))
    assert playout.view("r", 0).generated == 10


def test_a_response_is_opened_once_and_known_before_its_chunks() -> None:
    playout = make("r")
    with pytest.raises(ChunkError, match="r is already open"):
        playout.open("r")
    with pytest.raises(KeyError):
        playout.push("other", chunk(0, 0, 10))


# ---- heard --------------------------------------------------------------------------------------------------


def test_heard_follows_the_clock_and_ends_at_sent() -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, 100))
    drain(playout, 1_000)
    heard = [playout.view("r", 1_000 * MS + at).heard for at in (0, 1, MS - 1, MS, 59 * MS, 60 * MS, 500 * MS)]
    assert heard == [0, 0, 0, 1, 59, 60, 60]


def test_what_follows_a_response_does_not_take_back_what_was_heard_of_it() -> None:
    """`b` is short enough to be sent whole while `a` is still playing."""
    playout = make("a", "b", lead_ms=1_000)
    playout.push("a", chunk(0, 0, 100, final=True))
    playout.push("b", chunk(0, 0, 10, final=True))
    drain(playout, 0)
    assert playout.view("a", 50 * MS).heard == 50
    assert playout.due(50 * MS) is None
    assert playout.view("a", 50 * MS).heard == 50
    assert playout.view("b", 105 * MS).heard == 5


def test_what_a_client_throws_away_takes_no_time_at_its_ear() -> None:
    """`a` ran 400 ms ahead of the ear; `b` is heard from its arrival on, and runs as far ahead again."""
    playout = make("a", "b", lead_ms=400)
    playout.push("a", chunk(0, 0, 900, final=True))
    playout.push("b", chunk(0, 0, 900, final=True))
    drain(playout, 0)
    assert playout.cut("a", 100 * MS).heard == 100
    playout.recall("a", 100 * MS)
    assert playout.played_out_ns() == 100 * MS
    assert drain(playout, 130)[-1].end_sample == 400
    assert playout.view("b", 150 * MS).heard == 20
    assert playout.view("a", 500 * MS).heard == 100


def test_what_follows_what_was_thrown_away_and_was_sent_already_stays_in_its_place() -> None:
    playout = make("a", "b", "c", lead_ms=1_000)
    for response, samples in (("a", 100), ("b", 60), ("c", 40)):
        playout.push(response, chunk(0, 0, samples, final=True))
        drain(playout, 0)
    playout.cut("a", 30 * MS)
    playout.recall("a", 30 * MS)
    assert playout.played_out_ns() == 200 * MS
    playout.recall("c", 30 * MS)
    assert playout.played_out_ns() == 160 * MS
    assert playout.view("b", 130 * MS).heard == 30


def test_what_had_been_played_when_it_was_thrown_away_changes_nothing() -> None:
    playout = make("a")
    playout.push("a", chunk(0, 0, 20, final=True))
    drain(playout, 0)
    playout.recall("a", 90 * MS)
    assert playout.played_out_ns() == 20 * MS


@pytest.mark.parametrize("ending", ["cut", "forget"])
def test_the_end_of_a_later_response_does_not_take_back_what_was_heard(ending: str) -> None:
    playout = make("a", "b", lead_ms=1_000)
    playout.push("a", chunk(0, 0, 60, final=True))
    playout.push("b", chunk(0, 0, 40))
    drain(playout, 0)
    assert playout.view("a", 30 * MS).heard == 30
    if ending == "cut":
        playout.cut("b", 30 * MS)
    else:
        playout.forget("b")
    assert playout.view("a", 30 * MS).heard == 30


# ---- underruns ----------------------------------------------------------------------------------------------


def test_a_dry_spell_counts_once_however_long_it_lasts() -> None:
    playout = make("r")
    playout.push("r", chunk(0, 0, FRAME))
    drain(playout, 0)
    for now_ms in (20, 30, 400):
        assert drain(playout, now_ms) == []
    assert playout.underruns == 0
    playout.push("r", chunk(1, FRAME, 60))
    drain(playout, 410)
    assert playout.underruns == 1
    drain(playout, 440)
    assert (playout.underruns, playout.played_out_ns()) == (1, 470 * MS)


def test_a_pause_before_or_after_a_response_is_no_underrun() -> None:
    playout = make("a", "b")
    playout.push("a", chunk(0, 0, FRAME))
    drain(playout, 500)
    playout.push("a", chunk(1, FRAME, 0, final=True))
    drain(playout, 900)
    playout.push("b", chunk(0, 0, FRAME, final=True))
    drain(playout, 2_000)
    assert playout.underruns == 0


# ---- cut ----------------------------------------------------------------------------------------------------


def test_a_cut_ends_a_response_at_what_was_sent() -> None:
    playout = make("a", "b")
    playout.push("a", chunk(0, 0, 200))
    drain(playout, 0)
    view = playout.cut("a", 10 * MS)
    assert (view, view.unsent) == (LedgerView(generated=200, sent=60, heard=10, complete=False), 140)
    playout.push("b", chunk(0, 0, FRAME))
    assert spans(drain(playout, 11)) == [("b", 0, FRAME, False)]
    assert playout.view("a", 30 * MS).heard == 30
    with pytest.raises(ChunkError):
        playout.push("a", chunk(1, 200, 10))


def test_a_second_cut_changes_nothing() -> None:
    playout = make("a", "b")
    playout.push("a", chunk(0, 0, 200))
    playout.push("b", chunk(0, 0, FRAME, final=True))
    drain(playout, 0)
    once = playout.cut("a", 10 * MS)
    again = playout.cut("a", 10 * MS)
    assert (again.generated, again.sent, again.heard) == (once.generated, once.sent, once.heard)
    assert spans(drain(playout, 11)) == [("b", 0, FRAME, True)]


def test_a_response_can_be_cut_before_its_turn_and_after_its_end() -> None:
    playout = make("a", "b", "c", lead_ms=1_000)
    playout.push("a", chunk(0, 0, FRAME, final=True))
    playout.push("b", chunk(0, 0, FRAME))
    playout.push("c", chunk(0, 0, FRAME, final=True))
    assert playout.cut("b", 0).sent == 0
    assert spans(drain(playout, 0)) == [("a", 0, FRAME, True), ("c", 0, FRAME, True)]
    assert playout.cut("a", 0) == LedgerView(generated=FRAME, sent=FRAME, heard=0, complete=True)


def test_a_forgotten_response_is_gone() -> None:
    playout = make("a", "b")
    playout.push("a", chunk(0, 0, 200))
    playout.forget("a")
    playout.push("b", chunk(0, 0, FRAME, final=True))
    assert spans(drain(playout, 0)) == [("b", 0, FRAME, True)]
    playout.forget("b")
    assert playout.open_responses() == ()
    with pytest.raises(KeyError):
        playout.view("a", 0)
    playout.open("a")
    assert playout.view("a", 0) == LedgerView(0, 0, 0, complete=False)


# ---- any order ----------------------------------------------------------------------------------------------


@dataclass
class Ear:
    """Plays each sample as soon as it has come and the one before has ended. Times in ns, exact."""

    rate: int
    end_ns: Fraction = Fraction(0)
    starts: dict[str, list[Fraction]] = field(default_factory=dict)

    def take(self, frame: Frame, now_ns: int) -> None:
        for _ in range(frame.samples):
            self.end_ns = max(self.end_ns, Fraction(now_ns)) + Fraction(10**9, self.rate)
            self.starts.setdefault(frame.response, []).append(self.end_ns)

    def heard(self, response: str, now_ns: int) -> int:
        return sum(end_ns <= now_ns for end_ns in self.starts.get(response, []))


class Call:
    """A playout, its ear, and what was pushed and sent of each response."""

    def __init__(self, rate: int, seed: int) -> None:
        self.random = Random(seed)
        self.rate = rate
        self.frame_samples = rate // 50
        self.lead_ns = self.random.choice((40, 60, 160)) * MS
        self.playout = Playout(rate, self.frame_samples, self.lead_ns)
        self.ear = Ear(rate)
        self.now_ns = self.random.randint(0, 10**9)
        self.pushed: dict[str, bytes] = {}
        self.sent: dict[str, bytes] = {}
        self.seqs: dict[str, int] = {}
        self.closed: set[str] = set()
        self.cuts: set[str] = set()
        self.views: dict[str, LedgerView] = {}
        self.frames = self.dry = 0

    def open(self) -> None:
        response = f"r{len(self.pushed)}"
        self.playout.open(response)
        self.pushed[response] = self.sent[response] = b""
        self.seqs[response] = 0
        self.views[response] = LedgerView(0, 0, 0, complete=False)

    def push(self) -> None:
        growing = [one for one in self.pushed if one not in self.closed and one in self.views]
        if growing:
            response = self.random.choice(growing)
            start = len(self.pushed[response]) // 2
            final = self.random.random() < 0.3
            sound = pcm(start, self.random.choice((0, 1, 7, self.rate // 50, self.rate // 10)))
            if sound or final:
                self.playout.push(response, AudioChunk(self.seqs[response], self.rate, start, sound, final))
                self.pushed[response] += sound
                self.seqs[response] += 1
                self.closed |= {response} if final else set()

    def pass_time(self) -> None:
        self.now_ns += self.random.choice((1, 7 * MS, 20 * MS, 150 * MS))

    def send(self) -> None:
        while True:
            end_ns = self.playout.played_out_ns()
            frame = self.playout.due(self.now_ns)
            if frame is None:
                break
            self._check_frame(frame, end_ns)
            self.ear.take(frame, self.now_ns)

    def _check_frame(self, frame: Frame, end_ns: int) -> None:
        assert frame.response not in self.cuts
        assert end_ns - self.now_ns < self.lead_ns
        assert frame.start_sample * 2 == len(self.sent[frame.response])
        self.dry += bool(frame.start_sample and frame.samples and end_ns < self.now_ns)
        self.frames += 1
        self.sent[frame.response] += frame.pcm
        whole = self.sent[frame.response] == self.pushed[frame.response] and frame.response in self.closed
        assert frame.final == whole
        assert frame.samples == self.frame_samples or whole

    def cut(self) -> None:
        if self.views:
            response = self.random.choice(list(self.views))
            view = self.playout.cut(response, self.now_ns)
            assert view.unsent == (len(self.pushed[response]) - len(self.sent[response])) // 2
            self.cuts.add(response)
            self.closed.add(response)

    def forget(self) -> None:
        done = [one for one in self.views if one in self.closed]
        if done:
            response = self.random.choice(done)
            self.playout.forget(response)
            self.cuts.add(response)
            del self.views[response]

    def check(self) -> None:
        assert self.playout.open_responses() == tuple(self.views)
        assert self.playout.underruns == self.dry
        for response, before in self.views.items():
            view = self.playout.view(response, self.now_ns)
            assert view.generated * 2 == len(self.pushed[response])
            assert view.sent * 2 == len(self.sent[response])
            assert self.pushed[response].startswith(self.sent[response])
            assert view.generated >= view.sent >= view.heard >= before.heard
            # The playout counts whole ns: it may be early by less than one for each frame that was not.
            assert self.ear.heard(response, self.now_ns) <= view.heard + 1
            assert view.heard <= self.ear.heard(response, self.now_ns + self.frames)
            self.views[response] = view


ACTIONS: dict[Callable[[Call], None], int] = {
    Call.open: 2,
    Call.push: 12,
    Call.pass_time: 8,
    Call.send: 12,
    Call.cut: 1,
    Call.forget: 1,
}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
@pytest.mark.parametrize("rate", [1_000, 8_000])
def test_in_any_order_the_ledger_holds(rate: int, seed: int, actions: int) -> None:
    call = Call(rate, seed)
    for action in call.random.choices(list(ACTIONS), list(ACTIONS.values()), k=actions):
        action(call)
        call.check()


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(0, 30))
def test_all_that_is_pushed_is_sent_however_it_is_chunked(sizes: list[int], step_ms: int) -> None:
    playout, now_ms, start = make("r"), 0, 0
    got: list[Frame] = []
    for seq, size in enumerate(sizes):
        playout.push("r", chunk(seq, start, size, final=seq == len(sizes) - 1))
        start += size
        now_ms += step_ms
        got += drain(playout, now_ms)
    for _ in range(start):
        now_ms += 1
        got += drain(playout, now_ms)
    assert b"".join(frame.pcm for frame in got) == pcm(0, start)
    assert [frame.final for frame in got] == [False] * (len(got) - 1) + [True]
    assert playout.view("r", (now_ms + LEAD_MS + FRAME) * MS) == LedgerView(start, start, start, complete=True)


def test_what_is_kept_back_waits_and_what_is_before_it_goes() -> None:
    playout = make("r1")
    playout.push("r1", chunk(0, 0, 100, final=True))
    playout.keep_back("r1", 30)
    assert spans(drain(playout, 0)) == [("r1", 0, 20, False)], "a frame that has some of it in it waits"
    playout.keep_back("r1", 40)
    assert spans(drain(playout, 0)) == [("r1", 20, 40, False)]
    playout.keep_back("r1", None)
    assert spans(drain(playout, 0)) == [("r1", 40, 60, False)], "as far as the lead goes"


def test_what_is_kept_back_does_not_fade_out() -> None:
    playout = make("r1")
    playout.push("r1", chunk(0, 0, 100, final=True))
    playout.keep_back("r1", 20)
    assert spans(drain(playout, 0)) == [("r1", 0, 20, False)]
    playout.hold()
    assert drain(playout, 5) == []
    playout.resume()
    playout.keep_back("r1", None)
    assert spans(drain(playout, 5))[0] == ("r1", 20, 40, False)


def test_what_another_process_has_sent_may_be_reported_and_does_not_sound() -> None:
    playout = make("r2")
    playout.remember("r1", RATE, sent=500, heard=200)
    playout.push("r2", chunk(0, 0, 20, final=True))
    assert spans(drain(playout, 0)) == [("r2", 0, 20, True)]
    view = playout.view("r1", 0)
    assert (view.generated, view.sent, view.heard, view.complete) == (500, 500, 200, True)
    playout.acknowledge("r1", 100, 0)
    assert playout.view("r1", 0).heard == 100
    playout.acknowledge("r1", 900, 0)
    assert (playout.view("r1", 0).heard, playout.reported("r1"), playout.rate_of("r1")) == (500, 500, RATE)
    playout.forget("r1")
    assert playout.open_responses() == ("r2",)
