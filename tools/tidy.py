"""The project's own rules, as far as a program can check them: `python -m tools.tidy`.

Theory of operation
    Every Python file of the checkout is parsed once. A rule is a function from a parsed `Module` to
    findings; it sees one file and keeps nothing. Names are resolved through the file's imports, so
    `from time import time as now` is caught as `time.time`. `[tool.tidy]` in pyproject.toml holds the
    limits, the modules that may read the environment, and the list of cores.

Rules
* There is no list of exceptions: a rule that is wrong is changed here, for all. Only a handler at a boundary
  to foreign code may catch everything, with `# noqa: BLE001 - ` and the reason on its line.
* A listed core that does not exist is a finding too, so that a renamed file cannot drop out unseen.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TextIO

import msgspec

from tools.declared import undeclared

ROOT = Path(__file__).resolve().parents[1]

BUILD_FOLDERS = {"build", "dist"}

BANNED_CALLS = {
    "time.time": "the wall clock jumps; take a monotonic time, or `now_ns` as an argument",
    "time.time_ns": "the wall clock jumps; take a monotonic time, or `now_ns` as an argument",
    "print": "write to a stream that was passed in, or log",
    "breakpoint": "left over from debugging",
    "pdb.set_trace": "left over from debugging",
    "queue.SimpleQueue": "it cannot be bounded",
    "multiprocessing.SimpleQueue": "it cannot be bounded",
}

QUEUES = {
    f"{module}.{name}"
    for module in ("queue", "asyncio", "multiprocessing")
    for name in ("Queue", "LifoQueue", "PriorityQueue", "JoinableQueue")
}

BLANKET_ERRORS = {"Exception", "BaseException"}

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}

# What a core must not know: clocks, I/O, chance that nobody seeded, logs.
NOT_IN_CORES = {
    *("asyncio", "datetime", "http", "logging", "multiprocessing", "os", "secrets", "select", "signal", "socket"),
    *("ssl", "subprocess", "tempfile", "threading", "time", "uuid"),
    *("httpx2", "redis", "starlette", "structlog", "uvicorn", "websockets"),
}

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
REASON_TO_CATCH_ALL = re.compile(r"# noqa: BLE001 - \w+")
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*noqa\b(?!:)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule. `line` counts from 1."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Settings:
    """`[tool.tidy]`: lengths in lines, and patterns of paths relative to the root."""

    function_lines_max: int
    module_lines_max: int
    environment_readers: Sequence[str]
    cores: Sequence[str]


@dataclass(frozen=True)
class Module:
    """One parsed file, its path relative to the root, with `/`."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, self.path)

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """What the names that the file imports stand for: `t` for `time`, `now` for `time.time`."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names |= {one.asname: one.name for one in node.names if one.asname}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        return names

    def name_of(self, node: ast.AST) -> str:
        """The full dotted name of an expression, or an empty text if it is no plain name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.name_of(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""

    def finding(self, node: ast.stmt | ast.expr | ast.ExceptHandler, text: str) -> Finding:
        """A finding at a node."""
        return Finding(self.path, node.lineno, text)


Rule = Callable[[Module, Settings], Iterator[Finding]]


def lengths(module: Module, settings: Settings) -> Iterator[Finding]:
    """Functions and modules that are too long to be read at once."""
    count = len(module.source.splitlines())
    if count > settings.module_lines_max:
        yield Finding(module.path, 1, f"the module has {count} lines, at most {settings.module_lines_max} are allowed")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > settings.function_lines_max:
                yield module.finding(node, f"{node.name} has {count} lines, at most {settings.function_lines_max}")


def calls(module: Module, _: Settings) -> Iterator[Finding]:
    """Calls that are banned everywhere, and queues without a limit."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            name = module.name_of(node.func)
            if name in BANNED_CALLS:
                yield module.finding(node, f"{name}(): {BANNED_CALLS[name]}")
            elif name in QUEUES and not is_bounded(node):
                yield module.finding(node, f"{name}() has no limit; give it a named one")


def is_bounded(call: ast.Call) -> bool:
    """Whether a queue is made with a limit that is not evidently none (0 or less)."""
    limits = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "maxsize")]
    return any(not isinstance(limit, ast.UnaryOp) and getattr(limit, "value", 1) != 0 for limit in limits)


def blanket_handlers(module: Module, _: Settings) -> Iterator[Finding]:
    """Handlers that catch everything and keep it, and do not say why."""
    lines = module.source.splitlines()
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler) or not is_blanket(node) or reraises(node):
            continue
        if not REASON_TO_CATCH_ALL.search(lines[node.lineno - 1]):
            yield module.finding(node, "catches everything; name the errors, or raise again")


def is_blanket(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches every error."""
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(one, ast.Name) and one.id in BLANKET_ERRORS for one in caught)


