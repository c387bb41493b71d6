"""The vocoder stage: latent frames to PCM at the asked rate, with the decoder half of a Piper voice.

Theory of operation
    The decoder is a chain of convolutions that looks at most 11 frames to either side. Decoded in chunks with that
    context, a clause sounds exactly as if decoded at once; a chunk therefore waits until its right context has come,
    or until the clause has ended. Clauses were made apart, so no context crosses their border. The samples of all
    clauses pass one resampler without a break, so the response is one continuous sound at the output rate.

Rules
* Chunks are `first` frames at the start of the response, then `steady`; a clause ends in what remains. The schedule
  depends on the frames alone and not on when they came, so the same latents give the same samples.
* `AudioOut` is contiguous; exactly one is final, and it may be empty.
* After a response of n frames exactly ceil(n * hop * rate / voice rate) samples have been published.
* One chunk at a time: on one thread of a CPU, chunks of several responses take as long together as one after the other.
* The credit of frames goes back when they have been decoded. The edge's window must hold `ChunkFrames.window_min`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from media.chunk import BYTES_PER_SAMPLE
from media.pcm import float_to_pcm16
from media.resample import ResampleError, StreamResampler
from stages.contracts import AudioOut, Item, Latents, Options, Tag, VocoderOptions
from stages.engines.local.loaded_voices import LoadedVoices, voice_name
from stages.engines.local.onnx_session import OnnxSession, open_session
from stages.engines.local.piper_split import LATENTS, UnsupportedVoiceError, split_voice
from stages.engines.local.voice import ITEM_FRAMES_MAX, load_voice
from stages.stream import Consumed, Output, Publish, StageFailure, StageStream, StepContext

# The receptive field of Piper's HiFi-GAN decoders ("medium"), measured by disturbing one frame: 2,582 samples before
# it and 2,579 behind it change, that is 11 frames of 256 samples.
CONTEXT_FRAMES = 11

# 12 frames are 139 ms and come out of the decoder about 20 ms after the latents; 16 are 186 ms.
FIRST_CHUNK_FRAMES = 12
STEADY_CHUNK_FRAMES = 16
# Half of the lead that a response may be generated ahead of its playout.
CHUNK_MS_MAX = 200

# Frames that may wait undecoded: far beyond any edge's window, so only a faulty producer meets it.
FRAMES_WAITING_MAX = 4_096

BYTES_PER_VALUE = 4

Frames = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A voice's decoder half. `hop` is the samples of a frame at `sample_rate`, `digest` that of the voice file."""

    session: OnnxSession
    channels: int
    hop: int
    sample_rate: int
    digest: str

    def decode(self, frames: Frames) -> npt.NDArray[np.float32]:
        """float32 (frame, channel) to float32[frames * hop] in [-1, 1]."""
        latents = np.ascontiguousarray(frames.T)[None]
        return self.session.run(None, {LATENTS: latents})[0].reshape(-1)


def load_decoder(voice: Path, cache_dir: Path) -> Decoder:
    """Load the voice in file `voice`, configured by the file of that name plus `.json`; halves lie in `cache_dir`.

    Ready to decode without delay. Raises `UnsupportedVoiceError` and `OSError`.
    """
    config = load_voice(voice.with_name(f"{voice.name}.json"))
    halves = split_voice(voice, cache_dir)
    session = open_session(halves.decoder)
    decoder = Decoder(session, halves.channels, halves.hop, config.audio.sample_rate, halves.digest)
    frames = STEADY_CHUNK_FRAMES + 2 * CONTEXT_FRAMES
    made = len(decoder.decode(np.zeros((frames, decoder.channels), dtype=np.float32)))
    if made != frames * decoder.hop:
        raise UnsupportedVoiceError(f"{made} samples from {frames} frames, not {decoder.hop} for each")
    return decoder


