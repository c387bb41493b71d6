"""What an engine throws becomes an answer."""

from __future__ import annotations

import pytest

from stages.contracts import ObserverOptions, Tag
from stages.engine_boundary import EngineFault, asked, plan_of
from stages.stream import StageFailure
from tests.stages.puppet import PuppetStep, PuppetStream


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


@pytest.mark.parametrize(
    ("steps", "ends", "expected"),
    [(0, False, (None, "", False)), (0, True, (None, "", True)), (1, True, ("step", "", False))],
)
def test_a_stream_says_what_it_wants_to_run_or_that_it_is_finished(
    steps: int, ends: bool, expected: tuple[str | None, str, bool]
) -> None:
    stream = PuppetStream(Tag("s", 1, 1, "r"), ObserverOptions(), ends=ends)
    stream.steps.extend(PuppetStep() for _ in range(steps))
    step, key, finished = plan_of(stream, None)
    assert ("step" if step else None, key, finished) == expected
