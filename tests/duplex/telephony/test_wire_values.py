"""Fields of carriers' JSON, of the right kind and of any other."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import CarrierError
from duplex.telephony.wire_values import (
    NUMBER_MAX,
    PARAMETERS_MAX,
    TEXT_CHARACTERS_MAX,
    WORDS_CHARACTERS_MAX,
    base64_bytes,
    number,
    object_of,
    part,
    text,
    texts,
    words,
)


@pytest.mark.parametrize("json", ["", "{", "[1]", "1", "null", '{"a":' * 5_000, '"\ud800"', '{"a": nan}'])
def test_what_is_no_object_is_refused(json: str) -> None:
    with pytest.raises(CarrierError) as refused:
        object_of(json)
    assert refused.value.code == "invalid_json"


def test_an_object_is_read() -> None:
    assert object_of('{"a": {"b": 1}}') == {"a": {"b": 1}}


@pytest.mark.parametrize(("value", "read"), [("12", 12), (12, 12), (0, 0), (None, None), (8_000.0, 8_000)])
def test_a_number_may_be_a_text(value: Any, read: int | None) -> None:
    assert number({"n": value}, "n") == read
    assert number({}, "n") is None


@pytest.mark.parametrize(
    "value",
    [True, -1, -1.0, 1.5, float("inf"), float("nan"), 1e300, "1.5", "-1", "x", "²", "9" * 17, NUMBER_MAX + 1, [], {}],
)
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(CarrierError, match=r"^n: "):
        number({"n": value}, "n")


def test_texts_and_parts() -> None:
    fields = {"a": "x", "b": {"c": "y", "d": 1, "e": "z" * (TEXT_CHARACTERS_MAX + 1)}}
    assert text(fields, "a") == "x"
    assert text(fields, "z") == ""
    assert part(fields, "z") == part({"z": None}, "z") == {}
    assert texts(fields, "b") == {"c": "y"}
    assert len(texts({"many": {str(n): "" for n in range(PARAMETERS_MAX + 1)}}, "many")) == PARAMETERS_MAX
    pairs = [{"name": "c", "value": "y"}, {"name": "d", "value": 1}, {"value": "x"}, {"name": 1, "value": "x"}, 1, {}]
    assert texts({"b": pairs}, "b") == {"c": "y"}
    assert texts({"b": None}, "b") == {}
    for value in (1, None, "x" * (TEXT_CHARACTERS_MAX + 1)):
        with pytest.raises(CarrierError, match=r"^a: "):
            text({"a": value}, "a", needed=True)
    with pytest.raises(CarrierError, match=r"^b: "):
        part({"b": []}, "b")


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("rate 8000 is wrong", "rate 8000 is wrong"),
        ("to +15550101: busy", "to +…: busy"),
        ("(555) 010-0101", "(…"),
        ("٥٥٥٠١٠٠", "…"),
        ("1 2 3 4", "1 2 3 4"),
        ("x" * 500, "x" * WORDS_CHARACTERS_MAX),
        ("x" * 197 + "+15550101", "x" * 197 + "+…"),
        (None, ""),
    ],
)
def test_words_for_the_log_have_no_telephones_number(said: str | None, written: str) -> None:
    assert words({"title": said}, "title") == written


@given(st.binary(max_size=200))
def test_base64_is_read(data: bytes) -> None:
    assert base64_bytes(base64.b64encode(data).decode()) == data


@pytest.mark.parametrize("coded", ["A", "A===", "!!!!", "ä", "AAAA\n", "AA==AA=="])
def test_what_is_no_base64_is_refused(coded: str) -> None:
    with pytest.raises(CarrierError) as refused:
        base64_bytes(coded)
    assert refused.value.code == "invalid_payload"
