"""The voices that a worker has loaded, by name; the first one is meant where none is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from stages.stream import StageFailure


class HasDigest(Protocol):
    @property
    def digest(self) -> str: ...


Half = TypeVar("Half", bound=HasDigest)


def voice_name(path: Path) -> str:
    """What the voice in an `.onnx` file is called."""
    return path.name.removesuffix(".onnx")


class LoadedVoices(Generic[Half]):
    """`halves`: what one stage needs of each voice; at least one."""

    def __init__(self, halves: Mapping[str, Half]) -> None:
        self._halves = dict(halves)
        self._first = next(iter(self._halves.values()))

    def find(self, name: str) -> Half:
        """Raises `StageFailure("wrong_options")` for a name that is not among them; none means the first."""
        half = self._halves.get(name) if name else self._first
        if half is None:
            raise StageFailure("wrong_options", f"voice {name!r}; this worker has {', '.join(self._halves)}")
        return half

    @property
    def digest(self) -> str:
        """SHA-256 over all of them: who has the same one speaks the same."""
        parts = (f"{name} {half.digest}\n" for name, half in self._halves.items())
        return hashlib.sha256("".join(parts).encode()).hexdigest()
