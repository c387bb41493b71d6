"""What workers that were lost may still hold, and when the end of a stream may be told.

Theory of operation
    A worker whose links are gone may hold what it was asked for. A stream that had begun there has ended with it. One
    of which nobody had seen anything is asked for again, elsewhere or of the successor; since the first order may have
    arrived all the same, its end, whoever tells it, waits until the first worker holds nothing of it either.

    A worker holds nothing any more when its process is dead for certain, as a higher incarnation tells; when it answers
    that there is nothing; or when it says the last word of that stream itself. It is asked as soon as it is reached
    again, and `PROBE_AGAIN_NS` after each answer that there is still something.

Rules
* Each loss is accounted for once. One that had begun is then told to have ended; of the others, the end that waits is
  told with the last of them. That a stream came to nothing is told at once.
* Each question is about all losses of that stream there, as its answer is. Who is reached anew is asked anew, and not
  what he was to be asked before.
* What is kept is bounded by the streams of the replicas (`stages.pool`), each as often as it was asked for in vain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stages.contracts import Tag
from stages.messages import Audited, Closed, Refused

PROBE_AGAIN_NS = 200_000_000  # a running step comes back within about 150 ms


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `replica`, if it is there, what it holds of `tag`."""

    replica: str
    tag: Tag


@dataclass(frozen=True, slots=True)
class AskLater:
    """Give this to `ask_again` in `PROBE_AGAIN_NS`. `reached`: how often the replica had been by now."""

    replica: str
    tag: Tag
    reached: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream has ended, with this last word, and nobody holds anything of it."""

    last: Closed | Refused


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream `tag` came to nothing; its end follows."""

    tag: Tag


Effect = Ask | AskLater | Ended | Failed


@dataclass(frozen=True, slots=True)
class Loss:
    """What a worker, as the process `incarnation`, may hold of `tag`. `had_begun`: the stream has ended with it."""

    tag: Tag
    incarnation: int
    had_begun: bool

    def is_named(self, session: str, stream: str) -> bool:
        """A worker knows it by these."""
        return (self.tag.session, self.tag.key) == (session, stream)


class LostStreams:
    """What the `replicas` of one stage may hold of streams, out of reach."""

    def __init__(self, replicas: Iterable[str]) -> None:
        self._losses: dict[str, list[Loss]] = {name: [] for name in replicas}
        self._reached = dict.fromkeys(self._losses, 0)
        self._ends: dict[Tag, Closed] = {}  # those that wait for what may be held

    def __getitem__(self, replica: str) -> list[Loss]:
        """What `replica` may hold."""
        return self._losses[replica]

    def count(self, session: str, stream: str) -> int:
        """How many losses there are of the stream of that name."""
        return sum(one.is_named(session, stream) for losses in self._losses.values() for one in losses)

    def lose(self, replica: str, incarnation: int, tag: Tag, *, had_begun: bool) -> None:
        """The links to `replica`, as the process `incarnation`, are gone while it may hold `tag`."""
        self._losses[replica].append(Loss(tag, incarnation, had_begun))

    def reached(self, replica: str, incarnation: int) -> list[Effect]:
        """`replica` is there again: what an earlier process of it held is void, what this one holds is asked."""
        losses = self._losses[replica]
        dead = [one for one in losses if one.incarnation < incarnation]
        alive = self._losses[replica] = [one for one in losses if one.incarnation >= incarnation]
        self._reached[replica] += 1
        asks = [Ask(replica, tag) for tag in dict.fromkeys(one.tag for one in alive)]
        return [*self._given_back(dead, "process_exit"), *asks]

    def ask_again(self, later: AskLater) -> list[Effect]:
        """Its time has come."""
        is_lost = any(one.tag == later.tag for one in self._losses[later.replica])
        return [Ask(later.replica, later.tag)] if is_lost and later.reached == self._reached[later.replica] else []

    def answered(self, replica: str, answer: Audited) -> list[Effect] | None:
        """`replica` says what it holds. None where nothing that was lost is meant, and so somebody else has asked."""
        meant = [one for one in self._losses[replica] if one.is_named(answer.session, answer.stream)]
        if not meant:
            return None
        if answer.held:
            return [AskLater(replica, meant[0].tag, self._reached[replica])]
        self._losses[replica] = [one for one in self._losses[replica] if one not in meant]
        return self._given_back(meant, "link_lost")

    def ended(self, last: Closed | Refused, by: str | None = None) -> list[Effect]:
        """A stream is over. Where the replica `by` says so, it speaks for all that it was asked of that stream."""
        if by is not None:
            self._losses[by] = [one for one in self._losses[by] if one.had_begun or one.tag != last.tag]
        return self._end(last)

    def _given_back(self, losses: Iterable[Loss], how: str) -> list[Effect]:
        """A worker that was out of reach holds nothing of these any more."""
        effects: list[Effect] = []
        for one in losses:
            if one.had_begun:
                effects += self._end(Closed(one.tag, "cancelled", {how: 1}))
            elif one.tag in self._ends and not self._may_be_held(one.tag):
                effects += self._end(self._ends[one.tag])
        return effects

    def _end(self, last: Closed | Refused) -> list[Effect]:
        """Tell the end of a stream, or keep it until it can be told."""
        tag = last.tag
        if not self._may_be_held(tag):
            self._ends.pop(tag, None)
            return [Ended(last)]
        if isinstance(last, Refused):
            self._ends[tag] = Closed(tag, "cancelled", {})
            return [Failed(tag)]
        self._ends[tag] = last
        return [Failed(tag)] if last.outcome == "failed" else []

    def _may_be_held(self, tag: Tag) -> bool:
        losses = (one for at_replica in self._losses.values() for one in at_replica)
        return any(one.tag == tag and not one.had_begun for one in losses)
