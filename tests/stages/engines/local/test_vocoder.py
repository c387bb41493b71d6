from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from stages.contracts import AudioOut, Clause, Latents, Options, Pause, Tag, TalkerOptions, VocoderOptions
from stages.engines.local import vocoder as vocoder_module
from stages.engines.local.piper_split import LATENTS, UnsupportedVoiceError
from stages.engines.local.talker import TalkerStream
from stages.engines.local.vocoder import (
    CONTEXT_FRAMES,
    FRAMES_WAITING_MAX,
    ChunkFrames,
    Decoder,
    VocoderModel,
    VocoderStream,
    load_decoder,
)
from stages.stream import StageFailure
from tests.stages.engines.local.real_voice import real_acoustics, real_decoder
from tests.stages.engines.local.tiny_voice import CHANNELS, HOP, SAMPLE_RATE, write_tiny_voice
from tests.stages.engines.local.voice_bench import (
    FakeDecoderSession,
    audio_of,
    consumed_of,
    drive,
    fake_decoder,
    latents_of,
    run_step,
)

TAG = Tag("s", 1, 1, "r")
SAME_RATE = VocoderOptions(SAMPLE_RATE)


def _model(decoder: Decoder, chunks: ChunkFrames = ChunkFrames()) -> VocoderModel:  # noqa: B008 - frozen
    return VocoderModel([Path("v.onnx")], Path("cache"), chunks, lambda voice, cache: decoder)


def latents(clause_frames: list[int], piece: int = 16, channels: int = CHANNELS, scale: float = 0.01) -> list[Latents]:
    """Clauses of so many frames of noise, in pieces; the last piece of all is final."""
    random = np.random.default_rng(sum(clause_frames))
    items: list[Latents] = []
    position = 0
    for frames in clause_frames:
        data = (random.standard_normal((frames, channels)) * scale).astype(np.float32)
        for start in range(0, frames, piece):
            part = data[start : start + piece]
            items.append(Latents(position, len(part), part.tobytes(), start + piece >= frames))
            position += len(part)
    last = items[-1]
    return [*items[:-1], Latents(last.start_frame, last.frames, last.data, last.clause_end, final=True)]


