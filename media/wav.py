"""WAV files in and out: 16-bit PCM, read at whatever rate is wanted, written mono.

Rules
* A file that cannot be used is refused with its name, what is wrong with it, and a stable `fault`.
* Two channels are averaged; the rate is converted by `media.resample`, once.
"""

from __future__ import annotations

import wave
from enum import StrEnum
from pathlib import Path

import numpy as np

from media.chunk import BYTES_PER_SAMPLE
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import SAMPLE_RATES, StreamResampler

CHANNELS_MAX = 2

# Files are read whole: this is 5 minutes of 48 kHz mono, 17 of 16 kHz, more than any prompt or simulated call.
WAV_BYTES_MAX = 32 * 1024 * 1024

RIFF_HEADER_BYTES = 12


class WavFault(StrEnum):
    """What is wrong with a file."""

    NOT_RIFF = "not_riff"
    NOT_PCM = "not_pcm"
    SAMPLE_WIDTH = "sample_width"
    CHANNELS = "channels"
    SAMPLE_RATE = "sample_rate"
    EMPTY = "empty"
    TOO_LARGE = "too_large"


class WavError(ValueError):
    """A file that cannot be used: who supplied it must act. The text names `path` and what is wrong."""

    def __init__(self, path: Path, fault: WavFault, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.fault = fault


def read_wav(path: Path, sample_rate: int) -> bytes:
    """The sound of `path` as PCM16 mono at `sample_rate`. Raises `WavError`, `ResampleError` for a `sample_rate`
    outside `SAMPLE_RATES`, `OSError`."""
    _check_file(path)
    try:
        with wave.open(str(path), "rb") as reader:
            _check_format(path, reader)
            channels, file_rate = reader.getnchannels(), reader.getframerate()
            data = reader.readframes(WAV_BYTES_MAX)
    except (wave.Error, EOFError) as error:
        raise WavError(path, WavFault.NOT_PCM, f"compressed, damaged or cut off ({error})") from error
    whole_frames = len(data) // (BYTES_PER_SAMPLE * channels)
    if not whole_frames:
        raise WavError(path, WavFault.EMPTY, "holds no samples")
    samples = pcm16_to_float(data[: whole_frames * BYTES_PER_SAMPLE * channels])
    mono = samples.reshape(whole_frames, channels).mean(axis=1, dtype=np.float32)
    resampler = StreamResampler(file_rate, sample_rate)
    return float_to_pcm16(np.concatenate((resampler.process(mono), resampler.flush())))


def write_wav(path: Path, pcm: bytes, sample_rate: int) -> None:
    """Write PCM16 mono of any rate. Raises `OSError`."""
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(BYTES_PER_SAMPLE)
        writer.setframerate(sample_rate)
        writer.writeframes(pcm)


def _check_file(path: Path) -> None:
    with path.open("rb") as file:
        header = file.read(RIFF_HEADER_BYTES)
    if header[:4] != b"RIFF" or header[8:] != b"WAVE":
        raise WavError(path, WavFault.NOT_RIFF, "no RIFF/WAVE header")
    size = path.stat().st_size
    if size > WAV_BYTES_MAX:
        raise WavError(path, WavFault.TOO_LARGE, f"{size} bytes, at most {WAV_BYTES_MAX} are read")


def _check_format(path: Path, reader: wave.Wave_read) -> None:
    bits = reader.getsampwidth() * 8
    if bits != BYTES_PER_SAMPLE * 8:
        raise WavError(path, WavFault.SAMPLE_WIDTH, f"{bits}-bit samples, only 16-bit PCM is read")
    if reader.getnchannels() > CHANNELS_MAX:
        raise WavError(path, WavFault.CHANNELS, f"{reader.getnchannels()} channels, at most {CHANNELS_MAX} are read")
    if reader.getframerate() not in SAMPLE_RATES:
        raise WavError(path, WavFault.SAMPLE_RATE, f"{reader.getframerate()} Hz is not one of {SAMPLE_RATES}")
