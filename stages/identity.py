"""What a reusable derived object *is*, apart from where it lies: a digest over everything that determines it.

Theory of operation
    KV, encoder features, latents and prepared weights may be computed again at any time; who would rather reuse one
    must know that it is the same. Its identity is a closed struct with every determinant, and `digest_of` makes the
    name of it. A location (a slot, an arena block, a file) may go stale and be resolved anew; an identity that differs
    is refused, and never "read compatibly".

Rules
* A determinant that is added, or whose meaning changes, changes all digests: `VERSION` is part of each.
* What derives from a caller carries whose it is: the same words of two tenants are two objects.
* The digest is the same in every process and on every host. It is a name and no secret: who can guess all determinants
  can compute it, so it grants nothing.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

VERSION = 1

_SHA256 = re.compile(r"[0-9a-f]{64}")


class IdentityMismatchError(LookupError):
    """The object that lies there is another one: compute it again."""


class Access(msgspec.Struct, frozen=True):
    """Whose an object is: a tenant's, and within it of those who share `scope` (a session, or a set of them)."""

    tenant: str
    scope: str

    def __post_init__(self) -> None:
        if not self.tenant or not self.scope:
            raise ValueError("what derives from a caller belongs to a tenant and a scope")


class Weights(msgspec.Struct, frozen=True, tag=True):
    """Model weights made ready for an engine. `source_sha256`: of the file; `processor`: what prepared it, and its
    revision."""

    source_sha256: str
    processor: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _check_sha256(self.source_sha256)


class MediaFeature(msgspec.Struct, frozen=True, tag=True):
    """What an encoder made of media. `media_sha256`: of the samples as they came, at `sample_rate`; `processor`: the
    model and all that stands before it, with their revisions."""

    media_sha256: str
    sample_rate: int
    processor: str
    dtype: str
    access: Access

    def __post_init__(self) -> None:
        _check_sha256(self.media_sha256)


class PromptKv(msgspec.Struct, frozen=True, tag=True):
    """Keys and values of `token_ids`, the first of which stands at `first_position`.

    `template`, `model` and `adapter` (empty: none) are revisions; `layout` says how heads, layers and positions lie.
    """

    token_ids: tuple[int, ...]
    first_position: int
    template: str
    model: str
    adapter: str
    dtype: str
    layout: str
    access: Access


class SpeechLatents(msgspec.Struct, frozen=True, tag=True):
    """Acoustic frames of `text` in a voice. `model`: the Talker's revision."""

    text: str
    model: str
    voice: str
    speed: float
    seed: int
    dtype: str
    access: Access


Identity = Weights | MediaFeature | PromptKv | SpeechLatents

_encoder = msgspec.json.Encoder(order="sorted")


def digest_of(identity: Identity) -> str:
    """The name of the object: SHA-256 over its kind and all its determinants, 64 hexadecimal digits."""
    return hashlib.sha256(_encoder.encode((VERSION, identity))).hexdigest()


def require(wanted: Identity, found: str) -> None:
    """Raises `IdentityMismatchError` where `found`, the digest that an object carries, is not that of `wanted`."""
    if digest_of(wanted) != found:
        raise IdentityMismatchError(f"this is no {type(wanted).__name__} of that identity")


def _check_sha256(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise ValueError("a SHA-256 is 64 lower-case hexadecimal digits")
