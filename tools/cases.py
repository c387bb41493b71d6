"""Whether each fault of others that `tests/cases.toml` lists is kept out by tests that exist: `python -m tools.cases`.

Theory of operation
    A table of the file is a case, its name the public id of where somebody met the fault. It says what is right instead
    and names the tests that prove it, or why the case cannot arise here. The named files are parsed, not run: a test
    that was renamed, moved or removed is found without its imports.

Rules
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
from typing import TextIO

import msgspec

ROOT = Path(__file__).resolve().parents[1]
LIST = "tests/cases.toml"

# What goes wrong for whom. Of the first three lines every known case is listed; of the others, those with tests.
KINDS = {
    *("admission", "hang", "memory", "session-leak", "slow-consumer", "stale-audio", "work-after-cancel"),
    *("clock", "echo", "false-interrupt", "heard-context", "input-loss", "interrupt-context", "interrupt-policy"),
    *("interrupt-protocol", "interrupt-stop", "interrupt-telephony", "playback-ack", "truncate-protocol"),
    *("audio-loss", "close", "latency", "reconnect", "recording", "resample", "resume", "stuck-silent"),
}

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?#\d+", re.ASCII)
_TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)(?P<row>\[.+\])?", re.ASCII)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`right`: what holds instead, in a line. `not_applicable`: why nothing of the kind can happen here."""

    kinds: tuple[str, ...]
    right: str
    tests: tuple[str, ...] = ()
    not_applicable: str = ""


Cases = dict[str, Case]


@dataclass(slots=True)
class Checkout:
    """The tests of the files below `root`, by name: whether they are parametrised. A file is parsed once."""

    root: Path
    _files: dict[str, Mapping[str, bool] | None] = field(default_factory=dict)

    def tests_of(self, path: str) -> Mapping[str, bool] | None:
        """None where there is no such file."""
        if path not in self._files:
            file = self.root / path
            self._files[path] = _tests_in(file.read_text(encoding="utf-8")) if file.is_file() else None
        return self._files[path]


def _tests_in(source: str) -> Mapping[str, bool]:
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {one.name: any(map(_parametrises, one.decorator_list)) for one in functions}


def _parametrises(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize"


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
    if match["row"] and not tests[match["name"]]:
        return f"{test}: the test has no parameters"
    return None


def check(cases: Cases, checkout: Checkout) -> Iterator[str]:
    """What is wrong with each case, a line each."""
    for name, case in cases.items():
        yield from (f"{name}: {problem}" for problem in _problems(name, case, checkout))


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
    """Check the list of `root`; 0 when there is nothing to say."""
    try:
        cases = msgspec.convert(tomllib.loads((root / LIST).read_text(encoding="utf-8")), Cases)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        found, counted = [str(error)], ""
    else:
        found, counted = list(check(cases, Checkout(root))), f", {len(cases)} cases"
    out.writelines(f"{LIST}: {line}\n" for line in found)
    out.write("cases: {}\n".format(f"{len(found)} findings" if found else f"ok{counted}"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.stdout))