def reraises(handler: ast.ExceptHandler) -> bool:
    """Whether a handler always ends by raising."""
    return isinstance(handler.body[-1], ast.Raise)


def environment(module: Module, settings: Settings) -> Iterator[Finding]:
    """The process environment, read outside configuration and entry points."""
    if any(fnmatch(module.path, pattern) for pattern in settings.environment_readers):
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute | ast.Name) and module.name_of(node) in ENVIRONMENT:
            yield module.finding(node, f"{module.name_of(node)}: only configuration and entry points may read it")


def cores(module: Module, settings: Settings) -> Iterator[Finding]:
    """What a core imports or does although it only decides."""
    if not any(fnmatch(module.path, pattern) for pattern in settings.cores):
        return
    for node in module.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield module.finding(node, "a core never awaits")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                if name in NOT_IN_CORES:
                    yield module.finding(node, f"a core must not import {name}")


def imported(node: ast.Import | ast.ImportFrom) -> Sequence[str]:
    """The top-level packages that an import statement names."""
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.split(".")[0] for name in names]


def comments(module: Module, _: Settings) -> Iterator[Finding]:
    """Leftovers, and suppressions that do not say what they suppress."""
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            if leftover := LEFTOVER.search(token.string):
                yield Finding(module.path, token.start[0], f"{leftover[0]}: do it, or file it")
            if BARE_IGNORE.search(token.string):
                yield Finding(module.path, token.start[0], "a suppression must name its code")


RULES: Sequence[Rule] = (lengths, calls, blanket_handlers, environment, cores, comments)


def check(module: Module, settings: Settings) -> list[Finding]:
    """All findings in one file."""
    return [finding for rule in RULES for finding in rule(module, settings)]


def read_modules(root: Path) -> Iterator[Module]:
    """Every Python file below `root`, but for hidden and build folders."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not any(part.startswith(".") for part in parts) and parts[0] not in BUILD_FOLDERS:
            yield Module("/".join(parts), path.read_text(encoding="utf-8"))


def tidy(root: Path) -> list[str]:
    """Check a whole checkout; each finding as a line of text."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    settings = msgspec.convert(pyproject["tool"]["tidy"], Settings)
    modules = list(read_modules(root))
    found = [str(finding) for module in modules for finding in check(module, settings)]
    absent = [one for one in settings.cores if not any(fnmatch(module.path, one) for module in modules)]
    found += [f"pyproject.toml: the core {pattern} does not exist" for pattern in absent]
    page = (root / "docs" / "dependencies.md").read_text(encoding="utf-8")
    weights = (root / "locks" / "models.in").read_text(encoding="utf-8")
    found += [f"docs/dependencies.md: {name} has no line" for name in undeclared(pyproject["project"], weights, page)]
    return found


def main(out: TextIO) -> int:
    """Check this checkout; 0 when there is nothing to say."""
    found = tidy(ROOT)
    out.writelines(f"{line}\n" for line in found)
    out.write("tidy: {}\n".format(f"{len(found)} findings" if found else "ok"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.stdout))
