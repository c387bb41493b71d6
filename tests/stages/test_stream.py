"""What an engine gives its stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stages.contracts import AudioOut, Latents
from stages.stream import Consumed, Emit, Output, Publish, StageFailure

MAKERS: list[Callable[[int], Output]] = [
    lambda units: Publish(AudioOut(0, 24_000, 0, b""), units),
    lambda units: Emit(Latents(0, 0, b""), units),
    Consumed,
]


@pytest.mark.parametrize("make", MAKERS, ids=["publish", "emit", "consumed"])
def test_an_engine_cannot_make_or_use_less_than_nothing(make: Callable[[int], Output]) -> None:
    assert make(0).units == 0
    with pytest.raises(StageFailure, match="of -1 units") as raised:
        make(-1)
    assert raised.value.code == "wrong_output"
