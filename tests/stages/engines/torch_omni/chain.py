"""The four stages of the torch engine joined without links: each hand-over reaches the next stage at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stages.contracts import AudioOut, Event, Item, TextDelta, TextDone
from stages.stream import Consumed, Emit, Output, Publish, StageStream

STEPS_MAX = 5_000


class Free:
    """A `StepContext` that nothing disturbs."""

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:
        raise AssertionError("these stages compute and do not wait")

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError("these stages hand nothing over amid a step")


@dataclass(slots=True)
class Place:
    """One stream, what it has published, and the credit between it and its producer."""

    stream: StageStream
    onward: Place | None = None
    events: list[Event] = field(default_factory=list)
    emitted: list[Item] = field(default_factory=list)
    fed_units: int = 0
    returned_units: int = 0
    steps: int = 0

    def feed(self, item: Item, units: int = 0) -> None:
        self.fed_units += units
        self.take(self.stream.feed(item))

    def take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Consumed(units):
                    self.returned_units += units
                case Publish(event):
                    self.events.append(event)
                case Emit(item, units):
                    self.emitted.append(item)
                    if self.onward is not None:
                        self.onward.feed(item, units)

    def step(self) -> bool:
        """Run the next step, if there is one."""
        step = self.stream.next_step()
        if step is None:
            return False
        self.steps += 1
        result = step.run(Free())
        before = sum(len(event.pcm) // 2 for event in self.events if isinstance(event, AudioOut))
        self.take(self.stream.finish_step(result))
        after = sum(len(event.pcm) // 2 for event in self.events if isinstance(event, AudioOut))
        assert after - before <= step.units or not step.units, "a step keeps to the credit that it asked for"
        return True


def chained(*streams: StageStream) -> list[Place]:
    """The streams, each handing over to the next."""
    places = [Place(stream) for stream in streams]
    for place, onward in pairwise(places):
        place.onward = onward
    return places


def pump(places: Sequence[Place], steps_max: int = STEPS_MAX) -> int:
    """Run steps, in turn, until nothing is left to do or `steps_max` have run. Gives how many ran."""
    steps = 0
    ran = True
    while ran and steps < steps_max:
        ran = False
        for place in places:
            if steps < steps_max and place.step():
                ran = True
                steps += 1
    return steps


def text_of(place: Place) -> tuple[str, TextDone | None]:
    """What a Thinker has published."""
    deltas = "".join(event.text for event in place.events if isinstance(event, TextDelta))
    return deltas, next((event for event in place.events if isinstance(event, TextDone)), None)


def sound_of(events: Sequence[Event]) -> NDArray[np.int16]:
    """What a vocoder has published, which must be contiguous and end at most once."""
    chunks = [event for event in events if isinstance(event, AudioOut)]
    start = 0
    for seq, chunk in enumerate(chunks):
        assert (chunk.seq, chunk.start_sample, chunk.sample_rate) == (seq, start, 24_000)
        assert not chunk.final or seq == len(chunks) - 1
        start += len(chunk.pcm) // 2
    return np.frombuffer(b"".join(chunk.pcm for chunk in chunks), dtype="<i2")
