"""The encoder stage: embeddings of what was said, whenever and in whatever pieces it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stages.contracts import (
    AudioIn,
    Clause,
    Embeddings,
    EncoderOptions,
    EndOfTurn,
    Pause,
    SpeechResumed,
    Tag,
    TalkerOptions,
    Transcript,
)
from stages.engines.torch_omni.encoder import EncoderModel
from stages.stream import StageFailure
from tests.stages.engines.torch_omni.chain import Free, Place, pump
from tests.stages.engines.torch_omni.offline import audio_rows

TAG = Tag("s", 1, 3)
START = 48_000  # of the turn, in the session's input


def noise(samples: int) -> NDArray[np.int16]:
    """Noise that swells and fades within 20 dB."""
    swell = 1.2 + np.sin(np.arange(samples) / 3_000)
    return (np.random.default_rng(samples).normal(size=samples) * 2_000 * swell).astype(np.int16)


def floats(pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    return (pcm / 32_768).astype(np.float32)


@pytest.fixture
def place(tiny: Any) -> Place:
    return Place(EncoderModel(tiny, "tiny").open(TAG, EncoderOptions()))


def hear(place: Place, pcm: NDArray[np.int16], piece: int) -> None:
    for start in range(0, len(pcm), piece):
        part = pcm[start : start + piece]
        place.feed(AudioIn(START + start, part.tobytes()), len(part))
        pump([place])


def rows_of(place: Place) -> Any:
    items = [item for item in place.emitted if isinstance(item, Embeddings)]
    assert [item.final for item in items] == [False] * (len(items) - 1) + [True]
    return torch.tensor(np.frombuffer(b"".join(item.data for item in items), dtype="<f4").reshape(-1, 64))


@pytest.mark.slow
@pytest.mark.parametrize("samples", [800, 9_000, 16_000, 16_030, 32_000, 32_050, 80_777])
@pytest.mark.parametrize("piece", [1_600, 90_000])
def test_the_whole_sound_at_once_has_the_same_embeddings(tiny: Any, place: Place, samples: int, piece: int) -> None:
    pcm = noise(samples)
    hear(place, pcm, piece)
    place.feed(EndOfTurn(START + samples))
    pump([place])
    torch.testing.assert_close(rows_of(place), audio_rows(tiny, floats(pcm)), atol=2e-5, rtol=1e-4)
    assert place.events == [Transcript("", START + samples, settled=True, final=True)]
    assert place.stream.finished
    assert place.returned_units == place.fed_units == samples
    assert place.stream.held() == {"samples": 0}


def test_a_full_window_does_not_wait_for_the_end_of_the_turn(place: Place) -> None:
    hear(place, noise(40_000), 1_600)
    assert sum(item.count for item in place.emitted if isinstance(item, Embeddings)) == 26
    assert not place.events
    # What is not encoded, and half a frame to look back on.
    assert place.stream.held() == {"samples": 40_000 - 32_000 + 200}


def test_the_end_of_a_turn_is_more_urgent_than_its_middle(place: Place) -> None:
    place.feed(AudioIn(START, noise(40_000).tobytes()), 40_000)
    middle = place.stream.next_step()
    assert place.step()
    place.feed(EndOfTurn(START + 40_000))
    end = place.stream.next_step()
    assert middle is not None
    assert end is not None
    assert (middle.urgency, end.urgency) == (1, 0)


def test_what_follows_the_end_of_the_turn_is_not_heard(place: Place) -> None:
    pcm = noise(9_000)
    hear(place, pcm, 9_000)
    place.feed(EndOfTurn(START + 5_000))
    place.feed(AudioIn(START + 9_000, bytes(200)), 100)
    pump([place])
    assert place.events == [Transcript("", START + 5_000, settled=True, final=True)]
    assert place.returned_units == place.fed_units
    assert len(rows_of(place)) == 4  # of 31 frames


def test_an_end_that_lies_in_what_is_encoded_adds_nothing(place: Place) -> None:
    hear(place, noise(33_000), 33_000)
    place.feed(EndOfTurn(START + 32_000))
    pump([place])
    assert len(rows_of(place)) == 26
    assert place.stream.finished


@pytest.mark.parametrize("end", [32_000, 31_000, 100])
def test_an_end_that_comes_amid_a_step_is_seen_after_it(place: Place, end: int) -> None:
    place.feed(AudioIn(START, noise(32_040).tobytes()), 32_040)
    step = place.stream.next_step()
    assert step is not None
    place.feed(EndOfTurn(START + end))
    place.take(place.stream.finish_step(step.run(Free())))
    assert not place.events
    assert pump([place]) == 1
    assert len(rows_of(place)) == 26
    assert place.stream.finished


@pytest.mark.parametrize("samples", [0, 700])
def test_nothing_said_is_an_end_without_embeddings(place: Place, samples: int) -> None:
    hear(place, noise(samples), 1_600)
    place.feed(EndOfTurn(START + samples))
    assert pump([place]) == 1
    assert place.stream.finished
    assert len(rows_of(place)) == 0
    assert len(place.events) == 1
    assert place.returned_units == samples


def test_a_pause_changes_nothing(place: Place) -> None:
    hear(place, noise(8_000), 8_000)
    place.feed(Pause(START + 8_000))
    place.feed(SpeechResumed())
    assert pump([place]) == 0


def test_credit_is_withheld_from_one_who_is_faster_than_the_encoder(place: Place) -> None:
    for start in range(0, 64_000, 16_000):
        place.feed(AudioIn(START + start, bytes(32_000)), 16_000)
    assert place.returned_units == 48_000  # a window and a second
    pump([place])
    assert place.returned_units == 64_000


@pytest.mark.slow
def test_a_later_peak_changes_only_what_is_80_db_below_it(tiny: Any, place: Place) -> None:
    quiet = (noise(32_040) / 2_000).astype(np.int16)
    pcm = np.concatenate((quiet, noise(16_000)))
    hear(place, pcm, 1_600)
    place.feed(EndOfTurn(START + len(pcm)))
    pump([place])
    rows, whole = rows_of(place), audio_rows(tiny, floats(pcm))
    torch.testing.assert_close(rows[26:], whole[26:], atol=2e-5, rtol=1e-4)
    assert not torch.allclose(rows[:26], whole[:26], atol=1e-3)


def test_a_cancelled_turn_holds_nothing(place: Place) -> None:
    hear(place, noise(40_000), 1_600)
    place.stream.close()
    assert place.stream.held() == {"samples": 0}


def test_what_is_no_sound_is_refused(tiny: Any, place: Place) -> None:
    with pytest.raises(StageFailure) as failed:
        place.feed(Clause(0, "text"))
    assert failed.value.code == "wrong_item"
    with pytest.raises(StageFailure) as failed:
        EncoderModel(tiny, "tiny").open(TAG, TalkerOptions())
    assert failed.value.code == "wrong_options"
