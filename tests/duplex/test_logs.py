"""Logs: one JSON object a line, from us and from libraries, and nothing secret in a traceback."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from duplex import logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_a_record_with_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "gateway")
    structlog.get_logger("any").warning("it_happened", session="sess_1")
    (record,) = records(capsys)
    assert (record["event"], record["process"], record["session"]) == ("it_happened", "gateway", "sess_1")
    assert (record["level"], record["timestamp"][-1]) == ("warning", "Z")


@pytest.mark.parametrize(
    ("level", "told"),
    [("debug", ["d", "i", "w", "e"]), ("info", ["i", "w", "e"]), ("warning", ["w", "e"]), ("error", ["e"])],
)
def test_levels(capsys: pytest.CaptureFixture[str], level: str, told: list[str]) -> None:
    logs.configure(level, "gateway")
    log = structlog.get_logger("any")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [record["event"] for record in records(capsys)] == told


def fail(transcript: str) -> None:
    raise ValueError("no text here")


def test_a_traceback_shows_no_variables(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "gateway")
    try:
        fail("what the caller said")
    except ValueError:
        structlog.get_logger("any").error("failed", exc_info=True)
        logging.getLogger("library").exception("failed too")
    out = capsys.readouterr().err
    ours, theirs = (json.loads(line) for line in out.splitlines())
    assert ours["exception"][0]["exc_type"] == theirs["exception"][0]["exc_type"] == "ValueError"
    assert "what the caller said" not in out


def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", "gateway")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("%s is odd", "this")
    (record,) = records(capsys)
    assert (record["event"], record["logger"], record["process"]) == ("this is odd", "library", "gateway")
