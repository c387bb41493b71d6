"""A caller's ear: when each sample that arrives is played, and so what has been heard by any moment.

Theory of operation
    Sound plays in the order of its coming, at its own rate. All of it is known as soon as it is on its way, so the past
    and the future of an ear can be asked.

Rules
* A client that flushes throws away what it has not played by then. A caller who is gone hears no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from media.heard_estimate import NS_PER_S


@dataclass(slots=True)
class _Span:
    """`rate`: samples per second."""

    start_ns: int
    start_sample: int
    samples: int
    rate: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.samples * NS_PER_S // self.rate

    def played_by(self, at_ns: int) -> int:
        return max(0, min(self.samples, (at_ns - self.start_ns) * self.rate // NS_PER_S))


class Ear:
    def __init__(self) -> None:
        self._spans: dict[str, list[_Span]] = {}
        self._flushed: set[str] = set()
        self._torn: set[str] = set()
        self.quiet_from_ns = 0
        """When everything has been played that is on its way."""

    def knows(self, response: str) -> bool:
        """Something of it has come, and did not go on after it was thrown away."""
        return response in self._spans and response not in self._torn

    def unplayed(self, at_ns: int) -> list[str]:
        """Responses of which something is yet to be played by then."""
        return [response for response, spans in self._spans.items() if spans and spans[-1].end_ns > at_ns]

    def take(self, response: str, samples: tuple[int, int], rate: int, earliest_ns: int) -> None:
        """These `samples` of `response` (the first, and the one after the last) are played after everything that came
        before, and not before `earliest_ns`."""
        start_sample, end_sample = samples
        spans = self._spans.setdefault(response, [])
        if response in self._flushed:
            self._torn.add(response)
        start_ns = max(self.quiet_from_ns, earliest_ns)
        last = spans[-1] if spans else None
        if last is not None and (last.end_ns, last.start_sample + last.samples) == (start_ns, start_sample):
            last.samples += end_sample - start_sample
        else:
            last = _Span(start_ns, start_sample, end_sample - start_sample, rate)
            spans.append(last)
        self.quiet_from_ns = last.end_ns

    def flush(self, response: str, at_ns: int) -> None:
        """What of `response` has not been played by then never will be."""
        kept = [span for span in self._spans[response] if span.start_ns < at_ns]
        for span in kept[-1:]:
            span.samples = span.played_by(at_ns)
        self._spans[response] = kept
        self._flushed.add(response)

    def fall_silent(self, at_ns: int) -> None:
        """Nothing is left that would have been played after `at_ns`, but for what was not flushed."""
        ends_ns = [spans[-1].end_ns for spans in self._spans.values() if spans]
        self.quiet_from_ns = min(self.quiet_from_ns, max([at_ns, *ends_ns]))

    def heard(self, response: str, at_ns: int) -> int:
        """Up to which sample `response` has been played by then."""
        for span in reversed(self._spans.get(response, ())):
            if at_ns > span.start_ns:
                return span.start_sample + span.played_by(at_ns)
        return 0
