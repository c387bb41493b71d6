"""Signatures of requests to tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duplex.webhook_signature import SecretError, SigningSecret, signature

# The example of the specification's own test suites (Standard Webhooks 1.0).
SECRET = SigningSecret.of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
ID, TIMESTAMP_S, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_signature_is_that_of_the_specification() -> None:
    assert signature(SECRET, ID, TIMESTAMP_S, BODY) == SIGNED


@pytest.mark.parametrize("text", ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_!", "whsec_é"])
def test_what_is_no_secret_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(SecretError) as refused:
        SigningSecret.of(text)
    assert not text or text not in str(refused.value)


def test_a_secret_does_not_show() -> None:
    assert "key" not in repr(SECRET)


def test_what_the_documentation_verifies_with_does() -> None:
    text = Path("docs/tools.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    is_genuine = names["is_genuine"]
    assert callable(is_genuine)
    headers = {"webhook-id": ID, "webhook-timestamp": str(TIMESTAMP_S), "webhook-signature": SIGNED}
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert is_genuine(secret, headers, BODY, now_s=TIMESTAMP_S + 60)
    assert not is_genuine(secret, headers, BODY + b" ", now_s=TIMESTAMP_S)
    assert not is_genuine(secret, headers, BODY, now_s=TIMESTAMP_S + 3_600)
