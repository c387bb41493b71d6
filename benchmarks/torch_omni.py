"""The torch engine by itself: what each step costs on one thread, and the vocoder against decoding all at once.

It needs torch (`make test-torch` installs it), starts no service and uses no link.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.figures import line
from stages.contracts import (
    AudioIn,
    AudioOut,
    EncoderOptions,
    EndOfTurn,
    Message,
    PrefillOptions,
    Prompt,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    VocoderOptions,
)
from stages.engines import registry
from stages.engines.torch_omni.model import load
from stages.engines.torch_omni.options import ModelOptions
from stages.engines.torch_omni.waveform import StreamingDecoder, WaveformNet
from stages.stream import Emit, Output, Publish, StageStream

Say = Callable[[str], None]

SPEECH_SECONDS = 10
TOKENS = 40
FRAMES = 100
INPUT_RATE, OUTPUT_RATE = 16_000, 24_000
PIECE_SAMPLES = INPUT_RATE // 10
CHUNKS = (1, 2, 4, 10, 25)
MESSAGES = (Message("system", "Be kind."), Message("user", "", audio_turn=1))
INPUT, OUTPUT = Tag("s", 1, 1), Tag("s", 1, 1, "r")


class _Free:
    """A `StepContext` that nothing disturbs."""

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:  # noqa: ARG002 - nothing waits
        raise AssertionError("these stages compute and do not wait")

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:  # noqa: ARG002 - there is none
        raise AssertionError("these stages hand nothing over amid a step")


@dataclass(slots=True)
class _Timed:
    """A stream that hands over to the next, and how long its steps took."""

    name: str
    stream: StageStream
    onward: _Timed | None = None
    steps_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    samples: int = 0

    def take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Emit) and self.onward is not None:
                self.onward.take(self.onward.stream.feed(output.item))
            if isinstance(output, Publish) and isinstance(output.event, AudioOut):
                self.samples += len(output.event.pcm) // 2

    def work(self) -> bool:
        """Run all steps that are ready. True if there was one."""
        ran = False
        while step := self.stream.next_step():
            started = time.perf_counter()
            result = step.run(_Free())
            self.steps_ms[step.kind].append((time.perf_counter() - started) * 1000)
            self.take(self.stream.finish_step(result))
            ran = True
        return ran

    def report(self, say: Say, seconds: float) -> None:
        """Each kind of step, and the share of one core that the stage needs to keep up with `seconds` of sound."""
        for kind, steps in self.steps_ms.items():
            say(line(f"{self.name}: one step, {kind}", steps))
        total_s = sum(sum(steps) for steps in self.steps_ms.values()) / 1000
        say(f"{self.name}: RTF {total_s / seconds:.3f} on one thread")


def _run(*streams: _Timed) -> None:
    """Run steps, stream by stream, until none is left."""
    while sum(stream.work() for stream in streams):
        pass


async def torch_omni(say: Say) -> bool:
    """One spoken turn through the tiny model, and the vocoder in pieces."""
    encoder, thinker, talker, vocoder = (
        registry.build("torch", kind, {"frames_max": FRAMES} if kind == "talker" else {})
        for kind in ("encoder", "thinker", "talker", "vocoder")
    )
    thinker.open_session("s")
    listening = _Timed("Thinker", thinker.open(INPUT, PrefillOptions()))
    hearing = _Timed("encoder", encoder.open(INPUT, EncoderOptions()), listening)
    listening.take(listening.stream.feed(Prompt(MESSAGES)))
    pcm = (np.random.default_rng(0).normal(size=SPEECH_SECONDS * INPUT_RATE) * 2_000).astype("<i2")
    for start in range(0, len(pcm), PIECE_SAMPLES):
        hearing.take(hearing.stream.feed(AudioIn(start, pcm[start : start + PIECE_SAMPLES].tobytes())))
        _run(hearing, listening)
    hearing.take(hearing.stream.feed(EndOfTurn(len(pcm))))
    _run(hearing, listening)
    for stage in (hearing, listening):
        stage.report(say, SPEECH_SECONDS)

    sounding = _Timed("vocoder", vocoder.open(OUTPUT, VocoderOptions()))
    speaking = _Timed("Talker", talker.open(OUTPUT, TalkerOptions()), sounding)
    thinking = _Timed("Thinker", thinker.open(OUTPUT, ThinkerOptions(MESSAGES, TOKENS)), speaking)
    _run(thinking, speaking, sounding)
    for stage in (thinking, speaking, sounding):
        stage.report(say, sounding.samples / OUTPUT_RATE)
    _say_chunks(say)
    return True


def _say_chunks(say: Say) -> None:
    """What a chunk of each size costs, and how much that is beside decoding all frames at once."""
    net = WaveformNet(load(ModelOptions())[0])
    codes = np.random.default_rng(0).integers(0, net.codes, (net.codebooks, FRAMES))
    _decode_ms(net, codes, FRAMES)  # the first time costs more
    floor_ms = sum(_decode_ms(net, codes, FRAMES))
    say(f"vocoder: {FRAMES} frames at once {floor_ms:.0f} ms, RTF {floor_ms / (FRAMES * 80):.3f}")
    for frames in CHUNKS:
        chunks_ms = _decode_ms(net, codes, frames)
        say(line(f"vocoder: a chunk of {frames} frames", chunks_ms) + f"  ratio {sum(chunks_ms) / floor_ms:.2f}")


def _decode_ms(net: WaveformNet, codes: np.ndarray[tuple[int, int], np.dtype[np.int64]], frames: int) -> list[float]:
    decoder = StreamingDecoder(net)
    chunks_ms = []
    with torch.inference_mode():
        for start in range(0, FRAMES, frames):
            started = time.perf_counter()
            decoder.decode(codes[:, start : start + frames])
            chunks_ms.append((time.perf_counter() - started) * 1000)
    return chunks_ms
