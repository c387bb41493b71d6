"""Where settings come from, what wins, and what is fatal."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from duplex.config import Config, ConfigError, check_files, load, secret_in


def test_everything_has_a_default() -> None:
    config = load({})
    assert (config.host, config.port, config.engine, config.calls_max) == ("127.0.0.1", 8080, "local", 4)
    assert config.token is None
    assert config.run_dir == Path(".duplex/run")


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "duplex.toml"
    file.write_text('port = 1000\ncalls_max = 2\nsilence_ms = 300\nallowed_origins = ["https://a.example"]\n')
    config = load({"DUPLEX_CONFIG": str(file), "DUPLEX_CALLS_MAX": "3", "DUPLEX_PORT": "2000"}, port=3000, host=None)
    assert (config.silence_ms, config.calls_max, config.port) == (300, 3, 3000)
    assert config.allowed_origins == ("https://a.example",)
    assert config.host == "127.0.0.1"


def test_the_environment_of_the_process_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUPLEX_PORT", "1234")
    assert load().port == 1234


@pytest.mark.parametrize(
    ("text", "values"),
    [("", ()), ("https://a.example", ("https://a.example",)), ("a|b, c|", ("a", "b, c", ""))],
)
def test_lists_are_separated_by_bars(text: str, values: tuple[str, ...]) -> None:
    assert load({"DUPLEX_ALLOWED_ORIGINS": text}).allowed_origins == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "http"),
        ("token", ""),
        ("operator_token", ""),
        ("calls_max", "0"),
        ("message_bytes_max", "1023"),
        ("input_bytes_per_second_max", "1"),
        ("engine", "cloud"),
        ("thinker", "human"),
        ("answering_machine", "shout"),
        ("after_resume", "shout"),
        ("resume_question", " "),
        ("temperature", "2.5"),
        ("silence_ms", "99"),
        ("generation_lead_ms", "100"),
        ("log_level", "loud"),
        ("retention_hours", "0"),
        ("redis_url", "localhost:6379"),
        ("scripted_heard", ""),
        ("scripted_replies", ""),
    ],
)
def test_a_bad_value_names_its_setting(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        load({f"DUPLEX_{name.upper()}": value})


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^port: .*; calls_max: "):
        load({"DUPLEX_PORT": "-1", "DUPLEX_CALLS_MAX": "0"})


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "duplex.toml"
    file.write_text("prot = 8080\n")
    with pytest.raises(ConfigError, match=r"^prot: "):
        load({"DUPLEX_CONFIG": str(file)})


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "duplex.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=str(file)):
        load({"DUPLEX_CONFIG": str(file)})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_off_the_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="set token"):
        load({"DUPLEX_HOST": host})
    assert load({"DUPLEX_HOST": host, "DUPLEX_TOKEN": "secret"}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_the_loopback_none_is_needed(host: str) -> None:
    assert load({"DUPLEX_HOST": host}).token is None


def test_another_thinker_needs_its_address_and_model() -> None:
    with pytest.raises(ConfigError, match="openai_base_url and openai_model"):
        load({"DUPLEX_THINKER": "openai", "DUPLEX_OPENAI_MODEL": "any"})
    config = load({"DUPLEX_THINKER": "openai", "DUPLEX_OPENAI_MODEL": "m", "DUPLEX_OPENAI_BASE_URL": "http://h/v1"})
    assert config.thinker == "openai"


def test_a_message_to_machines_and_what_to_do_with_it_need_each_other() -> None:
    for wrong in (
        {"DUPLEX_ANSWERING_MACHINE": "leave_message"},
        {"DUPLEX_ANSWERING_MACHINE": "leave_message", "DUPLEX_MACHINE_MESSAGE": " "},
        {"DUPLEX_MACHINE_MESSAGE": "Please call back."},
        {"DUPLEX_ANSWERING_MACHINE": "hang_up", "DUPLEX_MACHINE_MESSAGE": "Please call back."},
    ):
        with pytest.raises(ConfigError, match="machine_message need each other"):
            load(wrong)
    config = load({"DUPLEX_ANSWERING_MACHINE": "leave_message", "DUPLEX_MACHINE_MESSAGE": "Please call back."})
    assert config.machine_message == "Please call back."
    assert load({"DUPLEX_ANSWERING_MACHINE": "hang_up"}).answering_machine == "hang_up"


def test_an_operator_is_no_caller() -> None:
    with pytest.raises(ConfigError, match="it must be another one"):
        load({"DUPLEX_TOKEN": "same", "DUPLEX_OPERATOR_TOKEN": "same"})
    assert load({"DUPLEX_TOKEN": "one", "DUPLEX_OPERATOR_TOKEN": "other"}).operator_reads_words is False


def test_gateways_have_names_and_ports_of_their_own() -> None:
    assert Config().gateway_names == ("gateway",)
    assert Config(gateways=2).gateway_names == ("gateway-1", "gateway-2")
    for port, first in ((9101, 9100), (8080, 65535)):
        with pytest.raises(ConfigError, match=f"gateway_port {first} is the first of 2"):
            load({"DUPLEX_GATEWAYS": "2", "DUPLEX_PORT": str(port), "DUPLEX_GATEWAY_PORT": str(first)})
    assert load({"DUPLEX_GATEWAYS": "2", "DUPLEX_PORT": "9100", "DUPLEX_GATEWAY_PORT": "9101"}).gateway_port == 9101
    assert load({"DUPLEX_PORT": "9100", "DUPLEX_GATEWAY_PORT": "9100"}).gateways == 1, "a lone one has no other"
    for count in ("0", "17", "many"):
        with pytest.raises(ConfigError, match="gateways"):
            load({"DUPLEX_GATEWAYS": count})


def test_secrets_are_shown_nowhere() -> None:
    secrets = {
        "DUPLEX_TOKEN": "secret-token",
        "DUPLEX_OPERATOR_TOKEN": "secret-operator",
        "DUPLEX_OPENAI_API_KEY": "secret-key",
        "DUPLEX_REDIS_URL": "redis://:secret-password@h",
    }
    config = load(secrets)
    assert config.token is not None
    assert config.token.get_secret_value() == "secret-token"
    for shown in (repr(config), str(config), repr(config.token)):
        assert "secret" not in shown.replace("SecretStr", "")


def test_errors_do_not_repeat_secrets() -> None:
    with pytest.raises(ConfigError) as raised:
        load({"DUPLEX_HOST": "::", "DUPLEX_OPENAI_API_KEY": "secret", "DUPLEX_REDIS_URL": "secret"})
    assert "secret" not in str(raised.value)
    assert "secret" not in str(raised.value.__cause__)


def test_it_is_frozen() -> None:
    config = Config()
    with pytest.raises(ValidationError):
        config.port = 1


def test_files_that_are_not_there_are_named_with_their_setting(tmp_path: Path) -> None:
    model, voice, profile = tmp_path / "a.gguf", tmp_path / "b.onnx", tmp_path / "c.toml"
    check_files(Config())
    with pytest.raises(ConfigError, match=r"thinker_gguf \(DUPLEX_THINKER_GGUF\): there is no file .*a.gguf"):
        check_files(Config(thinker_gguf=model))
    model.touch()
    voice.touch()
    with pytest.raises(ConfigError, match=r"voice \(DUPLEX_VOICE\): there is no file .*b.onnx.json"):
        check_files(Config(thinker_gguf=model, voice=(voice,)))
    (tmp_path / "b.onnx.json").touch()
    check_files(Config(thinker_gguf=model, voice=(voice,)))
    with pytest.raises(ConfigError, match=r"synthetic_profile \(DUPLEX_SYNTHETIC_PROFILE\): there is no file .*c.toml"):
        check_files(Config(synthetic_profile=profile))


def test_tenants_stand_in_place_of_the_token() -> None:
    config = load({"DUPLEX_TENANTS_FILE": "tenants.toml", "DUPLEX_HOST": "0.0.0.0"})
    assert config.tenants_file == Path("tenants.toml")
    with pytest.raises(ConfigError, match="unset token"):
        load({"DUPLEX_TENANTS_FILE": "tenants.toml", "DUPLEX_TOKEN": "t"})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"twilio_auth_token_file": "x"}, "public_url"),
        ({"public_url": "ftp://x"}, "public_url"),
        ({"public_url": "http://voice.example.com", "token": "t"}, "public_url: https"),
        ({"public_url": "https://voice.example.com"}, "set token"),
        ({"public_url": "https://user@voice.example.com"}, "public_url"),
        ({"twilio_api_url": "http://api.example.com"}, "twilio_api_url"),
        ({"asterisk_user": "pbx"}, "asterisk_password_file"),
        ({"telnyx_api_key_file": "x"}, "telnyx_token_file"),
        ({"asterisk_control_url": "https://pbx"}, "asterisk_user or asterisk_urls"),
        ({"asterisk_password_file": "x"}, "asterisk_user"),
        ({"asterisk_user": "a:b", "asterisk_password_file": "x"}, "asterisk_user"),
        ({"asterisk_urls": "wss://pbx:8089/media"}, "asterisk_urls"),
        ({"asterisk_urls": "https://pbx"}, "asterisk_urls"),
        ({"phone_transfer_to": "+1555x"}, "phone_transfer_to"),
        ({"phone_idle_s": "4"}, "phone_idle_s"),
    ],
)
def test_telephones_that_cannot_be_are_refused_by_name(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load({f"DUPLEX_{name.upper()}": value for name, value in settings.items()})


def test_telephones_that_can_be() -> None:
    config = load(
        {
            "DUPLEX_PUBLIC_URL": "https://voice.example.com/duplex",
            "DUPLEX_TOKEN": "t",
            "DUPLEX_ASTERISK_URLS": "ws://127.0.0.1:8088|wss://pbx.example.com:8089",
            "DUPLEX_PHONE_TRANSFER_TO": "+15550199|100|sip:desk@pbx.example.com",
        }
    )
    assert len(config.asterisk_urls) == 2
    assert load({"DUPLEX_PUBLIC_URL": "http://127.0.0.1:8080"}).is_private
    assert not config.is_private
    assert not load({"DUPLEX_HOST": "0.0.0.0", "DUPLEX_TOKEN": "t"}).is_private


@pytest.mark.parametrize("content", ["", " \n", "two\nlines", "x" * 2_000, "\x07"])
def test_a_file_with_no_secret_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(content)
    with pytest.raises(ConfigError, match="telnyx_token_file") as refused:
        check_files(load({"DUPLEX_TELNYX_TOKEN_FILE": str(secret)}))
    assert "lines" not in str(refused.value)


def test_a_secret_is_the_one_line_of_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    assert secret_in("telnyx_token_file", secret) == "s3cret"
    assert secret_in("telnyx_token_file", None) is None
    secret.write_bytes(b"\xff")
    with pytest.raises(ConfigError):
        secret_in("telnyx_token_file", secret)
    with pytest.raises(ConfigError):
        secret_in("telnyx_token_file", tmp_path / "none")
