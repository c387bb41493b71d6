"""A case that no test keeps out any more is named, and why."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from tools.cases import KNOWN, LIST, ROOT, Case, Checkout, check, check_known, main

SOURCE = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", [1, 2])
def test_many(case): ...

@pytest.mark.slow
async def test_one(): ...

class TestGroup:
    def test_inside(self): ...
"""

GOOD = """
["pipecat#754"]
kinds = ["stale-audio"]
right = "Nothing of an ended epoch is sent."
tests = ["tests/test_a.py::test_one", "tests/test_a.py::test_many", "tests/test_a.py::test_many[1]"]

["livekit/agents#1"]
kinds = ["hang", "memory"]
right = "It ends."
not_applicable = "There is nothing that could go on."
"""


KNOWN_GOOD = """
stale-audio = ["pipecat#754"]
hang = ["livekit/agents#1"]
memory = ["livekit/agents#1"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(SOURCE)
    return tmp_path


def said(root: Path, text: str, known: str = KNOWN_GOOD) -> tuple[int, list[str]]:
    (root / LIST).write_text(text)
    (root / KNOWN).write_text(known)
    out = io.StringIO()
    return main(out, root), out.getvalue().splitlines()


def test_a_list_whose_tests_exist_is_right(root: Path) -> None:
    assert said(root, GOOD) == (0, ["cases: ok, 2 cases"])


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("tests/test_a.py::test_renamed", "there is no such test; name the one that has taken its place"),
        ("tests/test_a.py::test_inside", "there is no such test; name the one that has taken its place"),
        ("tests/test_moved.py::test_one", "there is no such file"),
        ("tests/test_a.py::test_one[1]", "the test has no parameters"),
        (
            "tests/test_a.py::test_many[bogus_row]",
            "no row of that id can be read there; name another, or give the row an id",
        ),
    ],
)
def test_a_test_that_is_not_there_is_named(root: Path, test: str, problem: str) -> None:
    cases = {"pipecat#754": Case(("hang",), "It ends.", (test,))}
    assert list(check(cases, Checkout(root))) == [f"pipecat#754: {test}: {problem}"]


@pytest.mark.parametrize("test", ["tests/test_a.py", "test_one", "../tests/test_a.py::test_one", "tests/a.py::helper"])
def test_what_names_no_test_is_refused(root: Path, test: str) -> None:
    (problem,) = check({"pipecat#754": Case(("hang",), "It ends.", (test,))}, Checkout(root))
    assert problem == f"pipecat#754: {test!r} is no test: write tests/path.py::test_name"


@pytest.mark.parametrize(
    ("name", "case", "problem"),
    [
        ("pipecat", Case(("hang",), "It ends.", not_applicable="x"), "is no public id; write project#number"),
        ("a#1", Case((), "It ends.", not_applicable="x"), "has no kind"),
        ("a#1", Case(("hung",), "It ends.", not_applicable="x"), "kind 'hung' is unknown"),
        ("a#1", Case(("hang",), " ", not_applicable="x"), "does not say what is right"),
        ("a#1", Case(("hang",), "It ends."), "needs tests, or a reason why it cannot arise here; one of the two"),
        (
            "a#1",
            Case(("hang",), "It ends.", ("tests/test_a.py::test_one",), "x"),
            "needs tests, or a reason why it cannot arise here; one of the two",
        ),
        ("a#1", Case(("hang",), "It ends.", ("tests/test_a.py::test_one",) * 2), "names a test twice"),
    ],
)
def test_a_case_that_says_too_little_is_named(root: Path, name: str, case: Case, problem: str) -> None:
    assert list(check({name: case}, Checkout(root))) == [f"{name}: {problem}"]


@pytest.mark.parametrize(
    "text",
    [
        GOOD + '["pipecat#754"]\nkinds = ["hang"]\nright = "Again."\nnot_applicable = "x"\n',
        '["a#1"]\nkind = "hang"\n',
        '["a#1"\n',
    ],
)
def test_a_case_that_stands_twice_and_what_cannot_be_read_are_told(root: Path, text: str) -> None:
    status, lines = said(root, text)
    assert status == 1
    assert lines[0].startswith(f"{LIST}: ")
    assert lines[1:] == ["cases: 1 findings"]


def test_a_case_that_went_missing_is_named() -> None:
    """Of the real lists: whichever entry is taken out, it is missed."""
    cases = msgspec.toml.decode((ROOT / LIST).read_bytes(), type=dict[str, Case])
    known = msgspec.toml.decode((ROOT / KNOWN).read_bytes(), type=dict[str, tuple[str, ...]])
    assert list(check_known(cases, known)) == []
    for name, case in cases.items():
        rest = {other: one for other, one in cases.items() if other != name}
        found = list(check_known(rest, known))
        assert len(found) == len(case.kinds)
        assert all(line.startswith(f"{LIST}: {name}: is known") for line in found)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (
            KNOWN_GOOD.replace("hang =", "clock ="),
            [
                f"{LIST}: livekit/agents#1: is known as a case of clock, and not listed as one; say what is right, "
                "and its tests",
                f"{KNOWN}: livekit/agents#1: is listed as a case of hang; enter it there",
            ],
        ),
        ("hang = 7", [f"{KNOWN}: Expected `array`, got `int` - at `$[...]`"]),
    ],
)
def test_both_lists_say_the_same(root: Path, known: str, found: list[str]) -> None:
    assert said(root, GOOD, known) == (1, [*found, f"cases: {len(found)} findings"])


def test_a_list_that_is_not_there_is_named(root: Path) -> None:
    (root / LIST).write_text(GOOD)
    out = io.StringIO()
    assert main(out, root) == 1
    assert out.getvalue().startswith(f"{KNOWN}: ")
