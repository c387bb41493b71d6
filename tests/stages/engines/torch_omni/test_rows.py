"""Vectors on a link: there and back, in pieces that fit, and in order."""

from __future__ import annotations

import pytest
import torch

from stages.contracts import CodecFrames, Embeddings, Item, Tag
from stages.engines.torch_omni.rows import RowIntake, emit_in_pieces, pack, rows_per_item
from stages.link_window import FRAME_BYTES_MAX
from stages.messages import Feed, encode
from stages.stream import StageFailure


def test_vectors_come_back_as_they_were() -> None:
    rows = torch.arange(12.0).reshape(3, 4)
    intake = RowIntake(4, "cpu", ("audio",))
    assert torch.equal(intake.take(pack(0, rows[:2], "audio")), rows[:2])
    assert not intake.ended
    assert torch.equal(intake.take(pack(2, rows[2:], "audio", final=True)), rows[2:])
    assert intake.ended


def test_whatever_the_model_computes_in_float32_is_handed_over() -> None:
    item = pack(0, torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), "step")
    assert item.data == b"\x00\x00\xc0\x3f\x00\x00\x00\xc0"


@pytest.mark.parametrize("dim", [64, 2_048, 4_096, 49_152])
def test_pieces_fit_a_frame(dim: int) -> None:
    emits = list(emit_in_pieces(5, torch.zeros(50, dim), "prefill"))
    items = [emit.item for emit in emits if isinstance(emit.item, Embeddings)]
    assert sum(item.count for item in items) == 50
    assert [emit.units for emit in emits] == [item.count for item in items]
    assert [item.start for item in items] == [5 + at * rows_per_item(dim) for at in range(len(items))]
    assert max(len(encode(Feed(Tag("s" * 64, 1, 1, "r" * 64), item, 1))) for item in items) <= FRAME_BYTES_MAX


def test_at_the_width_of_qwen3_omni_an_item_holds_24() -> None:
    assert rows_per_item(2_048) == 24


@pytest.mark.parametrize(
    "item",
    [
        pack(0, torch.zeros(1, 4), "step"),
        pack(1, torch.zeros(1, 4), "audio"),
        pack(0, torch.zeros(1, 5), "audio"),
        Embeddings(0, 2, 4, bytes(16), "audio"),
        CodecFrames(0, 0, b""),
    ],
)
def test_what_does_not_continue_the_stream_is_refused(item: Item) -> None:
    intake = RowIntake(4, "cpu", ("audio",))
    with pytest.raises(StageFailure) as failed:
        intake.take(item)
    assert failed.value.code == "wrong_item"


def test_nothing_follows_the_final_item() -> None:
    intake = RowIntake(4, "cpu", ("audio",))
    intake.take(pack(0, torch.zeros(0, 4), "audio", final=True))
    with pytest.raises(StageFailure, match="ended: True"):
        intake.take(pack(0, torch.zeros(1, 4), "audio"))
