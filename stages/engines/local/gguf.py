"""Reading the header of a GGUF file: what the model is called, its chat template, its control tokens.

The file format is that of ggml's `docs/gguf.md`, version 2 and 3, little-endian: magic, version, counts, then typed
key-value pairs, then tensors, which are not read here. Values that nobody asks for are skipped, since a vocabulary
holds up to 262,144 strings.

Rules
* Counts and lengths from the file are checked against named limits before anything is read on their word.
* A file that is not GGUF, or ends early, is a `GgufError`, never a `struct.error`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

PAIRS_MAX = 4_096  # models carry 20 to 60
STRING_BYTES_MAX = 1 << 20  # the longest known value, a chat template, has 20 KiB
ARRAY_ITEMS_MAX = 1 << 21  # vocabularies and their merges stay below 600,000

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TOKEN_UNKNOWN, _TOKEN_CONTROL = 2, 3
_WANTED = frozenset(("general.name", "tokenizer.chat_template", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"))
# Behind the architecture's name, as in "llama.block_count".
_LAYERS, _WIDTH, _HEADS, _KV_HEADS = (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
)
_SIZES = frozenset((_LAYERS, _WIDTH, _HEADS, _KV_HEADS))
_KV_VALUE_BYTES = 2  # float16, llama.cpp's default

Value = str | int | float | bool | list[str] | list[int | float | bool] | None


class GgufError(ValueError):
    """The file is not a GGUF file that can be read here: another file must be configured."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`control_tokens`: the texts that the tokenizer turns into control tokens, such as "<|im_end|>".
    `kv_token_bytes`: what the KV of one token takes, keys and values of all layers; 0 where the file does not say."""

    name: str
    chat_template: str
    control_tokens: tuple[str, ...]
    kv_token_bytes: int = 0


def read_header(path: Path) -> GgufHeader:
    """Read the header of the file at `path`. Raises `GgufError` and `OSError`."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise GgufError(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                values = _Reader(data).pairs()
            except (struct.error, UnicodeDecodeError) as error:
                raise GgufError(f"{path.name} is cut short or damaged") from error
    return GgufHeader(
        name=_text(values.get("general.name")) or path.stem,
        chat_template=_text(values.get("tokenizer.chat_template")),
        control_tokens=_control_tokens(values),
        kv_token_bytes=_kv_token_bytes(values),
    )


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""


def _control_tokens(values: dict[str, Value]) -> tuple[str, ...]:
    tokens, kinds = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(kinds, list):
        return ()
    pairs = zip(tokens, kinds, strict=False)
    return tuple(str(token) for token, kind in pairs if kind in (_TOKEN_UNKNOWN, _TOKEN_CONTROL) and token)


def _kv_token_bytes(values: dict[str, Value]) -> int:
    sizes = {_name_of_size(key): value for key, value in values.items() if isinstance(value, int)}
    layers, width, heads = (sizes.get(name, 0) for name in (_LAYERS, _WIDTH, _HEADS))
    if not heads:
        return 0
    return 2 * layers * sizes.get(_KV_HEADS, heads) * (width // heads) * _KV_VALUE_BYTES


def _name_of_size(key: str) -> str:
    return key.partition(".")[2]


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def pairs(self) -> dict[str, Value]:
        """The wanted key-value pairs."""
        if self._data[:4] != b"GGUF":
            raise GgufError("not a GGUF file")
        self._at = 4
        version, _tensors = self._number("I"), self._number("Q")
        if version not in (2, 3):
            raise GgufError(f"GGUF version {version} is not supported")
        values: dict[str, Value] = {}
        for _ in range(self._count("Q", PAIRS_MAX)):
            key = self._string()
            is_wanted = key in _WANTED or _name_of_size(key) in _SIZES
            value = self._value(int(self._number("I")), keep=is_wanted)
            if is_wanted:
                values[key] = value
        return values

    def _number(self, code: str) -> int | float | bool:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        number: int | float | bool = value
        return number

    def _count(self, code: str, limit: int) -> int:
        count = int(self._number(code))
        if count > limit:
            raise GgufError(f"a count of {count} exceeds {limit}")
        return count

    def _string(self) -> str:
        length = self._count("Q", STRING_BYTES_MAX)
        raw = self._data[self._at : self._at + length]
        if len(raw) < length:
            raise GgufError("cut short in a string")
        self._at += length
        return raw.decode("utf-8", "surrogateescape")

    def _value(self, kind: int, *, keep: bool) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(keep=keep)
        if kind not in _SCALARS:
            raise GgufError(f"value type {kind} is unknown")
        return self._number(_SCALARS[kind])

    def _array(self, *, keep: bool) -> list[str] | list[int | float | bool] | None:
        kind = int(self._number("I"))
        count = self._count("Q", ARRAY_ITEMS_MAX)
        if kind == _STRING:
            return self._strings(count, keep=keep)
        if kind not in _SCALARS:
            raise GgufError(f"arrays of type {kind} are not supported")
        layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
        numbers = list(layout.unpack_from(self._data, self._at)) if keep else None
        self._at += layout.size
        return numbers

    def _strings(self, count: int, *, keep: bool) -> list[str] | None:
        if keep:
            return [self._string() for _ in range(count)]
        for _ in range(count):
            length = self._count("Q", STRING_BYTES_MAX)
            self._at += length
        return None
