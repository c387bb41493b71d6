"""The file that declares the service's tools: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from duplex.config import Config, ConfigError
from duplex.service_tools import FILLER_WORDS_MAX, service_tools
from sessions.filler import FILLER
from tests.duplex.tool_server import KEY, SECRET

ENVIRONMENT = {"BOOKING_SECRET": SECRET}
TOOL = """
[[tools]]
name = "book"
url = "{url}"
secret_env = "BOOKING_SECRET"
{more}
"""


def declared(
    tmp_path: Path,
    *,
    hosts: str = '["tools.example.com"]',
    url: str = "https://tools.example.com/book",
    more: str = "",
    tail: str = "",
) -> Config:
    path = tmp_path / "tools.toml"
    path.write_text(f"hosts = {hosts}\n{TOOL.format(url=url, more=more)}{tail}")
    return Config(tools_file=path)


def test_without_a_file_there_are_none() -> None:
    assert service_tools(Config(), {}) == ()


def test_what_a_tool_is(tmp_path: Path) -> None:
    more = 'description = "Books."\nsafe = true\ntime_limit_s = 5\nfiller = "Wait."\nparameters = {type = "object"}'
    (tool,) = service_tools(declared(tmp_path, more=more), ENVIRONMENT)
    served = tool.served
    assert (tool.name, served.tool.description, served.tool.parameters) == ("book", "Books.", '{"type":"object"}')
    assert (served.safe, served.filler, tool.time_limit_s) == (True, "Wait.", 5.0)
    assert (tool.url, tool.secret.key) == ("https://tools.example.com/book", KEY)
    assert SECRET not in repr(tool)
    assert repr(KEY) not in repr(tool)


def test_nobody_says_that_it_is_safe_unless_they_do(tmp_path: Path) -> None:
    (tool,) = service_tools(declared(tmp_path), ENVIRONMENT)
    assert (tool.served.safe, tool.served.filler, tool.time_limit_s) == (False, FILLER, 10.0)


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        ('["tools.example.com:8443"]', "https://tools.example.com:8443/book"),
        ('["Tools.Example.com"]', "https://tools.example.com/book"),
        ('["127.0.0.1:9000"]', "http://127.0.0.1:9000/book"),
        ('["[::1]:9000"]', "http://[::1]:9000/book"),
        ('["http://tools.internal"]', "http://tools.internal/book"),
    ],
)
def test_hosts_that_may_be_asked(tmp_path: Path, hosts: str, url: str) -> None:
    assert service_tools(declared(tmp_path, hosts=hosts, url=url), ENVIRONMENT)[0].url == url


@pytest.mark.parametrize(
    ("hosts", "url", "fault"),
    [
        ("[]", "https://tools.example.com/", "book: url: tools.example.com is not among hosts"),
        ('["a.example.com"]', "https://a.example.com:444/", "not among hosts"),
        ('["a.example.com"]', "http://a.example.com:443/", "https, or list http://a.example.com:443"),
        ('["a.example.com"]', "ftp://a.example.com/", "https://host/path"),
        ('["a.example.com"]', "https://me:pw@a.example.com/", "without a name, a password"),
        ('["a.example.com"]', "https://a.example.com/#x", "without"),
        ('["a.example.com"]', "https://a.example.com:x/", "book: url: "),
        ('["a.example.com/path"]', "https://a.example.com/", "hosts: 'a.example.com/path' is none"),
    ],
)
def test_no_other_host_is_asked(tmp_path: Path, hosts: str, url: str, fault: str) -> None:
    with pytest.raises(ConfigError, match="tools_file ") as error:
        service_tools(declared(tmp_path, hosts=hosts, url=url), ENVIRONMENT)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("time_limit_s = 60", "tools.0.time_limit_s"),
        ("speed = 1", "tools.0.speed"),
        ('parameters = {type = "array"}', "parameters"),
        (f'filler = "{"a " * (FILLER_WORDS_MAX + 1)}"', "book: filler"),
        ("safe = maybe", "Invalid value"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, more: str, fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        service_tools(declared(tmp_path, more=more), ENVIRONMENT)
    assert fault in str(error.value)


def test_a_name_is_there_once(tmp_path: Path) -> None:
    tail = TOOL.format(url="https://tools.example.com/other", more="")
    with pytest.raises(ConfigError, match="'book' is there twice"):
        service_tools(declared(tmp_path, tail=tail), ENVIRONMENT)


@pytest.mark.parametrize("secret", [None, "", "short", "whsec_c2hvcnQ=", "whsec_!!!"])
def test_a_secret_is_one_and_is_not_repeated(tmp_path: Path, secret: str | None) -> None:
    environment = {} if secret is None else {"BOOKING_SECRET": secret}
    with pytest.raises(ConfigError, match="BOOKING_SECRET") as error:
        service_tools(declared(tmp_path), environment)
    assert not secret or secret not in str(error.value).replace("whsec_ and", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        service_tools(Config(tools_file=tmp_path / "none.toml"), {})
