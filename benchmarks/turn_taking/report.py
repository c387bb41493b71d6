"""An evaluation as JSON for machines and as a page of Markdown for people.

Rules
* A rate or mean of fewer than ten events is shown as `n/a (events)`.
* The JSON holds every observation, so that a later scorer can judge it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from benchmarks.turn_taking.corpus import part_of
from benchmarks.turn_taking.labels import TURNS
from benchmarks.turn_taking.observation import Observation
from benchmarks.turn_taking.published import FULL_DUPLEX_BENCH, NOT_COMPARABLE, TAU_VOICE
from benchmarks.turn_taking.score import (
    EVENTS_MIN,
    NS_PER_MS,
    Rate,
    Scores,
    Times,
    answer_ns,
    ends_early,
    kept,
    score,
    silent_after_ns,
)
from loadtest.report import LATENESS_MS_VALID

MS_PER_S = 1_000
# Halts per minute of undisturbed reply, from which on those around events may well be the machine's as well.
HALTS_VALID = 2.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished run. `lateness_p99_ms`: of the callers themselves, the worst call. `turn_end`: what ends turns.
    `line`: how sound travels."""

    engine: str
    seed: int
    calls: int
    seconds: float
    lateness_p99_ms: float
    errors: tuple[str, ...]
    observations: tuple[Observation, ...]
    turn_end: str = "silence"
    line: str = "wideband"

    @property
    def valid(self) -> bool:
        """Whether the callers kept time."""
        return self.lateness_p99_ms <= LATENESS_MS_VALID


def to_json(run: Evaluation) -> str:
    """Indented, keys in a fixed order."""
    whole = asdict(run) | {"part": part_of(run.seed), "valid": run.valid, "scores": asdict(score(run.observations))}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"


def to_markdown(run: Evaluation) -> str:
    """The figures beside those that others publish."""
    scores = score(run.observations)
    sections = [_head(run, scores), _tau_voice(scores), _full_duplex_bench(scores), _own(scores), _events(run)]
    return "\n".join([*sections, "## What is not comparable", "", NOT_COMPARABLE, ""])


def _head(run: Evaluation, scores: Scores) -> str:
    lines = [
        "# Turn-taking",
        "",
        f"Engine `{run.engine}`, seed {run.seed} ({part_of(run.seed)}), {len(run.observations)} events in {run.calls} "
        f"call(s) at once, {run.line} sound both ways, turns end by {run.turn_end}, {run.seconds:.0f} s; "
        f"the callers' own lateness, p99: {run.lateness_p99_ms:.1f} ms.",
    ]
    if not run.valid:
        lines.append(f"NOT VALID: the callers were late by more than {LATENESS_MS_VALID:g} ms.")
    if (scores.halts_undisturbed.value or 0) > HALTS_VALID:
        lines.append("Replies stood still before anything happened: holds and pauses are partly those of the machine.")
    if any(scores.spoilt.values()):
        lines.append("Spoilt events: " + ", ".join(f"{kind} {count}" for kind, count in scores.spoilt.items() if count))
    lines += [f"Error from the service, {count} times: {text}" for text, count in Counter(run.errors).items()]
    return "\n".join([*lines, ""])


def _tau_voice(scores: Scores) -> str:
    columns = ("system", "L_R s", "R_R", "L_Y s", "R_Y", "I_A", "S_BC", "S_VT", "S_ND")
    own = (
        *("**this run**", _seconds(scores.l_r), _share(scores.r_r), _seconds(scores.l_y), _share(scores.r_y)),
        *map(_share, (scores.i_a, scores.s_bc, scores.s_vt, scores.s_nd)),
    )
    others = [
        (
            *(one.system, f"{one.l_r:.2f}", "-" if one.r_r is None else f"{one.r_r:.2f}", f"{one.l_y:.2f}"),
            *(f"{value:.2f}" for value in (one.r_y, one.i_a, one.s_bc, one.s_vt, one.s_nd)),
        )
        for one in TAU_VOICE
    ]
    return _table("By the definitions of tau-voice (sierra-research/tau2-bench)", columns, [own, *others])


