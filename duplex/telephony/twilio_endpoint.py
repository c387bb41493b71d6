"""Twilio: the webhook that answers a call, what it tells of its streams, and the WebSocket of the call's sound.

Rules
* A webhook counts only with Twilio's signature over our public address, which comes from the configuration: what a
  request says of its host is anybody's to say.
* The ticket that the webhook hands out is what lets the stream in. A signature of the upgrade, where there is one, must
  be right as well.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from duplex.client_secrets import Bounds, ClientSecrets, Grant, TooManySecretsError
from duplex.config import Config, secret_in
from duplex.realtime.sockets import deny
from duplex.telephony.carrier import Started
from duplex.telephony.control import TwilioControl
from duplex.telephony.entrance import TELEPHONY, Entrance, probe_of
from duplex.telephony.media_streams import TWILIO, MediaStreams
from duplex.telephony.phone_call import Line
from duplex.telephony.sockets import CarriersSocket
from duplex.telephony.twiml import connect_stream, is_signed
from duplex.webrtc.endpoint import body_of, error_response
from duplex.webrtc.rtp import OfferError
from sessions.store import StoreError

STREAM_PATH = "/v1/telephony/twilio"
VOICE_PATH = f"{STREAM_PATH}/voice"
STATUS_PATH = f"{STREAM_PATH}/status"
SIGNATURE = "x-twilio-signature"
FORM_BYTES_MAX = 64 << 10
FIELDS_MAX = 256
STORE_RETRY_S = 1
_FORM = "application/x-www-form-urlencoded"
_STATUSES = frozenset({"stream-started", "stream-stopped", "stream-error"})

_log = structlog.get_logger("duplex.telephony")


class _NotTwilioError(Exception):
    """`answer` says why a request is not taken for one of Twilio's."""

    def __init__(self, answer: Response) -> None:
        super().__init__("not Twilio's")
        self.answer = answer


class TwilioEndpoint:
    """Raises `ConfigError` where the file of its secret cannot be used."""

    def __init__(self, config: Config, entrance: Entrance, client_secrets: ClientSecrets) -> None:
        self._entrance = entrance
        self._client_secrets = client_secrets
        self._public_url = (config.public_url or "").rstrip("/")
        self._token = secret_in("twilio_auth_token_file", config.twilio_auth_token_file)
        self._ticket_s = config.phone_ticket_s
        self._control = None if self._token is None else TwilioControl(config.twilio_api_url, self._token)

    @property
    def _stream_url(self) -> str:
        url = urlsplit(self._public_url + STREAM_PATH)
        return url._replace(scheme="ws" if url.scheme == "http" else "wss").geturl()

    # ---- webhooks ------------------------------------------------------------------------------------

    async def voice(self, request: Request) -> Response:
        """A call has come: have its sound streamed to us, with a ticket."""
        try:
            form = await self._form(request)
            caller, call = (form.get(name, [""])[0] or None for name in ("From", "CallSid"))
            grant = Grant(None, self._entrance.permission, Bounds(TELEPHONY, caller=caller, call=call))
            ticket = await self._client_secrets.mint(self._ticket_s, grant)
        except _NotTwilioError as error:
            return error.answer
        except (TooManySecretsError, StoreError) as error:
            message = f"no ticket could be made ({type(error).__name__})"
            return error_response(503, "store_unavailable", message, retry_after_s=STORE_RETRY_S)
        twiml = connect_stream(self._stream_url, {"ticket": ticket}, self._public_url + STATUS_PATH)
        return Response(twiml, media_type="text/xml")

    async def status(self, request: Request) -> Response:
        """Twilio tells how a stream has fared: the only place where it says why one did not come about."""
        try:
            form = await self._form(request)
        except _NotTwilioError as error:
            return error.answer
        event = form.get("StreamEvent", [""])[0]
        if event in _STATUSES:
            log = _log.warning if event == "stream-error" else _log.info
            log("twilio_stream", status=event, why=form.get("StreamError", [""])[0][:200])
        return Response(status_code=204)

    async def _form(self, request: Request) -> dict[str, list[str]]:
        """The fields of a request of Twilio's. Raises `_NotTwilioError`."""
        if self._token is None:
            message = "Twilio's webhooks are not served here: set public_url and twilio_auth_token_file"
            raise _NotTwilioError(error_response(404, "telephony_off", message))
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            raise _NotTwilioError(error_response(415, "unsupported_content_type", f"send a form: {_FORM}"))
        try:
            body = (await body_of(request, FORM_BYTES_MAX)).decode()
            form = parse_qs(body, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
        except OfferError as error:
            raise _NotTwilioError(error_response(error.status, error.code, str(error))) from error
        except ValueError as error:
            raise _NotTwilioError(error_response(400, "invalid_form", "the form cannot be read")) from error
        query = f"?{request.url.query}" if request.url.query else ""
        url = f"{self._public_url}{request.url.path}{query}"
        if not is_signed(self._token, url, form, request.headers.get(SIGNATURE, "")):
            message = "the signature is not Twilio's: public_url and the auth token must be those that Twilio knows"
            raise _NotTwilioError(error_response(403, "invalid_signature", message))
        return form

    # ---- the stream ----------------------------------------------------------------------------------

    async def stream(self, websocket: WebSocket) -> None:
        """Serve a call."""
        is_signed_upgrade = self._is_upgrade_signed(websocket.headers)
        if is_signed_upgrade is False:
            await deny(websocket, 403, "invalid_signature", "the signature of the upgrade is not Twilio's")
            return
        needed = self._token is not None or not self._entrance.is_from_here(websocket.headers)
        await websocket.accept()

        async def admit(started: Started) -> Grant:
            return await self._entrance.grant(started.parameters.get("ticket", ""), needed=needed)

        line = Line(CarriersSocket(websocket), MediaStreams(TWILIO), self._control, probe_of(websocket))
        await self._entrance.receive(line, admit, is_known=is_signed_upgrade is True)

    def _is_upgrade_signed(self, headers: Headers) -> bool | None:
        """By Twilio; None where nobody has signed it, or there is no token to tell."""
        given = headers.get(SIGNATURE)
        if self._token is None or given is None:
            return None
        return is_signed(self._token, self._stream_url, {}, given)
