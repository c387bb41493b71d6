"""How long steps take: an estimate for each kind of step, made from what they took before.

Theory of operation
    The estimate of a kind follows what its batches took, four times as fast upwards as downwards. It so settles above
    the mean (at the expectile of 0.8), since a step that is believed too short misses its deadline, and one that is
    believed too long only goes a little early.

Rules
* Plain integers. An unknown kind is expected to take 0 ns.
* Kinds are names in an engine's source, never anything that a caller chooses, so the table needs no other limit.
"""

from __future__ import annotations

from dataclasses import dataclass

RISE_SHIFT = 2  # an estimate that was too low moves by a quarter of the error
FALL_SHIFT = 4  # one that was too high by a sixteenth


@dataclass(frozen=True, slots=True)
class KindService:
    """`predicted_ns`: what the next batch is expected to take. `service_ns_mean`: what batches have taken.
    `error_ns_mean`: by how much, either way, that differed from what was expected when they started."""

    kind: str
    batches: int
    predicted_ns: int
    service_ns_mean: int
    error_ns_mean: int


@dataclass(slots=True)
class _Estimate:
    predicted_ns: int
    batches: int = 0
    service_ns: int = 0
    error_ns: int = 0


class ServiceTimes:
    """Estimates by kind. All times are ns."""

    def __init__(self) -> None:
        self._estimates: dict[str, _Estimate] = {}

    def predicted_ns(self, kind: str) -> int:
        """What a batch of `kind` is expected to take; 0 where none has been seen."""
        estimate = self._estimates.get(kind)
        return estimate.predicted_ns if estimate else 0

    def observe(self, kind: str, predicted_ns: int, service_ns: int) -> None:
        """A batch of `kind`, expected to take `predicted_ns`, took `service_ns`."""
        estimate = self._estimates.setdefault(kind, _Estimate(service_ns))
        estimate.batches += 1
        estimate.service_ns += service_ns
        estimate.error_ns += abs(service_ns - predicted_ns)
        off_ns = service_ns - estimate.predicted_ns
        estimate.predicted_ns += off_ns >> (RISE_SHIFT if off_ns > 0 else FALL_SHIFT)

    def statistics(self) -> tuple[KindService, ...]:
        return tuple(
            KindService(kind, one.batches, one.predicted_ns, one.service_ns // one.batches, one.error_ns // one.batches)
            for kind, one in self._estimates.items()
        )
