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
from typing import Literal

LINE = ("encoder", "thinker", "talker", "vocoder")
REPLICAS = (1, 1, 1, 2)
SESSIONS = (1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 5)
TROUBLE_MS_MIN, TROUBLE_MS_MAX = 1_000, 4_500
# How long a response may take: longer than any does unless its client does not read, or as long as one does that
# nothing holds up, and then some are too long.
HURRIED_MS_MAX = 3_000
WHOLE_MS_MAX = (12_000, 12_000, 12_000, HURRIED_MS_MAX)
LONG_REPLIES = ("long replies", 0.2)
# Ways to a caller's ear: next door, in the same country, across the sea; with jitter, or none.
WAY_MS = (5, 5, 40, 150)
JITTER_MS = (0, 0, 20, 80)
# A jitter buffer of a quarter of a second is more than anybody is told of.
BUFFER_MS = (0, 40, 100, 250)
FOR_EVER_MS = 1_000_000
TOOLS_SHARE, TENANTS_SHARE, PLACES_SHARE, RIVALS_SHARE = 0.3, 0.2, 0.2, 0.1  # of all plans
REVOKE_PAUSE_MS = 2_500
BUFFER_MS_MIN_RTP = 50  # as measured in a browser

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
    "fill the store",
    "fail over to a lagging replica",
    "delete a session",
    "lose requests to the store",
    "lose replies of the store",
    "step the wall clock",
    "ask for a lease",
)
DIE_AT_CALL = "kill a gateway at a call"
SHOCKS = ("kill a gateway", DIE_AT_CALL, "lose the connection", "speak", "speak")
SHOCKS_PAUSE_MS = 700
REVOKE = "revoke a permission"
RESUME_TWICE = "resume twice"
RIVALS_PAUSE_MS = 900
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


# What a client says of what was heard: nothing; where the ear is, ten times a second; where it stopped; or anything.
Reports = Literal["none", "acks", "truncates", "lies"]
REPORTS: tuple[Reports, ...] = ("none", "none", "acks", "acks", "truncates", "lies")


@dataclass(frozen=True, slots=True)
class Headset:
    """What a caller hears with. `rtp`: sound comes as packets, which nobody can take back, else in the messages.
    `down_ms`, `up_ms`: the way there and back, each time up to `jitter_ms` longer. `buffer_ms`: how long the client
    keeps what comes after silence. It `reports` for `reports_ms`; what it sees of the path is told by any."""

    rtp: bool
    down_ms: int
    up_ms: int
    jitter_ms: int
    buffer_ms: int
    reports: Reports
    reports_ms: int

    def __str__(self) -> str:
        kind = "packets" if self.rtp else "messages"
        way = f"{self.down_ms} + {self.up_ms} ms, jitter {self.jitter_ms} ms, buffer {self.buffer_ms} ms"
        return f"hears {kind}, {way}, reports {self.reports} for {self.reports_ms} ms"


@dataclass(frozen=True, slots=True)
class Offers:
    """What the service has beside the line. `tools`: it calls some. `tenants`: its callers' quotas are counted.
    `places`: for KV, at each
    Thinker, so few that all callers at once must wait for one, and none is refused; 0: it keeps none."""

    tools: bool = False
    tenants: bool = False
    places: int = 0

    def __str__(self) -> str:
        return (
            f"{'tools' if self.tools else 'no tools'}, {'tenants' if self.tenants else 'no tenants'}, "
            f"{self.places or 'no'} places for KV"
        )


BARE = Offers()


