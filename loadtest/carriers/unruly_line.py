"""The way between a carrier and the service, and what goes wrong on it: seeded, bounded, counted.

Theory of operation
    What the carrier sends goes through `take`, and comes out of `due` at its time, in order. A stall holds up all that
    is behind it, as a lost packet does under TCP. Sound may be lost, come twice or behind what follows it; and what no
    carrier should send comes in between.

Rules
* Only sound is lost, doubled or swapped: what else a carrier says is never lost.
* At most `faults_max` of each kind happen; `played` counts them, so that a test can show that each did.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from loadtest.carriers.effects import Send

NS_PER_MS = 1_000_000


class Fault(StrEnum):
    """What can happen to a message. The last four are put in between others."""

    STALL = "stall"
    LOSS = "loss"
    DOUBLE = "double"
    SWAP = "swap"
    OTHER_STREAM = "other_stream"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    BINARY = "binary"


FORGED = (Fault.OTHER_STREAM, Fault.MALFORMED, Fault.OVERSIZED, Fault.BINARY)


@dataclass(frozen=True, slots=True)
class Habits:
    """How often each fault befalls a message of sound (0 to 1), and how long a stall takes.

    `early_sounds`: so many messages of sound overtake the message that opens the stream. `read_pause_ms`: for so long
    the carrier does not look at its socket after each message. `skew_ppm`: how much faster than others its clock is.
    """

    shares: Mapping[Fault, float]
    stall_ms: tuple[int, int] = (10, 25)
    faults_max: int = 1_000
    early_sounds: int = 0
    read_pause_ms: int = 0
    skew_ppm: int = 0

    def __post_init__(self) -> None:
        assert all(0 <= share <= 1 for share in self.shares.values())
        assert 0 <= self.stall_ms[0] <= self.stall_ms[1]


ORDERLY = Habits({})

# Above the 64 KiB that services take on a telephone's connection.
OVERSIZED_BYTES = 70_000


class UnrulyLine:
    """From one carrier to the service. `forgeries`: the messages that are put in between."""

    def __init__(self, habits: Habits, chance: Random, forgeries: Mapping[Fault, str | bytes]) -> None:
        self.played: Counter[Fault] = Counter()
        self._habits = habits
        self._chance = chance
        self._forgeries = forgeries
        self._waiting: deque[tuple[int, str | bytes]] = deque()
        self._opening: list[Send] = []
        self._early_sounds = habits.early_sounds
        self._swapped: str | bytes | None = None

    @property
    def next_due_ns(self) -> int | None:
        """When the next message comes out."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def last_due_ns(self) -> int:
        """When all that is on the line has come out."""
        return self._waiting[-1][0] if self._waiting else 0

    def open(self, sends: list[Send], now_ns: int) -> None:
        """What begins the stream; it may be overtaken."""
        if self._early_sounds:
            self._opening = sends
        else:
            self._put_all(sends, now_ns)

    def take(self, send: Send, now_ns: int) -> None:
        """The carrier sends something."""
        if self._opening and (not send.is_sound or self._early_sounds == 0):
            self._put_all(self._opening, now_ns)
            self._opening = []
        if not send.is_sound:
            self._put(send.message, now_ns)
            return
        self._early_sounds = max(0, self._early_sounds - 1)
        self._mishandle(send.message, now_ns)

    def due(self, now_ns: int) -> list[str | bytes]:
        """What reaches the service by now."""
        out: list[str | bytes] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            out.append(self._waiting.popleft()[1])
        return out

    def _mishandle(self, message: str | bytes, now_ns: int) -> None:
        for fault in FORGED:
            if fault in self._forgeries and self._happens(fault):
                self._put(self._forgeries[fault], now_ns)
        if self._happens(Fault.LOSS):
            return
        if self._swapped is None and self._happens(Fault.SWAP):
            self._swapped = message
            return
        self._put(message, now_ns)
        if self._happens(Fault.DOUBLE):
            self._put(message, now_ns)
        if self._swapped is not None:
            self._put(self._swapped, now_ns)
            self._swapped = None

    def _put_all(self, sends: list[Send], now_ns: int) -> None:
        for send in sends:
            self._put(send.message, now_ns)

    def _put(self, message: str | bytes, now_ns: int) -> None:
        stall_ms = self._chance.randint(*self._habits.stall_ms) if self._happens(Fault.STALL) else 0
        behind_ns = self._waiting[-1][0] if self._waiting else now_ns
        self._waiting.append((max(behind_ns, now_ns) + stall_ms * NS_PER_MS, message))

    def _happens(self, fault: Fault) -> bool:
        share = self._habits.shares.get(fault, 0.0)
        if self.played[fault] >= self._habits.faults_max or self._chance.random() >= share:
            return False
        self.played[fault] += 1
        return True
