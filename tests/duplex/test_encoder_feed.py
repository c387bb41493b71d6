"""What the encoder is fed: each sample once, in order, under its credit; what is told comes behind its sound."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duplex.encoder_feed import ENCODER_CREDIT_SAMPLES, FEED_SAMPLES_MAX, EncoderFeed
from media.input_ring import InputRing
from sessions.settings import INPUT_RATE
from stages.contracts import AudioIn, EndOfTurn, Pause, Tag
from stages.messages import Feed

TAG = Tag("sess", 1 << 20, 1)
OTHER = Tag("sess", 1 << 20, 2)
RING_SAMPLES = 10 * INPUT_RATE


def samples(first: int, count: int) -> bytes:
    return b"".join((sample % 30_000).to_bytes(2, "little") for sample in range(first, first + count))


class Ears:
    """A ring that is judged as it fills."""

    def __init__(self) -> None:
        self.ring = InputRing(RING_SAMPLES)
        self.feed = EncoderFeed(self.ring)

    def hear(self, count: int) -> list[Feed]:
        self.ring.append(samples(self.ring.newest, count))
        return self.feed.judged(self.ring.newest)


def span(feeds: list[Feed], tag: Tag = TAG) -> tuple[int, int]:
    """First and last sample of what `feeds` bring `tag`; each once, none missing between them."""
    pieces = [feed.item for feed in feeds if feed.tag == tag and isinstance(feed.item, AudioIn)]
    ends = [piece.start_sample + len(piece.pcm) // 2 for piece in pieces]
    assert [piece.start_sample for piece in pieces[1:]] == ends[:-1]
    return pieces[0].start_sample, ends[-1]


def test_a_turn_is_fed_from_its_start_as_input_is_judged() -> None:
    ears = Ears()
    ears.hear(1_000)
    assert span(ears.feed.hear_from(TAG, 600, None)) == (600, 1_000)
    (feed,) = ears.hear(500)
    assert feed == Feed(TAG, AudioIn(1_000, samples(1_000, 500)), 500)


def test_what_was_not_judged_is_not_heard() -> None:
    ears = Ears()
    ears.ring.append(samples(0, 700))
    assert ears.feed.hear_from(TAG, 0, None) == []
    assert span(ears.feed.judged(512)) == (0, 512)


def test_pieces_are_bounded_and_so_is_what_is_in_flight() -> None:
    ears = Ears()
    ears.hear(3 * INPUT_RATE)
    feeds = ears.feed.hear_from(TAG, 0, None)
    assert [feed.units for feed in feeds] == [FEED_SAMPLES_MAX] * (ENCODER_CREDIT_SAMPLES // FEED_SAMPLES_MAX)
    assert ears.feed.credit_returned(TAG, FEED_SAMPLES_MAX - 1) == []
    assert span(ears.feed.credit_returned(TAG, 1)) == (
        ENCODER_CREDIT_SAMPLES,
        ENCODER_CREDIT_SAMPLES + FEED_SAMPLES_MAX,
    )


def test_credit_is_out_until_it_comes_back_or_its_stream_is_gone() -> None:
    ears = Ears()
    ears.feed.hear_from(TAG, 0, None)
    ears.feed.hear_from(OTHER, 0, None)
    ears.hear(1_000)
    assert ears.feed.credit_out == 2_000
    ears.feed.credit_returned(TAG, 400)
    assert ears.feed.credit_out == 1_600
    ears.feed.drop(TAG)
    ears.feed.drop(OTHER)
    assert ears.feed.credit_out == 0


def test_what_is_told_waits_for_the_sound_before_it() -> None:
    ears = Ears()
    ears.hear(3 * INPUT_RATE)
    ears.feed.hear_from(TAG, 0, None)
    assert ears.feed.tell(TAG, Pause(5)) == []
    assert ears.feed.stop_hearing(TAG, 3 * INPUT_RATE) == []
    assert ears.feed.tell(TAG, EndOfTurn(9)) == []
    feeds = ears.feed.credit_returned(TAG, ENCODER_CREDIT_SAMPLES)
    assert span(feeds) == (ENCODER_CREDIT_SAMPLES, 3 * INPUT_RATE)
    assert [feed.item for feed in feeds[-2:]] == [Pause(5), EndOfTurn(9)]
    assert ears.hear(500) == [], "what comes later belongs to another turn"


def test_what_is_told_about_a_stream_that_hears_nothing_goes_at_once() -> None:
    assert Ears().feed.tell(TAG, Pause(5)) == [Feed(TAG, Pause(5))]


def test_a_turn_that_has_ended_is_fed_to_its_end() -> None:
    ears = Ears()
    ears.hear(1_000)
    assert span(ears.feed.hear_from(TAG, 100, 300)) == (100, 300)


def test_streams_that_are_gone_are_fed_no_more() -> None:
    ears = Ears()
    for tag in (TAG, OTHER):
        ears.feed.hear_from(tag, 0, None)
    ears.feed.drop(TAG)
    assert {feed.tag for feed in ears.hear(500)} == {OTHER}
    assert ears.feed.credit_returned(TAG, 1) == []
    assert ears.feed.stop_hearing(TAG, 3) == []
    assert ears.feed.turns == 1


def test_what_the_ring_has_lost_is_skipped() -> None:
    ears = Ears()
    ears.hear(RING_SAMPLES + 100)
    assert span(ears.feed.hear_from(TAG, 0, None))[0] == 100


def test_a_full_ring_keeps_what_the_encoder_has_yet_to_hear() -> None:
    ears = Ears()
    ears.hear(RING_SAMPLES)
    ears.feed.hear_from(TAG, 0, None)
    assert not ears.feed.would_lose(ENCODER_CREDIT_SAMPLES)
    assert ears.feed.would_lose(ENCODER_CREDIT_SAMPLES + 1)
    ears.feed.stop_hearing(TAG, ENCODER_CREDIT_SAMPLES)
    assert not ears.feed.would_lose(RING_SAMPLES), "it has had all that belongs to its turn"


class EncoderFeedMachine(RuleBasedStateMachine):
    """Input, credit and turns in any order: the encoder has what it was owed, once."""

    def __init__(self) -> None:
        super().__init__()
        self.ears = Ears()
        self.fed = 0
        self.returned = 0
        self.first = 0
        self.until: int | None = None
        self.told: list[int] = []

    @rule(count=st.integers(1, 9_000))
    def hear(self, count: int) -> None:
        self.take(self.ears.hear(count))

    @precondition(lambda self: not self.ears.feed.turns)
    @rule(back=st.integers(0, 9_000))
    def start(self, back: int) -> None:
        self.first = self.fed = self.returned = max(0, self.ears.ring.newest - back)
        self.until = None
        self.take(self.ears.feed.hear_from(TAG, self.first, None))

    @precondition(lambda self: self.ears.feed.turns and self.until is None)
    @rule()
    def stop(self) -> None:
        self.until = self.ears.ring.newest
        self.take(self.ears.feed.stop_hearing(TAG, self.until))
        self.take(self.ears.feed.tell(TAG, EndOfTurn(self.until)))

    @precondition(lambda self: self.returned < self.fed)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.fed - self.returned))
        self.returned += count
        self.take(self.ears.feed.credit_returned(TAG, count))

    @rule()
    def drop(self) -> None:
        self.ears.feed.drop(TAG)
        self.returned = self.fed

    def take(self, feeds: list[Feed]) -> None:
        for feed in feeds:
            if isinstance(feed.item, AudioIn):
                assert feed.item == AudioIn(self.fed, samples(self.fed, feed.units))
                self.fed += feed.units
            else:
                assert feed.item == EndOfTurn(self.fed), "the end comes behind all of the sound"

    @invariant()
    def is_bounded(self) -> None:
        assert self.fed - self.returned <= ENCODER_CREDIT_SAMPLES
        if self.ears.feed.turns:
            owed = self.ears.ring.newest if self.until is None else self.until
            full = self.fed - self.returned > ENCODER_CREDIT_SAMPLES - FEED_SAMPLES_MAX
            assert self.fed == owed or full


EncoderFeedMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestAnyOrder = EncoderFeedMachine.TestCase
