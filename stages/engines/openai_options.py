"""What the `openai` Thinker can be told. Nothing of its client is imported here, so that a graph can be checked."""

from __future__ import annotations

from typing import Annotated

import msgspec

SESSIONS_MAX = 1_024  # each may take a thread and a connection; as many calls as a service takes, and some to spare
CONTEXT_TOKENS_MAX = 1 << 21  # twice the longest that is sold
SENTENCES_MAX = 64  # of a spoken reply, which is over after five minutes

_Named = Annotated[str, msgspec.Meta(min_length=1)]


class OpenAIOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`context_tokens` is the model's; `sentences_max`: of a reply."""

    base_url: _Named
    model: _Named
    api_key: str = ""
    sessions_max: Annotated[int, msgspec.Meta(ge=1, le=SESSIONS_MAX)] = 32
    context_tokens: Annotated[int, msgspec.Meta(ge=2, le=CONTEXT_TOKENS_MAX)] = 8_192
    sentences_max: Annotated[int, msgspec.Meta(ge=1, le=SENTENCES_MAX)] = 4
