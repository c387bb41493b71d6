"""What befalls a simulated world: drawn from a seed once, then data that can be cut down and read.

Theory of operation
    A plan is a list of *deeds*, each at its moment: the callers' (they speak, type, cancel, leave and come back) and
    the world's (processes stop and die, links break, hold and lag, the store fails). `chances` are what may go wrong
    anywhere at any time. A deed brings one number, `pick`, by which it chooses among what is there when it happens.
    Everything else that is drawn (delays, times of steps) comes from streams of chance that belong to one place each,
    so that a plan with a deed less is nearly the same world.

Rules
* Some deeds happen often in a plan, others never, so that each has its day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

LINE = ("encoder", "thinker", "talker", "vocoder")
REPLICAS = (1, 1, 1, 2)
SESSIONS = (1, 1, 1, 1, 2, 2, 2, 3, 4, 5)
TROUBLE_MS_MIN, TROUBLE_MS_MAX = 1_000, 5_000
# How long a response may take: longer than any does unless its client does not read, or as long as one does that
# nothing holds up, and then some are too long.
HURRIED_MS_MAX = 3_000
WHOLE_MS_MAX = (12_000, 12_000, 12_000, HURRIED_MS_MAX)
LONG_REPLIES = ("long replies", 0.2)

# What callers do, and how often each at the most, by weight.
CALLER_DEEDS = (
    "speak",
    "cancel",
    "create response",
    "create outside",
    "commit and ask",
    "clear",
    "type",
    "delete",
    "truncate",
    "update",
    "report heard",
    "stop reading",
    "stop reading for good",
    "move to another gateway",
    "lose the connection",
)
WORLD_DEEDS = (
    "kill a worker",
    "stop a worker",
    "stop a worker until it is taken for dead",
    "replace a worker that lives on",
    "retire a worker",
    "kill a gateway",
    "stop a gateway",
    "stop a gateway beyond its leases",
    "break a link to a gateway",
    "break a link between workers",
    "hold a link to a gateway",
    "hold a link between workers",
    "slow a link",
    "cut a gateway off the store",
    "slow the store",
    "refuse at the store",
    "lose requests to the store",
    "lose replies of the store",
    "step the wall clock",
    "ask for a lease",
)
# What may go wrong at any time, and with which chance at the most.
CHANCES = {
    "short guesses": 0.3,
    "coughs": 0.2,
    "late transcripts": 0.05,
    "slow steps": 0.02,
    "steps failed": 0.004,
    "feeds failed": 0.004,
    "plans failed": 0.0005,
    "streams refused": 0.01,
    "outputs too large": 0.002,
}


@dataclass(frozen=True, slots=True)
class Deed:
    """`who`: the number of the caller; -1 for the world."""

    at_ms: int
    kind: str
    who: int
    pick: float

    def __str__(self) -> str:
        subject = f"caller {self.who}: " if self.who >= 0 else ""
        return f"{self.at_ms / 1000:8.3f} s  {subject}{self.kind}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`trouble_ms`: how long things go wrong. `replicas`: of each stage, in the order of the line; `observed`: somebody
    looks on. `prepare` and `transport_lead_ms` as of the gateways; `whole_ms_max`: how long a response may take."""

    seed: int
    sessions: int
    trouble_ms: int
    replicas: tuple[int, ...]
    observed: bool
    prepare: bool
    transport_lead_ms: int
    whole_ms_max: int
    chances: tuple[tuple[str, float], ...]
    deeds: tuple[Deed, ...]

    def script(self) -> str:
        """What happens, a line for each deed."""
        chances = ", ".join(f"{what} {share:.2%}" for what, share in self.chances) or "none"
        head = (
            f"{self.sessions} callers, {self.trouble_ms / 1000:.3f} s of trouble, replicas {self.replicas}, "
            f"{'observed' if self.observed else 'not observed'}, "
            f"answers {'prepared' if self.prepare else 'not prepared'}, lead {self.transport_lead_ms} ms, "
            f"a response takes {self.whole_ms_max / 1000:.3f} s at most"
        )
        return "\n".join((head, f"chances: {chances}", *map(str, self.deeds)))


def draw(seed: int) -> Plan:
    random = Random(seed)
    sessions = random.choice(SESSIONS)
    trouble_ms = random.randint(TROUBLE_MS_MIN, TROUBLE_MS_MAX)
    deeds: list[Deed] = []
    for who in range(sessions):
        weights = [random.choice((0, 0, 1, 1, 4)) for _ in CALLER_DEEDS]
        weights[0] = max(6, sum(weights) // 2)
        pause_ms = random.choice((150, 300, 800))
        deeds += [
            Deed(at_ms, random.choices(CALLER_DEEDS, weights)[0], who, random.random())
            for at_ms in _moments(random, trouble_ms, pause_ms)
        ]
    weights = [random.choice((0, 0, 0, 1, 3)) for _ in WORLD_DEEDS]
    pause_ms = random.choice((300, 800, 2_000))
    if any(weights):
        deeds += [
            Deed(at_ms, random.choices(WORLD_DEEDS, weights)[0], -1, random.random())
            for at_ms in _moments(random, trouble_ms, pause_ms)
        ]
    chances = [(what, share) for what, share in CHANCES.items() if random.random() < 0.6]
    replicas = tuple(random.choice(REPLICAS) for _ in LINE)
    observed, prepare = random.random() < 0.25, random.random() < 0.7
    transport_lead_ms = random.choice((40, 120, 300))
    whole_ms_max = random.choice(WHOLE_MS_MAX)
    if whole_ms_max == HURRIED_MS_MAX:
        chances.append(LONG_REPLIES)
    return Plan(
        seed,
        sessions,
        trouble_ms,
        replicas,
        observed,
        prepare,
        transport_lead_ms,
        whole_ms_max,
        tuple(chances),
        tuple(sorted(deeds, key=lambda deed: deed.at_ms)),
    )


def _moments(random: Random, end_ms: int, pause_ms: int) -> Iterator[int]:
    """Moments before `end_ms`, `pause_ms` apart on average."""
    at_ms = random.expovariate(1 / pause_ms)
    while at_ms < end_ms:
        yield int(at_ms)
        at_ms += random.expovariate(1 / pause_ms)
