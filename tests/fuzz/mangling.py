"""Messages that are cut, spliced, repeated and bent, for those who must bear whatever comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from random import Random

Message = str | bytes

PAYLOAD = "/v7+/v7+"
TEXTS = [
    "",
    "0",
    "-1",
    "1:160",
    "7:320",
    "9" * 40,
    "\x00",
    "\ud800",
    "inbound",
    "outbound",
    PAYLOAD,
    "#",
    "slin16",
    "ulaw",
    "both",
    "in",
    "clear",
]
VALUES: list[object] = [*TEXTS, None, True, 0, -1, 1 << 70, 1.5, [], {}, [[]], {"a": {}}]

BENT, CUT, OTHER_KIND, SHUFFLED = 0.3, 0.2, 0.05, 0.2


def mangled(message: object, random: Random) -> Message:
    """`message`, a JSON object, a text or bytes, as it is or not."""
    if isinstance(message, dict) and random.random() < BENT:
        message = deepcopy(message)
        _bend(message, random)
    text = message if isinstance(message, str | bytes) else json.dumps(message)
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if random.random() < CUT:
        data = data[: random.randint(0, len(data))] + data[random.randint(0, len(data)) :]
    is_text = isinstance(text, str) is not (random.random() < OTHER_KIND)
    return data.decode(errors="surrogateescape") if is_text else data


def disordered(messages: Sequence[object], random: Random) -> list[object]:
    """All of them, in their order or in another."""
    return random.sample(messages, len(messages)) if random.random() < SHUFFLED else list(messages)


def _bend(fields: dict[str, object], random: Random) -> None:
    name = random.choice([*fields, "event", "payload"])
    inner = fields.get(name)
    if isinstance(inner, dict) and inner and random.random() < 0.7:
        _bend(inner, random)
    else:
        fields[name] = deepcopy(random.choice(VALUES))
