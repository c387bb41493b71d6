"""What Twilio is answered, and whose requests are Twilio's: by our own words and by Twilio's own library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit
from xml.etree.ElementTree import canonicalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import MultiDict
from twilio.request_validator import RequestValidator
from twilio.twiml.voice_response import Connect, Dial, VoiceResponse

from duplex.telephony import twiml
from duplex.telephony.twiml import connect_stream, is_signed, signature

TOKEN = "12345"
URL = "https://voice.example.com/v1/telephony/twilio/voice?tenant=a"
FORM = {"CallSid": ["CA01"], "From": ["+15550100"], "Digits": ["2", "1", "2"]}


def theirs_of(url: str, form: Mapping[str, Sequence[str]]) -> str:
    fields = MultiDict([(name, value) for name, values in form.items() for value in values])
    theirs: str = RequestValidator(TOKEN).compute_signature(url, fields)
    return theirs


def test_a_signature_is_that_of_a_known_request() -> None:
    assert signature(TOKEN, URL, FORM) == theirs_of(URL, FORM)
    assert signature(TOKEN, URL, {}) == theirs_of(URL, {})


TEXTS = st.text(max_size=10)


@given(st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), max_size=6))
def test_signatures_are_those_of_twilios_library(form: dict[str, list[str]]) -> None:
    assert signature(TOKEN, URL, form) == theirs_of(URL, form)


def test_a_request_of_twilios_is_known_and_any_other_is_not() -> None:
    good = signature(TOKEN, URL, FORM)
    assert is_signed(TOKEN, URL, FORM, good)
    assert not is_signed(TOKEN, URL, {**FORM, "From": ["+15550101"]}, good)
    assert not is_signed("another", URL, FORM, good)
    assert not is_signed(TOKEN, URL + "&x=1", FORM, good)
    assert not is_signed(TOKEN, URL, FORM, "")
    assert not is_signed(TOKEN, URL, FORM, "ä")


@pytest.mark.parametrize(
    ("signed", "ours"),
    [
        ("wss://voice.example.com/v1/telephony/twilio", "wss://voice.example.com/v1/telephony/twilio"),
        ("wss://voice.example.com:443/v1/telephony/twilio", "wss://voice.example.com/v1/telephony/twilio"),
        ("wss://voice.example.com/v1/telephony/twilio", "wss://voice.example.com:443/v1/telephony/twilio"),
        ("https://voice.example.com:443/voice", "https://voice.example.com/voice"),
        ("https://voice.example.com:8443/voice", "https://voice.example.com:8443/voice"),
        ("https://voice.example.com/voice", "https://voice.example.com:8443/voice"),
        ("https://user:word@Voice.example.com:8443/voice", "https://user:word@Voice.example.com:8443/voice"),
        ("https://user:word@Voice.example.com:443/voice", "https://user:word@Voice.example.com/voice"),
        ("https://[2001:db8::1]:443/voice", "https://[2001:db8::1]/voice"),
    ],
)
def test_twilio_aspnet_162_the_address_counts_as_twilio_knows_it_with_its_port_or_without(
    signed: str, ours: str
) -> None:
    assert is_signed(TOKEN, ours, {}, signature(TOKEN, signed, {}))


def test_another_scheme_or_port_is_another_address() -> None:
    url = "wss://voice.example.com/v1/telephony/twilio"
    for other in (url.replace("wss", "https"), url.replace(".com", ".com:80"), url.replace(".com", ".com:8443")):
        assert not is_signed(TOKEN, url, {}, signature(TOKEN, other, {}))
    eight = url.replace(".com", ".com:8443")
    assert not is_signed(TOKEN, eight, {}, signature(TOKEN, url.replace(".com", ".com:443"), {}))


HOSTS = st.sampled_from(["voice.example.com", "Voice.Example.COM", "voice.example.com.", "127.0.0.1", "user@Voice.com"])
PORTS = st.sampled_from(["", ":80", ":443", ":8443"])
PATHS = st.sampled_from(["", "/", "/Voice", "/voice?b=1&a=%41", "/v%C3%A4"])
URLS = st.builds("{}://{}{}{}".format, st.sampled_from(["https", "http"]), HOSTS, PORTS, PATHS)


@given(URLS, URLS, PORTS)
def test_a_request_is_known_where_twilios_library_knows_it(ours: str, other: str, port: str) -> None:
    parts = urlsplit(ours)
    respelt = parts._replace(netloc=parts.netloc.partition(":")[0] + port).geturl()
    for signed in (ours, other, respelt, ours.lower(), ours.upper()):
        given_ = signature(TOKEN, signed, FORM)
        fields = MultiDict([(name, value) for name, values in FORM.items() for value in values])
        assert is_signed(TOKEN, ours, FORM, given_) is RequestValidator(TOKEN).validate(ours, fields, given_)


@given(st.text("abc<>&\"'ä", min_size=1, max_size=20), st.text("abc<>&\"'ä", max_size=20))
def test_twiml_is_that_of_twilios_library(name: str, value: str) -> None:
    url, status = "wss://voice.example.com/stream", "https://voice.example.com/status"
    theirs, connect = VoiceResponse(), Connect()
    connect.stream(url=url, status_callback=status).parameter(name=name, value=value)
    theirs.append(connect)
    assert canonicalize(connect_stream(url, {name: value}, status)) == canonicalize(str(theirs))


def test_twiml_without_a_callback_has_none() -> None:
    assert "statusCallback" not in connect_stream("wss://x", {})


def test_a_parameter_that_twilio_would_not_take_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        connect_stream("wss://x", {"ticket": "x" * twiml.PARAMETER_CHARACTERS_MAX})


def test_ends_and_transfers() -> None:
    hung_up, transferred = VoiceResponse(), VoiceResponse()
    hung_up.hangup()
    transferred.dial("+15550199")
    assert canonicalize(twiml.hang_up()) == canonicalize(str(hung_up))
    assert canonicalize(twiml.transfer("+15550199")) == canonicalize(str(transferred))


@pytest.mark.parametrize("to", ["sip:agent@example.com", "sips:agent@example.com;transport=tls?x-a=1&x-b=2"])
def test_a_transfer_to_a_sip_address_names_it_as_one(to: str) -> None:
    theirs, dial = VoiceResponse(), Dial()
    dial.sip(to)
    theirs.append(dial)
    assert canonicalize(twiml.transfer(to)) == canonicalize(str(theirs))
