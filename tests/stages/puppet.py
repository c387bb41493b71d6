"""A stage's model whose every step is laid out by the test. It computes nothing and knows no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stages.contracts import Item, Options, Tag
from stages.stream import Output, StageStream, Step, StepContext


@dataclass(frozen=True, slots=True)
class PuppetStep:
    """Comes back with `outputs`, or with what makes `finish_step` fail."""

    outputs: tuple[Output, ...] = ()
    units: int = 0
    urgency: int = 1
    kind: str = "puppet"
    fails: Exception | None = None
    batch_key: str = "puppets"

    def run(self, context: StepContext) -> object:
        return self


@dataclass(slots=True)
class PuppetStream:
    """Offers the first of `steps` until it has been finished. `plan_fails` is raised where a step is asked for.
    `frees`: steps that other streams can run once this one was closed."""

    tag: Tag
    options: Options
    steps: deque[PuppetStep] = field(default_factory=deque)
    feed_outputs: Sequence[Output] = ()
    feed_fails: Exception | None = None
    plan_fails: Exception | None = None
    close_fails: Exception | None = None
    ends: bool = False
    holds: dict[str, int] = field(default_factory=dict)
    fed: list[Item] = field(default_factory=list)
    asked: int = 0
    closed: int = 0
    frees: list[tuple[PuppetStream, PuppetStep]] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.ends and not self.steps

    def feed(self, item: Item) -> Sequence[Output]:
        if self.feed_fails is not None:
            raise self.feed_fails
        self.fed.append(item)
        return self.feed_outputs

    def next_step(self) -> PuppetStep | None:
        self.asked += 1
        if self.plan_fails is not None:
            raise self.plan_fails
        return self.steps[0] if self.steps else None

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, PuppetStep), "only a puppet's step comes back"
        self.steps.remove(result)
        if result.fails is not None:
            raise result.fails
        return result.outputs

    def held(self) -> dict[str, int]:
        return self.holds

    def close(self) -> None:
        self.closed += 1
        for stream, step in self.frees:
            stream.steps.append(step)
        if self.close_fails is not None:
            raise self.close_fails


class PuppetModel:
    """Remembers in `calls` what became of sessions; `streams` holds the latest stream of each name."""

    revision = "rev"

    def __init__(self, concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self.sessions: set[str] = set()
        self.streams: dict[str, PuppetStream] = {}
        self.calls: list[str] = []
        self.open_fails: Exception | None = None
        self.session_fails: Exception | None = None
        self.close_fails: Exception | None = None

    def open_session(self, session: str) -> None:
        if self.session_fails is not None:
            raise self.session_fails
        self.sessions.add(session)
        self.calls.append(f"open {session}")

    def close_session(self, session: str) -> None:
        assert not [one for one in self.streams.values() if one.tag.session == session and not one.closed], (
            "a session is closed after its streams"
        )
        self.sessions.discard(session)
        self.calls.append(f"close {session}")
        if self.close_fails is not None:
            raise self.close_fails

    def kept_for(self, session: str) -> dict[str, int]:
        return {"memory": int(session in self.sessions)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        if self.open_fails is not None:
            raise self.open_fails
        self.streams[tag.key] = PuppetStream(tag, options)
        return self.streams[tag.key]

    def close(self) -> None:
        assert all(stream.closed == 1 for stream in self.streams.values()), "a model is closed after its streams"
        assert not self.sessions, "a model is closed after its sessions"
        self.calls.append("close")


class BatchingPuppets(PuppetModel):
    """Runs steps together. `batch_gives` stands in for their results where it is set."""

    def __init__(self, concurrency: int = 1, batch_max: int = 4) -> None:
        super().__init__(concurrency)
        self.batch_max = batch_max
        self.batch_gives: Sequence[object] | Exception | None = None

    def batch_key(self, step: Step) -> str:
        assert isinstance(step, PuppetStep), "a puppet's model is asked about a puppet's steps"
        return step.batch_key

    def run_batch(self, steps: Sequence[Step], contexts: Sequence[StepContext]) -> Sequence[object]:
        assert len(steps) == len(contexts) > 1, "a single step runs by itself"
        if isinstance(self.batch_gives, Exception):
            raise self.batch_gives
        if self.batch_gives is not None:
            return self.batch_gives
        return [step.run(context) for step, context in zip(steps, contexts, strict=True)]
