"""`duplex doctor`: what is wrong with this installation, and how to mend it.

Theory of operation
    `diagnose` asks a `Machine` one question after the other and judges each answer against a named limit.
    It starts no part of the service, changes nothing, and takes about a second, most of it for reading
    the model weights. `render` makes the text for a person; the command line decides the exit code.

Rules
* Every finding that is not ok carries a mend: a command, or the setting to change.
* A store's URL may hold a password, so only its host is shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from duplex.probes import Machine, StoreUnreachable, ThisMachine
from sessions.durability import Durability, shortfall
from sessions.durability import mend as mend_of

INTERPRETER_MIN = (3, 11)

# xllamacpp's wheel is linked against GNU OpenMP, which a bare Debian lacks.
SYSTEM_LIBRARIES = {"libgomp.so.1": "apt-get install libgomp1"}

# struct sockaddr_un of Linux (unix(7)) holds 108 bytes, the last of them the final zero.
SOCKET_PATH_BYTES_MAX = 107

# What the service appends to its data folder for its longest socket: a separator, a folder and a name.
SOCKET_NAME_BYTES_MAX = 40

# The append-only file of a busy day and the split voice (65 MB) fit well into this.
DISK_FREE_BYTES_MIN = 512 * 1024 * 1024

# Four model processes and the gateway; the figures in README.md are from two cores.
CORES_MIN = 2

# The scripts use functions of Redis 7.0; Valkey 8 presents itself as 7.2.
STORE_MAJOR_MIN = 7

# More than this many packages in one line help nobody.
PACKAGES_NAMED_MAX = 5

REINSTALL = "make run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `mend` is empty when all is well."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def diagnose(
    host: str,
    port: int,
    data_dir: Path,
    redis_url: str | None,
    machine: Machine | None = None,
    *,
    durability: Durability = "process-crash-safe",
) -> list[Finding]:
    """Look at everything that the service needs on this machine, in the order in which it needs it.

    `host` and `port` are where the gateway would listen, `data_dir` holds its sockets and the embedded store,
    `redis_url` is an external store, of which `durability` is expected, or None for the embedded one.
    """
    asked = machine or ThisMachine()
    return [
        _interpreter(asked),
        _packages(asked),
        *(_library(asked, soname, mend) for soname, mend in SYSTEM_LIBRARIES.items()),
        _weights(asked),
        _cores(asked),
        _data_folder(asked, data_dir),
        _socket_path(data_dir),
        _disk(asked, data_dir),
        _port(asked, host, port),
        *(_external_store(asked, redis_url, durability) if redis_url else [_embedded_store(asked, durability)]),
        _telemetry(asked),
    ]


def render(findings: Sequence[Finding]) -> str:
    """The findings as lines for a person, each fault followed by its mend, and a last line that sums up."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{'ok' if finding.ok else 'WRONG':<6}{finding.name:<{width}}  {finding.detail}")
        if not finding.ok:
            lines.append(f"{'':<6}{'':<{width}}  mend: {finding.mend}")
    wrong = sum(not finding.ok for finding in findings)
    lines.append("Everything is in order." if not wrong else f"{wrong} of {len(findings)} need mending.")
    return "\n".join(lines) + "\n"


def _interpreter(machine: Machine) -> Finding:
    version = machine.interpreter()
    text = "Python " + ".".join(map(str, version))
    if version[:2] >= INTERPRETER_MIN:
        return Finding("interpreter", True, text)
    wanted = ".".join(map(str, INTERPRETER_MIN))
    return Finding("interpreter", False, text, f"install Python {wanted} or later, then: {REINSTALL}")


