"""What a supervisor tells a gateway of itself, on its command line."""

from __future__ import annotations

import msgspec


class GatewaySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which gateway of its service this is. `replica` is its name, `number` counts from 0. `listener` and
    `own_listener` are descriptors of listening sockets; `own_listener` None: it is the only one."""

    replica: str
    number: int
    listener: int
    own_listener: int | None = None
