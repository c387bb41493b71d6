"""What was found, as lines of text: errors by transport and basis, faults, and where history presumes too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.figures import percentile
from benchmarks.heard_error.judge import Finding

WORDS_P95_MAX = 1  # where the client reports

HEAD = f"{'':<44}{'n':>5}  {'words: p50':>10}{'p95':>5}{'max':>5}{'presumed':>10}" + "".join(
    f"{name:>8}" for name in ("ms: p5", "p50", "p95", "max")
)


def row(name: str, findings: Sequence[Finding]) -> str:
    """Words by size, and how often history has one that was not heard; ms with their sign, above 0 where unheard."""
    words = [abs(finding.words_error) for finding in findings]
    signed = [finding.ms_error for finding in findings]
    sizes = f"{percentile(words, 0.5):>10.0f}{percentile(words, 0.95):>5.0f}{max(words):>5}"
    presumed = sum(finding.presumes for finding in findings)
    shares = "".join(f"{percentile(signed, share):>8.0f}" for share in (0.05, 0.5, 0.95))
    return f"{name:<44}{len(findings):>5}  {sizes}{presumed:>10}{shares}{max(signed):>8.0f}"


def report(findings: Sequence[Finding]) -> list[str]:
    """Rows by transport and how the client tells what it played, by basis, and by how it was cut."""
    lines = [HEAD]
    lines += _rows(findings, lambda one: f"{one.plan.transport}, {_told(one)}, {one.plan.conditions}")
    lines += _rows(findings, lambda one: f"{one.plan.transport}, basis {one.basis or 'none: not in history'}")
    lines += _rows(findings, lambda one: f"{one.plan.transport}, {_told(one)}, {one.spoken.cut.moment}")
    faults = Counter(fault for finding in findings for fault in finding.faults)
    lines.append("faults: " + (", ".join(f"{name} {count}" for name, count in sorted(faults.items())) or "none"))
    return lines


def _told(finding: Finding) -> str:
    told = {"acks": "reports", "truncates": "truncates", "none": "tells nothing"}[finding.plan.reports]
    return f"{told}, hangs up" if finding.spoken.cut.deed == "hang_up" else told


def _rows(findings: Iterable[Finding], name_of: object) -> list[str]:
    assert callable(name_of)
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(str(name_of(finding)), []).append(finding)
    return [row(name, groups[name]) for name in sorted(groups)]


def is_good(findings: Sequence[Finding]) -> bool:
    """No fault; and of those who report, at most a word of error in 95 of 100, and nothing presumed."""
    told = [one for one in findings if one.is_told]
    errors = [abs(one.words_error) for one in told]
    presumes = any(one.presumes for one in told)
    in_bounds = not errors or percentile(errors, 0.95) <= WORDS_P95_MAX
    return not any(one.faults for one in findings) and in_bounds and not presumes
