"""What the kills of a run did, as lines of text: by victim, what was broken, and how soon callers were back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from benchmarks import figures
from benchmarks.session_kills.judge import Finding
from benchmarks.session_kills.plan import VICTIMS

SPEECH_MS_MAX = 1_000  # p95, where another gateway is alive
PROMISES = (
    *("checkpoints lost", "out of order", "words in no history", "heard twice or with a gap", "duplicate turns"),
    *("stale samples", "repeated side effects", "calls without outcome", "effects in no history"),
    *("waited in vain", "calls given up"),
)


@dataclass(frozen=True, slots=True)
class Return:
    """Of a caller whose gateway was killed, in ms since its first attempt to come back. `possibly_heard`: words that
    were marked so when it was back, and not before."""

    resumed_ms: float
    speech_ms: float | None
    possibly_heard: int


@dataclass(slots=True)
class Result:
    """`returns` by how many gateways there were; `ends`: how responses ended, with the code of what failed."""

    kills: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    returns: dict[int, list[Return]] = field(default_factory=lambda: {1: [], 2: []})
    ends: Counter[str] = field(default_factory=Counter)
    durability: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.faults.update(finding.faults)


def report(result: Result) -> list[str]:
    findings, back = result.findings, [one for some in result.returns.values() for one in some]
    marked = sum(one.possibly_heard for one in back)
    turns, words = (sum(getattr(one, name) for one in findings) for name in ("turns", "words_heard"))
    a_kill = marked / max(1, result.kills["gateway"])
    lines = [
        f"{result.kills.total()} kills: " + ", ".join(f"{victim} {result.kills[victim]}" for victim in VICTIMS),
        f"{len(findings)} conversations, {turns} turns, {words} words heard, {result.effects} side effects",
        "responses: " + _counted(result.ends),
        "durability: " + _counted(result.durability),
        *(f"{name:<44} {result.faults[name]}" for name in PROMISES),
        f"{'told, but not stored before the kill':<44} {sum(one.told_lost for one in findings)}",
        f"{'words marked possibly_heard':<44} {marked}, {a_kill:.1f} a gateway's kill",
    ]
    for gateways, name in ((1, "one gateway, started again"), (2, "a second gateway is alive")):
        lines.append(figures.line(f"{name}: resumed", [one.resumed_ms for one in result.returns[gateways]]))
        lines.append(figures.line(f"{name}: next speech", _speech_ms(result, gateways)))
    soon_ms = _speech_ms(result, 2)
    if soon_ms:
        lines.append(f"aim: p95 at most {SPEECH_MS_MAX} ms: {figures.percentile(soon_ms, 0.95):.0f}")
    return lines


def is_good(result: Result) -> bool:
    """Every promise was kept. How soon callers are back is an aim: it depends on what else the machine does."""
    return not any(result.faults.values()) and bool(result.findings)


def _speech_ms(result: Result, gateways: int) -> list[float]:
    return [one.speech_ms for one in result.returns[gateways] if one.speech_ms is not None]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
