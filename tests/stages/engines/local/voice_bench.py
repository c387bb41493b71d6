"""Fakes of a voice's two halves, and a bench that drives one stream as a worker does, without credit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from stages.contracts import AudioOut, Item, Latents, WordTimes
from stages.engines.local.acoustics import Acoustics
from stages.engines.local.onnx_session import Output as Array
from stages.engines.local.onnx_session import Tensor
from stages.engines.local.text_normal import SpokenWord
from stages.engines.local.vocoder import Decoder
from stages.engines.local.voice import PhonemeWord, VoiceConfig
from stages.stream import Consumed, Emit, Output, Publish, StageStream, Step
from tests.stages.engines.local.tiny_voice import CHANNELS, HOP, SAMPLE_RATE, SYMBOLS, tiny_config

SYMBOL_OF = dict(enumerate(SYMBOLS))


class FakeContext:
    """A step that nobody disturbs."""

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:
        return False

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError(f"{len(outputs)} outputs before the end of a step")


class FakeSpeaker:
    """Every letter is a phoneme. `busy` times it asks to be called again."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy

    def phonemes(self, words: Sequence[SpokenWord]) -> tuple[PhonemeWord, ...] | None:
        self.busy -= 1
        if self.busy >= 0:
            return None
        return tuple(PhonemeWord(tuple(word.spoken.lower().split()), word.mark) for word in words)


@dataclass
class FakeAcousticSession:
    """Frame f of a run has the value f in every channel; `lasts` gives the frames of the symbol at each place."""

    lasts: Callable[[str, int], int] = lambda symbol, place: 1
    texts: list[str] = field(default_factory=list)
    feeds: list[Mapping[str, Tensor]] = field(default_factory=list)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Tensor]) -> list[Array]:
        assert output_names is None
        text = "".join(SYMBOL_OF[int(id_)] for id_ in input_feed["input"][0])
        self.texts.append(text)
        self.feeds.append(input_feed)
        durations = np.array([self.lasts(symbol, place) for place, symbol in enumerate(text)], dtype=np.float32)
        frames = np.arange(int(durations.sum()), dtype=np.float32)
        return [np.broadcast_to(frames, (1, CHANNELS, len(frames))), durations.reshape(1, 1, -1)]


@dataclass
class FakeDecoderSession:
    """A decoder that sees `reach` frames to either side: a sample is the sum of the first channel over them."""

    reach: int
    windows: list[int] = field(default_factory=list)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Tensor]) -> list[Array]:
        assert output_names is None
        latents = input_feed["latents"].astype(np.float32)
        assert latents.shape[:2] == (1, CHANNELS)
        self.windows.append(latents.shape[2])
        sums = np.convolve(latents[0, 0], np.ones(2 * self.reach + 1, dtype=np.float32), "full")
        frames = sums[self.reach : self.reach + latents.shape[2]]
        return [np.repeat(frames, HOP).reshape(1, 1, -1).astype(np.float32)]


def fake_acoustics(session: FakeAcousticSession, speaker: FakeSpeaker | None = None) -> Acoustics:
    config = msgspec.convert(tiny_config(), VoiceConfig)
    return Acoustics(config, speaker or FakeSpeaker(), session, CHANNELS, HOP, "digest")


def fake_decoder(reach: int = 11, sample_rate: int = SAMPLE_RATE) -> tuple[Decoder, FakeDecoderSession]:
    session = FakeDecoderSession(reach)
    return Decoder(session, CHANNELS, HOP, sample_rate, "digest"), session


def run_step(stream: StageStream, step: Step) -> Sequence[Output]:
    return stream.finish_step(step.run(FakeContext()))


def drive(stream: StageStream, items: Sequence[Item], *, eager: bool = True) -> list[Output]:
    """Feed `items` and run all steps: after each item (`eager`), or only after the last."""
    outputs: list[Output] = []
    for number, item in enumerate(items, start=1):
        outputs.extend(stream.feed(item))
        if eager or number == len(items):
            while (step := stream.next_step()) is not None:
                made = run_step(stream, step)
                published = sum(output.units for output in made if isinstance(output, Publish))
                assert step.units == 0 or published <= step.units, f"{published} units, {step.units} promised"
                outputs.extend(made)
    return outputs


def latents_of(outputs: Sequence[Output]) -> list[Latents]:
    return [output.item for output in outputs if isinstance(output, Emit) and isinstance(output.item, Latents)]


def word_times_of(outputs: Sequence[Output]) -> list[WordTimes]:
    events = [output.event for output in outputs if isinstance(output, Publish)]
    return [event for event in events if isinstance(event, WordTimes)]


def audio_of(outputs: Sequence[Output]) -> list[AudioOut]:
    events = [output.event for output in outputs if isinstance(output, Publish)]
    return [event for event in events if isinstance(event, AudioOut)]


def consumed_of(outputs: Sequence[Output]) -> list[int]:
    return [output.units for output in outputs if isinstance(output, Consumed)]


def frames_of(items: Sequence[Latents]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """All frames of `items`, float32 (frame, channel); asserts that they are contiguous and end once."""
    position = 0
    for item in items:
        assert item.start_frame == position
        assert len(item.data) == item.frames * CHANNELS * 4
        position += item.frames
    assert [item.final for item in items] == [False] * (len(items) - 1) + [True]
    return np.frombuffer(b"".join(item.data for item in items), dtype=np.float32).reshape(-1, CHANNELS)
