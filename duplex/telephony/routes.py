"""The addresses of telephones."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute

from duplex.auth import Authority
from duplex.client_secrets import ClientSecrets
from duplex.gateway import Gateway
from duplex.telephony import asterisk_endpoint, telnyx_endpoint, twilio_endpoint
from duplex.telephony.entrance import Entrance

PHONE_PATHS = "/v1/telephony/"
# Who asks there shows a signature, a ticket or a secret of a carrier's, if it is not a program of this machine.
PROVEN_PATHS = frozenset(
    {
        twilio_endpoint.VOICE_PATH,
        twilio_endpoint.STATUS_PATH,
        twilio_endpoint.STREAM_PATH,
        telnyx_endpoint.STREAM_PATH,
        asterisk_endpoint.STREAM_PATH,
    }
)


def phone_routes(gateway: Gateway, authority: Authority, client_secrets: ClientSecrets) -> list[BaseRoute]:
    """Raises `ConfigError` where a file that holds a secret cannot be used."""
    config, entrance = gateway.config, Entrance(gateway, authority)
    twilio = twilio_endpoint.TwilioEndpoint(config, entrance, client_secrets)
    telnyx = telnyx_endpoint.TelnyxEndpoint(config, entrance)
    asterisk = asterisk_endpoint.AsteriskEndpoint(config, entrance, authority)
    return [
        Route(twilio_endpoint.VOICE_PATH, twilio.voice, methods=["POST"]),
        Route(twilio_endpoint.STATUS_PATH, twilio.status, methods=["POST"]),
        WebSocketRoute(twilio_endpoint.STREAM_PATH, twilio.stream),
        WebSocketRoute(telnyx_endpoint.STREAM_PATH, telnyx.stream),
        Route(asterisk_endpoint.CALLS_PATH, asterisk.begin, methods=["POST"]),
        WebSocketRoute(asterisk_endpoint.STREAM_PATH, asterisk.stream),
    ]
