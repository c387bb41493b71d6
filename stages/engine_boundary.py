"""Asking an engine on the loop thread: whatever it throws concerns the one stream that it was asked for.

Rules
* A `StageFailure` is an answer. Anything else is a fault of the engine: it fails the stream as `engine_fault`, and the
  error is kept for the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stages.stream import BatchingModel, StageFailure, StageStream, Step

_Answer = TypeVar("_Answer")


class EngineFault(StageFailure):
    """An engine threw `error`, which is no `StageFailure`."""

    def __init__(self, error: Exception) -> None:
        super().__init__("engine_fault", f"the engine threw {type(error).__name__}")
        self.error = error


def asked(call: Callable[[], _Answer]) -> _Answer | StageFailure:
    """What the engine answers to `call`, or how that failed."""
    try:
        return call()
    except StageFailure as failure:
        return failure
    except Exception as error:  # noqa: BLE001 - the boundary between the stage and its engine
        return EngineFault(error)


def plan_of(stream: StageStream, batching: BatchingModel | None) -> tuple[Step | None, str, bool]:
    """The step that `stream` wants to run and its batch key, or none and whether the stream is finished."""
    step = stream.next_step()
    if step is None:
        return None, "", stream.finished
    return step, batching.batch_key(step) if batching else "", False
