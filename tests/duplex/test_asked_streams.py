"""What a stream waits for and what waits for it, from being asked for until it is over."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from duplex.asked_streams import UNOPENED_FEEDS_MAX, AskedStream, AskedStreams
from stages.contracts import Pause, Tag, TalkerOptions
from stages.messages import Feed, Open

S1, S2 = "sess_1", "sess_2"
EARLIER, TAG = Tag(S1, 1 << 20, 1, "resp_1"), Tag(S1, 2 << 20, 1, "resp_1")
OTHER = Tag(S2, 1 << 20, 1, "resp_2")
ASKED_NS = 5_000


def order(of: Tag = TAG, lasts_ns_max: int | None = None) -> Open:
    return Open(of, TalkerOptions(), ("vocoder",), lasts_ns_max=lasts_ns_max)


def feed(number: int) -> Feed:
    return Feed(TAG, Pause(number))


def asked(*tags: Tag) -> tuple[AskedStreams, list[AskedStream]]:
    streams = AskedStreams()
    for of in tags:
        streams.ask(order(of), ASKED_NS)
    return streams, [streams.named(of.key) for of in tags]


# ---- one stream -----------------------------------------------------------------------------------------------


def test_what_is_fed_to_it_waits_for_its_worker() -> None:
    stream = AskedStream(order(), ASKED_NS)
    assert all(stream.keep(feed(number)) for number in range(3))
    assert (stream.is_pending, stream.begun) == (True, False)
    assert stream.begin() == [feed(number) for number in range(3)]
    assert (stream.is_pending, stream.begun) == (False, True)
    assert stream.begin() == [], "told twice"


def test_what_waits_is_bounded() -> None:
    stream = AskedStream(order(), ASKED_NS)
    assert all(stream.keep(feed(number)) for number in range(UNOPENED_FEEDS_MAX))
    assert not stream.keep(feed(0))
    assert len(stream.begin()) == UNOPENED_FEEDS_MAX


def test_nothing_waits_any_more_when_it_is_cancelled() -> None:
    stream = AskedStream(order(), ASKED_NS)
    stream.keep(feed(1))
    stream.cancel()
    assert stream.keep(feed(2))
    assert not stream.is_pending
    assert stream.begin() == []


@pytest.mark.parametrize(("lasts_ns_max", "left_ns"), [(1_000, 700), (300, 0), (200, 0), (None, None)])
def test_its_worker_is_told_its_replicas_and_what_is_left_of_its_time(
    lasts_ns_max: int | None, left_ns: int | None
) -> None:
    stream = AskedStream(order(lasts_ns_max=lasts_ns_max), ASKED_NS)
    told = structs.replace(order(), edges=("vocoder-2",), lasts_ns_max=left_ns)
    assert stream.asked_at(ASKED_NS + 300, ("vocoder-2",)) == told
    assert stream.asked_at(ASKED_NS, ("vocoder-2",)).lasts_ns_max == lasts_ns_max, "none of it is used up by asking"


# ---- all of a stage -------------------------------------------------------------------------------------------


def test_a_stream_is_found_by_its_whole_tag() -> None:
    streams, [stream] = asked(TAG)
    assert streams.of(TAG) is stream
    assert streams.of(EARLIER) is None, "it has the name of an earlier owner's"
    assert streams.of(OTHER) is None
    with pytest.raises(KeyError):
        streams.named(OTHER.key)


def test_a_stream_of_the_same_name_stands_in_place_of_the_earlier_one() -> None:
    streams, _ = asked(EARLIER, TAG)
    assert (len(streams), streams.of(EARLIER)) == (1, None)


def test_streams_are_told_apart_by_session_and_by_replica() -> None:
    streams, [stream, other] = asked(TAG, OTHER)
    stream.replica = "a"
    assert streams.of_session(S2) == [other]
    assert [streams.at(replica) for replica in "ab"] == [[stream], []]
    counts = [streams.count(*name) for name in ((S1, TAG.key), (S1, ""), (S1, OTHER.key), ("sess_3", ""))]
    assert counts == [1, 1, 0, 0]


def test_a_stream_is_held_until_its_worker_is_asked_and_may_be_again() -> None:
    streams, [stream, other] = asked(TAG, OTHER)
    assert streams.held == [stream, other]
    streams.release(stream)
    assert (streams.is_held(stream), streams.is_held(other)) == (False, True)
    streams.hold(stream)
    assert streams.held == [other, stream], "in the order in which they wait"


def test_what_is_over_is_forgotten_held_or_not() -> None:
    streams, [stream, other] = asked(TAG, OTHER)
    streams.release(stream)
    streams.forget(stream)
    assert (len(streams), streams.of(TAG), streams.held) == (1, None, [other])
    streams.forget(other)
    assert (len(streams), streams.held) == (0, [])


class AskedMachine(RuleBasedStateMachine):
    """Any order of what may happen to streams, beside the plainest account of it."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = AskedStreams()
        self.tags: dict[str, Tag] = {}
        self.held: list[str] = []
        self.waiting: dict[str, list[Feed] | None] = {}  # None: its worker has answered, or it was cancelled
        self.asked = 0

    def draw(self, data: st.DataObject, among: list[str]) -> AskedStream:
        return self.streams.named(data.draw(st.sampled_from(among)))

    @rule(session=st.sampled_from([S1, S2]))
    def ask(self, session: str) -> None:
        self.asked += 1
        tag = Tag(session, 1 << 20, self.asked, f"resp_{self.asked}")
        self.streams.ask(order(tag), ASKED_NS)
        self.tags[tag.key], self.waiting[tag.key] = tag, []
        self.held.append(tag.key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        stream = self.draw(data, self.held)
        self.streams.release(stream)
        self.held.remove(stream.tag.key)

    @precondition(lambda self: len(self.tags) > len(self.held))
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        stream = self.draw(data, [key for key in self.tags if key not in self.held])
        self.streams.hold(stream)
        self.held.append(stream.tag.key)

    @precondition(lambda self: self.tags)
    @rule(data=st.data(), number=st.integers(0, 9))
    def keep(self, data: st.DataObject, number: int) -> None:
        stream = self.draw(data, list(self.tags))
        assert stream.keep(feed(number))
        waiting = self.waiting[stream.tag.key]
        if waiting is not None:
            waiting.append(feed(number))

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        stream = self.draw(data, list(self.tags))
        assert stream.begin() == (self.waiting[stream.tag.key] or [])
        self.waiting[stream.tag.key] = None

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        stream = self.draw(data, list(self.tags))
        stream.cancel()
        self.waiting[stream.tag.key] = None

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        stream = self.draw(data, list(self.tags))
        self.streams.forget(stream)
        del self.tags[stream.tag.key], self.waiting[stream.tag.key]
        self.held = [key for key in self.held if key != stream.tag.key]

    @invariant()
    def each_is_found_by_its_tag_and_held_in_order(self) -> None:
        assert len(self.streams) == len(self.tags)
        assert [stream.tag.key for stream in self.streams.held] == self.held
        for key, tag in self.tags.items():
            stream = self.streams.of(tag)
            assert stream is self.streams.named(key)
            assert stream.is_pending is (self.waiting[key] is not None)
            assert self.streams.is_held(stream) is (key in self.held)
        for session in (S1, S2):
            assert self.streams.count(session, "") == sum(tag.session == session for tag in self.tags.values())


AskedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAskedMachine = AskedMachine.TestCase
