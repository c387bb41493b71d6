"""Edges as their two ends are told of them.

Rules
* An edge has one window, in the unit of its payload: characters (clauses), frames (latents, codec), vectors
  (embeddings) or samples (audio). That of sound is a time: at another rate than the graph's, so many samples more or
  fewer.
* A consumer of *chunks* gives credit back as it uses them up. One that needs the growing *prefix* or the *complete*
  value gives none back while the response lives: its window is the most that a response can have.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from media.chunk import rescale
from stages.contracts import Payload

# A window may be all of a response, and a response is given up after five minutes: so much sound at 48 kHz, and more.
WINDOW_MAX = 1 << 24
SAMPLE_RATE_MIN, SAMPLE_RATE_MAX = 8_000, 48_000  # telephones; the most that Opus carries

GATEWAY = "gateway"  # the name by which edges end there

Need = Literal["chunks", "prefix", "complete"]
Window = Annotated[int, msgspec.Meta(ge=1, le=WINDOW_MAX)]


class OutEdge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way out of a stage. `replicas`: the workers of `target` by their names, with where each listens.

    `observed`: the target looks on from a side branch, and must never hold the stream up. `sample_rate`: of sound, that
    in which the window is counted.
    """

    target: str
    payload: Payload
    window: Window
    replicas: dict[str, str] = {}
    need: Need = "chunks"
    observed: bool = False
    sample_rate: Annotated[int, msgspec.Meta(ge=0, le=SAMPLE_RATE_MAX)] = 0

    def at(self, sample_rate: int) -> OutEdge:
        """The edge for a stream whose sound has another rate: its window holds as much time."""
        if not self.sample_rate or not sample_rate:
            return self
        window = rescale(self.window, self.sample_rate, sample_rate)
        return msgspec.structs.replace(self, window=window, sample_rate=sample_rate)

    @property
    def replica_names(self) -> tuple[str, ...]:
        """A lone replica has the stage's own name."""
        return tuple(self.replicas) or (self.target,)


class InEdge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way into a stage, whose stream is given at most `window` units in all where it does not need chunks."""

    payload: Payload
    window: Window
    need: Need = "chunks"
