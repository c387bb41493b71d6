"""Signatures of requests to tools, as Standard Webhooks 1.0 has them (github.com/standard-webhooks/standard-webhooks):
HMAC-SHA256 over `<id>.<unix seconds>.<body>`, as `v1,<base64>`. Libraries for many languages verify them.

Rules
* A secret is `whsec_` and the base64 of 24 to 64 bytes, and does not show when printed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

PREFIX = "whsec_"
BYTES_MIN, BYTES_MAX = 24, 64


class SecretError(ValueError):
    """What is to be the secret is none; the text says what one looks like, and nothing of this one."""


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """`key`: the bytes that both sides know."""

    key: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> SigningSecret:
        """Raises `SecretError`."""
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not text.startswith(PREFIX) or not BYTES_MIN <= len(key) <= BYTES_MAX:
            raise SecretError(f"a secret is {PREFIX} and the base64 of {BYTES_MIN} to {BYTES_MAX} bytes")
        return cls(key)


def signature(secret: SigningSecret, message_id: str, timestamp_s: int, body: bytes) -> str:
    """What `webhook-signature` says of `body`."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(secret.key, signed, hashlib.sha256)).decode()}"
