"""When a player gets to what, by its reports: it plays one response after the other, and may stand still.

Theory of operation
    A report tells that a response was heard up to a sample. The ear was there when it was made, which is no later than
    it came (`Between`). From there on the player hears no more than time has passed, and what follows begins when the
    response has been played to its end, or was thrown away. So reports of one response also tell of those behind it:
    none of them has begun before, though all of it was due long ago.

Rules
* A report is of a player that goes on. One that stands still says so by the next, which takes the place of the last.
* While a client still reports a response, it is at no other, also where that one has ended, or was thrown away; it does
  so until `SAID_AGAIN_NS` have gone by. It may have ended long before that, and more may have been heard of the next.
"""

from __future__ import annotations

from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NEVER_NS = 2**63
SAID_AGAIN_NS = 200_000_000  # reports come ten times a second, and one may be late


@dataclass(frozen=True, slots=True)
class Between:
    """A moment: no sooner than `first_ns`, and no later than `last_ns` unless the player stands still."""

    first_ns: int
    last_ns: int

    def after(self, ns: int) -> Between:
        return Between(self.first_ns + ns, self.last_ns + ns)

    def or_sooner(self, other: Between | None) -> Between:
        if other is None:
            return self
        return Between(min(self.first_ns, other.first_ns), min(self.last_ns, other.last_ns))

    def or_later(self, other: Between | None) -> Between:
        if other is None:
            return self
        return Between(max(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns))


@dataclass(slots=True)
class Reported:
    """What is known of a response by its client, in samples at `rate`. `heard`: so much was, or more; `at`: when the
    ear came there, None before the first report; `thrown`: when its client threw away the rest, None if it did not."""

    rate: int
    heard: int = 0
    at: Between | None = None
    thrown: Between | None = None

    def report(self, samples: int, made: Between, *, end: int | None) -> None:
        """`samples` were heard by the moment `made`; the response ends with its sample `end`, where that was sent."""
        first_ns = made.first_ns
        if samples == end:  # it may have come there long before its client said so
            ended_ns = 0 if self.at is None else self.after(self.at, samples).first_ns
            first_ns = min(ended_ns, first_ns)
        self.at = Between(first_ns, made.last_ns)
        self.heard = max(self.heard, samples)

    def begun(self, free: Between | None) -> Between | None:
        """When the ear was at what was `heard`; what is before the response is over at the moment `free`."""
        if self.at is None:
            return free
        return self.at if self.heard else self.at.or_later(free)

    def after(self, begun: Between, sent: int) -> Between:
        """When it has played up to `sent`, if it was at what was `heard` at the moment `begun`."""
        return begun.after(-(-(sent - self.heard) * NS_PER_S // self.rate))

    def over(self, free: Between | None, sent: int) -> Between | None:
        """When what follows begins to sound; None where no report tells."""
        begun = self.begun(free)
        if begun is None:
            return None
        end = self.after(begun, sent)
        if self.thrown is not None:
            first_ns = self.thrown.or_later(None if self.heard else free).first_ns
            end = end.or_sooner(Between(first_ns, max(self.thrown.last_ns, begun.last_ns)))
        return end if self.at is None else Between(end.first_ns, max(end.last_ns, self.at.last_ns + SAID_AGAIN_NS))