@dataclass(frozen=True, slots=True)
class ChunkFrames:
    """Frames of the response's first chunk, and of all others."""

    first: int = FIRST_CHUNK_FRAMES
    steady: int = STEADY_CHUNK_FRAMES

    @property
    def window_min(self) -> int:
        """The least window, in frames, of the edge to the vocoder: one chunk, its right context, and one more item
        less a frame, since credit is taken for whole items."""
        return max(self.first, self.steady) + CONTEXT_FRAMES + ITEM_FRAMES_MAX - 1

    def check(self, decoder: Decoder) -> None:
        """Raises `ValueError` for a chunk that is empty or longer than `CHUNK_MS_MAX`."""
        longest_ms = max(self.first, self.steady) * decoder.hop * 1000 / decoder.sample_rate
        if min(self.first, self.steady) < 1 or longest_ms > CHUNK_MS_MAX:
            raise ValueError(
                f"chunks of {self.first} and {self.steady} frames: not within 1 frame to {CHUNK_MS_MAX} ms"
            )


class VocoderModel:
    """`StageModel` of the vocoder for the Piper voices in `voices`, each configured by its file's name plus `.json`.

    The first one is meant where none is asked for. Halves are kept in `cache_dir`. `chunks` is the schedule. Raises
    `UnsupportedVoiceError`, `OSError`, and `ValueError` for chunks that are empty or too long.
    """

    def __init__(
        self,
        voices: Sequence[Path],
        cache_dir: Path,
        chunks: ChunkFrames = ChunkFrames(),
        load: Callable[[Path, Path], Decoder] = load_decoder,
    ) -> None:
        decoders = {voice_name(path): load(path, cache_dir) for path in voices}
        self._voices = LoadedVoices(decoders)
        self._chunks = chunks
        for decoder in decoders.values():
            chunks.check(decoder)

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def revision(self) -> str:
        return self._voices.digest

    @property
    def window_min(self) -> int:
        """The least window of the edge from the Talker, in frames."""
        return self._chunks.window_min

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """A response to be voiced. Raises `StageFailure("wrong_options")` for another stage's options, another
        voice or a sample rate that cannot be made."""
        if not isinstance(options, VocoderOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the vocoder")
        return VocoderStream(self._voices.find(options.voice), self._chunks, options)

    def close(self) -> None:
        """The session ends with its last reference."""


@dataclass(slots=True)
class _Clause:
    """The frames of one clause from `dropped` on; those before are out of reach of any later chunk."""

    frames: Frames
    dropped: int = 0
    decoded: int = 0
    ended: bool = False

    @property
    def received(self) -> int:
        return self.dropped + len(self.frames)

    @property
    def done(self) -> bool:
        return self.ended and self.decoded == self.received

    def ready(self, chunk: int) -> int:
        """How many frames to decode now: `chunk` with all their context, or the rest of an ended clause."""
        if self.received >= self.decoded + chunk + CONTEXT_FRAMES:
            return chunk
        return min(chunk, self.received - self.decoded) if self.ended else 0

    def window(self, count: int) -> tuple[Frames, int]:
        """The next `count` frames with their context, and how much of it lies before them."""
        before = min(self.decoded, CONTEXT_FRAMES)
        start = self.decoded - before - self.dropped
        return self.frames[start : start + before + count + CONTEXT_FRAMES], before

    def advance(self, count: int) -> None:
        self.decoded += count
        keep_from = max(0, self.decoded - CONTEXT_FRAMES)
        self.frames = self.frames[keep_from - self.dropped :].copy()
        self.dropped = keep_from


@dataclass(frozen=True, slots=True)
class Sound:
    """What a step brings back: `frames` latent frames as PCM16 at the output rate. `last`: the response ends here."""

    frames: int
    pcm: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class DecodeChunk:
    """Decode `count` frames of `window`, of which `before` are left context; `count` 0 only ends the sound."""

    decoder: Decoder
    resampler: StreamResampler
    window: Frames
    before: int
    count: int
    last: bool
    urgency: int
    units: int
    kind: str = "decode"

    def run(self, context: StepContext) -> Sound:  # noqa: ARG002 - bounded, so it need not ask
        hop = self.decoder.hop
        parts = []
        if self.count:
            wave = self.decoder.decode(self.window)
            parts.append(self.resampler.process(wave[self.before * hop : (self.before + self.count) * hop]))
        if self.last:
            parts.append(self.resampler.flush())
        return Sound(self.count, float_to_pcm16(np.concatenate(parts)), self.last)


class VocoderStream:
    """`StageStream` of one response. Latents in, PCM out."""

    def __init__(self, decoder: Decoder, chunks: ChunkFrames, options: VocoderOptions) -> None:
        try:
            self._resampler = StreamResampler(decoder.sample_rate, options.sample_rate)
        except ResampleError as error:
            raise StageFailure("wrong_options", str(error)) from error
        self._decoder = decoder
        self._chunks = chunks
        self._rate = options.sample_rate
        self._clauses: deque[_Clause] = deque()
        self._frames_taken = 0
        self._frames_decoded = 0
        self._samples = 0
        self._seq = 0
        self._ended = False
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Latents):
            raise StageFailure("wrong_item", f"the vocoder does not take {type(item).__name__}")
        if self._ended or item.start_frame != self._frames_taken:
            raise StageFailure(
                "wrong_item", f"frame {item.start_frame} after {self._frames_taken}, ended: {self._ended}"
            )
        if len(item.data) != item.frames * self._decoder.channels * BYTES_PER_VALUE:
            raise StageFailure("wrong_item", f"{len(item.data)} bytes for {item.frames} frames")
        self._frames_taken += item.frames
        if self._frames_taken - self._frames_decoded > FRAMES_WAITING_MAX:
            raise StageFailure("input_overrun", f"more than {FRAMES_WAITING_MAX} frames without credit")
        self._add(item)
        self._ended = item.final
        return ()

    def _add(self, item: Latents) -> None:
        frames = np.frombuffer(item.data, dtype="<f4").reshape(item.frames, self._decoder.channels)
        if not self._clauses or self._clauses[-1].ended:
            if not item.frames:
                return
            self._clauses.append(_Clause(np.zeros((0, self._decoder.channels), dtype=np.float32)))
        clause = self._clauses[-1]
        clause.frames = np.concatenate((clause.frames, frames))
        clause.ended = item.clause_end or item.final

    def next_step(self) -> DecodeChunk | None:
        if not self._clauses:
            none_left = self._ended and not self._finished
            return (
                self._step(np.zeros((0, self._decoder.channels), dtype=np.float32), 0, 0, True) if none_left else None
            )
        clause = self._clauses[0]
        count = clause.ready(self._chunks.steady if self._frames_decoded else self._chunks.first)
        if not count:
            return None
        last = self._ended and len(self._clauses) == 1 and clause.decoded + count == clause.received
        return self._step(*clause.window(count), count, last)

    def _step(self, window: Frames, before: int, count: int, last: bool) -> DecodeChunk:
        urgency = 1 if self._frames_decoded else 0
        taken = (self._frames_decoded + count) * self._decoder.hop
        # The resampler is never ahead of its input, so this is what it can have given by then at most.
        given_max = -(-taken * self._rate // self._decoder.sample_rate)
        return DecodeChunk(
            self._decoder, self._resampler, window, before, count, last, urgency, given_max - self._samples
        )

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, Sound), "only the result of a DecodeChunk comes back"
        outputs: list[Output] = []
        if result.pcm or result.last:
            samples = len(result.pcm) // BYTES_PER_SAMPLE
            outputs.append(Publish(AudioOut(self._seq, self._rate, self._samples, result.pcm, result.last), samples))
            self._seq += 1
            self._samples += samples
        if result.frames:
            outputs.append(Consumed(result.frames))
            self._advance(result.frames)
        self._finished = result.last
        return outputs

    def _advance(self, frames: int) -> None:
        self._frames_decoded += frames
        clause = self._clauses[0]
        clause.advance(frames)
        if clause.done:
            self._clauses.popleft()

    def held(self) -> dict[str, int]:
        """Frames not yet decoded; those kept as context have been accounted for."""
        return {"frames": self._frames_taken - self._frames_decoded}

    def close(self) -> None:
        self._clauses.clear()
