"""A certificate for development: phones give a page their microphone over HTTPS only.

Theory of operation
    The certificate signs itself, so a browser warns once and the user decides; it is for the development of pages on
    one's own network, not for the public. It is kept in the data directory and made anew when it is about to expire
    or this machine has got another address.

Rules
* The key is readable by its owner alone, from its first byte on.
* Valid for `DAYS`; names are `localhost`, the host's name and every address of this machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import ifaddr
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 90
DAYS_LEFT_MIN = 7
CERTIFICATE, KEY = "certificate.pem", "key.pem"


@dataclass(frozen=True, slots=True)
class DevelopmentTls:
    """Two PEM files."""

    certificate: Path
    key: Path


def host_addresses() -> tuple[str, ...]:
    """Every address of this machine, loopback first."""
    found = {ip.ip if ip.is_IPv4 else ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips}
    addresses = {"127.0.0.1", "::1"} | {str(address) for address in found}
    return tuple(sorted(addresses, key=lambda text: (not ip_address(text).is_loopback, text)))


def development_tls(folder: Path, now: datetime, names: Iterable[str] | None = None) -> DevelopmentTls:
    """The certificate in `folder`, made where there is none that serves. `names` None: those of this machine."""
    wanted = frozenset(names if names is not None else ("localhost", socket.gethostname(), *host_addresses()))
    files = DevelopmentTls(folder / CERTIFICATE, folder / KEY)
    if not _serves(files, wanted, now):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(files, wanted, now)
    return files


def _serves(files: DevelopmentTls, names: frozenset[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (OSError, ValueError):
        return False
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    named = set(alternatives.get_values_for_type(x509.DNSName))
    named |= {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    return (
        names <= named
        and certificate.not_valid_before_utc <= now
        and now + timedelta(days=DAYS_LEFT_MIN) < certificate.not_valid_after_utc
        and key.public_key() == certificate.public_key()
    )


def _make(files: DevelopmentTls, names: frozenset[str], now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "duplex development")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # a phone's clock may be a little behind
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(text) for text in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.key.unlink(missing_ok=True)
    with os.fdopen(os.open(files.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(private)
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
