"""What a tenant may use, and what is left of it for one call.

Theory of operation
    The store counts for all gateways: sessions by leases, starts by the minute, the rest by the day. So that nobody is
    asked for each frame, a call *draws* in advance: the store enters what it gives as used, in one step with the look
    at what is left, and the call spends that. What it has not spent goes back at its end; what a gateway that was
    killed had drawn counts as used.

    A response takes the tokens that it may sample at most before it is made, and gives back what it did not need. Where
    they are not at hand it waits for a draw, and it is refused once the store has no more.

Rules
* The sum of what is given never exceeds a quota, however many ask in the same instant.
* Only what has a quota is counted.
* Sound and messages that are on their way already are never refused: what they use beyond what is at hand is a debt,
  and drawn next. A call whose debt the store will not cover is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import msgspec

STARTS_PER_MINUTE_MAX = 6_000  # the store remembers each for a minute
Limit = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]

# What is drawn at a time. Less would ask the store more often; more lies idle in calls while others are refused.
AUDIO_MS_DRAWN = 30_000
BYTES_DRAWN = 4 << 20
TOOL_CALLS_DRAWN = 4
RESPONSES_DRAWN = 2  # tokens of so many responses: one is said, another is prepared

Kind = Literal["audio_ms", "tokens", "bytes", "tool_calls"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# What no call can do without; of tokens or tool calls only a response, or a call of one, is refused.
VITAL: tuple[Kind, ...] = ("audio_ms", "bytes")


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tenant may use; None: as much as there is. A day is one of UTC. `audio_seconds_per_day` counts sound from
    the caller and to the caller, `bytes_per_day` messages both ways, `tokens_per_day` those that models sample."""

    sessions: Limit | None = None
    starts_per_minute: Annotated[int, msgspec.Meta(ge=1, le=STARTS_PER_MINUTE_MAX)] | None = None
    audio_seconds_per_day: Limit | None = None
    tokens_per_day: Limit | None = None
    bytes_per_day: Limit | None = None
    tool_calls_per_day: Limit | None = None

    def of_day(self, kind: Kind) -> int | None:
        """The day's quota of `kind`."""
        seconds = self.audio_seconds_per_day
        days: dict[Kind, int | None] = {
            "audio_ms": None if seconds is None else seconds * 1_000,
            "tokens": self.tokens_per_day,
            "bytes": self.bytes_per_day,
            "tool_calls": self.tool_calls_per_day,
        }
        return days[kind]


NO_QUOTAS = Quotas()
Amounts = dict[Kind, int]


@dataclass(frozen=True, slots=True)
class OverQuota:
    """The store has refused a session. `quota`: the name of the one that is used up."""

    quota: str
    retry_ms: int


@dataclass(frozen=True, slots=True)
class Account:
    """What the store has `given` of what was wanted, on which `day` (since 1970, by its clock)."""

    day: int
    given: Amounts


# What the quota of a kind is called where its tenant is told of it.
QUOTA_NAMES: dict[Kind, str] = {
    "audio_ms": "audio_seconds_per_day",
    "tokens": "tokens_per_day",
    "bytes": "bytes_per_day",
    "tool_calls": "tool_calls_per_day",
}

Verdict = Literal["granted", "waits", "refused"]


class Allowance:
    """What one call may still use of what its tenant's `quotas` limit. `tokens_usual`: of a response, at most."""

    def __init__(self, quotas: Quotas = NO_QUOTAS, tokens_usual: int = 0) -> None:
        self._left: Amounts = {kind: 0 for kind in KINDS if quotas.of_day(kind) is not None}
        self._targets: Amounts = {
            "audio_ms": AUDIO_MS_DRAWN,
            "tokens": RESPONSES_DRAWN * tokens_usual,
            "bytes": BYTES_DRAWN,
            "tool_calls": TOOL_CALLS_DRAWN,
        }
        self._exhausted: set[Kind] = set()
        self._reserved: dict[str, int] = {}

    # ---- the store ---------------------------------------------------------------------------------

    def wanted(self) -> Amounts:
        """What to draw now; empty where there is enough of everything. It is drawn when half of it is spent."""
        short = {kind: self._targets[kind] - left for kind, left in self._left.items()}
        return {kind: lack for kind, lack in short.items() if lack > 0 and 2 * lack >= self._targets[kind]}

    def drawn(self, wanted: Amounts, given: Amounts) -> None:
        """The store was asked for `wanted`, and has `given` so much of it."""
        for kind, asked in wanted.items():
            got = given.get(kind, 0)
            self._left[kind] += got
            if got < asked:
                self._exhausted.add(kind)
            else:
                self._exhausted.discard(kind)

    def unspent(self) -> Amounts:
        """What goes back to the store at the end."""
        self._left = {kind: left + self._reserved_of(kind) for kind, left in self._left.items()}
        self._reserved.clear()
        return {kind: left for kind, left in self._left.items() if left > 0}

    def _reserved_of(self, kind: Kind) -> int:
        return sum(self._reserved.values()) if kind == "tokens" else 0

    # ---- what is used ------------------------------------------------------------------------------

    def spend(self, kind: Kind, amount: int) -> None:
        """So much was used, whether or not it was at hand."""
        if kind in self._left:
            self._left[kind] -= amount

    def take(self, kind: Kind) -> bool:
        """Use one of `kind`; False where none is at hand."""
        if self._left.get(kind, 1) < 1:
            return False
        self.spend(kind, 1)
        return True

    @property
    def overdrawn(self) -> str:
        """The quota that has ended the call; empty where none has."""
        over = (kind for kind in VITAL if kind in self._exhausted and self._left[kind] <= 0)
        return next((QUOTA_NAMES[kind] for kind in over), "")

    # ---- responses ---------------------------------------------------------------------------------

    def reserve(self, response: str, tokens: int) -> Verdict:
        """Take the `tokens` that `response` may sample at most."""
        if "tokens" not in self._left or response in self._reserved:
            return "granted"
        if self._left["tokens"] >= tokens:
            self._left["tokens"] -= tokens
            self._reserved[response] = tokens
            return "granted"
        self._targets["tokens"] = max(self._targets["tokens"], RESPONSES_DRAWN * tokens)
        return "refused" if "tokens" in self._exhausted else "waits"

    def settle(self, response: str, tokens: int) -> None:
        """`response` is over, and has sampled so many."""
        if response in self._reserved:
            self._left["tokens"] += self._reserved.pop(response) - tokens
