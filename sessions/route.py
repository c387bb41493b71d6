"""The way of a response through the stages, as the graph lays it.

Rules
* The head comes first, and each leg after those that it is fed by.
* The conversation knows stages by name and kind, and nothing of engines, windows or addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

LegKind = Literal["thinker", "talker", "vocoder", "observer"]
Final = Literal["text", "audio"]


@dataclass(frozen=True, slots=True)
class Leg:
    """One stage on the way. `edges`: the stages that it hands to; `finals`: what it owes to each response.

    `spoken`: it is of use only where there is audio.
    """

    stage: str
    kind: LegKind
    edges: tuple[str, ...] = ()
    finals: tuple[Final, ...] = ()
    spoken: bool = False

    @property
    def observes(self) -> bool:
        """It looks on from a side branch: the response is whole without it."""
        return self.kind == "observer"


@dataclass(frozen=True, slots=True)
class Route:
    """`encoder` hears; the `legs` answer."""

    encoder: str
    legs: tuple[Leg, ...]

    @property
    def head(self) -> str:
        return self.legs[0].stage

    def legs_of(self, *, with_audio: bool) -> tuple[Leg, ...]:
        """The legs that a response uses, each with those of its edges that it uses."""
        return _among(leg for leg in self.legs if with_audio or not leg.spoken)

    def voice(self) -> tuple[Leg, ...]:
        """The legs that are used by words which nobody has to think of."""
        return _among(leg for leg in self.legs[1:] if not leg.observes)


def _among(legs: Iterable[Leg]) -> tuple[Leg, ...]:
    """`legs`, with those edges alone that lead from one to another."""
    used = tuple(legs)
    names = {leg.stage for leg in used}
    return tuple(replace(leg, edges=tuple(name for name in leg.edges if name in names)) for leg in used)


def line(encoder: str = "encoder", thinker: str = "thinker", talker: str = "talker", vocoder: str = "vocoder") -> Route:
    """The route of a graph without branches."""
    return Route(
        encoder,
        (
            Leg(thinker, "thinker", (talker,), ("text",)),
            Leg(talker, "talker", (vocoder,), spoken=True),
            Leg(vocoder, "vocoder", (), ("audio",), spoken=True),
        ),
    )