def _packages(machine: Machine) -> Finding:
    wanted = [Requirement(line) for line in machine.requirements()]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": "local"})]
    faults = [fault for one in wanted if (fault := _package_fault(one, machine.version_of(one.name)))]
    if not faults:
        return Finding("packages", True, f"{len(wanted)} as required")
    more = len(faults) - PACKAGES_NAMED_MAX
    named = "; ".join(faults[:PACKAGES_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
    return Finding("packages", False, named, REINSTALL)


def _package_fault(wanted: Requirement, installed: str | None) -> str | None:
    if installed is None:
        return f"{wanted.name} is missing"
    if not wanted.specifier.contains(installed, prereleases=True):
        return f"{wanted.name} is {installed}, not {wanted.specifier}"
    return None


def _library(machine: Machine, soname: str, mend: str) -> Finding:
    refusal = machine.refusal_to_load(soname)
    return Finding(soname, refusal is None, refusal or "loads", mend if refusal else "")


def _weights(machine: Machine) -> Finding:
    problems = machine.weight_problems()
    if not problems:
        return Finding("weights", True, "every SHA-256 is right")
    return Finding("weights", False, "; ".join(f"{one.path}: {one.fault.value}" for one in problems), problems[0].mend)


def _cores(machine: Machine) -> Finding:
    cores = machine.cores()
    mend = "" if cores >= CORES_MIN else f"give the service {CORES_MIN} cores, or an engine on another machine"
    return Finding("cores", not mend, str(cores), mend)


def _data_folder(machine: Machine, folder: Path) -> Finding:
    refusal = machine.refusal_to_write(folder)
    mend = f"make {folder} writable, or configure another data folder" if refusal else ""
    return Finding("data folder", refusal is None, f"{folder}: {refusal or 'writable'}", mend)


def _socket_path(folder: Path) -> Finding:
    length = len(os.fsencode(folder.absolute())) + SOCKET_NAME_BYTES_MAX
    detail = f"{length} of {SOCKET_PATH_BYTES_MAX} bytes"
    mend = "" if length <= SOCKET_PATH_BYTES_MAX else "configure a data folder with a shorter path"
    return Finding("socket path", not mend, detail, mend)


def _disk(machine: Machine, folder: Path) -> Finding:
    free = machine.disk_free_bytes(folder)
    short = DISK_FREE_BYTES_MIN - free
    mend = f"free {short / 1e6:.0f} MB, or configure a data folder elsewhere" if short > 0 else ""
    return Finding("disk", not mend, f"{free / 1e9:.1f} GB free for {folder}", mend)


def _port(machine: Machine, host: str, port: int) -> Finding:
    refusal = machine.refusal_to_bind(host, port)
    if refusal is not None and machine.serves(host, port):
        return Finding("port", True, f"{host}:{port}: the service is running there")
    mend = "end the program that listens there, or configure another host or port" if refusal else ""
    return Finding("port", refusal is None, f"{host}:{port}: {refusal or 'free'}", mend)


def _embedded_store(machine: Machine, durability: Durability) -> Finding:
    refusal = machine.embedded_store()
    detail = refusal or f"embedded Valkey starts and answers; {durability}"
    return Finding("store", refusal is None, detail, REINSTALL if refusal else "")


def _external_store(machine: Machine, url: str, durability: Durability) -> list[Finding]:
    place = urlsplit(url).hostname or urlsplit(url).path
    try:
        version, persistence = machine.store_version(url), machine.store_persistence(url)
    except StoreUnreachable as error:
        return [Finding("store", False, f"{place}: {error}", "start it, or correct DUPLEX_REDIS_URL")]
    old = int(version.split(".")[0]) < STORE_MAJOR_MIN
    mend = f"use Redis {STORE_MAJOR_MIN}.0 or Valkey 8 or later" if old else ""
    lack = shortfall(durability, persistence)
    return [
        Finding("store", not old, f"{place}: answers as Redis {version}", mend),
        Finding("durability", lack is None, lack or f"it is {durability}", mend_of(durability) if lack else ""),
    ]


def _telemetry(machine: Machine) -> Finding:
    on = machine.telemetry_on()
    mend = "start the service with `duplex serve`, which sets them" if on else ""
    return Finding("telemetry", not on, f"not switched off: {', '.join(on)}" if on else "switched off", mend)
