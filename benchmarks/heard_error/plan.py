"""What the callers do, drawn from a seed.

Rules
* Every call makes the same number of cuts. In every other one the last is to hang up, after which no report can come.
* A deed is one that the transport and the moment allow: nothing is cancelled after its end, and over WebRTC nothing can
  be thrown away.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.live.coded_caller import Delay, Network, Reports, at_once

CUTS_PER_CALL = 5

Transport = Literal["websocket", "webrtc", "twilio", "asterisk"]
Conditions = Literal["prompt", "uneven", "slow"]
# `cancel`: the caller plays on until the cancel is answered; `stop`, `clear`: it throws away at once what it has not
# played, and cancels or clears; `speak`: by voice; `key`: by one of a telephone,
# where commands come by a second connection.
Deed = Literal["cancel", "stop", "clear", "speak", "key", "hang_up"]
# `before` the first word, `inside` the reply, about its `end`, and `after_done`, while sound is unplayed.
Moment = Literal["before", "inside", "end", "after_done"]

# A carrier reports by its marks, and by the length of its queue.
REPORTS: dict[Transport, tuple[Reports, ...]] = {
    "websocket": ("acks", "truncates", "none"),
    "webrtc": ("acks", "none"),
    "twilio": ("acks",),
    "asterisk": ("acks",),
}
CONDITIONS: dict[Transport, tuple[Conditions, ...]] = {
    "websocket": ("prompt", "uneven", "slow"),
    "webrtc": ("prompt", "uneven", "slow"),
    "twilio": ("prompt",),
    "asterisk": ("prompt",),
}
MOMENTS: tuple[Moment, ...] = ("before", "inside", "inside", "inside", "end", "after_done")
DEEDS: dict[Transport, tuple[Deed, ...]] = {
    "websocket": ("cancel", "stop", "clear", "speak"),
    "webrtc": ("cancel", "clear", "speak"),
    "twilio": ("cancel", "clear", "speak", "key"),
    "asterisk": ("cancel", "clear", "speak", "key"),
}
DEEDS_AFTER_DONE: dict[Transport, tuple[Deed, ...]] = {
    "websocket": ("clear", "speak"),
    "webrtc": ("speak",),
    "twilio": ("clear", "speak", "key"),
    "asterisk": ("clear", "speak", "key"),
}

BUFFER_MS = 40  # the least that players have
DOWN_MS, DOWN_MORE_MS, BUFFER_UNEVEN_MS = 100, 80, 80
UP_MS, UP_MORE_MS = 60, 60
STALL_MS, STALL_EVERY = 400, 50


@dataclass(frozen=True, slots=True)
class Cut:
    """`share`, from 0 to 1, says where within the moment."""

    deed: Deed
    moment: Moment
    share: float


@dataclass(frozen=True, slots=True)
class CallPlan:
    transport: Transport
    conditions: Conditions
    reports: Reports
    cuts: tuple[Cut, ...]
    seed: int

    def network(self) -> Network:
        """As the conditions are. `uneven`: 100 ms and up to 80 more, which the client's jitter buffer makes up for, and
        60 and up to 60 more on the way back; `slow`: a client that stands still for 400 ms every 50 messages."""
        dice = random.Random(self.seed)
        if self.conditions == "uneven":
            return Network(_between(dice, DOWN_MS, DOWN_MORE_MS), _between(dice, UP_MS, UP_MORE_MS), BUFFER_UNEVEN_MS)
        return Network(_stalls(dice) if self.conditions == "slow" else at_once, at_once, BUFFER_MS)


def _between(dice: random.Random, least_ms: int, more_ms: int) -> Delay:
    return lambda: least_ms + dice.randrange(more_ms)


def _stalls(dice: random.Random) -> Delay:
    turns = itertools.cycle([STALL_MS, *[at_once()] * (STALL_EVERY - 1)])
    for _ in range(dice.randrange(STALL_EVERY)):
        next(turns)
    return lambda: next(turns)


def plan_calls(transport: Transport, cuts: int, seed: int) -> list[CallPlan]:
    """Calls with `cuts` cuts in all, rounded up to whole calls."""
    kinds = itertools.cycle(itertools.product(REPORTS[transport], CONDITIONS[transport]))
    calls = -(-cuts // CUTS_PER_CALL)
    return [
        CallPlan(transport, conditions, reports, tuple(_cuts(transport, number, seed + number)), seed + number)
        for number, (reports, conditions) in enumerate(itertools.islice(kinds, calls))
    ]


def _cuts(transport: Transport, number: int, seed: int) -> Iterator[Cut]:
    dice = random.Random(f"{transport}/{seed}")
    for place in range(CUTS_PER_CALL):
        moment = dice.choice(MOMENTS)
        deeds = (DEEDS_AFTER_DONE if moment == "after_done" else DEEDS)[transport]
        hangs_up = place == CUTS_PER_CALL - 1 and number % 2 == 1
        yield Cut("hang_up" if hangs_up else dice.choice(deeds), moment, dice.random())
