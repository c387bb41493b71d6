"""What the cases came to: a line for each, printed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """One case. `terminal`: of the response that was hit, or of the first one after that. `successor_ms`: from the blow
    until another process had taken the place; `sound_ms`: until the caller heard the next reply, or the same one that
    had not begun; `checks`: those that passed."""

    case: str
    terminal: str = ""
    successor_ms: int | None = None
    sound_ms: int | None = None
    checks: list[str] = field(default_factory=list)

    def passed(self, check: str) -> None:
        self.checks.append(check)


class Table:
    def __init__(self) -> None:
        self._rows: list[Row] = []

    def begin(self, case: str) -> Row:
        row = Row(case)
        self._rows.append(row)
        return row

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        if not self._rows:
            return
        yield "| case | terminal | successor, ms | next sound, ms | checks |"
        yield "|---|---|---|---|---|"
        for row in self._rows:
            times = ("–" if ms is None else str(ms) for ms in (row.successor_ms, row.sound_ms))
            yield f"| {row.case} | {row.terminal} | {' | '.join(times)} | {', '.join(row.checks) or 'FAILED'} |"
