"""A GGUF header is read, its vocabulary too, and a damaged one is refused in one way."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.engines.local.gguf import GgufError, GgufHeader, read_header
from tests.stages.engines.local.gguf_writer import Scalar, write_gguf

PAIRS: dict[str, Scalar | list[Scalar]] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 3,
    "llama.rope": 0.5,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.tokens": ["<unk>", "<|im_start|>", "", "word", "<|im_end|>"],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 3],
    "tokenizer.ggml.merges": ["a b", "c d"],
    "tokenizer.ggml.scores": [0.5, 1.5],
    "tokenizer.chat_template": "{{ messages }}",
}


def test_the_wanted_values_are_read_and_the_others_skipped(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "tiny.gguf", PAIRS))
    assert header == GgufHeader("Tiny", "{{ messages }}", ("<unk>", "<|im_start|>", "<|im_end|>"))


@pytest.mark.parametrize(
    ("sizes", "token_bytes"),
    [
        ({"block_count": 30, "embedding_length": 576, "attention.head_count": 9, "attention.head_count_kv": 3}, 23_040),
        ({"block_count": 12, "embedding_length": 768, "attention.head_count": 12}, 36_864),
        ({"block_count": 12}, 0),
    ],
    ids=["shared heads", "a head of its own for each", "unknown"],
)
def test_what_a_token_of_kv_takes_follows_from_the_sizes(
    tmp_path: Path, sizes: dict[str, int], token_bytes: int
) -> None:
    pairs: dict[str, Scalar | list[Scalar]] = {f"llama.{name}": size for name, size in sizes.items()}
    assert read_header(write_gguf(tmp_path / "sized.gguf", pairs)).kv_token_bytes == token_bytes


def test_a_bare_file_is_called_by_its_file_name(tmp_path: Path) -> None:
    assert read_header(write_gguf(tmp_path / "bare.gguf", {"a": "b"}, version=2)) == GgufHeader("bare", "", ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "exceeds"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "cut short"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 19) + b"short", "cut short in a string"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "arrays of type 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 30), "exceeds"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=message):
        read_header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.data())
def test_a_file_cut_short_or_changed_never_fails_otherwise(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(write_gguf(tmp_path / "whole.gguf", PAIRS).read_bytes())
    at = data.draw(st.integers(4, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole[: data.draw(st.integers(at, len(whole)))])
    try:
        read_header(path)
    except GgufError:
        return
