"""`python -m stages.worker` with one more engine, `hanging`: its steps never come back, and are not waited for long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from stages import worker
from stages.contracts import Options, Tag
from stages.engines import registry
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.stream import StageStream, StepContext
from tests.stages.puppet import PuppetStep, PuppetStream


class HangingStep(PuppetStep):
    def run(self, context: StepContext) -> object:
        threading.Event().wait()
        raise AssertionError("nobody sets this event")


class HangingModel(ScriptedModel):
    def open(self, tag: Tag, options: Options) -> StageStream:
        stream = PuppetStream(tag, options)
        stream.steps.append(HangingStep())
        return stream

    def close(self) -> None:
        raise AssertionError("a model is not closed while its step runs")


def build(_: Mapping[str, object]) -> HangingModel:
    return HangingModel("vocoder", ScriptedOptions())


if __name__ == "__main__":
    registry._BUILDERS["hanging", "vocoder"] = "tests.stages.hanging_worker:build"
    worker.STOP_STEP_MS_MAX = 20
    sys.exit(worker.main())
