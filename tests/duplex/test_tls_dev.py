"""The development certificate: what it names, how long, and that its key stays ours."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from duplex.tls_dev import DAYS, DAYS_LEFT_MIN, development_tls, host_addresses

NOW = datetime(2026, 11, 29, tzinfo=UTC)
NAMES = ("localhost", "desk", "127.0.0.1", "192.168.1.7", "::1")


def certificate_in(folder: Path, now: datetime = NOW, names: tuple[str, ...] = NAMES) -> x509.Certificate:
    files = development_tls(folder, now, names)
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def test_it_names_this_machine_and_lasts_ninety_days(tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path / "tls")
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(alternatives.get_values_for_type(x509.DNSName)) == {"localhost", "desk"}
    addresses = {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "192.168.1.7", "::1"}
    assert certificate.not_valid_after_utc == NOW + timedelta(days=DAYS)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_server_can_use_it(tmp_path: Path) -> None:
    files = development_tls(tmp_path, NOW, NAMES)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)


def test_the_key_is_ours_alone(tmp_path: Path) -> None:
    files = development_tls(tmp_path / "tls", NOW, NAMES)
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_it_is_kept_while_it_serves(tmp_path: Path) -> None:
    first = certificate_in(tmp_path)
    soon = NOW + timedelta(days=DAYS - DAYS_LEFT_MIN - 1)
    assert certificate_in(tmp_path, soon, NAMES[:2]) == first


@pytest.mark.parametrize(
    ("now", "names"),
    [
        (NOW + timedelta(days=DAYS - DAYS_LEFT_MIN), NAMES),
        (NOW - timedelta(days=2), NAMES),
        (NOW, (*NAMES, "10.0.0.9")),
    ],
)
def test_it_is_made_anew_when_it_no_longer_does(tmp_path: Path, now: datetime, names: tuple[str, ...]) -> None:
    first = certificate_in(tmp_path)
    assert certificate_in(tmp_path, now, names) != first


@pytest.mark.parametrize("spoilt", ["certificate.pem", "key.pem"])
def test_a_spoilt_file_is_replaced(tmp_path: Path, spoilt: str) -> None:
    first = certificate_in(tmp_path)
    (tmp_path / spoilt).write_text("not PEM", encoding="ascii")
    assert certificate_in(tmp_path) != first
    development_tls(tmp_path / "other", NOW, NAMES)
    (tmp_path / "key.pem").write_bytes((tmp_path / "other" / "key.pem").read_bytes())
    files = development_tls(tmp_path, NOW, NAMES)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)


def test_by_default_every_address_of_this_machine_is_named(tmp_path: Path) -> None:
    files = development_tls(tmp_path, NOW)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    assert addresses == set(host_addresses()) >= {"127.0.0.1", "::1"}
    assert "localhost" in alternatives.get_values_for_type(x509.DNSName)
