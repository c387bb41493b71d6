"""What goes over the links of a process: at once, later, or never; and when a stream is rid of all it has sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.block_table import BlockTable, TableSize
from stages.contracts import AudioOut, Clause, Latents, Tag, TextDelta
from stages.credit import CreditError
from stages.link_window import FRAME_BYTES_MAX, HEADER_BYTES, LINK_WINDOW_BYTES
from stages.messages import (
    Cancel,
    Closed,
    Feed,
    Frame,
    Grant,
    PayloadFrame,
    Published,
    StepDone,
    decode,
    encode,
    payload_of,
    with_payload,
)
from stages.outgoing import (
    INLINE_BYTES_MAX,
    ControlPayloadError,
    FrameTooLargeError,
    GoOn,
    Outgoing,
    Pause,
    Place,
    SendEffect,
    Write,
)

CONTROL, DATA, MEDIA, FAR = 1, 2, 3, 4
BLOCK_BYTES = 32_768
TAG = Tag("task", 1, 1, "resp_1")
SIBLING = Tag("task_1_2", 1, 1, "resp_1_2")
THIRD = Tag("third", 1, 1, "resp_3")


def small(tag: Tag = TAG, number: int = 0) -> Feed:
    return Feed(tag, Clause(number, "word"), 4)


def large(tag: Tag = TAG, number: int = 0, size: int = BLOCK_BYTES) -> Feed:
    return Feed(tag, Latents(number, 1, bytes([number % 256]) * size), 1)


def bulky(tag: Tag = TAG, number: int = 0) -> Feed:
    """A frame of nearly the largest size, where no arena is."""
    return Feed(tag, Latents(number, 1, bytes(FRAME_BYTES_MAX - 1_000)), 1)


def closed(tag: Tag = TAG, outcome: str = "finished") -> Closed:
    return Closed(tag, outcome, {})  # type: ignore[arg-type]


class Bench:
    """An `Outgoing` with a control, a data and a media link that can read its arena, and a far one that cannot.

    Copies are made at once unless `holds_copies`.
    """

    def __init__(self, blocks: int = 2, session_blocks_max: int = 1) -> None:
        self.table = BlockTable("talker", 3, TableSize(blocks, BLOCK_BYTES, session_blocks_max))
        self.out = Outgoing(self.table)
        for link, role in ((CONTROL, "control"), (DATA, "data"), (MEDIA, "media"), (FAR, "data")):
            self.out.link_up(link, role, lends=link != FAR)  # type: ignore[arg-type]
        self.holds_copies = False
        self.copying: deque[Place] = deque()
        self.written: list[tuple[int, Frame]] = []
        self.bytes: dict[int, list[int]] = {link: [] for link in (CONTROL, DATA, MEDIA, FAR)}
        self.paused: set[str] = set()

    def carry_out(self, effects: list[SendEffect]) -> list[Frame]:
        """Gives the frames that were written, payloads put back."""
        before = len(self.written)
        for effect in effects:
            match effect:
                case Write(link, encoded):
                    frame = decode(encoded)
                    if isinstance(frame, Feed | Published):
                        self.bytes[link].append(HEADER_BYTES + len(encoded))
                    self.written.append((link, frame))
                case Place():
                    self.copying.append(effect)
                    if not self.holds_copies:
                        self.copied()
                case Pause(key):
                    assert key not in self.paused
                    self.paused.add(key)
                case GoOn(key):
                    self.paused.remove(key)
        return [frame for _, frame in self.written[before:]]

    def copied(self) -> list[Frame]:
        """The oldest copy that is being made has been made."""
        return self.carry_out(self.out.placed(self.copying.popleft(), 0))

    def send(self, frame: Frame, link: int = DATA) -> list[Frame]:
        return self.carry_out(self.out.send(link, frame))

    def read(self, link: int = DATA) -> list[Frame]:
        """The reader of `link` gives back the oldest block that it has."""
        frame = next(f for to, f in self.written if to == link and isinstance(f, Feed | Published) and f.body)
        self.written.remove((link, frame))
        assert isinstance(frame, Feed | Published)
        assert frame.body is not None
        return self.carry_out(self.out.released(link, frame.body))

    def take(self, link: int = DATA) -> list[Frame]:
        """The peer has dealt with all that it was sent."""
        count, self.bytes[link] = sum(self.bytes[link]), []
        return self.carry_out(self.out.taken(link, count))

    def fill_window(self, link: int = FAR) -> int:
        """Send until no more goes; gives how many went, with one waiting."""
        number = 0
        while self.send(bulky(number=number), link):
            number += 1
        return number

    def sent(self, kind: type[Frame]) -> list[Frame]:
        return [frame for _, frame in self.written if isinstance(frame, kind)]


# ---- at once ------------------------------------------------------------------------------------------------


def test_what_is_small_goes_in_its_frame() -> None:
    bench = Bench()
    at_limit = large(size=INLINE_BYTES_MAX)
    assert bench.send(small()) == [small()]
    assert bench.send(at_limit) == [at_limit]
    assert bench.table.statistics(0).used_peak == 0


def test_what_is_large_lies_in_a_block() -> None:
    bench = Bench()
    bench.holds_copies = True
    assert bench.send(large(number=7)) == []
    (place,) = bench.copying
    assert place.payload == payload_of(large(number=7))
    (frame,) = bench.copied()
    assert isinstance(frame, Feed)
    assert frame == with_payload(large(number=7), b"", place.ref)
    assert bench.table.statistics(0).leased == 1


def test_events_go_the_same_way() -> None:
    bench = Bench()
    sound = Published(TAG, AudioOut(0, 24_000, 0, bytes(BLOCK_BYTES)))
    (frame,) = bench.send(sound, MEDIA)
    assert isinstance(frame, Published)
    assert frame.body is not None
    assert bench.send(Published(TAG, TextDelta("hi")), MEDIA) == [Published(TAG, TextDelta("hi"))]


def test_a_peer_that_cannot_read_the_arena_gets_all_in_the_frame() -> None:
    bench = Bench()
    assert bench.send(large(), FAR) == [large()]
    without = Outgoing()
    without.link_up(DATA, "data", lends=True)
    assert without.send(DATA, large()) == [Write(DATA, encode(large()))]


@pytest.mark.parametrize("frame", [small(), large(), Published(TAG, TextDelta("hi"))])
def test_a_control_link_carries_no_payload(frame: PayloadFrame) -> None:
    bench = Bench()
    with pytest.raises(ControlPayloadError, match=type(frame).__name__):
        bench.send(frame, CONTROL)
    assert bench.send(Cancel(TAG), CONTROL) == [Cancel(TAG)]


def test_what_can_never_go_fails_at_once() -> None:
    bench = Bench()
    for frame, link, named in (
        (large(size=BLOCK_BYTES + 1), DATA, "fits no block"),
        (large(size=FRAME_BYTES_MAX), FAR, "Feed"),
        (StepDone(TAG, "x" * FRAME_BYTES_MAX, 0, 0), CONTROL, "StepDone"),
    ):
        with pytest.raises(FrameTooLargeError, match=named):
            bench.send(frame, link)
    assert (bench.written, bench.table.statistics(0).free) == ([], 2)


def test_what_is_for_a_lost_link_is_void() -> None:
    bench = Bench()
    for link in (DATA, CONTROL):
        bench.carry_out(bench.out.link_lost(link))
    assert bench.send(large()) == []
    assert bench.send(closed(), CONTROL) == []
    assert bench.carry_out(bench.out.taken(DATA, 1)) == []
    assert bench.table.statistics(0).free == 2


# ---- the window ---------------------------------------------------------------------------------------------


def test_a_full_window_holds_payload_back_and_nothing_else() -> None:
    bench = Bench()
    went = bench.fill_window()
    in_flight = sum(bench.bytes[FAR])
    assert LINK_WINDOW_BYTES - FRAME_BYTES_MAX - HEADER_BYTES < in_flight <= LINK_WINDOW_BYTES
    assert bench.paused == {TAG.key}
    assert bench.send(small(SIBLING), FAR) == []
    for frame in (Cancel(TAG), Grant(TAG, 1), closed(THIRD)):
        assert bench.send(frame, FAR) == [frame]
    assert bench.send(small(THIRD)) == [small(THIRD)], "another link has its own window"
    assert bench.take(FAR) == [bulky(number=went), small(SIBLING)]
    assert bench.paused == set()


def test_a_stream_keeps_its_order_though_less_would_fit() -> None:
    bench = Bench()
    went = bench.fill_window()
    assert bench.send(small(number=went + 1), FAR) == []
    assert bench.take(FAR) == [bulky(number=went), small(number=went + 1)]


def test_bytes_come_back_once() -> None:
    bench = Bench()
    bench.send(small())
    bench.take()
    with pytest.raises(CreditError):
        bench.out.taken(DATA, 1)


# ---- blocks -------------------------------------------------------------------------------------------------


def test_a_stream_without_a_block_waits_and_others_go_on() -> None:
    bench = Bench()
    bench.send(large(number=1))
    assert bench.send(large(number=2)) == []
    assert bench.paused == {TAG.key}
    assert len(bench.send(large(SIBLING))) == 1
    assert bench.send(small(THIRD)) == [small(THIRD)]
    (frame,) = bench.read()
    assert isinstance(frame, Feed)
    assert (frame.tag, bench.paused) == (TAG, set())


def test_a_block_goes_to_who_has_waited_longest_for_it_whatever_its_link() -> None:
    bench = Bench(blocks=1)
    bench.send(large(THIRD))
    for tag, link in ((SIBLING, MEDIA), (TAG, DATA)):
        assert bench.send(large(tag), link) == []
    bench.read()
    assert bench.paused == {TAG.key}
    bench.read(MEDIA)
    assert bench.paused == set()


def test_a_block_given_back_twice_or_by_another_changes_nothing() -> None:
    bench = Bench(blocks=1)
    (frame,) = bench.send(large())
    assert isinstance(frame, Feed)
    assert frame.body is not None
    assert bench.out.released(MEDIA, frame.body) == []
    bench.read()
    assert bench.out.released(DATA, frame.body) == []
    assert Outgoing().released(DATA, frame.body) == []
    assert bench.table.statistics(0).stale_releases == 2


def test_what_comes_amid_a_copy_follows_it() -> None:
    bench = Bench()
    bench.holds_copies = True
    bench.send(large())
    assert bench.send(small(number=1)) == []
    assert bench.paused == set(), "it is only a moment"
    frames = bench.copied()
    assert [type(frame) for frame in frames] == [Feed, Feed]
    assert frames[1] == small(number=1)


def test_a_lost_link_gives_back_its_blocks_and_drops_what_waits_for_it() -> None:
    bench = Bench(blocks=1)
    bench.send(large(), MEDIA)
    for tag in (TAG, SIBLING):
        bench.send(large(tag), MEDIA)
    bench.send(large(THIRD))
    bench.carry_out(bench.out.link_lost(MEDIA))
    assert bench.paused == set()
    (frame,) = [frame for link, frame in bench.written if link == DATA]
    assert isinstance(frame, Feed)
    assert frame.tag == THIRD


def test_a_link_lost_amid_a_copy_frees_the_block_when_that_has_ended() -> None:
    bench = Bench(blocks=1)
    bench.holds_copies = True
    bench.send(large())
    bench.carry_out(bench.out.link_lost(DATA))
    bench.out.link_up(DATA, "data", lends=True)
    bench.send(large(SIBLING))
    assert bench.paused == {SIBLING.key}
    assert bench.copied() == []
    assert bench.paused == set()
    (frame,) = bench.copied()
    assert isinstance(frame, Feed)
    assert frame.tag == SIBLING


# ---- terminals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["finished", "cancelled", "failed"])
def test_a_stream_without_anything_out_closes_at_once(outcome: str) -> None:
    bench = Bench()
    bench.send(small())
    assert bench.send(closed(outcome=outcome), CONTROL) == [closed(outcome=outcome)]


@pytest.mark.parametrize("outcome", ["finished", "cancelled", "failed"])
def test_it_closes_when_its_reader_has_read(outcome: str) -> None:
    bench = Bench()
    bench.send(large())
    assert bench.send(closed(outcome=outcome), CONTROL) == []
    assert bench.out.is_closing(TAG.key)
    assert not bench.out.is_closing(SIBLING.key)
    assert bench.read() == [closed(outcome=outcome)]
    assert not bench.out.is_closing(TAG.key)


def test_after_a_success_all_that_waited_still_goes() -> None:
    bench = Bench()
    bench.send(large(number=1))
    bench.send(large(number=2))
    assert bench.send(closed(), CONTROL) == []
    (frame,) = bench.read()
    assert isinstance(frame, Feed)
    assert bench.read() == [closed()]


@pytest.mark.parametrize("outcome", ["cancelled", "failed"])
def test_after_a_failure_nothing_that_waited_goes(outcome: str) -> None:
    bench = Bench()
    bench.send(large(number=1))
    bench.send(large(number=2))
    assert bench.send(closed(outcome=outcome), CONTROL) == []
    assert bench.paused == set()
    assert bench.read() == [closed(outcome=outcome)]


def test_a_cancel_amid_a_copy_waits_for_its_end_and_gives_all_back() -> None:
    bench = Bench()
    bench.holds_copies = True
    bench.send(large())
    assert bench.send(closed(outcome="cancelled"), CONTROL) == []
    assert bench.copied() == [closed(outcome="cancelled")]
    assert bench.table.statistics(0).free == 2
    bench.out.taken(DATA, 0)
    with pytest.raises(CreditError):
        bench.out.taken(DATA, 1)


def test_a_success_whose_reader_dies_before_it_has_read_is_none() -> None:
    bench = Bench()
    bench.send(large())
    bench.send(closed(), CONTROL)
    (frame,) = bench.carry_out(bench.out.link_lost(DATA))
    assert isinstance(frame, Closed)
    assert (frame.tag, frame.outcome, frame.code) == (TAG, "failed", "link_lost")


def test_a_success_of_which_something_waited_for_a_lost_link_is_none() -> None:
    bench = Bench(blocks=1)
    bench.send(large(THIRD), MEDIA)
    bench.send(large())
    bench.send(closed(), CONTROL)
    (frame,) = bench.carry_out(bench.out.link_lost(DATA))
    assert isinstance(frame, Closed)
    assert frame.code == "link_lost"
    bench.holds_copies = True
    bench.read(MEDIA)
    bench.out.link_up(DATA, "data", lends=True)
    bench.send(large(SIBLING))
    bench.send(closed(SIBLING), CONTROL)
    assert bench.carry_out(bench.out.link_lost(DATA)) == []
    (frame,) = bench.copied()
    assert isinstance(frame, Closed)
    assert (frame.tag, frame.code) == (SIBLING, "link_lost")


def test_a_cancel_stays_one_whoever_is_lost() -> None:
    bench = Bench()
    bench.send(large())
    bench.send(closed(outcome="cancelled"), CONTROL)
    assert bench.carry_out(bench.out.link_lost(DATA)) == [closed(outcome="cancelled")]


def test_the_loss_of_another_link_leaves_a_success_alone() -> None:
    bench = Bench()
    bench.send(large())
    bench.send(closed(), CONTROL)
    assert bench.carry_out(bench.out.link_lost(MEDIA)) == []
    assert bench.read() == [closed()]


@pytest.mark.parametrize("first", [CONTROL, DATA])
def test_a_terminal_for_a_gateway_that_is_gone_is_void(first: int) -> None:
    bench = Bench()
    bench.send(large())
    if first == CONTROL:
        bench.carry_out(bench.out.link_lost(CONTROL))
        bench.send(closed(), CONTROL)
    else:
        bench.send(closed(), CONTROL)
        bench.carry_out(bench.out.link_lost(CONTROL))
    assert not bench.out.is_closing(TAG.key)
    assert bench.read() == []
    assert bench.table.statistics(0).free == 2


def test_a_stream_that_could_not_send_closes_as_failed() -> None:
    bench = Bench()
    bench.send(large(number=1))
    bench.send(large(number=2))
    bench.out.fail(TAG, "hand_over_too_large", "300000 bytes")
    assert bench.send(small(number=3)) == []
    assert bench.send(closed(), CONTROL) == []
    assert bench.paused == set()
    assert bench.read() == [Closed(TAG, "failed", {}, "hand_over_too_large", "300000 bytes")]
    assert bench.send(small()) == [small()], "its name is free again"


def test_a_stream_that_fails_before_anything_was_sent_closes_as_failed() -> None:
    bench = Bench()
    bench.out.fail(TAG, "hand_over_too_large", "300000 bytes")
    assert bench.send(closed(), CONTROL) == [Closed(TAG, "failed", {}, "hand_over_too_large", "300000 bytes")]


def test_what_is_here_of_a_stream_is_counted() -> None:
    bench = Bench()
    assert bench.out.held_of(TAG.session, TAG.key) == {"frames": 0, "blocks": 0}
    bench.holds_copies = True
    bench.send(large(number=1))
    assert bench.out.held_of(TAG.session, TAG.key) == {"frames": 1, "blocks": 1}, "it is being copied"
    bench.copied()
    assert bench.out.held_of(TAG.session) == {"frames": 0, "blocks": 1}, "its reader has it"
    bench.send(large(number=2))
    bench.send(closed(), CONTROL)
    assert bench.out.held_of(TAG.session) == {"frames": 2, "blocks": 1}, "one waits, and the terminal for it"
    assert bench.out.held_of(SIBLING.session) == {"frames": 0, "blocks": 0}
    bench.holds_copies = False
    bench.read()
    bench.read()
    assert bench.out.held_of(TAG.session) == {"frames": 0, "blocks": 0}


# ---- any order ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Life:
    """A stream from its first frame to its terminal."""

    tag: Tag
    link: int
    sent: int = 0
    out: list[int] = field(default_factory=list)
    ended: str = ""
    is_closed: bool = False


class Walk:
    """Streams send, end, and are read, in any order; what is written is checked as it comes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench(blocks=3, session_blocks_max=2)
        self.bench.holds_copies = True
        self.lives: dict[str, Life] = {}
        self.seen = 0
        self.made = 0

    def step(self) -> None:
        getattr(self, self.random.choice(["open", "send", "send", "send", "end", "copy", "read", "take"]))()
        self.check()

    def open(self) -> None:
        if len([life for life in self.lives.values() if not life.is_closed]) < 4:
            self.made += 1
            tag = Tag(self.random.choice(["task", "task_1_2"]), 1, 1, f"resp_{self.made}")
            self.lives[tag.key] = Life(tag, self.random.choice([DATA, MEDIA, FAR]))

    def alive(self) -> Life | None:
        alive = [life for life in self.lives.values() if not life.ended]
        return self.random.choice(alive) if alive else None

    def send(self) -> None:
        life = self.alive()
        if life is not None:
            size = self.random.choice([10, BLOCK_BYTES, FRAME_BYTES_MAX - 1_000 if life.link == FAR else 20_000])
            self.bench.send(large(life.tag, life.sent, size), life.link)
            life.sent += 1

    def end(self) -> None:
        life = self.alive()
        if life is not None:
            life.ended = self.random.choice(["finished", "cancelled", "failed"])
            self.bench.send(closed(life.tag, life.ended), CONTROL)

    def copy(self) -> None:
        if self.bench.copying:
            self.bench.copied()

    def read(self) -> None:
        link = self.random.choice([DATA, MEDIA])
        out = [f for to, f in self.bench.written if to == link and isinstance(f, Feed) and f.body]
        if out:
            self.check()
            self.bench.read(link)
            self.seen -= 1

    def take(self) -> None:
        self.bench.take(self.random.choice([DATA, MEDIA, FAR]))

    def check(self) -> None:
        for link, frame in self.bench.written[self.seen :]:
            match frame:
                case Feed(tag, Latents(start_frame=number)):
                    life = self.lives[tag.key]
                    assert not life.is_closed, "nothing comes after the terminal"
                    assert life.link == link
                    assert number == len(life.out), "in order, nothing twice, no gap"
                    life.out.append(number)
                case Closed(tag, outcome):
                    life = self.lives[tag.key]
                    assert (life.is_closed, life.ended) == (False, outcome)
                    life.is_closed = True
                    if outcome == "finished":
                        assert len(life.out) == life.sent, "a success has sent everything"
        self.seen = len(self.bench.written)
        for link in (DATA, MEDIA, FAR):
            assert sum(self.bench.bytes[link]) <= LINK_WINDOW_BYTES

    def rest(self) -> None:
        """End all streams, and let everything that is out be read."""
        for life in self.lives.values():
            if not life.ended:
                life.ended = "finished"
                self.bench.send(closed(life.tag), CONTROL)
        for _ in range(20 * self.made + 20):
            for act in (self.copy, self.read, self.take):
                act()
                self.check()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_in_any_order_all_goes_in_order_and_nothing_is_left(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(80):
        walk.step()
    walk.rest()
    assert all(life.is_closed for life in walk.lives.values())
    assert walk.bench.paused == set()
    assert walk.bench.table.statistics(0).free == 3
    assert walk.bench.out._streams == {}


# ---- what is known ------------------------------------------------------------------------------------------


def test_statistics_tell_the_bytes_of_each_link_and_the_streams_that_wait() -> None:
    bench = Bench()
    went = bench.fill_window(FAR)
    bench.send(bulky(number=went + 1), FAR)
    seen = bench.out.statistics()
    assert set(seen.windows) == {CONTROL, DATA, MEDIA, FAR}
    assert seen.windows[FAR].in_flight == sum(bench.bytes[FAR])
    assert seen.windows[DATA].in_flight == 0
    assert seen.waiting == {TAG.key: 2}
    bench.take(FAR)
    seen = bench.out.statistics()
    assert seen.waiting == {}
    assert seen.windows[FAR].in_flight == sum(bench.bytes[FAR]) < seen.windows[FAR].in_flight_peak
