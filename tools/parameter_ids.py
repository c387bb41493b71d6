"""The ids of a parametrised test's rows, as pytest gives them, read from its source without running it.

Rules
* Ids that are written down are read: `ids=[...]`, `pytest.param(..., id="...")`, and values that are plain constants.
* Any other value gets its id from pytest or from the function given as `ids`. Its row counts as unreadable, and so does
  every one that holds it: to name such a row, give it an id.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import product

Function = ast.FunctionDef | ast.AsyncFunctionDef


def row_ids(function: Function) -> frozenset[str] | None:
    """The ids that can be read, None where the test has no parameters."""
    # The decorator next to the function is applied first, and its ids come first.
    columns = [_ids_of(call) for call in map(_parametrize, reversed(function.decorator_list)) if call is not None]
    if not columns:
        return None
    rows = ([one for one in row if one is not None] for row in product(*columns))
    return frozenset("-".join(row) for row in rows if len(row) == len(columns))


def _parametrize(decorator: ast.expr) -> ast.Call | None:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
        return decorator
    return None


def _ids_of(call: ast.Call) -> list[str | None]:
    """The id of each row; None for one that cannot be read."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    names, rows = [*call.args, *(given[name] for name in ("argnames", "argvalues") if name in given)][:2]
    if not isinstance(rows, ast.List | ast.Tuple):
        return []
    ids = given.get("ids")
    if isinstance(ids, ast.List | ast.Tuple):
        return [_text(one) for one in ids.elts]
    several = not (isinstance(names, ast.Constant) and "," not in str(names.value))
    return [_row_id(row, several=several) if ids is None else None for row in rows.elts]


def _row_id(row: ast.expr, *, several: bool) -> str | None:
    if isinstance(row, ast.Call) and ast.unparse(row.func) == "pytest.param":
        named = [_text(keyword.value) for keyword in row.keywords if keyword.arg == "id"]
        return named[0] if named else _joined(row.args)
    return _joined(row.elts if several and isinstance(row, ast.List | ast.Tuple) else [row])


def _joined(values: Sequence[ast.expr]) -> str | None:
    known = [text for text in map(_text, values) if text is not None]
    return "-".join(known) if len(known) == len(values) else None


def _text(value: ast.expr) -> str | None:
    """What pytest makes of a constant. Characters outside ASCII are escaped there; nobody should have to write that."""
    if not isinstance(value, ast.Constant) or isinstance(value.value, bytes) or value.value is ...:
        return None
    text = str(value.value)
    return text if text.isascii() else None
