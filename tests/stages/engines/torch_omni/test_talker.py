"""The Talker stage against the codes of the library's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stages.contracts import (
    Clause,
    CodecFrames,
    EmbeddingRole,
    Embeddings,
    Message,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    VocoderOptions,
)
from stages.engines.torch_omni.model import vocabulary_of
from stages.engines.torch_omni.options import TalkerSettings, ThinkerSettings
from stages.engines.torch_omni.rows import pack
from stages.engines.torch_omni.talker import TalkerModel
from stages.engines.torch_omni.thinker import ThinkerModel
from stages.stream import StageFailure
from tests.stages.engines.torch_omni.chain import Free, Place, pump
from tests.stages.engines.torch_omni.offline import generate

MESSAGES = (Message("system", "Be kind."), Message("user", "Hello there."))
TOKENS_MAX = 5
FRAMES_MAX = 9
TAG = Tag("s", 1, 1, "r")
END_OF_SPEECH = 2_150


@pytest.fixture(scope="module")
def mind(tiny: Any) -> list[Embeddings]:
    """What the Thinker has in mind for the Talker."""
    thinker = ThinkerModel(tiny, "tiny", vocabulary_of(tiny.config), ThinkerSettings())
    thinker.open_session("s")
    place = Place(thinker.open(TAG, ThinkerOptions(MESSAGES, TOKENS_MAX)))
    pump([place])
    return [item for item in place.emitted if isinstance(item, Embeddings)]


def talker(model: Any, options: TalkerOptions = TalkerOptions(), **settings: Any) -> Place:  # noqa: B008
    chosen = TalkerSettings(**({"frames_max": FRAMES_MAX} | settings))
    return Place(TalkerModel(model, "tiny", chosen).open(TAG, options))


def speak(place: Place, mind: list[Embeddings]) -> Place:
    for item in mind:
        place.feed(item, item.count)
        pump([place])
    assert place.stream.finished
    assert place.returned_units == place.fed_units
    assert not any(place.stream.held().values())
    return place


def codes_of(place: Place) -> NDArray[np.int64]:
    items = [item for item in place.emitted if isinstance(item, CodecFrames)]
    assert [item.start_frame for item in items] == [sum(item.frames for item in items[:at]) for at in range(len(items))]
    assert [item.final for item in items] == [False] * (len(items) - 1) + [True]
    frames = [np.frombuffer(item.codes, dtype="<i8").reshape(16, item.frames) for item in items]
    return np.concatenate(frames, axis=1)


def library(model: Any, **sampling: Any) -> NDArray[np.int64]:
    return generate(model, MESSAGES, tokens_max=TOKENS_MAX, frames_max=FRAMES_MAX, **sampling).codes


@pytest.mark.slow
def test_frames_are_the_librarys_code_for_code(tiny: Any, mind: list[Embeddings]) -> None:
    np.testing.assert_array_equal(codes_of(speak(talker(tiny), mind)), library(tiny))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_draws_are_the_librarys_too(tiny: Any, mind: list[Embeddings], seed: int) -> None:
    torch.manual_seed(seed)
    expected = library(tiny, talker_do_sample=True, talker_temperature=0.9)
    place = speak(talker(tiny, TalkerOptions(seed=seed), temperature=0.9), mind)
    np.testing.assert_array_equal(codes_of(place), expected)


@pytest.mark.slow
def test_a_voice_is_chosen_by_its_name(tiny: Any, mind: list[Embeddings]) -> None:
    spoken = codes_of(speak(talker(tiny, TalkerOptions("chelsie")), mind))
    np.testing.assert_array_equal(spoken, library(tiny, speaker="chelsie"))
    assert not np.array_equal(spoken, codes_of(speak(talker(tiny), mind)))


@pytest.mark.slow
def test_speech_ends_where_the_talker_ends_it_and_the_rest_of_the_text_is_swallowed(
    tiny: Any, mind: list[Embeddings]
) -> None:
    model = copy.deepcopy(tiny)
    third = int(library(tiny)[0, 2])
    with torch.no_grad():
        model.talker.codec_head.weight[END_OF_SPEECH] = model.talker.codec_head.weight[third] * 1.1
    place = speak(talker(model), mind)
    np.testing.assert_array_equal(codes_of(place), library(model))
    # It had not taken in all of the reply by then.
    assert codes_of(place).shape[1] < TOKENS_MAX


@pytest.mark.parametrize(
    ("first", "steady", "items"), [(4, 25, [4, 5]), (1, 1, [1] * 8 + [1]), (4, 5, [4, 5]), (3, 3, [3, 3, 3])]
)
def test_frames_go_on_in_chunks(tiny: Any, mind: list[Embeddings], first: int, steady: int, items: list[int]) -> None:
    place = speak(talker(tiny, chunk_first=first, chunk_then=steady), mind)
    assert [item.frames for item in place.emitted if isinstance(item, CodecFrames)] == items


def test_speech_waits_for_the_next_token(tiny: Any, mind: list[Embeddings]) -> None:
    place = talker(tiny)
    steps = [item for item in mind if item.role == "step"]
    for item in mind[: mind.index(steps[0])]:
        place.feed(item, item.count)
    pump([place])
    assert place.stream.held()["positions"] > 0
    place.feed(steps[0], 1)
    # The opening, and no frame: that takes the second token in.
    assert pump([place]) == 1
    place.feed(steps[1], 1)
    assert pump([place]) == 1
    assert place.stream.held() | {"positions": 0} == {"vectors": 0, "positions": 0, "frames": 1}


def test_a_step_is_urgent_until_the_first_chunk_is_out(tiny: Any, mind: list[Embeddings]) -> None:
    place = talker(tiny, chunk_first=1)
    for item in mind:
        place.feed(item, item.count)
    urgencies = []
    while step := place.stream.next_step():
        urgencies.append(step.urgency)
        place.step()
    assert urgencies == [0] * (len(urgencies) - FRAMES_MAX + 1) + [1] * (FRAMES_MAX - 1)


def test_nothing_to_say_is_an_end_without_frames(tiny: Any) -> None:
    place = talker(tiny)
    place.feed(pack(0, torch.zeros(0, 64), "step", final=True))
    assert pump([place]) == 0
    assert codes_of(place).shape == (16, 0)
    assert place.stream.finished


def test_a_reply_may_turn_out_empty_while_the_prompt_is_read(tiny: Any, mind: list[Embeddings]) -> None:
    place = talker(tiny)
    place.feed(mind[0], mind[0].count)
    step = place.stream.next_step()
    assert step is not None
    place.feed(pack(mind[0].count, torch.zeros(0, 64), "step", final=True))
    assert not place.emitted
    place.take(place.stream.finish_step(step.run(Free())))
    assert codes_of(place).shape == (16, 0)
    assert place.stream.finished
    assert place.returned_units == place.fed_units
    assert not any(place.stream.held().values())


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_cancelled_response_holds_nothing(tiny: Any, mind: list[Embeddings], steps: int) -> None:
    place = talker(tiny)
    for item in mind:
        place.feed(item, item.count)
    pump([place], steps)
    assert any(place.stream.held().values())
    place.stream.close()
    assert not any(place.stream.held().values())


@pytest.mark.parametrize("role", ["audio", "prefill", "hidden"])
def test_a_prompt_that_goes_on_after_the_reply_has_begun_is_refused(tiny: Any, role: EmbeddingRole) -> None:
    place = talker(tiny)
    place.feed(pack(0, torch.zeros(1, 64), "step"), 1)
    with pytest.raises(StageFailure) as failed:
        place.feed(pack(1, torch.zeros(1, 64), role), 1)
    assert failed.value.code == "wrong_item"


def test_text_in_clauses_is_refused(tiny: Any) -> None:
    with pytest.raises(StageFailure) as failed:
        talker(tiny).feed(Clause(0, "text"))
    assert failed.value.code == "wrong_item"


@pytest.mark.parametrize("options", [TalkerOptions("nobody"), TalkerOptions(speed=1.5), VocoderOptions()])
def test_options_that_this_talker_cannot_honour_are_refused(tiny: Any, options: Any) -> None:
    with pytest.raises(StageFailure) as failed:
        talker(tiny, options)
    assert failed.value.code == "wrong_options"
