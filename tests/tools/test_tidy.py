"""Each rule finds its breach, under every spelling, and passes what is right."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tools import tidy
from tools.tidy import Module, Settings

SETTINGS = Settings(
    function_lines_max=5,
    module_lines_max=10,
    environment_readers=("app/config.py", "tests/**"),
    cores=("app/core.py", "app/cores/*.py"),
)


def found(source: str, path: str = "app/shell.py") -> list[str]:
    return [f"{finding.line}: {finding.text}" for finding in tidy.check(Module(path, source), SETTINGS)]


def test_lengths_at_the_limit_pass() -> None:
    assert found("def f():\n" + "    a()\n" * 4 + "b()\n" * 5) == []


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_line_more_does_not(keyword: str) -> None:
    assert found(f"{keyword} f():\n" + "    a()\n" * 5 + "b()\n" * 5) == [
        "1: the module has 11 lines, at most 10 are allowed",
        "1: f has 6 lines, at most 5",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.time()",
        "from time import time\ntime()",
        "from time import time as now\nnow()",
        "import time\ntime.time_ns()",
        "x = 0\nprint(x)",
        "x = 0\nbreakpoint()",
        "import pdb\npdb.set_trace()",
        "import queue\nqueue.SimpleQueue()",
    ],
)
def test_banned_calls_are_found_under_every_name(source: str) -> None:
    (line,) = found(source)
    assert line.startswith("2: ")


@pytest.mark.parametrize("source", ["import time\ntime.monotonic_ns()", "out.print()", "clock().time()"])
def test_other_calls_pass(source: str) -> None:
    assert found(source) == []


@pytest.mark.parametrize("limit", ["", "0", "-1", "maxsize=0", "maxsize=-1"])
@pytest.mark.parametrize("name", ["asyncio.Queue", "queue.LifoQueue", "multiprocessing.JoinableQueue"])
def test_a_queue_without_a_limit_is_found(name: str, limit: str) -> None:
    (line,) = found(f"import {name.split('.', maxsplit=1)[0]}\n{name}({limit})")
    assert line == f"2: {name}() has no limit; give it a named one"


@pytest.mark.parametrize("limit", ["8", "LIMIT", "maxsize=LIMIT", "maxsize=settings.limit"])
def test_a_queue_with_a_limit_passes(limit: str) -> None:
    assert found(f"from asyncio import Queue\nQueue({limit})") == []


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException", " (ValueError, Exception)"])
def test_catching_everything_is_found(caught: str) -> None:
    assert found(f"try:\n    a()\nexcept{caught}:\n    b()\n") == [
        "3: catches everything; name the errors, or raise again"
    ]


@pytest.mark.parametrize(
    ("caught", "last"), [(" Exception", "raise"), (" (ValueError, OSError)", "b()"), ("", "raise")]
)
def test_named_errors_and_raising_again_pass(caught: str, last: str) -> None:
    assert found(f"try:\n    a()\nexcept{caught}:\n    {last}\n") == []


@pytest.mark.parametrize(("reason", "count"), [("noqa: BLE001 - foreign code", 0), ("noqa: BLE001", 1)])
def test_a_boundary_says_why_it_catches_everything(reason: str, count: int) -> None:
    assert len(found(f"try:\n    a()\nexcept Exception:  # {reason}\n    b()\n")) == count


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ\nenviron",
        "import os as o\no.environ",
    ],
)
def test_the_environment_is_for_configuration_only(source: str) -> None:
    (line,) = found(source)
    assert "only configuration and entry points" in line
    assert found(source, "app/config.py") == found(source, "tests/app/test_x.py") == []


@pytest.mark.parametrize("path", ["app/core.py", "app/cores/credit.py"])
@pytest.mark.parametrize(
    "source", ["import asyncio", "from time import monotonic", "import os.path", "import structlog"]
)
def test_a_core_imports_no_shell(path: str, source: str) -> None:
    assert len(found(source, path)) == 1
    assert found(source) == []


def test_a_core_never_awaits() -> None:
    assert found("async def f():\n    await g()\n", "app/core.py") == [
        "1: a core never awaits",
        "2: a core never awaits",
    ]


def test_a_core_may_import_what_computes() -> None:
    assert found("from random import Random\nfrom . import sibling\nimport media.chunk\n", "app/core.py") == []


@pytest.mark.parametrize("comment", ["TODO later", "FIXME", "a HACK: x", "type: ignore", "noqa"])
def test_leftovers_and_blunt_suppressions_are_found(comment: str) -> None:
    assert len(found(f"a()  # {comment}\n")) == 1


@pytest.mark.parametrize("comment", ["type: ignore[arg-type]", "noqa: E501", "all to do"])
def test_pointed_suppressions_pass(comment: str) -> None:
    assert found(f"a()  # {comment}\n") == []


def test_a_leftover_in_a_text_is_no_leftover() -> None:
    assert found("a('TODO # TODO')\n") == []


def checkout(root: Path, core: str = "app/core.py") -> Path:
    files = {
        "pyproject.toml": (
            '[project]\ndependencies = ["redis"]\n[tool.tidy]\nfunction_lines_max = 70\nmodule_lines_max = 600\n'
            f'environment_readers = []\ncores = ["{core}"]\n'
        ),
        "docs/dependencies.md": "| `redis` | truth |\n",
        "locks/models.in": "",
        "app/core.py": "",
        "build/lib/app.py": "print()\n",
        ".venv/lib/app.py": "print()\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_hidden_and_build_folders_are_left_alone(tmp_path: Path) -> None:
    assert tidy.tidy(checkout(tmp_path)) == []


def test_a_listed_core_must_exist(tmp_path: Path) -> None:
    assert tidy.tidy(checkout(tmp_path, core="app/gone.py")) == ["pyproject.toml: the core app/gone.py does not exist"]


def test_a_finding_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout(tmp_path) / "app/core.py").write_text("print()\n")
    (tmp_path / "docs/dependencies.md").write_text("")
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    out = io.StringIO()
    assert tidy.main(out) == 1
    assert out.getvalue().splitlines() == [
        "app/core.py:1: print(): write to a stream that was passed in, or log",
        "docs/dependencies.md: redis has no line",
        "tidy: 2 findings",
    ]


def test_nothing_to_say_is_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "ROOT", checkout(tmp_path))
    out = io.StringIO()
    assert (tidy.main(out), out.getvalue()) == (0, "tidy: ok\n")
