"""Telnyx: the WebSocket of a call's sound. Who sets a call up there names a token, which comes back in a header.

Rule
* That token is the one of the configuration (`telnyx_token_file`), or a ticket.
"""

from __future__ import annotations

import secrets

from starlette.websockets import WebSocket

from duplex.auth import UnauthorizedError
from duplex.client_secrets import Grant
from duplex.config import Config, secret_in
from duplex.realtime.sockets import refuse
from duplex.telephony.carrier import Started
from duplex.telephony.entrance import Entrance, probe_of
from duplex.telephony.media_streams import TELNYX, MediaStreams
from duplex.telephony.sockets import CarriersSocket

STREAM_PATH = "/v1/telephony/telnyx"
TOKEN = "x-telnyx-streaming-auth-token"


class TelnyxEndpoint:
    """Raises `ConfigError` where the file of its secret cannot be used."""

    def __init__(self, config: Config, entrance: Entrance) -> None:
        self._entrance = entrance
        self._token = secret_in("telnyx_token_file", config.telnyx_token_file)

    async def stream(self, websocket: WebSocket) -> None:
        """Serve a call."""
        try:
            grant = await self._grant(websocket)
        except UnauthorizedError as error:
            await refuse(websocket, error.refusal)
            return
        await websocket.accept()

        async def admit(_started: Started) -> Grant:
            return grant

        await self._entrance.receive(CarriersSocket(websocket), MediaStreams(TELNYX), admit, probe_of(websocket))

    async def _grant(self, websocket: WebSocket) -> Grant:
        given = websocket.headers.get(TOKEN, "")
        if self._token is not None and secrets.compare_digest(given.encode(), self._token.encode()):
            return Grant(None, self._entrance.permission)
        needed = self._token is not None or not self._entrance.is_from_here(websocket.headers)
        return await self._entrance.grant(given, needed=needed)
