"""The synthetic voice: words become symbols, symbols sound, and the sound tells the words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.coded_tones import RATES, Decoder, Heard, encode, response_number, word_samples
from media.pcm import float_to_pcm16, pcm16_to_float
from media.word_code import FIELD, WORDS
from stages.contracts import (
    AudioOut,
    Clause,
    Item,
    Latents,
    ObserverOptions,
    TalkerOptions,
    VocoderOptions,
    Word,
    WordTimes,
)
from stages.engines.synthetic.build import talker, vocoder
from stages.stream import Emit, Publish, StageFailure, StageStream
from tests.stages.engines.synthetic.bench import TAG, consumed, emitted, events, run, step_of

NUMBER = response_number(TAG.response)


def talking(**options: object) -> StageStream:
    return talker({"clause_ms": 5, "word_ms": 6} | options).open(TAG, TalkerOptions())


def sounding(rate: int = 24_000) -> StageStream:
    return vocoder({"first_chunk_ms": 20, "chunk_ms": 30}).open(TAG, VocoderOptions(rate))


def symbols(*values: float, start: int = 0, final: bool = False) -> Latents:
    return Latents(start, len(values), np.array(values, dtype="<f4").tobytes(), final=final)


def spoken(texts: list[str], rate: int, **options: object) -> bytes:
    """The clauses, said and voiced."""
    items = [Clause(index, text, final=index + 1 == len(texts)) for index, text in enumerate(texts)]
    latents = emitted(run(talking(**options), *items))
    chunks = [event for event in events(run(sounding(rate), *latents)) if isinstance(event, AudioOut)]
    ends = [chunk.start_sample + len(chunk.pcm) // 2 for chunk in chunks]
    assert [chunk.start_sample for chunk in chunks] == [0, *ends[:-1]]
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return b"".join(chunk.pcm for chunk in chunks)


# ---- both -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
def test_every_sample_is_determined_by_response_and_word(rate: int) -> None:
    pcm = spoken(["Hello there,", " how are you?"], rate)
    assert pcm == float_to_pcm16(np.concatenate([encode(NUMBER, word, rate) for word in range(5)]))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 15), st.integers(1, 15))
def test_items_and_clauses_make_no_difference(clauses: list[int], first: int, others: int) -> None:
    texts = [" word" * words for words in clauses]
    pcm = spoken(texts, 8_000, chunk_first=first, chunk_then=others)
    assert pcm == float_to_pcm16(
        np.concatenate([np.zeros(0, np.float32), *(encode(NUMBER, word, 8_000) for word in range(sum(clauses)))])
    )


@pytest.mark.parametrize("channels", [2, 512, 4_096])
def test_how_much_is_handed_over_makes_no_difference_to_the_ear(channels: int) -> None:
    items = emitted(run(talking(channels=channels), Clause(0, "one", final=True)))
    sizes = [len(item.data) for item in items if isinstance(item, Latents)]
    assert sizes == [12 * channels * 4, 4 * channels * 4, 0]
    assert spoken(["one two"], 24_000, channels=channels) == spoken(["one two"], 24_000)


def test_words_may_be_slower_than_their_tones() -> None:
    ear = Decoder(24_000)
    sound = pcm16_to_float(spoken(["one two three"], 24_000, spoken_word_ms=325))
    assert len(sound) == 3 * 325 * 24
    length = word_samples(24_000)
    assert [*ear.feed(sound), *ear.finish()] == [
        Heard(NUMBER, word, word * 325 * 24, length, 0, whole=True) for word in range(3)
    ]


# ---- Talker ---------------------------------------------------------------------------------------------------


def test_the_talker_tells_where_words_stand_and_hands_on_items() -> None:
    stream = talking()
    outputs = run(stream, Clause(0, "How are"))
    assert outputs[0] == Publish(WordTimes(0, 80, (Word("How", 0, 16), Word("are", 16, 32))))
    items = [item for item in emitted(outputs) if isinstance(item, Latents)]
    assert [(item.start_frame, item.frames, item.clause_end) for item in items] == [
        (0, 12, False),
        (12, 15, False),
        (27, 5, True),
    ]
    assert [output.units for output in outputs if isinstance(output, Emit)] == [12, 15, 5]
    assert consumed(outputs) == [7]
    outputs = run(stream, Clause(1, " you?", final=True))
    assert outputs[0] == Publish(WordTimes(1, 80, (Word("you?", 32, 48),)))
    assert [(item.start_frame, item.frames, item.final) for item in emitted(outputs) if isinstance(item, Latents)] == [
        (32, 15, False),
        (47, 1, False),
        (48, 0, True),
    ]
    assert stream.finished


def test_a_clause_costs_time_for_itself_and_for_each_word() -> None:
    stream = talking()
    stream.feed(Clause(0, "one two three"))
    stream.feed(Clause(1, " four", final=True))
    assert stream.held() == {"characters": 18}
    first = step_of(stream)
    assert (first.kind, first.urgency, first.service_ns) == ("clause", 0, 23_000_000)
    stream.finish_step(first)
    second = step_of(stream)
    assert (second.urgency, second.service_ns) == (1, 11_000_000)
    assert stream.held() == {"characters": 5}


def test_a_clause_without_words_ends_the_response_all_the_same() -> None:
    stream = talking()
    outputs = run(stream, Clause(0, "", final=True))
    assert emitted(outputs) == [Latents(0, 0, b"", clause_end=True, final=True)]
    assert (events(outputs), consumed(outputs), stream.finished) == ([], [1], True)


def test_words_that_have_no_number_are_refused() -> None:
    stream = talking()
    run(stream, Clause(0, "a " * (WORDS - 1)), Clause(1, "last"))
    stream.feed(Clause(2, "one more"))
    step = step_of(stream)
    with pytest.raises(StageFailure) as caught:
        stream.finish_step(step)
    assert caught.value.code == "reply_too_long"


@pytest.mark.parametrize("item", [Clause(1, "x"), symbols(1)])
def test_the_talker_takes_clauses_in_order(item: Item) -> None:
    with pytest.raises(StageFailure) as caught:
        talking().feed(item)
    assert caught.value.code == "wrong_item"


def test_nothing_follows_the_final_clause() -> None:
    stream = talking()
    stream.feed(Clause(0, "x", final=True))
    with pytest.raises(StageFailure):
        stream.feed(Clause(1, "y"))


# ---- vocoder --------------------------------------------------------------------------------------------------


def test_a_chunk_is_made_of_each_item() -> None:
    stream = sounding()
    assert stream.next_step() is None
    items = symbols(*[7] * 12), symbols(*[-1] * 15, start=12), symbols(start=27, final=True)
    for item in items:
        stream.feed(item)
    assert stream.held() == {"frames": 27}
    seen = []
    while stream.next_step() is not None:
        step = step_of(stream)
        seen.append((step.kind, step.urgency, step.units, step.service_ns / 1e6))
        stream.finish_step(step)
    assert seen == [("first_chunk", 0, 3_600, 20), ("chunk", 1, 4_500, 30), ("final", 1, 0, 0)]
    assert stream.finished
    assert stream.held() == {"frames": 0}


def test_chunks_cost_credit_and_give_it_back() -> None:
    outputs = run(sounding(8_000), symbols(*[7] * 12), symbols(*[-1] * 3, start=12, final=True))
    assert [output.units for output in outputs if isinstance(output, Publish)] == [1_200, 300]
    assert consumed(outputs) == [12, 3]
    silent = events(outputs)[1]
    assert silent == AudioOut(1, 8_000, 1_200, bytes(600), final=True)


@pytest.mark.parametrize(
    "item",
    [
        Clause(0, ""),
        symbols(1, start=1),
        Latents(0, 2, bytes(4)),
        symbols(FIELD),
        symbols(-2),
        symbols(float("nan")),
        symbols(float("inf")),
    ],
)
def test_what_is_no_symbol_is_refused(item: Item) -> None:
    with pytest.raises(StageFailure) as caught:
        sounding().feed(item)
    assert caught.value.code == "wrong_item"


def test_nothing_follows_the_final_item() -> None:
    stream = sounding()
    stream.feed(symbols(1, final=True))
    with pytest.raises(StageFailure):
        stream.feed(symbols(1, start=1))


def test_what_is_not_for_them_is_refused() -> None:
    for model in (talker({}), vocoder({})):
        with pytest.raises(StageFailure, match="takes no ObserverOptions") as caught:
            model.open(TAG, ObserverOptions())
        assert caught.value.code == "wrong_options"
    with pytest.raises(StageFailure, match="22050 is not one of"):
        sounding(22_050)


def test_nothing_is_kept_for_a_session() -> None:
    for model in (talker({"concurrency": 3}), vocoder({"concurrency": 3})):
        model.open_session("s")
        assert model.kept_for("s") == {}
        model.close_session("s")
        assert (model.concurrency, model.revision) == (3, "synthetic")
        model.close()
