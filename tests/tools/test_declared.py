"""A dependency without its row on the page is named, wherever pyproject asks for it."""

from __future__ import annotations

from tools.declared import direct, undeclared

PROJECT = {
    "dependencies": ["redis>=7", "Prometheus_Client"],
    "optional-dependencies": {"local": ["onnx>=1.23"], "ray": ["ray[default]==2.60.0"]},
}

WEIGHTS = "# wheels\nsilero-vad==6.2.3\n"

PAGE = """\
| package | for |
|---|---|
| `redis` | truth |
| `prometheus-client` | metrics |
| `ray` | placing |
"""


def test_names_come_from_all_places_and_are_spelt_alike() -> None:
    assert list(direct(PROJECT, WEIGHTS)) == ["redis", "prometheus-client", "onnx", "ray", "silero-vad"]


def test_what_has_no_row_is_named() -> None:
    assert undeclared(PROJECT, WEIGHTS, PAGE) == ["onnx", "silero-vad"]


def test_a_name_in_running_text_is_no_row() -> None:
    assert undeclared({"dependencies": ["onnx"]}, "", "We like `onnx`.\n") == ["onnx"]


def test_a_project_without_dependencies_lacks_nothing() -> None:
    assert undeclared({}, "", "") == []
