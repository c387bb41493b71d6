"""A call's record as JSON and as a table for people.

Rules
* JSON holds one object per turn (the fields of `TurnResult`, in milliseconds) and a summary.
* Medians and 95th percentiles are nearest-rank values that were measured. A censored time counts as the time waited,
  so that a turn without answer makes the figures worse, never better; how many there are stands beside them.
* A caller whose own p99 lateness exceeds `LATENESS_MS_VALID` has measured itself: `valid` is false then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from loadtest.turns import CallResult, TurnResult, add_faults

# Beyond this a load generator is saturated and its figures are its own.
LATENESS_MS_VALID = 5.0

MEASURES = (
    "ttfa_ms",
    "ttfa_audible_ms",
    "barge_in_stop_ms",
    "barge_in_received_ms",
    "cancel_stop_ms",
    "drain_lag_ms",
    "drain_lag_client_ms",
    "gap_ms_max",
    "dry_ms",
)

TEXT_CHARS_SHOWN = 44


@dataclass(frozen=True, slots=True)
class Spread:
    """Of `n` values; None where there are none."""

    n: int
    median: float | None
    p95: float | None


def spread(values: Sequence[float]) -> Spread:
    """Median and 95th percentile by nearest rank (the smallest value that covers the share)."""
    ordered = sorted(values)
    return Spread(len(ordered), _percentile(ordered, 50), _percentile(ordered, 95))


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else None


def to_dict(result: CallResult) -> dict[str, object]:
    """The whole record, of plain types. The resume token is a secret and stays out."""
    return {
        "session_id": result.session_id,
        "outcome": result.outcome,
        "detail": result.detail,
        "went_well": result.went_well,
        "valid": result.lateness.p99_ms <= LATENESS_MS_VALID,
        "duration_ms": result.duration_ms,
        "turns": [asdict(turn) for turn in result.turns],
        "summary": summary(result),
        "lateness": asdict(result.lateness),
        "event_seq_faults": result.event_seq_faults,
        "complaints": list(result.complaints),
        "unprompted_replies": result.unprompted_replies,
        "recording_truncated": result.recording_truncated,
    }


def summary(result: CallResult) -> dict[str, object]:
    """Over all turns: how many of each outcome, the spread of each measure, the faults of the audio."""
    outcomes: dict[str, int] = {}
    for turn in result.turns:
        outcomes[turn.outcome] = outcomes.get(turn.outcome, 0) + 1
    measures = [asdict(turn) for turn in result.turns if turn.ttfa_ms is not None]
    return {
        "outcomes": outcomes,
        "ttfa_censored": sum(turn.ttfa_censored for turn in result.turns),
        "faults": add_faults([result.other_faults, *(turn.faults for turn in result.turns)]).counts(),
        **{name: asdict(spread([row[name] for row in measures if row[name] is not None])) for name in MEASURES},
    }


def to_json(result: CallResult) -> str:
    """Indented JSON, UTF-8 text, keys in a fixed order."""
    return msgspec.json.format(msgspec.json.encode(to_dict(result)), indent=2).decode()


def to_text(result: CallResult) -> str:
    """For a terminal: one block per turn, then the figures over all."""
    lines = [line for turn in result.turns for line in _turn_lines(turn)]
    lines += ["", f"{'':22}{'n':>4}{'median':>10}{'p95':>10}"]
    for name in MEASURES:
        figures = spread([value for turn in result.turns if (value := asdict(turn)[name]) is not None])
        if figures.n:
            lines.append(f"{name:22}{figures.n:>4}{_number(figures.median):>10}{_number(figures.p95):>10}")
    return "\n".join([*lines, "", *_closing_lines(result)]) + "\n"


def _turn_lines(turn: TurnResult) -> list[str]:
    figures = [f"first sound {'> ' if turn.ttfa_censored else ''}{_number(turn.ttfa_ms)} ms"]
    named = (
        ("audible", turn.ttfa_audible_ms),
        ("stopped after", turn.barge_in_stop_ms),
        ("cancelled after", turn.cancel_stop_ms),
        ("drained after", turn.drain_lag_client_ms),
        ("longest gap", turn.gap_ms_max or None),
        ("dry", turn.dry_ms or None),
    )
    figures += [f"{name} {_number(value)} ms" for name, value in named if value is not None]
    reply = f"{_shown(turn.reply_text)}  " if turn.reply_text else ""  # a telephone tells no words
    lines = [
        f"turn {turn.turn + 1}  {turn.utterance}: {turn.outcome}",
        *([f"    caller  {_shown(turn.caller_text)}"] if turn.caller_text else []),
        f"    reply   {reply}({turn.heard_ms} of {turn.reply_ms} ms heard)",
        f"    {', '.join(figures)}",
    ]
    if turn.timings:
        lines.append("    stages  " + ", ".join(f"{name} {_number(ms)} ms" for name, ms in turn.timings.items()))
    faults = ", ".join(f"{name} {count}" for name, count in turn.faults.counts().items() if count)
    if faults:
        lines.append(f"    FAULTS  {faults}")
    return lines + [f"    ERROR   {error}" for error in turn.errors]


def _closing_lines(result: CallResult) -> list[str]:
    late = result.lateness
    lines = [f"call {result.outcome}{f': {result.detail}' if result.detail else ''}, {result.duration_ms / 1000:.1f} s"]
    if result.event_seq_faults:
        lines.append(f"FAULTS  {result.event_seq_faults} events out of sequence")
    lines += [f"FAULTS  the carrier complains: {complaint}" for complaint in result.complaints]
    if late.p99_ms > LATENESS_MS_VALID:
        lines.append(f"NOT VALID: the caller itself was late (p99 {late.p99_ms} ms, max {late.max_ms} ms)")
    return lines


def _shown(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_SHOWN else text[: TEXT_CHARS_SHOWN - 1] + "…"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
