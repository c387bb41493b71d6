"""Whether a process still lives, as opposed to merely existing: pings that come back, and steps that end.

Theory of operation
    Its keeper calls `tick` at every `interval_ns` of its own loop and sends the ping that it gives; the process answers
    each with the age of its oldest running step. Silence is counted in pings that were not answered, not read from a
    clock: while the keeper itself does not run, paused or starved, it sends none, and so it blames nobody for its own
    absence.

Rules
* `silence_ns_max` without an answer is a hang, and so is a step that runs longer than `step_ns_max`.
* An answer to any ping proves life at the moment of that ping, and excuses no later one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.messages import Ping, Pong

PINGS_PER_SILENCE = 4  # a lost tick more or less must not matter; each costs about 50 µs


@dataclass(frozen=True, slots=True)
class Hung:
    """`why`: silence or step."""

    why: str


class Liveness:
    """One process. `step_ns_max` 0: it runs no steps."""

    def __init__(self, silence_ns_max: int, step_ns_max: int = 0) -> None:
        self._silence_ns_max = silence_ns_max
        self._step_ns_max = step_ns_max
        self._sent = 0
        self._answered = 0

    @property
    def interval_ns(self) -> int:
        return self._silence_ns_max // PINGS_PER_SILENCE

    def tick(self) -> Ping | Hung:
        """An interval has passed in which the keeper ran."""
        if self._sent - self._answered >= PINGS_PER_SILENCE:
            return Hung("silence")
        self._sent += 1
        return Ping(self._sent)

    def pong(self, pong: Pong) -> Hung | None:
        """The process has answered."""
        if self._answered < pong.sequence <= self._sent:
            self._answered = pong.sequence
        if self._step_ns_max and pong.step_age_ns > self._step_ns_max:
            return Hung("step")
        return None
