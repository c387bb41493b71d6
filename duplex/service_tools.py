"""Tools that the service carries out itself: the file in which its operator declares them.

    hosts = ["tools.example.com"]       # no other host is asked for anything

    [[tools]]
    name = "book_table"
    description = "Books a table."
    url = "https://tools.example.com/book"
    secret_env = "BOOKING_SECRET"       # the variable that holds what requests are signed with
    parameters = { type = "object", properties = { people = { type = "integer" } } }

Rules
* All of it is checked at the start; a fault names the tool and the field.
* A secret comes from the environment alone, and never shows when printed.
* Requests travel encrypted. Plain HTTP is for loopback, and for hosts that are listed as `http://host:port`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from duplex.config import LOOPBACK_HOSTS, Config, ConfigError
from duplex.realtime.client_events import ClientEventError, FunctionBody
from duplex.realtime.tool_config import tools_of
from duplex.webhook_signature import SecretError, SigningSecret
from sessions.filler import FILLER
from sessions.service_calls import ServiceTool

TIME_LIMIT_S_MAX = 30.0  # nobody waits for longer on the phone; a call that has ended holds its place for so long
# One clause, as the Talker takes it.
FILLER_CHARACTERS_MAX = 120
FILLER_WORDS_MAX = 14
_HOST = re.compile(r"(?P<scheme>http://)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:(?P<port>\d{1,5}))?")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class HttpTool:
    """Where and how the service has a tool's calls carried out."""

    served: ServiceTool
    url: str
    secret: SigningSecret = field(repr=False)
    time_limit_s: float = 10.0

    @property
    def name(self) -> str:
        return self.served.tool.name


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    url: str
    secret_env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    safe: bool = False
    time_limit_s: float = Field(default=10.0, ge=0.1, le=TIME_LIMIT_S_MAX)
    filler: str = Field(default=FILLER, max_length=FILLER_CHARACTERS_MAX)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[str, ...]
    tools: tuple[_Declared, ...]


def service_tools(config: Config, environment: Mapping[str, str] | None = None) -> tuple[HttpTool, ...]:
    """What the file that `config` names declares; none where it names none. Raises `ConfigError`."""
    path = config.tools_file
    if path is None:
        return ()
    try:
        declared = _File(**tomllib.loads(path.read_text(encoding="utf-8")))
        return _checked(declared, os.environ if environment is None else environment)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"tools_file {path}: {faults}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"tools_file {path}: {error}") from error


def _checked(declared: _File, environment: Mapping[str, str]) -> tuple[HttpTool, ...]:
    bodies = [FunctionBody("function", each.name, each.description, each.parameters) for each in declared.tools]
    try:
        tools = tools_of(bodies, "tools")
    except ClientEventError as error:
        raise ConfigError(f"{error.param}: {error}") from error
    hosts = [_host_of(text) for text in declared.hosts]
    made = []
    for tool, each in zip(tools, declared.tools, strict=True):
        _check_url(each, hosts)
        if len(each.filler.split()) > FILLER_WORDS_MAX:
            raise ConfigError(f"{each.name}: filler: at most {FILLER_WORDS_MAX} words")
        served = ServiceTool(tool, each.safe, each.filler)
        made.append(HttpTool(served, each.url, _secret(each, environment), each.time_limit_s))
    return tuple(made)


def _host_of(text: str) -> tuple[str, str, int]:
    """(scheme, host, port) that may be asked."""
    match = _HOST.fullmatch(text)
    if match is None:
        raise ConfigError(f"hosts: {text!r} is none: a name or an address, then :port where it is not the usual one")
    host = match["host"].lower()
    is_plain = match["scheme"] is not None or host.strip("[]") in LOOPBACK_HOSTS
    scheme = "http" if is_plain else "https"
    return scheme, host, int(match["port"] or _PORTS[scheme])


def _check_url(tool: _Declared, hosts: list[tuple[str, str, int]]) -> None:
    try:
        url = httpx2.URL(tool.url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{tool.name}: url: {error}") from error
    if url.scheme not in _PORTS or url.userinfo or url.fragment:
        raise ConfigError(f"{tool.name}: url: https://host/path, without a name, a password or a #fragment")
    host = f"[{url.host}]" if ":" in url.host else url.host.lower()
    listed = [scheme for scheme, *place in hosts if place == [host, url.port or _PORTS[url.scheme]]]
    if not listed:
        raise ConfigError(f"{tool.name}: url: {url.netloc.decode()} is not among hosts")
    if url.scheme == "http" and "http" not in listed:
        message = f"https, or list http://{url.netloc.decode()} among hosts if nobody else can read what travels there"
        raise ConfigError(f"{tool.name}: url: {message}")


def _secret(tool: _Declared, environment: Mapping[str, str]) -> SigningSecret:
    text = environment.get(tool.secret_env)
    if text is None:
        raise ConfigError(f"{tool.name}: secret_env: the environment has no {tool.secret_env}")
    try:
        return SigningSecret.of(text)
    except SecretError as error:
        raise ConfigError(f"{tool.name}: {tool.secret_env}: {error}") from error
