"""Values out of carriers' JSON, of which the same number may be text or a number, and anything may be missing.

Rules
* A value of another kind raises `CarrierError`, which names the field and repeats nothing of it.
"""

from __future__ import annotations

import binascii
import re
from typing import Any

import msgspec

from duplex.telephony.carrier import CarrierError

Fields = dict[str, Any]
NUMBER_MAX = 1 << 53
TEXT_CHARACTERS_MAX = 4_096
PARAMETERS_MAX = 64
WORDS_CHARACTERS_MAX = 200
_LONG_NUMBER = re.compile(r"\d(?:[\s()./-]*\d){4,}")

_fields = msgspec.json.Decoder(dict[str, Any])


def object_of(text: str) -> Fields:
    """The JSON object that `text` is."""
    try:
        return _fields.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CarrierError("invalid_json", "a message is no JSON object") from error


def part(fields: Fields, name: str) -> Fields:
    """The object that is the field `name`; empty where there is none."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CarrierError("invalid_field", f"{name}: not an object")
    return value


def text(fields: Fields, name: str, *, needed: bool = False) -> str:
    """The text that is the field `name`; empty where there is none and none is `needed`."""
    value = fields.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX:
        raise CarrierError("invalid_field", f"{name}: not a text of at most {TEXT_CHARACTERS_MAX} characters")
    return value


def words(fields: Fields, name: str) -> str:
    """What the carrier says to people in the field `name`, fit for a log: its beginning, and no number of five digits
    or more, which may be a telephone's."""
    return _LONG_NUMBER.sub("…", text(fields, name))[:WORDS_CHARACTERS_MAX]


def number(fields: Fields, name: str) -> int | None:
    """The whole number, from 0 on, that is the field `name`, be it as text or as 1.0; None where there is none."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise CarrierError("invalid_field", f"{name}: not a whole number")
    return value


def texts(fields: Fields, name: str) -> dict[str, str]:
    """The object `name`, or the list of `{name, value}` (as in Telnyx's REST interface), of which everything that is a
    text counts, up to `PARAMETERS_MAX` of it."""
    told = fields.get(name)
    if isinstance(told, list):
        pairs = [(each.get("name"), each.get("value")) for each in told if isinstance(each, dict)]
    else:
        pairs = list(part(fields, name).items())
    found = [(key, value) for key, value in pairs if isinstance(key, str) and isinstance(value, str)]
    return {key: value for key, value in found[:PARAMETERS_MAX] if len(value) <= TEXT_CHARACTERS_MAX}


def base64_bytes(coded: str) -> bytes:
    """What is written in base64."""
    try:
        return binascii.a2b_base64(coded.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeError) as error:
        raise CarrierError("invalid_payload", "payload: not base64") from error
