"""What a stream has made and its readers have not taken yet: one list, and a place in it for each edge.

Theory of operation
    An output goes by every edge that carries its payload; what is no payload goes to the gateway. Each edge takes
    outputs in their order, as far as its credit reaches; what all have taken is dropped. While a reader lags, the
    stream is given no further step, so the list holds no more than one step makes.

Rules
* The slowest reader loses nothing.
* What goes to the gateway waits for its turn among what is handed on: text runs ahead of its speech by no more than
  the windows do.
* Each unit of credit that was taken is entered in the event log, and so is its end: granted, or closed or lost with its
  edge.
* Nobody waits for an observer: its window is the most that a response can have. An output beyond that, or the loss of
  its link, ends its edge and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stages.contracts import AudioOut, label_of, payload_of
from stages.credit import Credit, CreditAccount
from stages.edges import GATEWAY, OutEdge
from stages.event_log import NO_TRAIL, EventKind, Trail
from stages.stream import Emit, Publish, StageFailure

# The sound in a full window of latents, codec frames or clauses, at least; that of audio is counted.
WINDOW_LEAD_NS = 400_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """`output` goes to `target` now; its credit is taken."""

    target: str
    output: Emit | Publish


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The response has more than its maximum for the observer `target`, which gets no more of it."""

    target: str


@dataclass(frozen=True, slots=True)
class Overrun:
    """`units` can never go by an edge of `window`: the stream cannot go on."""

    units: int
    window: int

    @property
    def message(self) -> str:
        return f"{self.units} units never fit the window of {self.window}"


@dataclass(slots=True)
class _Lane:
    """One edge, as this stream uses it. `place` counts the outputs that it has behind it. No `edge`: the gateway takes
    events, and no payload."""

    target: str
    edge: OutEdge | None
    credit: Credit | None
    place: int = 0

    @property
    def payload(self) -> str:
        return self.edge.payload if self.edge is not None else ""

    @property
    def is_observed(self) -> bool:
        return self.edge is not None and self.edge.observed

    def carries(self, output: Emit | Publish) -> bool:
        payload = payload_of(output.item if isinstance(output, Emit) else output.event)
        if payload is None:
            return self.target == GATEWAY
        return self.edge is not None and self.edge.payload == payload

    def never_fits(self, units: int) -> bool:
        if self.edge is None or self.credit is None:
            return False
        # Where nothing comes back before the end, what does not fit now never will.
        room = self.edge.window if self.edge.need == "chunks" else self.credit.available
        return units > room

    def lacks(self, units: int) -> bool:
        """There is too little credit for `units`, and the stream must wait for it."""
        return self.credit is not None and not self.is_observed and units > self.credit.available

    def lead_ns(self, sample_rate: int) -> int | None:
        """The sound that the reader has not used up; None where it gives nothing back as it goes."""
        if self.edge is None or self.credit is None or self.is_observed or self.edge.need != "chunks":
            return None
        in_flight = self.credit.window - self.credit.available
        if self.edge.payload == "audio":
            return in_flight * 1_000_000_000 // sample_rate if in_flight else 0
        return WINDOW_LEAD_NS * in_flight // self.credit.window


