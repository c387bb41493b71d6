"""Other voices than the service's own: Debian's `espeak-ng`, run as a program, its sound kept by digest.

Rules
* It is for evaluation alone (GPL-3.0): nothing of it is imported, linked or shipped.
* A wave file is kept under the digest of all that determines it: the program's version, voice, speed, pitch, text. The
  same text in the same voice is always the same sound.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from media.wav import read_wav

PROGRAM = "espeak-ng"
RATE = 24_000
SPEAK_S_MAX = 30


class VoicesMissing(Exception):
    """The program is not installed: the user must act."""

    def __init__(self) -> None:
        super().__init__(f"{PROGRAM} is missing: apt-get install -y {PROGRAM}")


@dataclass(frozen=True, slots=True)
class Voice:
    """`name` as the program knows it; `speed` in words a minute; `pitch` 0 to 99."""

    name: str
    speed: int
    pitch: int


class Voices:
    """Speaks, and remembers in `folder`. Raises `VoicesMissing`."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which(PROGRAM)
        if program is None:
            raise VoicesMissing
        self._program = program
        self._version = self._run("--version").split("Data at")[0].strip()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def speak(self, text: str, voice: Voice) -> bytes:
        """`text` as PCM16 at 24 kHz. `[[…]]` in it are phonemes, in the program's own notation.

        Raises `subprocess.CalledProcessError` for a voice that it does not have.
        """
        key = "\0".join((self._version, voice.name, str(voice.speed), str(voice.pitch), text))
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.wav"
        if not path.exists():
            # Whole or not there at all, should two processes make it at once.
            unfinished = path.with_suffix(f".{os.getpid()}")
            how = ("-v", voice.name, "-s", str(voice.speed), "-p", str(voice.pitch), "-z")
            self._run(*how, "-w", str(unfinished), "--", text)
            unfinished.rename(path)
        return read_wav(path, RATE)

    def _run(self, *arguments: str) -> str:
        ended = subprocess.run(
            [self._program, *arguments], check=True, capture_output=True, text=True, timeout=SPEAK_S_MAX
        )
        return ended.stdout