def _full_duplex_bench(scores: Scores) -> str:
    columns = ("system", "TOR pause", "TOR question", "latency s", "TOR interruption", "latency s", "stop latency s")
    own = (
        *("**this run**", _share(scores.tor_pause), _share(scores.tor_question), _seconds(scores.tor_question_latency)),
        *(_share(scores.tor_interruption), _seconds(scores.tor_interruption_latency), _seconds(scores.stop_latency)),
    )
    others = [
        (
            *(one.system, " / ".join(f"{value:.2f}" for value in one.tor_pause)),
            *(f"{one.tor_question:.2f}", f"{one.latency_question:.2f}"),
            *(f"{one.tor_interruption:.2f}", f"{one.latency_interruption:.2f}", "-"),
        )
        for one in FULL_DUPLEX_BENCH
    ]
    return _table("By those of Full-Duplex-Bench (arXiv 2503.04721, 2507.23159)", columns, [own, *others])


def _own(scores: Scores) -> str:
    named: tuple[tuple[str, Times], ...] = (
        ("hold told (`turn.held`), interruptions", scores.held_interruption),
        ("hold told (`turn.held`), backchannels", scores.held_backchannel),
        ("hold latency, interruptions", scores.hold_latency_interruption),
        ("hold latency, backchannels", scores.hold_latency_backchannel),
        ("decision time, interruptions", scores.decision_interruption),
        ("decision time, backchannels", scores.decision_backchannel),
        ("pause inserted per backchannel that was talked through", scores.pause_backchannel),
        ("response latency after turns in silence", scores.response_latency),
    )
    rows = [(name, str(one.events), *map(_ms, (one.p50, one.p95))) for name, one in named]
    shares = (
        ("reply kept after a backchannel", scores.kept_backchannel),
        ("reply kept after a vocal tic", scores.kept_tic),
        ("reply kept after side talk", scores.kept_side_talk),
        ("reply kept after a noise burst", scores.kept_burst),
        ("false end of turn, turns with pauses", scores.false_end_of_turn),
        ("false holds per minute of steady noise", scores.false_holds_noise),
        ("false holds per minute of silence", scores.false_holds_silence),
        ("halts per minute before anything happened", scores.halts_undisturbed),
    )
    more = [(name, str(one.events), "-" if one.value is None else f"{one.value:.2f}") for name, one in shares]
    first = _table("Our own, from the first voiced sample", ("", "events", "p50 ms", "p95 ms"), rows)
    return first + "\n" + _table("", ("", "events", ""), more)


def _events(run: Evaluation) -> str:
    """How each event went, for somebody who looks for the reason of a figure."""
    rows = []
    for seen in sorted(run.observations, key=lambda one: (one.kind, one.number)):
        went = seen.spoilt or ("" if seen.over is None else "kept" if kept(seen) else "given up")
        went += "ended early" if ends_early(seen) and seen.kind in TURNS else ""
        silent, answered = (_whole_ms(ns) for ns in (silent_after_ns(seen), answer_ns(seen)))
        over = "reply" if seen.over else "silence"
        rows.append((seen.kind, seen.label, over, went, silent, answered, seen.heard_as.replace("|", "/")))
    columns = ("kind", "what", "over", "", "silent after ms", "answered after ms", "understood as")
    return _table("Events", columns, rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [f"## {title}", ""] if title else []
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([*head, lines[0], "|" + "---|" * len(columns), *lines[1:], ""])


def _share(one: Rate) -> str:
    return f"{one.value:.2f}" if one.shown and one.value is not None else f"n/a ({one.events})"


def _seconds(one: Times) -> str:
    return f"{one.mean / MS_PER_S:.2f}" if one.shown and one.mean is not None else f"n/a ({one.events})"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _whole_ms(ns: int | None) -> str:
    return "" if ns is None else str(ns // NS_PER_MS)


def short(run: Evaluation) -> str:
    """The few lines that a terminal gets."""
    scores = score(run.observations)
    return (
        f"L_R {_seconds(scores.l_r)} s, L_Y {_seconds(scores.l_y)} s, R_Y {_share(scores.r_y)}, "
        f"selectivity {_share(scores.s_bc)} / {_share(scores.s_vt)} / {_share(scores.s_nd)} "
        f"(rates of fewer than {EVENTS_MIN} events are not shown)"
    )
