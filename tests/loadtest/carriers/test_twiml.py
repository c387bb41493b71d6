"""What Twilio asks before it connects."""

from __future__ import annotations

import pytest

from loadtest.carriers.twiml import PARAMETER_CHARS_MAX, StreamOrder, TwimlError, signature, stream_order


def response(inner: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{inner}</Response>'


def test_a_stream_is_ordered_with_its_parameters() -> None:
    order = stream_order(
        response(
            '<Connect><Stream url="wss://voice.example.com/twilio">'
            '<Parameter name="ticket" value="q3&amp;Zk"/><Parameter name="empty"/>'
            "</Stream></Connect><Hangup/>"
        )
    )
    assert order == StreamOrder("wss://voice.example.com/twilio", {"ticket": "q3&Zk", "empty": ""})
    assert "q3" not in repr(order)


@pytest.mark.parametrize(
    ("twiml", "complaint"),
    [
        ("", "no XML"),
        ("<Response>", "no XML"),
        ("<Answer/>", "no <Response>"),
        (response("<Say>Sorry</Say>"), "no <Connect><Stream>"),
        (response("<Start><Stream url='wss://a/b'/></Start>"), "no <Connect><Stream>"),
        (response("<Connect><Stream/></Connect>"), "wss://"),
        (response("<Connect><Stream url='https://a/b'/></Connect>"), "wss://"),
        (response("<Connect><Stream url='wss:///b'/></Connect>"), "wss://"),
        (response("<Connect><Stream url='wss://a/b?ticket=1'/></Connect>"), "no query"),
        (response("<Connect><Stream url='wss://a/b'><Parameter value='1'/></Stream></Connect>"), "no name"),
        (
            response(f"<Connect><Stream url='wss://a/b'><Parameter name='a' value='{'x' * 499}'/></Stream></Connect>"),
            str(PARAMETER_CHARS_MAX),
        ),
        ("<!DOCTYPE r [<!ENTITY a 'aa'>]><Response/>", "document type"),
        (response(" " * 70_000), "too long"),
    ],
)
def test_what_opens_no_stream_is_named(twiml: str, complaint: str) -> None:
    with pytest.raises(TwimlError, match=complaint):
        stream_order(twiml)


def test_the_signature_covers_the_url_and_the_fields_in_their_order() -> None:
    # The example of twilio.com/docs/usage/security.
    fields = {
        "Digits": "1234",
        "To": "+18005551212",
        "From": "+14158675310",
        "Caller": "+14158675310",
        "CallSid": "CA1234567890ABCDE",
    }
    signed = signature("12345", "https://example.com/myapp.php?foo=1&bar=2", fields)
    assert signed == "L/OH5YylLD5NRKLltdqwSvS0BnU="
    assert signature("12345", "wss://example.com/twilio") == signature("12345", "wss://example.com/twilio", {})
