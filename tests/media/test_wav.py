"""WAV files are read at the wanted rate, or refused with the reason."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

import media.wav
from media.resample import ResampleError
from media.wav import WavError, WavFault, read_wav, write_wav


def pcm(*values: int) -> bytes:
    return np.array(values, dtype="<i2").tobytes()


def write_raw(path: Path, data: bytes, *, channels: int = 1, width: int = 2, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(data)
    return path


def fault_of(path: Path) -> WavFault:
    with pytest.raises(WavError) as caught:
        read_wav(path, 16_000)
    assert str(path) in str(caught.value)
    assert caught.value.path == path
    return caught.value.fault


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = pcm(-32_768, 0, 5, 32_767)
    write_wav(tmp_path / "a.wav", data, 24_000)
    assert read_wav(tmp_path / "a.wav", 24_000) == data


def test_stereo_is_averaged(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.wav", pcm(100, 300, -10, 10, 32_767, 32_767), channels=2)
    assert read_wav(path, 16_000) == pcm(200, 0, 32_767)


def test_the_rate_is_converted(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.wav", pcm(*[1_000] * 2_205), rate=22_050)
    samples = np.frombuffer(read_wav(path, 16_000), dtype="<i2")
    assert len(samples) == 1_600
    assert set(samples[100:-100].tolist()) == {1_000}


def test_a_cut_off_last_frame_is_dropped(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.wav", pcm(1, 3, 5, 7), channels=2)
    path.write_bytes(path.read_bytes()[:-2])
    assert read_wav(path, 16_000) == pcm(2)


@pytest.mark.parametrize("content", [b"", b"ID3\x04 and more of it", b"RIFF\x00\x00\x00\x00AVI LIST"])
def test_no_riff(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    assert fault_of(path) is WavFault.NOT_RIFF


def test_compressed(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.wav", pcm(1, 2))
    content = bytearray(path.read_bytes())
    content[20:22] = (7).to_bytes(2, "little")
    path.write_bytes(content)
    assert fault_of(path) is WavFault.NOT_PCM


@pytest.mark.parametrize("length", [12, 20, 36])
def test_cut_off_in_the_header(tmp_path: Path, length: int) -> None:
    path = write_raw(tmp_path / "a.wav", pcm(1, 2))
    path.write_bytes(path.read_bytes()[:length])
    assert fault_of(path) is WavFault.NOT_PCM


def test_empty(tmp_path: Path) -> None:
    assert fault_of(write_raw(tmp_path / "a.wav", b"")) is WavFault.EMPTY


@pytest.mark.parametrize("width", [1, 3, 4])
def test_other_sample_widths(tmp_path: Path, width: int) -> None:
    assert fault_of(write_raw(tmp_path / "a.wav", bytes(12), width=width)) is WavFault.SAMPLE_WIDTH


def test_too_many_channels(tmp_path: Path) -> None:
    assert fault_of(write_raw(tmp_path / "a.wav", bytes(12), channels=3)) is WavFault.CHANNELS


def test_a_rate_that_cannot_be_converted(tmp_path: Path) -> None:
    assert fault_of(write_raw(tmp_path / "a.wav", bytes(12), rate=11_025)) is WavFault.SAMPLE_RATE


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media.wav, "WAV_BYTES_MAX", 50)
    assert fault_of(write_raw(tmp_path / "a.wav", bytes(12))) is WavFault.TOO_LARGE


def test_a_missing_file_and_an_unknown_wanted_rate(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_wav(tmp_path / "none.wav", 16_000)
    with pytest.raises(ResampleError):
        read_wav(write_raw(tmp_path / "a.wav", pcm(1)), 11_025)
