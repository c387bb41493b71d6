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
from duplex.telephony.control import TelnyxControl
from duplex.telephony.entrance import Entrance, from_number, probe_of
from duplex.telephony.media_streams import TELNYX, MediaStreams
from duplex.telephony.phone_call import Line
from duplex.telephony.sockets import CarriersSocket

STREAM_PATH = "/v1/telephony/telnyx"
TOKEN = "x-telnyx-streaming-auth-token"


class TelnyxEndpoint:
    """Raises `ConfigError` where the file of its secret cannot be used."""

    def __init__(self, config: Config, entrance: Entrance) -> None:
        self._entrance = entrance
        self._token = secret_in("telnyx_token_file", config.telnyx_token_file)
        key = secret_in("telnyx_api_key_file", config.telnyx_api_key_file)
        self._control = None if key is None else TelnyxControl(config.telnyx_api_url, key)

    async def stream(self, websocket: WebSocket) -> None:
        """Serve a call."""
        try:
            is_known = self._is_known(given := websocket.headers.get(TOKEN, ""))
            grant = Grant(None, self._entrance.permission) if is_known else await self._ticket_s(given, websocket)
        except UnauthorizedError as error:
            await refuse(websocket, error.refusal)
            return
        await websocket.accept()

        async def admit(started: Started) -> Grant:
            return from_number(grant, started.caller) if is_known else grant

        line = Line(CarriersSocket(websocket), MediaStreams(TELNYX), self._control, probe_of(websocket))
        await self._entrance.receive(line, admit, is_known=is_known)

    def _is_known(self, given: str) -> bool:
        return self._token is not None and secrets.compare_digest(given.encode(), self._token.encode())

    async def _ticket_s(self, given: str, websocket: WebSocket) -> Grant:
        needed = self._token is not None or not self._entrance.is_from_here(websocket.headers)
        return await self._entrance.grant(given, needed=needed)
