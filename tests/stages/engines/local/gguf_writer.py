"""Writing the header of a GGUF file, as far as tests need it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_KINDS = {str: 8, int: 5, bool: 7, float: 6}
_CODES = {int: "<i", bool: "<?", float: "<f"}

Scalar = str | int | float | bool


def write_gguf(path: Path, pairs: Mapping[str, Scalar | Sequence[Scalar]], *, version: int = 3) -> Path:
    body = b"".join(_string(key) + _typed(value) for key, value in pairs.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body)
    return path


def _typed(value: Scalar | Sequence[Scalar]) -> bytes:
    if isinstance(value, str | int | float):
        return struct.pack("<I", _KINDS[type(value)]) + _plain(value)
    return struct.pack("<IIQ", 9, _KINDS[type(value[0])], len(value)) + b"".join(_plain(item) for item in value)


def _plain(value: Scalar) -> bytes:
    return _string(value) if isinstance(value, str) else struct.pack(_CODES[type(value)], value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
