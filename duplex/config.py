"""Configuration: one frozen object, validated when built.

Sources, later ones win: defaults, the TOML file named by `DUPLEX_CONFIG`, environment variables `DUPLEX_<NAME>`.
`duplex.sample.toml` at the root lists every setting. A bad value is fatal at start, and its message names the setting.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from duplex.tenants import DEFAULT_TENANT
from sessions.durability import Durability
from sessions.far_side import OnMachine
from sessions.filler import FILLER, FILLER_CHARACTERS_MAX
from sessions.return_policy import RESUME_QUESTION, AfterResume
from stages.block_table import BLOCKS, BLOCKS_MAX, SESSION_BLOCKS_MAX
from stages.edges import GATEWAY
from stages.event_log import EVENTS_KEPT_MAX, EVENTS_MAX
from stages.graph import REPLICAS_MAX
from stages.kv_cache import IDLE_S_MAX

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
ENVIRONMENT_PREFIX = "DUPLEX_"
SECRET_CHARACTERS_MAX = 1_024
_SECRET_FILES = ("twilio_auth_token_file", "telnyx_token_file", "telnyx_api_key_file", "asterisk_password_file")
_API_URL = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
_TRANSFER_TO = re.compile(r"\+?[0-9]{2,15}|sips?:[^\s<>\"]{1,200}")
_ASTERISK_URL = re.compile(r"wss?://[^/?#@\s]+")
GATEWAYS_MAX = 16  # one serves dozens of calls on a core


class ConfigError(ValueError):
    """The configuration cannot be used; the text names each setting that is wrong."""


class Config(BaseModel):
    """Times in the unit of the name. Paths are relative to the working directory."""

    # Errors never repeat what was given: it may be a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Where it listens, and who may call.
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    gateways: int = Field(default=1, ge=1, le=GATEWAYS_MAX)
    gateway_port: int = Field(default=0, ge=0, le=65535)
    token: SecretStr | None = Field(default=None, min_length=1)
    tenants_file: Path | None = None
    operator_token: SecretStr | None = Field(default=None, min_length=1)
    operator_reads_words: bool = False
    allowed_origins: tuple[str, ...] = ()
    tls_dev: bool = False
    webrtc_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    webrtc_silence_s: int = Field(default=5, ge=2, le=60)
    # Telephones.
    public_url: str | None = Field(default=None, pattern=_API_URL)
    phone_tenant: str = DEFAULT_TENANT
    phone_ticket_s: int = Field(default=60, ge=10, le=600)
    phone_greeting: str = Field(default="", max_length=500)
    phone_idle_s: int = Field(default=0, ge=0, le=30)
    phone_resume_s: int = Field(default=0, ge=0, le=3600)
    phone_transfer_to: tuple[str, ...] = ()
    twilio_auth_token_file: Path | None = None
    twilio_api_url: str = Field(default="https://api.twilio.com", pattern=_API_URL)
    telnyx_token_file: Path | None = None
    telnyx_api_key_file: Path | None = None
    telnyx_api_url: str = Field(default="https://api.telnyx.com", pattern=_API_URL)
    asterisk_user: str | None = Field(default=None, pattern=r"^[^:\s]+$")
    asterisk_password_file: Path | None = None
    asterisk_urls: tuple[str, ...] = ()
    asterisk_control_url: str | None = Field(default=None, pattern=_API_URL)
    # Where it keeps things.
    data_dir: Path = Path(".duplex")
    # May hold a password.
    redis_url: str | None = Field(default=None, repr=False, pattern=r"^((redis|rediss|unix)://.+)?$")
    durability: Durability = "process-crash-safe"
    retention_hours: int = Field(default=24, ge=1, le=24 * 365)
    store_outage_s: int = Field(default=30, ge=1, le=600)
    # What it can carry.
    calls_max: int = Field(default=4, ge=1, le=1000)
    call_minutes_max: int = Field(default=60, ge=1)
    idle_minutes_max: int = Field(default=10, ge=1)
    client_stall_s: int = Field(default=10, ge=1, le=300)
    message_bytes_max: int = Field(default=16 << 20, ge=1 << 10, le=64 << 20)
    input_bytes_per_second_max: int = Field(default=4 << 20, ge=64 << 10)
    # What computes.
    engine: Literal["local", "scripted", "synthetic"] = "local"
    thinker: Literal["local", "openai", "scripted"] = "local"
    thinker_gguf: Path | None = None
    voice: tuple[Path, ...] = ()
    openai_base_url: str | None = None
    openai_model: str | None = None
    openai_api_key: SecretStr | None = None
    scripted_heard: tuple[str, ...] = Field(default=("hello",), min_length=1)
    scripted_replies: tuple[str, ...] = Field(default=("Hello. How can I help you today?",), min_length=1)
    synthetic_profile: Path | None = None
    replicas_encoder: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    replicas_thinker: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    replicas_talker: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    replicas_vocoder: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    kv_slots: int = Field(default=0, ge=0, le=1000)
    kv_idle_s: int = Field(default=IDLE_S_MAX, ge=1, le=24 * 3600)
    worker_silence_s: float = Field(default=5.0, ge=0.2, le=60.0)
    arena_blocks: int = Field(default=BLOCKS, ge=1, le=BLOCKS_MAX)
    session_blocks_max: int = Field(default=SESSION_BLOCKS_MAX, ge=1, le=BLOCKS_MAX)
    # How it talks.
    instructions: str | None = None
    max_output_tokens: int = Field(default=96, ge=1, le=4096)
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    tools_file: Path | None = None
    context_characters: int = Field(default=2_400, ge=500, le=30_000)
    prepare_replies: bool = True
    filler: str = Field(default=FILLER, max_length=FILLER_CHARACTERS_MAX)
    answering_machine: OnMachine = "go_on"
    machine_message: str = Field(default="", max_length=FILLER_CHARACTERS_MAX)
    after_resume: AfterResume = "wait"
    resume_question: str = Field(default=RESUME_QUESTION, pattern=r"\S", max_length=FILLER_CHARACTERS_MAX)
    silence_ms: int = Field(default=500, ge=100, le=5000)
    turn_end_by_sound: bool = True
    transport_lead_ms: int = Field(default=160, ge=40, le=1000)
    generation_lead_ms: int = Field(default=400, ge=400, le=5000)
    # What it says of itself.
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    events_max: int = Field(default=EVENTS_MAX, ge=0, le=EVENTS_KEPT_MAX)
    admission_wait_s: float = Field(default=3.0, ge=0.1, le=3600.0)
    alert_wait_s: float = Field(default=10.0, ge=0.1, le=3600.0)
    alert_lease_ms: int = Field(default=1000, ge=10, le=60_000)
    alert_fill_percent: int = Field(default=75, ge=1, le=100)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.thinker == "openai" and not (self.openai_base_url and self.openai_model):
            raise ValueError("thinker=openai needs openai_base_url and openai_model")
        if self.token is not None and self.tenants_file is not None:
            raise ValueError("token and tenants_file: with tenants, each has keys of its own; unset token")
        if self.host not in LOOPBACK_HOSTS and self.token is None and self.tenants_file is None:
            raise ValueError(f"host {self.host} can be reached from outside: set token (DUPLEX_TOKEN) as well")
        own_ports = range(self.gateway_port, self.gateway_port + self.gateways)
        if self.gateways > 1 and self.gateway_port and (self.port in own_ports or own_ports[-1] > 65535):
            raise ValueError(
                f"gateway_port {self.gateway_port} is the first of {self.gateways}: none may be port, or over 65535"
            )
        if self.operator_token is not None and self.operator_token == self.token:
            raise ValueError("operator_token is that of the callers: it must be another one")
        self._check_phones()
        if (self.answering_machine == "leave_message") is not bool(self.machine_message.strip()):
            raise ValueError("answering_machine=leave_message and machine_message need each other")
        return self

    def _check_phones(self) -> None:
        if self.twilio_auth_token_file is not None and self.public_url is None:
            raise ValueError("twilio_auth_token_file needs public_url: where Twilio reaches this service")
        if self.public_url and not _is_loopback(self.public_url) and self.token is None and self.tenants_file is None:
            raise ValueError("public_url: others reach this service there: set token (DUPLEX_TOKEN) as well")
        for name in ("public_url", "twilio_api_url", "telnyx_api_url", "asterisk_control_url"):
            url = getattr(self, name)
            if url and url.startswith("http:") and not _is_loopback(url):
                raise ValueError(f"{name}: https, as what travels there is secret")
        if (self.asterisk_user is None) is not (self.asterisk_password_file is None):
            raise ValueError("asterisk_user and asterisk_password_file: both, or none")
        if self.telnyx_api_key_file is not None and self.telnyx_token_file is None:
            raise ValueError("telnyx_api_key_file needs telnyx_token_file: it is used on calls that Telnyx has brought")
        if self.asterisk_control_url is not None and self.asterisk_user is None and not self.asterisk_urls:
            raise ValueError("asterisk_control_url needs asterisk_user or asterisk_urls: the PBX that it is for")
        if not all(_ASTERISK_URL.fullmatch(url) for url in self.asterisk_urls):
            raise ValueError("asterisk_urls: each is ws://host:port or wss://host:port, without a path")
        if not all(_TRANSFER_TO.fullmatch(place) for place in self.phone_transfer_to):
            raise ValueError("phone_transfer_to: each is a number, as +15550199, or sip:name@host")
        if 0 < self.phone_idle_s < 5:
            raise ValueError("phone_idle_s: 5 to 30, or 0 for never")

    @property
    def is_private(self) -> bool:
        """Only this machine can reach it, and whoever can may call."""
        return self.host in LOOPBACK_HOSTS and self.token is None and self.tenants_file is None

    @property
    def gateway_names(self) -> tuple[str, ...]:
        """A lone one has the plain name."""
        if self.gateways == 1:
            return (GATEWAY,)
        return tuple(f"{GATEWAY}-{number}" for number in range(1, self.gateways + 1))

    @property
    def run_dir(self) -> Path:
        """Sockets of this service."""
        return self.data_dir / "run"


def load(environment: Mapping[str, str] | None = None, **overrides: object) -> Config:
    """Build the configuration. `overrides` (command line) win over everything. Raises `ConfigError`."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    path = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    if path:
        values |= _from_file(Path(path))
    values |= _from_environment(environment)
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return Config(**values)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc'])) or 'configuration'}: {fault['msg']}" for fault in error.errors())
        raise ConfigError("; ".join(faults)) from error