def whole(decoder: Decoder, items: list[Latents]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Each clause decoded at once."""
    waves, data = [np.zeros(0, dtype=np.float32)], b""
    for item in items:
        data += item.data
        if (item.clause_end or item.final) and data:
            waves.append(decoder.decode(np.frombuffer(data, dtype=np.float32).reshape(-1, decoder.channels)))
            data = b""
    return np.concatenate(waves)


def heard(chunks: list[AudioOut]) -> bytes:
    """The PCM of all chunks; asserts the contract of chunks."""
    position = 0
    for seq, chunk in enumerate(chunks):
        assert (chunk.seq, chunk.start_sample) == (seq, position)
        assert chunk.pcm or chunk.final
        position += len(chunk.pcm) // 2
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return b"".join(chunk.pcm for chunk in chunks)


# ---- exactness --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    clause_frames=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    piece=st.integers(1, 20),
    first=st.integers(1, 20),
    steady=st.integers(1, 20),
    eager=st.booleans(),
)
def test_streamed_is_one_shot_for_every_schedule(
    clause_frames: list[int], piece: int, first: int, steady: int, eager: bool
) -> None:
    decoder, _ = fake_decoder(reach=CONTEXT_FRAMES)
    items = latents(clause_frames, piece)
    stream = VocoderStream(decoder, ChunkFrames(first, steady), SAME_RATE)
    outputs = drive(stream, items, eager=eager)
    pcm = pcm16_to_float(heard(audio_of(outputs)))
    np.testing.assert_allclose(pcm, whole(decoder, items), atol=1e-4)
    assert sum(consumed_of(outputs)) == sum(clause_frames)
    assert stream.finished
    assert stream.held() == {"frames": 0}


@settings(deadline=None, max_examples=30)
@given(
    clause_frames=st.lists(st.integers(1, 60), min_size=1, max_size=3), rate=st.sampled_from([8_000, 24_000, 48_000])
)
def test_the_resampler_runs_on_over_the_response(clause_frames: list[int], rate: int) -> None:
    decoder, _ = fake_decoder(reach=CONTEXT_FRAMES)
    items = latents(clause_frames)
    pcm = heard(audio_of(drive(VocoderStream(decoder, ChunkFrames(), VocoderOptions(rate)), items)))
    resampler = StreamResampler(SAMPLE_RATE, rate)
    wave = whole(decoder, items)
    wanted = np.concatenate((resampler.process(wave), resampler.flush()))
    assert len(pcm) // 2 == len(wanted) == -(-len(wave) * rate // SAMPLE_RATE)
    np.testing.assert_allclose(pcm16_to_float(pcm), wanted, atol=1e-4)


def test_floats_are_clipped_and_rounded_to_pcm() -> None:
    decoder, _ = fake_decoder(reach=0)
    values = np.array([2.0, -2.0, 0.5, 1.4 / 32768, 0.6 / 32768], dtype=np.float32)
    data = np.repeat(values[:, None], CHANNELS, axis=1)
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    pcm = heard(audio_of(drive(stream, [Latents(0, 5, data.tobytes(), clause_end=True, final=True)])))
    assert np.frombuffer(pcm, dtype="<i2")[::HOP].tolist() == [32767, -32768, 16384, 1, 1]
    assert pcm == float_to_pcm16(np.repeat(values, HOP))


# ---- schedule ---------------------------------------------------------------------------------------------


def test_the_first_chunk_is_short_and_urgent() -> None:
    decoder, session = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    for item in latents([60]):
        stream.feed(item)
    steps = []
    while (step := stream.next_step()) is not None:
        steps.append((step.count, step.before, step.urgency, step.units, step.kind))
        run_step(stream, step)
    assert steps == [
        (12, 0, 0, 12 * HOP, "decode"),
        (16, 11, 1, 16 * HOP, "decode"),
        (16, 11, 1, 16 * HOP, "decode"),
        (16, 11, 1, 16 * HOP, "decode"),
    ]
    assert session.windows == [12 + 11, 11 + 16 + 11, 11 + 16 + 11, 11 + 16]


def test_a_chunk_waits_for_its_right_context() -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    items = latents([40], piece=1)
    for item in items[:22]:
        stream.feed(item)
    assert stream.next_step() is None
    stream.feed(items[22])
    step = stream.next_step()
    assert step is not None
    run_step(stream, step)
    assert stream.held() == {"frames": 11}
    assert stream.next_step() is None
    stream.close()
    assert stream.next_step() is None


def test_an_ended_clause_waits_for_nothing() -> None:
    decoder, session = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    assert len(audio_of(drive(stream, latents([5, 40])[:1]))) == 1
    assert session.windows == [5]
    assert not stream.finished


def test_an_empty_final_item_ends_the_sound() -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), VocoderOptions(24_000))
    frames = np.zeros((3, CHANNELS), dtype=np.float32).tobytes()
    outputs = drive(stream, [Latents(0, 3, frames, clause_end=True), Latents(3, 0, b"", final=True)])
    chunks = audio_of(outputs)
    assert len(heard(chunks)) == 2 * (3 * HOP * 24_000 // SAMPLE_RATE)
    assert len(chunks) == 2
    assert stream.finished


def test_an_empty_final_item_ends_an_open_clause() -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    frames = np.zeros((3, CHANNELS), dtype=np.float32).tobytes()
    outputs = drive(stream, [Latents(0, 3, frames), Latents(3, 0, b"", final=True)])
    assert [len(chunk.pcm) for chunk in audio_of(outputs)] == [2 * 3 * HOP]


def test_a_silent_response_is_one_empty_final_chunk() -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), VocoderOptions(48_000))
    outputs = drive(stream, [Latents(0, 0, b"", final=True)])
    assert audio_of(outputs) == [AudioOut(0, 48_000, 0, b"", final=True)]
    assert consumed_of(outputs) == []
    assert stream.next_step() is None


def test_a_chunk_that_the_resampler_holds_back_is_not_published() -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(1, 1), VocoderOptions(8_000))
    outputs = drive(stream, latents([3]))
    assert consumed_of(outputs) == [1, 1, 1]
    chunks = audio_of(outputs)
    assert len(chunks) < 3
    assert len(heard(chunks)) == 2 * 3 * HOP // 2


def test_the_window_that_the_edge_must_have() -> None:
    decoder, _ = fake_decoder()
    model = _model(decoder)
    assert model.window_min == 16 + 11 + 15
    stream = model.open(TAG, SAME_RATE)
    undecoded = 0
    for item in latents([200]):
        assert undecoded + item.frames <= model.window_min
        outputs = drive(stream, [item])
        undecoded += item.frames - sum(consumed_of(outputs))


# ---- options, limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [TalkerOptions(), VocoderOptions(11_025), VocoderOptions(0)])
def test_options_that_cannot_be_served_are_refused(options: Options) -> None:
    decoder, _ = fake_decoder()
    with pytest.raises(StageFailure) as caught:
        _model(decoder).open(TAG, options)
    assert caught.value.code == "wrong_options"


def test_the_model_opens_streams() -> None:
    decoder, _ = fake_decoder()
    model = _model(decoder)
    model.open_session("s")
    assert model.concurrency == 1
    assert audio_of(drive(model.open(TAG, VocoderOptions()), latents([20])))[-1].final
    assert model.kept_for("s") == {}
    model.close_session("s")
    model.close()


@pytest.mark.parametrize("chunks", [ChunkFrames(0, 16), ChunkFrames(12, 0), ChunkFrames(12, 401)])
def test_chunks_are_neither_empty_nor_too_long(chunks: ChunkFrames) -> None:
    decoder, _ = fake_decoder()
    with pytest.raises(ValueError, match="not within 1 frame to 200 ms"):
        _model(decoder, chunks)


def _empty(start: int) -> Latents:
    return Latents(start, 0, b"", final=True)


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([Pause(0)], "wrong_item"),
        ([_empty(1)], "wrong_item"),
        ([_empty(0), _empty(0)], "wrong_item"),
        ([Latents(0, 2, b"\0" * 12)], "wrong_item"),
        ([Latents(0, FRAMES_WAITING_MAX + 1, bytes((FRAMES_WAITING_MAX + 1) * CHANNELS * 4))], "input_overrun"),
    ],
)
def test_wrong_input_fails_this_stream(items: list[Latents], code: str) -> None:
    decoder, _ = fake_decoder()
    stream = VocoderStream(decoder, ChunkFrames(), SAME_RATE)
    with pytest.raises(StageFailure) as caught:
        drive(stream, items, eager=False)
    assert caught.value.code == code


def test_a_decoder_is_loaded_from_its_files(tmp_path: Path) -> None:
    decoder = load_decoder(write_tiny_voice(tmp_path), tmp_path / "cache")
    assert (decoder.channels, decoder.hop, decoder.sample_rate) == (CHANNELS, HOP, SAMPLE_RATE)
    assert len(decoder.decode(np.zeros((4, CHANNELS), dtype=np.float32))) == 4 * HOP


def test_a_decoder_of_another_hop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(FakeDecoderSession):
        def run(
            self, output_names: object, input_feed: object
        ) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
            (wave,) = super().run(None, input_feed)  # type: ignore[arg-type]
            return [wave[..., 1:]]

    monkeypatch.setattr(vocoder_module, "open_session", lambda path: Short(0))
    with pytest.raises(UnsupportedVoiceError, match="303 samples from 38 frames, not 8"):
        load_decoder(write_tiny_voice(tmp_path), tmp_path / "cache")


# ---- the real voice ---------------------------------------------------------------------------------------


def _real_latents(*texts: str) -> list[Latents]:
    stream = TalkerStream(real_acoustics(), TalkerOptions())
    clauses = [Clause(number, text, number == len(texts) - 1) for number, text in enumerate(texts)]
    return latents_of(drive(stream, clauses))


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("chunks", [ChunkFrames(), ChunkFrames(8, 8), ChunkFrames(1, 17), ChunkFrames(17, 5)])
def test_the_real_decoder_streamed_is_one_shot(chunks: ChunkFrames) -> None:
    decoder = real_decoder()
    items = _real_latents("Oh,", "yes, it is.", "I can certainly help you with that, your order shipped yesterday.")
    wave = whole(decoder, items)

    stream = VocoderStream(decoder, chunks, VocoderOptions(decoder.sample_rate))
    parts: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    for item in items:
        stream.feed(item)
        while (step := stream.next_step()) is not None:
            made = decoder.decode(step.window)
            parts.append(made[step.before * decoder.hop : (step.before + step.count) * decoder.hop])
            run_step(stream, step)
    streamed = np.concatenate(parts)
    assert len(streamed) == len(wave) == sum(item.frames for item in items) * decoder.hop
    assert np.abs(streamed - wave).max() <= 1e-4


@pytest.mark.models
@pytest.mark.slow
def test_the_real_decoder_needs_its_context() -> None:
    decoder = real_decoder()
    (item, *_) = _real_latents("I can certainly help you with that.")
    frames = np.tile(np.frombuffer(item.data, dtype=np.float32).reshape(-1, decoder.channels), (4, 1))
    middle = len(frames) // 2
    disturbed = frames.copy()
    disturbed[middle] += 1
    feed = [np.ascontiguousarray(part.T)[None] for part in (frames, disturbed)]
    plain, other = (decoder.session.run(None, {LATENTS: part})[0].reshape(-1) for part in feed)
    changed = np.nonzero(np.abs(other - plain) > 1e-5)[0] / decoder.hop
    assert middle - CONTEXT_FRAMES <= changed[0] < middle - CONTEXT_FRAMES + 2
    assert middle + CONTEXT_FRAMES - 1 < changed[-1] <= middle + 1 + CONTEXT_FRAMES


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_gives_exact_counts_at_the_output_rate() -> None:
    decoder = real_decoder()
    items = _real_latents("Hello there!", "How are you?")
    pcm = heard(audio_of(drive(VocoderStream(decoder, ChunkFrames(), VocoderOptions(24_000)), items)))
    samples = sum(item.frames for item in items) * decoder.hop
    assert len(pcm) // 2 == -(-samples * 24_000 // decoder.sample_rate)
