"""What an engine offers to its worker: models that open streams, streams that plan bounded steps.

Theory of operation
    A `StageModel` is loaded once per worker. `open` gives a `StageStream`, the state of one response
    (or of one turn's input) at that stage. The worker owns the loop thread: it calls `feed`, `next_step`
    and `finish_step` there, and only there, so a stream needs no locks. `Step.run` alone is called on
    an engine thread, with everything it needs captured in the step.

Rules
* `feed`, `next_step` and `finish_step` return within about a millisecond.
* A step is bounded: about 150 ms at most, or it asks `StepContext` whether it is cancelled.
* One step of a stream runs at a time. `next_step` is asked again after each feed and each finished step,
  and not while an emitted item of this stream still waits for credit.
* A cancelled stream is dropped after its running step, whose result is thrown away; then `close` is called,
  once, on the loop thread. A stream that has emitted or published its last output reports `finished`.
* Failures are `StageFailure`; they end this stream and no other.
* An engine that gains from computing steps of several streams together is a `BatchingModel`. All others know
  nothing of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stages.contracts import Event, Item, Options, Payload, Tag


class StageFailure(Exception):
    """This stream cannot go on. `code` is stable and goes to metrics; the text goes to the log."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _check(output: Publish | Emit | Consumed) -> None:
    """An engine that makes less than nothing fails its stream, by `wrong_output`, before anybody counts that."""
    if output.units < 0:
        raise StageFailure("wrong_output", f"{type(output).__name__} of {output.units} units")


@dataclass(frozen=True, slots=True)
class Publish:
    """Send `event` to the gateway, and to the next stages of an edge that carries it. `units` of each edge's credit
    are taken where it has credit (samples, for audio); otherwise 0."""

    event: Event
    units: int = 0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand `item` to the next stages, at the price of `units` of each edge's credit (tokens, frames)."""

    item: Item
    units: int

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Consumed:
    """`units` of input have been used up: their credit goes back to the producer.

    `payload` says whose, where a stream has several producers; None: who fed it last.
    """

    units: int
    payload: Payload | None = None

    def __post_init__(self) -> None:
        _check(self)


Output = Publish | Emit | Consumed


class StepContext(Protocol):
    """What a running step may ask and tell; safe on an engine thread."""

    def cancelled(self) -> bool:
        """The stream has been cancelled: return as soon as possible, with anything."""
        ...

    def wait_cancelled(self, ns_max: int) -> bool:
        """Sleep until the stream is cancelled (true, at once), or for `ns_max` at most (false)."""
        ...

    def stalled(self) -> bool:
        """An emitted item waits for credit: return what there is, to be continued by a later step."""
        ...

    def progress(self, outputs: Sequence[Output]) -> None:
        """Hand outputs over before the step has ended (tokens as they come)."""
        ...


class Step(Protocol):
    """One bounded piece of work. `urgency` orders steps of different streams: 0 first chunks and finals,
    1 steady work, 2 speculative work. `units` is the downstream credit it will need at most (0: unknown),
    checked before it starts. `kind` names it in metrics."""

    @property
    def kind(self) -> str: ...
    @property
    def urgency(self) -> int: ...
    @property
    def units(self) -> int: ...

    def run(self, context: StepContext) -> object:
        """Compute, on an engine thread. The result goes to `StageStream.finish_step`."""
        ...


class StageStream(Protocol):
    """One response, or one turn's input, at this stage."""

    @property
    def finished(self) -> bool: ...

    def feed(self, item: Item) -> Sequence[Output]:
        """Take one input item; raises `StageFailure` for one that this stage does not take."""
        ...

    def next_step(self) -> Step | None:
        """The next piece of work, or None until more input (or a model resource) is there. It may wait for other
        streams of its session; for those of others only to close, to come back from a step out of band, or for a place
        in their cache (`stages.kv_cache`)."""
        ...

    def finish_step(self, result: object) -> Sequence[Output]:
        """Fold the result of the step that ran into the stream."""
        ...

    def held(self) -> dict[str, int]:
        """What this stream holds now, by kind (samples, frames, tokens, slots), for its ledger."""
        ...

    def close(self) -> None:
        """Give everything back. Called once."""
        ...


class StageModel(Protocol):
    """A loaded model. `concurrency` is the number of engine threads that may run steps at once."""

    @property
    def concurrency(self) -> int: ...
    @property
    def revision(self) -> str: ...

    def open_session(self, session: str) -> None:
        """Reserve what a session keeps (a KV slot); raises `StageFailure("capacity", …)`. Idempotent."""
        ...

    def close_session(self, session: str) -> None:
        """Give back what the session kept. Unknown sessions are ignored."""
        ...

    def kept_for(self, session: str) -> dict[str, int]:
        """What is kept for `session` now, by kind, as the model's own memory has it; a kind may count 0."""
        ...

    def open(self, tag: Tag, options: Options) -> StageStream: ...

    def close(self) -> None:
        """Unload. Called once, when no step runs."""
        ...


@runtime_checkable
class BatchingModel(StageModel, Protocol):
    """A model that computes steps of several streams at once. `batch_max` is how many; a single step still runs by
    its own `Step.run`, and must give the same."""

    @property
    def batch_max(self) -> int: ...

    def batch_key(self, step: Step) -> str:
        """Steps of one `kind` and one such key can be computed together; empty for one that runs alone."""
        ...

    def run_batch(self, steps: Sequence[Step], contexts: Sequence[StepContext]) -> Sequence[object]:
        """Compute, on an engine thread, what `run` of each step would give; a `StageFailure` in place of a result
        fails that stream alone, one that is raised fails all of them. A cancelled step may give anything."""
        ...
