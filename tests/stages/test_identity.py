"""Identities: equal where everything is, different where anything is, and the same for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stages.identity import (
    Access,
    Identity,
    IdentityMismatchError,
    MediaFeature,
    PromptKv,
    SpeechLatents,
    Weights,
    digest_of,
    require,
)

OWNER = Access("acme", "sess_1")
SHA = "ab" * 32
KV = PromptKv((1, 2, 3), 0, "chatml/1", "smollm2@7e2", "", "float16", "layer,head,position", OWNER)
FEATURE = MediaFeature(SHA, 16_000, "whisper-tiny.en/int8", "float32", OWNER)
LATENTS = SpeechLatents("Hello.", "piper/1", "joe", 1.0, 7, "float32", OWNER)
WEIGHTS = Weights(SHA, "piper_split/1")
ALL: tuple[Identity, ...] = (KV, FEATURE, LATENTS, WEIGHTS)

OTHERS: list[tuple[Identity, dict[str, Any]]] = [
    (KV, {"token_ids": (1, 2)}),
    (KV, {"token_ids": (1, 3, 2)}),
    (KV, {"first_position": 1}),
    (KV, {"template": "chatml/2"}),
    (KV, {"model": "smollm2@7e3"}),
    (KV, {"adapter": "lora/1"}),
    (KV, {"dtype": "float32"}),
    (KV, {"layout": "layer,position,head"}),
    (KV, {"access": Access("other", "sess_1")}),
    (KV, {"access": Access("acme", "sess_2")}),
    (FEATURE, {"media_sha256": "cd" * 32}),
    (FEATURE, {"sample_rate": 8_000}),
    (FEATURE, {"processor": "whisper-tiny.en/float32"}),
    (FEATURE, {"access": Access("other", "sess_1")}),
    (LATENTS, {"text": "Hello"}),
    (LATENTS, {"voice": "ann"}),
    (LATENTS, {"speed": 1.1}),
    (LATENTS, {"seed": 8}),
    (WEIGHTS, {"processor": "piper_split/2"}),
    (WEIGHTS, {"dtype": "int8"}),
]


@pytest.mark.parametrize(("identity", "changed"), OTHERS)
def test_whatever_determines_an_object_is_part_of_its_identity(identity: Identity, changed: dict[str, Any]) -> None:
    other = structs.replace(identity, **changed)
    assert digest_of(other) != digest_of(identity)
    with pytest.raises(IdentityMismatchError, match=type(identity).__name__):
        require(other, digest_of(identity))


@pytest.mark.parametrize("identity", ALL, ids=lambda one: type(one).__name__)
def test_equal_determinants_are_one_identity(identity: Identity) -> None:
    require(structs.replace(identity), digest_of(identity))
    assert len(digest_of(identity)) == 64


def test_kinds_are_never_mixed_up() -> None:
    assert len({digest_of(identity) for identity in ALL}) == len(ALL)


def test_a_refusal_says_nothing_of_what_was_said() -> None:
    with pytest.raises(IdentityMismatchError) as caught:
        require(LATENTS, "0" * 64)
    assert "Hello" not in str(caught.value)


def test_a_digest_is_for_ever() -> None:
    """Stored digests stay valid until `VERSION` changes."""
    assert digest_of(WEIGHTS) == "097051bfbb9f9e48d3a6a3ae62e507ce7b8e335e1a44d9276d1e02a1fcf57259"


@pytest.mark.slow
@pytest.mark.live
def test_a_digest_is_the_same_in_every_process() -> None:
    code = "from tests.stages.test_identity import ALL, digest_of; print(*map(digest_of, ALL))"
    root = Path(__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True, text=True)
    assert told.stdout.split() == [digest_of(identity) for identity in ALL]


@pytest.mark.parametrize("owner", [("", "sess_1"), ("acme", "")])
def test_what_derives_from_a_caller_belongs_to_somebody(owner: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="belongs to a tenant and a scope"):
        Access(*owner)


@pytest.mark.parametrize("sha", ["", SHA[:-1], SHA.upper(), f"{SHA}\n"])
def test_what_is_no_digest_of_a_source_is_refused(sha: str) -> None:
    with pytest.raises(ValueError, match="64 lower-case"):
        Weights(sha, "piper_split/1")
    with pytest.raises(ValueError, match="64 lower-case"):
        MediaFeature(sha, 16_000, "whisper", "float32", OWNER)


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_no_two_owners_share_anything(tenant: str, scope: str, other_tenant: str, other_scope: str) -> None:
    mine, other = Access(tenant, scope), Access(other_tenant, other_scope)
    one, two = (digest_of(structs.replace(KV, access=access)) for access in (mine, other))
    assert (one == two) == (mine == other)
