"""Whose keys are good now: the file of tenants, read again whenever it has changed.

Theory of operation
    Each gateway looks at the file once in `LOOK_S`; where its time, size or place on the disk has changed, it is read
    again. So a key or a tenant that was taken out is refused within moments, at every gateway, and its running calls
    end. Whoever changes the file writes another one and renames it: half a file is no file.

Rules
* While the file cannot be read or used, nobody is let in, and running calls go on: what was permitted is not known to
  be taken back.
* Neither keys nor what is in the file are logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from duplex.tenants import Tenants, TenantsError, single_tenant, tenants_from_toml

LOOK_S = 1.0

_log = structlog.get_logger("duplex.tenant_directory")
_Seen = tuple[int, int, int]


def read_tenants(path: Path) -> Tenants:
    """Raises `TenantsError`, which names the file."""
    try:
        return tenants_from_toml(path.read_text(encoding="utf-8"))
    except TenantsError as error:
        raise TenantsError(f"{path}: {error}") from error
    except OSError as error:
        raise TenantsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TenantsError(f"{path}: not UTF-8") from error


class TenantDirectory:
    """`path` None: there is one tenant, of which all calls are. `changed` is called when another file is in force."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tenants: Tenants | None = single_tenant() if path is None else None
        self._seen: _Seen | None = None
        self.changed: Callable[[Tenants], None] = lambda _tenants: None
        self.look()

    @property
    def tenants(self) -> Tenants | None:
        """Those in force; None where that is not known."""
        return self._tenants

    @property
    def is_file(self) -> bool:
        """Tenants are named, and each has keys of its own."""
        return self._path is not None

    async def run(self) -> None:
        """Look until cancelled."""
        while self._path is not None:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Read the file where it has changed, or could not be used."""
        if self._path is None:
            return
        seen = _seen(self._path)
        if seen == self._seen and self._tenants is not None:
            return
        try:
            tenants = read_tenants(self._path)
        except TenantsError as error:
            if self._tenants is not None or seen != self._seen:
                _log.error("tenants_unknown", error=str(error))
            self._tenants, self._seen = None, seen
            return
        self._tenants, self._seen = tenants, seen
        _log.info("tenants_read")
        self.changed(tenants)


def _seen(path: Path) -> _Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