@dataclass(slots=True)
class Outbox:
    """`edges`: those that the stream uses. `accounts`: of the stage's edges, by target. `trail`: where its credit is
    entered."""

    edges: Sequence[OutEdge]
    accounts: Mapping[str, CreditAccount] = field(default_factory=dict)
    trail: Trail = NO_TRAIL
    _waiting: deque[Emit | Publish] = field(default_factory=deque)
    _dropped: int = 0
    _sample_rate: int = 0
    _units_wanted: int = 0  # of a step for which there was no room
    _lanes: list[_Lane] = field(default_factory=list)

    def __post_init__(self) -> None:
        lanes = {
            edge.target: _Lane(edge.target, edge, Credit(edge.window, self.accounts.get(edge.target)))
            for edge in self.edges
        }
        gateway = lanes.pop(GATEWAY, _Lane(GATEWAY, None, None))
        self._lanes = [*lanes.values(), gateway]  # the gateway's turn depends on how far the others have come

    @property
    def waits(self) -> bool:
        """A reader lags; observers are none."""
        return any(self._is_behind(lane) for lane in self._lanes)

    @property
    def untaken(self) -> int:
        """Outputs that not every reader has taken."""
        return len(self._waiting)

    def credit_out(self, target: str) -> int:
        """Units that `target` has."""
        lanes = (lane for lane in self._lanes if lane.target == target)
        return sum(lane.credit.window - lane.credit.available for lane in lanes if lane.credit is not None)

    @property
    def _end(self) -> int:
        return self._dropped + len(self._waiting)

    def uses(self, target: str) -> bool:
        return any(lane.target == target for lane in self._lanes)

    def add(self, output: Emit | Publish) -> StageFailure | None:
        """The stream has made `output`. What no edge carries goes nowhere: a text that is not to be spoken.

        Gives what is wrong with one that no engine may make, which is not taken.
        """
        carriers = [lane for lane in self._lanes if lane.carries(output)]
        if not carriers and isinstance(output, Publish):
            return StageFailure("wrong_output", f"no edge carries the {label_of(output.event)} that was published")
        if carriers:
            self._waiting.append(output)
        if isinstance(output, Publish) and isinstance(output.event, AudioOut):
            self._sample_rate = output.event.sample_rate
        return None

    def take(self) -> list[Taken | GivenUp | Overrun]:
        """All that may go now. After an `Overrun`, which is the last, the stream must end."""
        moves: list[Taken | GivenUp | Overrun] = []
        for lane in list(self._lanes):
            moves += self._advance(lane)
            if moves and isinstance(moves[-1], Overrun):
                return moves
        first = min(lane.place for lane in self._lanes)
        while self._dropped < first:
            self._waiting.popleft()
            self._dropped += 1
        return moves

    def _advance(self, lane: _Lane) -> list[Taken | GivenUp | Overrun]:
        moves: list[Taken | GivenUp | Overrun] = []
        end = self._end
        if lane.target == GATEWAY:
            end = min(
                (other.place for other in self._lanes if not other.is_observed and other is not lane), default=end
            )
        while lane.place < end:
            output = self._waiting[lane.place - self._dropped]
            if lane.carries(output):
                if lane.never_fits(output.units):
                    return [*moves, self._overrun(lane, output.units)]
                if not self._take(lane, output.units):
                    break
                moves.append(Taken(lane.target, output))
            lane.place += 1
        return moves

    def _take(self, lane: _Lane, units: int) -> bool:
        if lane.credit is None:
            return True
        if not lane.credit.take(units):
            return False
        if units:
            self.trail.add(EventKind.CREDIT_TAKEN, units, lane.target, lane.payload)
        return True

    def _overrun(self, lane: _Lane, units: int) -> GivenUp | Overrun:
        assert lane.credit is not None, "only credit runs out"
        if lane.is_observed:
            self.lose(lane.target)
            return GivenUp(lane.target)
        return Overrun(units, lane.credit.window)

    # ---- credit ----------------------------------------------------------------------------------

    def overrun_by(self, units: int) -> Overrun | None:
        """Why a step that may make `units` can never run, if that is so."""
        for lane in self._lanes:
            if not lane.is_observed and lane.credit is not None and lane.never_fits(units):
                return Overrun(units, lane.credit.window)
        return None

    def has_room(self, units: int) -> bool:
        """There is credit for a step that may make `units`."""
        has_room = not any(lane.lacks(units) for lane in self._lanes)
        self._units_wanted = 0 if has_room else units
        return has_room

    def waiting(self) -> dict[str, int]:
        """The edges whose credit holds the stream up now, each with a number that rises whenever it moves."""
        return {
            lane.target: lane.credit.moves
            for lane in self._lanes
            if lane.credit is not None and (lane.lacks(self._units_wanted) or self._is_held_up(lane))
        }

    def _is_held_up(self, lane: _Lane) -> bool:
        """It lacks credit for its next output, and does not just wait for its turn."""
        if not self._is_behind(lane):
            return False
        output = self._waiting[lane.place - self._dropped]
        return lane.carries(output) and lane.lacks(output.units)

    def _is_behind(self, lane: _Lane) -> bool:
        return lane.place < self._end and not lane.is_observed

    @property
    def lead_ns(self) -> int | None:
        """The sound that the reader with the least still has, as far as credit tells; None where no edge tells."""
        leads_ns = (lane.lead_ns(self._sample_rate) for lane in self._lanes)
        return min((lead_ns for lead_ns in leads_ns if lead_ns is not None), default=None)

    def give_back(self, target: str, units: int) -> bool:
        """`units` come back from `target`. False where it has no credit; raises `CreditError` for more than it had."""
        lane = next((lane for lane in self._lanes if lane.target == target), None)
        if lane is None or lane.credit is None:
            return False
        lane.credit.give_back(units)
        self._returned(lane, units, "granted")
        return True

    def lose(self, target: str) -> None:
        """Nothing more goes to `target`."""
        self._close([lane for lane in self._lanes if lane.target == target], "lost")
        self._lanes = [lane for lane in self._lanes if lane.target != target]

    def close(self) -> None:
        """The stream has ended: what its readers still have comes back to nobody."""
        self._close(self._lanes, "closed")

    def _close(self, lanes: Sequence[_Lane], cause: str) -> None:
        for lane in lanes:
            if lane.credit is not None:
                self._returned(lane, lane.credit.window - lane.credit.available, cause)
                lane.credit.close()

    def _returned(self, lane: _Lane, units: int, cause: str) -> None:
        if units:
            self.trail.add(EventKind.CREDIT_RETURNED, units, lane.target, lane.payload, cause)
