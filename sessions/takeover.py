"""A session goes over to another call: whether it does, and what its client still holds open from before.

Theory of operation
    A client that has gone on already may have left another request behind, at a gateway that stood still and finds it
    as it wakes. Such a request is *outdated*: its client had seen no more than an owner before the present one, and is
    there at that one.

    Ends of responses went with the connection that had them. The client that comes back names those that it holds open.
    Nobody else knows of them any more, so each is ended, once, as failed; what was stored of it is history all the
    same. A stage says that the session is open there when it holds nothing of whoever had the session before
    (`stages.stage`). When every stage has said so, the responses have drained.

Rules
* Nothing is told before the client is there; what stages say until then counts.
* A drain that takes longer than `drain_ns_max` is told as orphaned.
"""

from __future__ import annotations

from collections.abc import Iterable

from sessions.effects import Tell
from sessions.events import ResponseDrained, ResponseLost
from sessions.response import Deadlines

# Owners: a fail-over loses seconds, in which no client comes back more often.
FORGOTTEN_MAX = 1_000


def is_outdated(seen_fence: int, fence: int, *, is_there: bool) -> bool:
    """A client that had seen `seen_fence` (0: it does not say) when it asked has gone on with the owner `fence` since,
    at which it is there."""
    return is_there and 0 < seen_fence < fence


def is_believable(seen_fence: int, stored_fence: int) -> bool:
    """A client can have seen the owner `seen_fence` of a session of which the store knows `stored_fence`: a store that
    has gone back has forgotten a few."""
    return seen_fence - stored_fence <= FORGOTTEN_MAX


def is_overtaken(fence: int, present_fence: int) -> bool:
    """Who has taken a session over as the owner `fence` has lost it already: to `present_fence`, who took it later and
    heard of that sooner, as answers of a store come in any order."""
    return present_fence > fence


class Takeover:
    """`responses`: as the client named them. `stages`: those that the session is opened at."""

    def __init__(self, responses: Iterable[str], stages: Iterable[str], deadlines: Deadlines | None = None) -> None:
        self._responses = tuple(dict.fromkeys(responses))
        self._unopened = set(stages)
        self._drain_ns_max = (deadlines or Deadlines()).drain_ns_max
        self._told_ns: int | None = None

    def next_deadline_ns(self) -> int | None:
        return None if self._told_ns is None else self._told_ns + self._drain_ns_max

    def tell(self, now_ns: int) -> list[Tell]:
        """The client is there."""
        if not self._responses:
            return []
        self._told_ns = now_ns
        return [*(Tell(ResponseLost(response)) for response in self._responses), *self._check_drained(now_ns)]

    def opened(self, stage: str, now_ns: int) -> list[Tell]:
        """`stage` holds nothing of the owner before."""
        self._unopened.discard(stage)
        return self._check_drained(now_ns)

    def tick(self, now_ns: int) -> list[Tell]:
        """Act on the deadline, if it has passed."""
        due_ns = self.next_deadline_ns()
        return self._drained("orphaned", now_ns) if due_ns is not None and now_ns >= due_ns else []

    def _check_drained(self, now_ns: int) -> list[Tell]:
        return [] if self._unopened or self._told_ns is None else self._drained("complete", now_ns)

    def _drained(self, status: str, now_ns: int) -> list[Tell]:
        assert self._told_ns is not None, "what drains was ended"
        lag_ms = round((now_ns - self._told_ns) / 1e6, 1)
        responses, self._responses, self._told_ns = self._responses, (), None
        return [Tell(ResponseDrained(response, status, lag_ms, ())) for response in responses]
