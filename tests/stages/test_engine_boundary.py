"""What an engine throws becomes an answer."""

from __future__ import annotations

import pytest

from stages.engine_boundary import EngineFault, asked
from stages.stream import StageFailure


def throw(error: BaseException) -> int:
    raise error


def test_an_answer_is_handed_on() -> None:
    assert asked(lambda: 7) == 7


def test_a_failure_is_an_answer() -> None:
    failure = StageFailure("capacity", "no slot")
    assert asked(lambda: throw(failure)) is failure


def test_anything_else_is_a_fault_that_keeps_its_error_and_tells_nobody_its_text() -> None:
    error = ValueError("what somebody said")
    fault = asked(lambda: throw(error))
    assert isinstance(fault, EngineFault)
    assert (fault.code, str(fault), fault.error) == ("engine_fault", "the engine threw ValueError", error)


def test_the_end_of_the_process_is_no_fault() -> None:
    with pytest.raises(KeyboardInterrupt):
        asked(lambda: throw(KeyboardInterrupt()))