def check_files(config: Config) -> None:
    """Raises `ConfigError` where a setting names a file that is not there."""
    single = (
        ("thinker_gguf", config.thinker_gguf),
        ("synthetic_profile", config.synthetic_profile),
        ("tools_file", config.tools_file),
        *((name, getattr(config, name)) for name in _SECRET_FILES),
    )
    wanted = [(name, path) for name, path in single if path is not None]
    for voice in config.voice:
        wanted += [("voice", voice), ("voice", voice.with_name(voice.name + ".json"))]
    for name, path in wanted:
        if not path.is_file():
            raise ConfigError(f"{name} ({ENVIRONMENT_PREFIX}{name.upper()}): there is no file {path}")
    for name in _SECRET_FILES:
        secret_in(name, getattr(config, name))


def secret_in(name: str, path: Path | None) -> str | None:
    """The secret that is the only line of the file that the setting `name` names; None where it names none. Raises
    `ConfigError`."""
    if path is None:
        return None
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {path} cannot be read: {type(error).__name__}") from error
    if not secret or not secret.isprintable() or len(secret) > SECRET_CHARACTERS_MAX:
        raise ConfigError(f"{name}: {path} must have one line with the secret")
    return secret


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`DUPLEX_PORT=8080` sets `port`. Lists are separated by `|`, as their texts hold commas."""
    values: dict[str, Any] = {}
    for name, field in Config.model_fields.items():
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None:
            is_list = "tuple" in str(field.annotation)
            values[name] = (tuple(text.split("|")) if text else ()) if is_list else text
    return values
