"""Whether each fault of others that `tests/cases.toml` lists is kept out by tests that exist: `python -m tools.cases`.

Theory of operation
    A table of the file is a case, its name the public id of where somebody met the fault. It says what is right instead
    and names the tests that prove it, or why the case cannot arise here. The named files are parsed, not run: a test
    that was renamed, moved or removed is found without its imports.

    `tests/known_cases.toml` has the names of all cases by kind, and nothing else of them: a case that goes missing, or
    loses a kind, is found as one that is known there and not listed here.

Rules
* Both files name the same cases, by the same kinds.
* A case has tests or a reason why it needs none, and never both. TOML itself refuses a case that stands twice.
* A test is `path::function`, or `path::function[parameters]` where one row of a parametrised test is meant.
* Only functions at the top of a module are tests here, as everywhere in this project.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from tools.parameter_ids import row_ids

ROOT = Path(__file__).resolve().parents[1]
LIST, KNOWN = "tests/cases.toml", "tests/known_cases.toml"

# What goes wrong for whom. Of the first three lines every known case is listed; of the others, those with tests.
KINDS = {
    *("admission", "hang", "memory", "session-leak", "slow-consumer", "stale-audio", "work-after-cancel"),
    *("clock", "echo", "false-interrupt", "heard-context", "input-loss", "interrupt-context", "interrupt-policy"),
    *("interrupt-protocol", "interrupt-stop", "interrupt-telephony", "playback-ack", "truncate-protocol"),
    *("audio-click", "audio-loss", "audio-robotic", "close", "latency", "reconnect", "recording", "resample", "resume"),
    *("state", "stuck-silent", "telephony-marks"),
}

Rows = frozenset[str] | None
T = TypeVar("T")

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?#\d+", re.ASCII)
_TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)(?P<row>\[.+\])?", re.ASCII)


class CasesError(ValueError):
    """A list cannot be read; the text names it."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`right`: what holds instead, in a line. `not_applicable`: why nothing of the kind can happen here."""

    kinds: tuple[str, ...]
    right: str
    tests: tuple[str, ...] = ()
    not_applicable: str = ""


Cases = dict[str, Case]
Known = dict[str, tuple[str, ...]]  # by kind


@dataclass(slots=True)
class Checkout:
    """The tests of the files below `root`, by name: the ids of their rows, as `row_ids`. A file is parsed once."""

    root: Path
    _files: dict[str, Mapping[str, Rows] | None] = field(default_factory=dict)

    def tests_of(self, path: str) -> Mapping[str, Rows] | None:
        """None where there is no such file."""
        if path not in self._files:
            file = self.root / path
            self._files[path] = _tests_in(file.read_text(encoding="utf-8")) if file.is_file() else None
        return self._files[path]


def _tests_in(source: str) -> Mapping[str, Rows]:
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {one.name: row_ids(one) for one in functions}


def problem_of(test: str, checkout: Checkout) -> str | None:
    """Why `test` cannot be a test of this checkout, or None."""
    match = _TEST.fullmatch(test)
    if match is None:
        return f"{test!r} is no test: write tests/path.py::test_name"
    tests = checkout.tests_of(match["path"])
    if tests is None:
        return f"{test}: there is no such file"
    if match["name"] not in tests:
        return f"{test}: there is no such test; name the one that has taken its place"
    rows = tests[match["name"]]
    if match["row"] and rows is None:
        return f"{test}: the test has no parameters"
    if match["row"] and match["row"] not in {f"[{row}]" for row in rows or ()}:
        return f"{test}: no row of that id can be read there; name another, or give the row an id"
    return None


def check(cases: Cases, checkout: Checkout) -> Iterator[str]:
    """What is wrong with each case, a line each."""
    for name, case in cases.items():
        yield from (f"{name}: {problem}" for problem in _problems(name, case, checkout))


def check_known(cases: Cases, known: Known) -> Iterator[str]:
    """What one of the two files names and the other does not, a line each."""
    listed = {(kind, name) for name, case in cases.items() for kind in case.kinds}
    entered = {(kind, name) for kind, names in known.items() for name in names}
    for kind, name in sorted(entered - listed):
        yield f"{LIST}: {name}: is known as a case of {kind}, and not listed as one; say what is right, and its tests"
    for kind, name in sorted(listed - entered):
        yield f"{KNOWN}: {name}: is listed as a case of {kind}; enter it there"


def _problems(name: str, case: Case, checkout: Checkout) -> Iterator[str]:
    if not _ID.fullmatch(name):
        yield "is no public id; write project#number"
    if not case.kinds:
        yield "has no kind"
    yield from (f"kind {kind!r} is unknown" for kind in case.kinds if kind not in KINDS)
    if not case.right.strip():
        yield "does not say what is right"
    if bool(case.tests) == bool(case.not_applicable.strip()):
        yield "needs tests, or a reason why it cannot arise here; one of the two"
    if len(set(case.tests)) < len(case.tests):
        yield "names a test twice"
    yield from filter(None, (problem_of(test, checkout) for test in case.tests))


def main(out: TextIO, root: Path = ROOT) -> int:
    """Check the lists of `root`; 0 when there is nothing to say."""
    try:
        cases, known = _read(root, LIST, Cases), _read(root, KNOWN, Known)
    except CasesError as error:
        found, counted = [str(error)], ""
    else:
        found = [*(f"{LIST}: {line}" for line in check(cases, Checkout(root))), *check_known(cases, known)]
        counted = f", {len(cases)} cases"
    out.writelines(f"{line}\n" for line in found)
    out.write("cases: {}\n".format(f"{len(found)} findings" if found else f"ok{counted}"))
    return 1 if found else 0


def _read(root: Path, name: str, kind: type[T]) -> T:
    """The file of that name. Raises `CasesError`."""
    try:
        return msgspec.convert(tomllib.loads((root / name).read_text(encoding="utf-8")), kind)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CasesError(f"{name}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.stdout))
