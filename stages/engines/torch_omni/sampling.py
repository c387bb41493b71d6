"""How tokens and codes are picked out of their scores.

Theory of operation
    The Talker's scores pass the library's own processors, in the order in which its `generate` applies them.

Rules
* Without a generator the likeliest is taken. Otherwise draws come from the one generator of the response, in order.
* The published defaults of Qwen3-Omni's `generate` are kept: repetition penalty 1.05, top 50, and for the codes below
  the first top 50 and nucleus 0.8. Only the penalty acts at temperature 0.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

REPETITION_PENALTY = 1.05
TOP_K = 50
RESIDUAL_TOP_P = 0.8


def pick(scores: Any, generator: Any | None) -> Any:
    """An id, long (1, 1), out of `scores`, float32 (1, id)."""
    if generator is None:
        return scores.argmax(dim=-1, keepdim=True)
    return torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)


class CodePicker:
    """Picks the codes of one response. `forbidden` ids are never picked as first code of a frame."""

    def __init__(self, forbidden: list[int], temperature: float, seed: int, device: str) -> None:
        first = [
            RepetitionPenaltyLogitsProcessor(REPETITION_PENALTY),
            SuppressTokensLogitsProcessor(forbidden, device=device),
        ]
        residual = []
        if temperature:
            first += [TemperatureLogitsWarper(temperature), TopKLogitsWarper(TOP_K)]
            residual = [TopKLogitsWarper(TOP_K), TopPLogitsWarper(RESIDUAL_TOP_P)]
        self._first = LogitsProcessorList(first)
        self._residual = LogitsProcessorList(residual)
        self._generator = torch.Generator(device).manual_seed(seed) if temperature else None
        self._picked = torch.zeros((1, 0), dtype=torch.long, device=device)

    def first_code(self, scores: Any) -> Any:
        """The first code of a frame, long (1, 1), out of float32 `scores` (1, id)."""
        picked = pick(self._first(self._picked, scores), self._generator)
        self._picked = torch.cat((self._picked, picked), dim=1)
        return picked

    def residual_code(self, scores: Any) -> Any:
        """A further code of a frame, as `first_code`."""
        return pick(self._residual(self._picked, scores), self._generator)
