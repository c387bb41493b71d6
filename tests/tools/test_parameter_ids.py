"""Ids are read as pytest gives them, or not at all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools.parameter_ids import row_ids

SOURCE = """
import pytest

NAMES = ["x", "y"]

def test_plain(): ...

@pytest.mark.slow
@pytest.mark.parametrize("case", ["one", "two", 3, True, None, 1.5])
def test_constants(case): ...

@pytest.mark.parametrize(("a", "b"), [(1, "x"), (2, [3])])
def test_several(a, b): ...

@pytest.mark.parametrize("a,b", [(1, "x"), pytest.param(2, "y", id="second"), pytest.param(3, "z")])
async def test_param(a, b): ...

@pytest.mark.parametrize("a", [[1], {2: 3}], ids=["first", "second"])
@pytest.mark.parametrize(argnames="b", argvalues=("c", "d"))
def test_stacked(b, a): ...

@pytest.mark.parametrize("a", NAMES)
def test_elsewhere(a): ...

@pytest.mark.parametrize("a", [1, 2], ids=str)
def test_by_function(a): ...

@pytest.mark.parametrize("a", ["na\\u00efve", "plain", b"bytes"])
def test_letters(a): ...
"""

IDS = {
    "test_plain": None,
    "test_constants": {"one", "two", "3", "True", "None", "1.5"},
    "test_several": {"1-x"},
    "test_param": {"1-x", "second", "3-z"},
    "test_stacked": {"c-first", "c-second", "d-first", "d-second"},
    "test_elsewhere": set(),
    "test_by_function": set(),
    "test_letters": {"plain"},
}


@pytest.mark.parametrize("name", list(IDS))
def test_ids_that_are_written_down_are_read(name: str) -> None:
    functions = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    (function,) = (one for one in functions if one.name == name)
    assert row_ids(function) == IDS[name]


@pytest.mark.slow
def test_pytest_gives_the_same_ids(tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text(SOURCE)
    arguments = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_rows.py"]
    said = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    collected = {line.partition("::")[2] for line in said.splitlines() if "::" in line}
    assert {f"{name}[{row}]" for name, rows in IDS.items() for row in rows or ()} <= collected