@dataclass(frozen=True, slots=True)
class Plan:
    """`trouble_ms`: how long things go wrong. `replicas`: of each stage, in the order of the line; `observed`: somebody
    looks on. `prepare` and `transport_lead_ms` as of the gateways; `whole_ms_max`: how long a response may take.
    `headsets`: of the callers."""

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
    headsets: tuple[Headset, ...]
    offers: Offers = BARE

    def script(self) -> str:
        """What happens, a line for each deed."""
        chances = ", ".join(f"{what} {share:.2%}" for what, share in self.chances) or "none"
        head = (
            f"{self.sessions} callers, {self.trouble_ms / 1000:.3f} s of trouble, replicas {self.replicas}, "
            f"{'observed' if self.observed else 'not observed'}, {self.offers}, "
            f"answers {'prepared' if self.prepare else 'not prepared'}, lead {self.transport_lead_ms} ms, "
            f"a response takes {self.whole_ms_max / 1000:.3f} s at most"
        )
        headsets = [f"caller {who} {headset}" for who, headset in enumerate(self.headsets)]
        return "\n".join((head, f"chances: {chances}", *headsets, *map(str, self.deeds)))


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
    offered = Random(f"offers of {seed}")
    offers = _offers(offered, sessions)
    if offers.tools:
        deeds += _shocks(offered, sessions, trouble_ms)
    if offers.tenants:
        deeds += [Deed(at_ms, REVOKE, -1, offered.random()) for at_ms in _moments(offered, trouble_ms, REVOKE_PAUSE_MS)]
    deeds += _rivals(seed, sessions, trouble_ms)
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
        _headsets(seed, sessions, trouble_ms),
        offers,
    )


def _offers(random: Random, sessions: int) -> Offers:
    """Drawn apart as well."""
    return Offers(
        tools=random.random() < TOOLS_SHARE,
        tenants=random.random() < TENANTS_SHARE,
        places=sessions // 2 + 1 if random.random() < PLACES_SHARE else 0,
    )


def _shocks(random: Random, sessions: int, trouble_ms: int) -> Iterator[Deed]:
    """What calls of tools must survive, more often than it happens by itself."""
    for at_ms in _moments(random, trouble_ms, SHOCKS_PAUSE_MS):
        kind = random.choice(SHOCKS)
        yield Deed(at_ms, kind, random.randrange(sessions) if kind in CALLER_DEEDS else -1, random.random())


def _rivals(seed: int, sessions: int, trouble_ms: int) -> list[Deed]:
    """Two clients of one session, in some plans. Drawn apart as well."""
    random = Random(f"rivals of {seed}")
    if random.random() >= RIVALS_SHARE:
        return []
    moments = _moments(random, trouble_ms, RIVALS_PAUSE_MS)
    return [Deed(at_ms, RESUME_TWICE, random.randrange(sessions), random.random()) for at_ms in moments]


def _headsets(seed: int, sessions: int, trouble_ms: int) -> tuple[Headset, ...]:
    """Drawn apart, so that no other part of a plan depends on them."""
    random = Random(f"headsets of {seed}")
    return tuple(_headset(random, trouble_ms) for _ in range(sessions))


def _headset(random: Random, trouble_ms: int) -> Headset:
    rtp = random.random() < 0.3
    ways_ms = random.choice(WAY_MS), random.choice(WAY_MS)
    jitter_ms, buffer_ms = random.choice(JITTER_MS), random.choice(BUFFER_MS)
    reports, reports_ms = random.choice(REPORTS), random.choice((FOR_EVER_MS, random.randint(0, trouble_ms)))
    if rtp:  # there is nothing that it could stop playing
        buffer_ms = max(buffer_ms, BUFFER_MS_MIN_RTP)
        reports = "acks" if reports == "truncates" else reports
    return Headset(rtp, *ways_ms, jitter_ms, buffer_ms, reports, reports_ms)


PLAIN = Headset(rtp=False, down_ms=5, up_ms=5, jitter_ms=0, buffer_ms=0, reports="none", reports_ms=0)
"""The plainest way to hear."""


def _moments(random: Random, end_ms: int, pause_ms: int) -> Iterator[int]:
    """Moments before `end_ms`, `pause_ms` apart on average."""
    at_ms = random.expovariate(1 / pause_ms)
    while at_ms < end_ms:
        yield int(at_ms)
        at_ms += random.expovariate(1 / pause_ms)
