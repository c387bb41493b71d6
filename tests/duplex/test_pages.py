"""The page's files, and the headers that keep it to itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from duplex.pages import page_routes


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    (tmp_path / "index.html").write_text("<title>Talk</title>", encoding="utf-8")
    (tmp_path / "app.js").write_text("export {};", encoding="utf-8")
    return TestClient(Starlette(routes=page_routes(tmp_path)))


def test_the_page_is_at_the_root_and_its_files_under_web(client: TestClient) -> None:
    assert client.get("/").text == "<title>Talk</title>"
    script = client.get("/web/app.js")
    assert (script.text, script.headers["content-type"].partition(";")[0]) == ("export {};", "text/javascript")


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/web/nothing.js"])
def test_every_answer_allows_nothing_but_this_service(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["permissions-policy"].startswith("microphone=(self)")
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/web/../secret", "/web/%2e%2e/secret", "/web//etc/passwd"])
def test_nothing_else_is_served(client: TestClient, tmp_path: Path, path: str) -> None:
    (tmp_path.parent / "secret").write_text("secret", encoding="utf-8")
    assert client.get(path).status_code == 404


def test_without_a_page_there_is_none(tmp_path: Path) -> None:
    assert page_routes(tmp_path) == []
