"""The real Thinker, for tests that need its weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stages.engines.local.kv_slot import ThinkerSettings
from stages.engines.local.thinker import load_thinker
from stages.stream import StageModel
from stages.weights import WeightsError, locate


@pytest.fixture(scope="module")
def real() -> Iterator[StageModel]:
    try:
        path = locate("smollm2-135m-instruct")
    except WeightsError as error:
        pytest.fail(str(error))
    model = load_thinker(path, ThinkerSettings(slots=4, context_tokens=1_024, output_tokens_max=256))
    yield model
    model.close()


@pytest.fixture
def sessions(real: StageModel) -> Iterator[StageModel]:
    """The real Thinker with sessions "a" to "d" open."""
    for session in "abcd":
        real.open_session(session)
    yield real
    for session in "abcd":
        real.close_session(session)
