"""Vectors on a link: from tensors to `Embeddings` items and back.

Rules
* An item holds at most `EMBEDDINGS_ITEM_MAX` vectors and `ITEM_BYTES_MAX` bytes. So it fits a frame where there is no
  arena, as over TCP.
* An item continues the stream exactly where the one before it ended; another one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from stages.contracts import EmbeddingRole, Embeddings, Item
from stages.engines.profiles import EMBEDDINGS_ITEM_MAX
from stages.stream import Emit, StageFailure

# Three quarters of a frame. At the width of Qwen3-Omni's Thinker, 2,048, these are `EMBEDDINGS_ITEM_MAX` vectors.
ITEM_BYTES_MAX = 192 << 10
BYTES_PER_VALUE = 4


def rows_per_item(dim: int) -> int:
    """How many vectors of `dim` go into one item; at least one."""
    return max(1, min(EMBEDDINGS_ITEM_MAX, ITEM_BYTES_MAX // (dim * BYTES_PER_VALUE)))


def pack(start: int, rows: Any, role: EmbeddingRole, *, final: bool = False) -> Embeddings:
    """`rows`, float (position, channel) on any device, as an item that begins at `start`."""
    values = rows.to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False)
    return Embeddings(start, values.shape[0], values.shape[1], values.tobytes(), role, final)


def emit_in_pieces(start: int, rows: Any, role: EmbeddingRole) -> Iterator[Emit]:
    """`rows`, float (position, channel), cut into items, each at the price of its vectors."""
    for piece in rows.split(rows_per_item(rows.shape[1])) if len(rows) else ():
        yield Emit(pack(start, piece, role), len(piece))
        start += len(piece)


class RowIntake:
    """Takes the items of one stream, in order and in the `roles` that its stage takes."""

    def __init__(self, dim: int, device: str, roles: Sequence[EmbeddingRole]) -> None:
        self._dim = dim
        self._device = device
        self._roles = roles
        self._taken = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """The final item has come."""
        return self._ended

    def take(self, item: Item) -> Any:
        """The item's vectors, float32 (position, channel). Raises `StageFailure("wrong_item")`."""
        if not isinstance(item, Embeddings) or item.role not in self._roles:
            raise StageFailure("wrong_item", f"a {type(item).__name__} where {' or '.join(self._roles)} is taken")
        if self._ended or item.start != self._taken:
            raise StageFailure("wrong_item", f"vector {item.start} after {self._taken}, ended: {self._ended}")
        if item.dim != self._dim or len(item.data) != item.count * item.dim * BYTES_PER_VALUE:
            raise StageFailure("wrong_item", f"{len(item.data)} bytes for {item.count} vectors of {item.dim}")
        self._taken += item.count
        self._ended = item.final
        values = np.frombuffer(item.data, dtype="<f4").reshape(item.count, item.dim)
        return torch.tensor(values, device=self._device)
