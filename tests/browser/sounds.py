"""What the browser's microphone says: recorded sentences and silence, in a file."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]

FOLDER = Path(__file__).parents[1] / "data" / "speech"
RATE = 16_000


def recorded(name: str) -> Pcm:
    """A sentence, mono at 16 kHz."""
    with wave.open(str(FOLDER / f"{name}.wav")) as file:
        assert file.getframerate() == RATE
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def silence(seconds: float) -> Pcm:
    return np.zeros(int(seconds * RATE), np.int16)


def write_wav(path: Path, *parts: Pcm) -> Path:
    """The parts, one after the other; gives back the path."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.concatenate(parts).tobytes())
    return path
