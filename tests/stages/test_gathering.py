"""The prefix, the complete value, and what is made of a response that ends early."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import AudioOut, Clause, Item
from stages.edges import InEdge, Need
from stages.engines.profiles import PROFILES, profile_of
from stages.gathering import Gathering
from stages.graph import StageKind
from stages.stream import StageFailure

RATE = 8_000


def sound(need: Need = "complete", window: int = 10_000) -> Gathering:
    return Gathering(InEdge("audio", window, need))


def text(need: Need = "complete", window: int = 100) -> Gathering:
    return Gathering(InEdge("clauses", window, need))


def pcm(first: int, samples: int) -> bytes:
    return b"".join((at % 30_000).to_bytes(2, "little") for at in range(first, first + samples))


def chunk(first: int, samples: int, *, final: bool = False) -> AudioOut:
    return AudioOut(first, RATE, first, pcm(first, samples), final)


def whole(samples: int, *, final: bool = True) -> AudioOut:
    return AudioOut(0, RATE, 0, pcm(0, samples), final)


def test_vllm_omni_7544_chunks_of_800_1200_and_400_are_given_as_2400_at_once() -> None:
    gathering = sound()
    assert gathering.add(chunk(0, 800), 800) is None
    assert gathering.add(chunk(800, 1_200), 1_200) is None
    assert gathering.units == 2_000
    assert gathering.add(chunk(2_000, 400, final=True), 400) == whole(2_400)
    assert gathering.units == 0
    assert gathering.add(chunk(2_400, 1), 1) is None


def test_a_text_is_given_when_its_last_clause_is_there() -> None:
    gathering = text()
    assert gathering.add(Clause(0, "Well, "), 6) is None
    assert gathering.add(Clause(1, "no."), 3) is None
    assert gathering.add(Clause(2, "", final=True), 1) == Clause(0, "Well, no.", final=True)


def test_a_prefix_grows_with_each_chunk() -> None:
    gathering = sound("prefix")
    assert gathering.add(chunk(0, 2), 2) == whole(2, final=False)
    assert gathering.add(chunk(2, 1), 1) == whole(3, final=False)
    assert gathering.units == 3
    assert gathering.add(chunk(3, 0, final=True), 0) == whole(3)


def test_a_cut_gives_the_sound_that_was_sent_and_the_text_as_it_stands() -> None:
    gathering, said = sound(), text()
    gathering.add(chunk(0, 800), 800)
    assert gathering.cut(480) == whole(480)
    assert gathering.add(chunk(800, 10, final=True), 10) is None
    said.add(Clause(0, "One two,"), 8)
    assert said.cut(480) == Clause(0, "One two,", final=True)


def test_a_cut_waits_for_samples_that_were_sent_and_are_still_on_their_way() -> None:
    gathering = sound()
    gathering.add(chunk(0, 400), 400)
    assert gathering.cut(500) is None
    assert gathering.add(chunk(400, 99), 99) is None
    assert gathering.add(chunk(499, 100), 100) == whole(500)


def test_what_was_given_whole_is_not_cut_any_more() -> None:
    gathering = sound()
    gathering.add(chunk(0, 8, final=True), 8)
    assert gathering.cut(4) is None


@pytest.mark.parametrize(
    ("gathering", "first", "second"),
    [
        (sound(), chunk(0, 8), chunk(9, 8)),
        (sound(), chunk(0, 8), chunk(0, 8)),
        (sound(), chunk(0, 8), AudioOut(1, RATE, 8, b"odd")),
        (text(), Clause(0, "a"), Clause(2, "c")),
    ],
    ids=["gap", "twice", "half a sample", "clause missing"],
)
def test_what_does_not_follow_fails(gathering: Gathering, first: Item, second: Item) -> None:
    gathering.add(first, 1)
    with pytest.raises(StageFailure) as caught:
        gathering.add(second, 1)
    assert caught.value.code == "broken_input"


def test_more_than_was_reserved_fails() -> None:
    gathering = sound(window=10)
    assert gathering.add(chunk(0, 10), 10) is None
    with pytest.raises(StageFailure, match="more audio than the 10 reserved") as caught:
        gathering.add(chunk(10, 1), 1)
    assert caught.value.code == "maximum_exceeded"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.data())
def test_cut_anywhere_and_at_any_time_it_gives_exactly_what_was_sent(sizes: list[int], data: st.DataObject) -> None:
    sent = data.draw(st.integers(0, sum(sizes)))
    told_after = data.draw(st.integers(0, len(sizes)))
    gathering, first = sound(), 0
    given_items: list[Item | None] = []
    for number, size in enumerate(sizes):
        if number == told_after:
            given_items.append(gathering.cut(sent))
        given_items.append(gathering.add(chunk(first, size), size))
        first += size
    if told_after == len(sizes):
        given_items.append(gathering.cut(sent))
    (item,) = [item for item in given_items if item is not None]
    assert isinstance(item, AudioOut)
    assert (item.pcm, item.final) == (pcm(0, sent), True)


def test_whatever_an_engine_wants_gathered_can_be() -> None:
    profiles = [*PROFILES.values(), *(profile_of("any", kind) for kind in get_args(StageKind))]
    for taken in {taken for profile in profiles for taken in profile.takes if taken.need != "chunks"}:
        Gathering(InEdge(taken.payload, 1, taken.need))
