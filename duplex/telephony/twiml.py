"""What Twilio is answered: TwiML, and the signatures of its requests.

Sources
* Twilio, "TwiML Voice: <Stream>" and "Validating Requests", read in November 2026.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit
from xml.etree import ElementTree

PARAMETER_CHARACTERS_MAX = 500  # name and value
_SIP = ("sip:", "sips:")
USUAL_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}


def connect_stream(url: str, parameters: Mapping[str, str], status_callback: str = "") -> str:
    """TwiML that has the call's sound streamed to `url`, both ways, until that closes."""
    response = ElementTree.Element("Response")
    stream = ElementTree.SubElement(ElementTree.SubElement(response, "Connect"), "Stream", url=url)
    if status_callback:
        stream.set("statusCallback", status_callback)
    for name, value in parameters.items():
        assert len(name) + len(value) < PARAMETER_CHARACTERS_MAX, "Twilio takes no longer ones"
        ElementTree.SubElement(stream, "Parameter", name=name, value=value)
    return _document(response)


def hang_up() -> str:
    """TwiML that ends a call."""
    response = ElementTree.Element("Response")
    ElementTree.SubElement(response, "Hangup")
    return _document(response)


def transfer(to: str) -> str:
    """TwiML that has a call go on with the number, or the SIP address, `to`."""
    response = ElementTree.Element("Response")
    dial = ElementTree.SubElement(response, "Dial")
    callee = ElementTree.SubElement(dial, "Sip") if to.startswith(_SIP) else dial
    callee.text = to
    return _document(response)


def _document(response: ElementTree.Element) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>' + ElementTree.tostring(response, encoding="unicode")


def signature(token: str, url: str, fields: Mapping[str, Sequence[str]]) -> str:
    """That of a request to `url` with these fields of a form, each of which may have several values."""
    signed = url + "".join(name + value for name in sorted(fields) for value in sorted(set(fields[name])))
    return base64.b64encode(hmac.new(token.encode(), signed.encode(), hashlib.sha1).digest()).decode()


def is_signed(token: str, url: str, fields: Mapping[str, Sequence[str]], given: str) -> bool:
    """Whether `given` is the signature of a request to `url`, as it is written, or with its port left out or added:
    Twilio is not consistent in that."""
    expected = [signature(token, spelt, fields) for spelt in _spellings(url)]
    return any(hmac.compare_digest(each.encode(), given.encode()) for each in expected)


def _spellings(url: str) -> tuple[str, ...]:
    parts = urlsplit(url)
    other = f"{parts.netloc}:{USUAL_PORTS[parts.scheme]}" if parts.port is None else parts.netloc.rpartition(":")[0]
    return (url, parts._replace(netloc=other).geturl())
