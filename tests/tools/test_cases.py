"""A case that no test keeps out any more is named, and why."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tools.cases import LIST, Case, Checkout, check, main

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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(SOURCE)
    return tmp_path


def said(root: Path, text: str) -> tuple[int, list[str]]:
    (root / LIST).write_text(text)
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
