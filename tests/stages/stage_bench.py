"""Drives a `Stage` as a worker does: keeps its running steps, and sorts what it sends by link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.contracts import AudioOut, Latents, ObserverOptions, Options, Payload, Tag
from stages.edges import GATEWAY, InEdge, OutEdge
from stages.effects import Effect, ReportFault, Send, StartBatch, StartStep, StepFlags
from stages.event_log import EventLog
from stages.messages import Closed, Frame, Hello, Open, OpenSession
from stages.stage import Stage
from stages.stream import Emit, Output, Publish, StageFailure, StageModel
from tests.stages.puppet import PuppetModel, PuppetStep, PuppetStream

CONTROL, MEDIA, SOURCE, ONWARD = 1, 2, 3, 4
OTHER_CONTROL, OTHER_MEDIA, OTHER_ONWARD = 11, 12, 13
NEXT = "next"  # the replica that ONWARD leads to
SESSION = "task"
TAG = Tag(SESSION, 5, 1, "resp_1")
INPUT = Tag(SESSION, 5, 1)


def line_edges(
    onward_window: int, publish_window: int, payload: Payload, replicas: tuple[str, ...]
) -> tuple[OutEdge, ...]:
    """An edge of `payload` to the next stage and one of audio to the gateway, where they have windows."""
    addresses = {name: f"unix:/{name}.sock" for name in replicas}
    onward = (OutEdge(NEXT, payload, onward_window, addresses),) if onward_window else ()
    return (*onward, OutEdge(GATEWAY, "audio", publish_window)) if publish_window else onward


class Flags:
    """`StepContext` of a step that is run on the spot."""

    def __init__(self, flags: StepFlags) -> None:
        self._flags = flags

    def cancelled(self) -> bool:
        return self._flags.cancelled

    def wait_cancelled(self, ns_max: int) -> bool:
        return self._flags.cancelled

    def stalled(self) -> bool:
        return self._flags.stalled

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError("tests hand progress over themselves")


class StageBench:
    """One gateway with both links, one data link from the previous stage, and, if asked for, the next stage."""

    def __init__(
        self,
        model: StageModel,
        *,
        onward_window: int = 0,
        publish_window: int = 0,
        onward: bool = True,
        payload: Payload = "latents",
        replicas: tuple[str, ...] = (NEXT,),
        inputs: tuple[InEdge, ...] = (),
        tenant_weights: Mapping[str, int] | None = None,
    ) -> None:
        edges = line_edges(onward_window, publish_window, payload, replicas)
        self.events = EventLog()
        self.stage = Stage(model, edges, inputs, tenant_weights=tenant_weights, events=self.events)
        self.now_ns = 1_000_000_000
        self.running: dict[str, StartStep] = {}
        self.batches: dict[int, StartBatch] = {}
        self.faults: list[ReportFault] = []
        self.sent: list[Send] = []
        self.stage.link_up(CONTROL, Hello(1, "control", "gw_1"))
        self.stage.link_up(MEDIA, Hello(1, "media", "gw_1"))
        self.stage.link_up(SOURCE, Hello(1, "data", "before/1"))
        if onward_window and onward:
            self.carry_out(self.stage.onward_up(NEXT, ONWARD))

    def another_gateway(self) -> None:
        """`gw_2` comes, with both of its links."""
        self.carry_out(self.stage.link_up(OTHER_MEDIA, Hello(1, "media", "gw_2")))
        self.carry_out(self.stage.link_up(OTHER_CONTROL, Hello(1, "control", "gw_2")))

    def carry_out(self, effects: Sequence[Effect]) -> list[Frame]:
        """Keep steps, note what is sent; gives the frames of these effects."""
        frames: list[Frame] = []
        for effect in effects:
            match effect:
                case StartBatch():
                    self._start(effect)
                case ReportFault():
                    self.faults.append(effect)
                case Send():
                    self.sent.append(effect)
                    frames.append(effect.frame)
        return frames

    def _start(self, batch: StartBatch) -> None:
        self.batches[batch.number] = batch
        for start in batch.steps:
            assert start.key not in self.running, "one step of a stream runs at a time"
            self.running[start.key] = start

    def frame(self, frame: Frame, link: int = CONTROL) -> list[Frame]:
        return self.carry_out(self.stage.handle(link, frame, self.now_ns))

    def lose(self, link: int) -> list[Frame]:
        return self.carry_out(self.stage.link_lost(link, self.now_ns))

    def open(self, tag: Tag = TAG, options: Options | None = None, *, onward: bool = False) -> list[Frame]:
        """Open session and stream."""
        self.frame(OpenSession(tag.session, 0))
        return self.frame(Open(tag, options or ObserverOptions(), (NEXT,) if onward else ()))

    def finish(self, key: str = TAG.key, failure: StageFailure | None = None) -> list[Frame]:
        """Run the batch with the step of `key` and bring back its results, or `failure` for this step."""
        (batch,) = (one for one in self.batches.values() if key in [start.key for start in one.steps])
        results = list(batch.run([Flags(start.flags) for start in batch.steps]))
        if failure is not None:
            results[[start.key for start in batch.steps].index(key)] = failure
        del self.batches[batch.number]
        for start in batch.steps:
            del self.running[start.key]
        return self.carry_out(self.stage.batch_done(batch.number, results, self.now_ns))

    def progress(self, *outputs: Output, key: str = TAG.key) -> list[Frame]:
        return self.carry_out(self.stage.progress(key, outputs))

    def run_to_rest(self) -> list[Frame]:
        """Finish steps until none runs."""
        frames: list[Frame] = []
        while self.running:
            frames += self.finish(next(iter(self.running)))
        return frames

    def wake(self) -> list[Frame]:
        """Let the stage look for work, as after any call."""
        return self.carry_out(self.stage.run_steps(self.now_ns))

    def take_sent(self) -> list[Send]:
        sent, self.sent = self.sent, []
        return sent


def closings(frames: Sequence[Frame]) -> list[tuple[Tag, str, str]]:
    """Tag, outcome and code of each terminal in `frames`."""
    return [(frame.tag, frame.outcome, frame.code) for frame in frames if isinstance(frame, Closed)]


def sound(units: int, seq: int = 0) -> Publish:
    return Publish(AudioOut(seq, 24_000, 0, bytes(2 * units)), units)


def latents(frames: int, start: int = 0) -> Emit:
    return Emit(Latents(start, frames, bytes(4 * frames)), frames)


class Puppets(StageBench):
    """A stage of puppets with one open stream."""

    def __init__(
        self,
        *steps: PuppetStep,
        onward_window: int = 0,
        publish_window: int = 0,
        concurrency: int = 1,
        model: PuppetModel | None = None,
        inputs: tuple[InEdge, ...] = (),
    ) -> None:
        self.model = model or PuppetModel(concurrency)
        super().__init__(self.model, onward_window=onward_window, publish_window=publish_window, inputs=inputs)
        self.open(onward=bool(onward_window))
        self.stream.steps.extend(steps)
        self.wake()
        self.take_sent()

    @property
    def stream(self) -> PuppetStream:
        return self.model.streams[TAG.key]

    def another(self, tag: Tag, *steps: PuppetStep, onward: bool = False) -> PuppetStream:
        self.open(tag, onward=onward)
        stream = self.model.streams[tag.key]
        stream.steps.extend(steps)
        self.wake()
        self.take_sent()
        return stream

    def is_empty(self) -> bool:
        statistics = self.stage.statistics()
        return statistics.streams == statistics.scheduler.running == statistics.scheduler.waiting == 0

    def stale(self) -> int:
        return self.stage.statistics().stale_dropped
