"""What Twilio asks of a service before it connects: the signature of its requests, and the answer that it obeys.

Theory of operation
    A call comes in; Twilio posts its data to the service, signed with the account's token, and reads TwiML. `<Connect>`
    with a `<Stream>` in it names where the call's sound goes, and what is told at the start of the stream.
    Sources: twilio.com/docs/usage/security and /docs/voice/twiml/stream, as of November 2026.

Rules
* What Twilio refuses is refused here: a URL that is no WebSocket's or has a query, a parameter that is too long.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from xml.etree import ElementTree

# Of the name and the value of a parameter together; Twilio's own limit is "under 500".
PARAMETER_CHARS_MAX = 499
# No TwiML that opens a stream comes near to it.
TWIML_CHARS_MAX = 65_536


class TwimlError(ValueError):
    """What the webhook has answered opens no stream: the service's developer must act."""


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """Where the sound of a call goes, as the TwiML says. The values of `parameters` may be secrets."""

    url: str
    parameters: dict[str, str] = field(repr=False)


def signature(token: str, url: str, fields: Mapping[str, str] | None = None) -> str:
    """`X-Twilio-Signature` of a request to `url`, and of an upgrade, which has no fields."""
    signed = url + "".join(name + value for name, value in sorted((fields or {}).items()))
    return base64.b64encode(hmac.new(token.encode(), signed.encode(), hashlib.sha1).digest()).decode()


def stream_order(twiml: str) -> StreamOrder:
    """What `twiml` orders first. Raises `TwimlError`."""
    stream = _root(twiml).find("./Connect/Stream")
    if stream is None:
        raise TwimlError("the TwiML has no <Connect><Stream>")
    url = stream.get("url", "")
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.netloc or parts.query:
        raise TwimlError("the url of <Stream> must begin with wss:// and have no query")
    return StreamOrder(url, dict(_parameter(element) for element in stream.findall("Parameter")))


def _root(twiml: str) -> ElementTree.Element:
    # A document type could define entities that grow without bound.
    if len(twiml) > TWIML_CHARS_MAX or "<!" in twiml:
        raise TwimlError("the TwiML is too long, or has a document type")
    try:
        root = ElementTree.fromstring(twiml)
    except ElementTree.ParseError as fault:
        raise TwimlError(f"the TwiML is no XML: {fault}") from fault
    if root.tag != "Response":
        raise TwimlError("the TwiML has no <Response>")
    return root


def _parameter(element: ElementTree.Element) -> tuple[str, str]:
    name, value = element.get("name", ""), element.get("value", "")
    if not name or len(name) + len(value) > PARAMETER_CHARS_MAX:
        raise TwimlError(f"a <Parameter> has no name, or more than {PARAMETER_CHARS_MAX} characters")
    return name, value
