"""What can be done with a telephone call beside its sound, by the carrier's own API: end it, or pass it on.

Sources
* Twilio, "Call resource: update a call", read in November 2026.
* Telnyx, "Call control: hangup, transfer", read in November 2026.

Rules
* One request each, bounded, to the address of the configuration; no redirect is followed.
* Neither numbers nor secrets get into a log or an error.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

import httpx2

from duplex.telephony import twiml
from duplex.telephony.carrier import Started

REQUEST_S_MAX = 5.0


class ControlError(Exception):
    """`is_refused`: the carrier has said no; otherwise it is not known what it has done."""

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class CarrierControl(Protocol):
    """Of one carrier. All methods raise `ControlError`."""

    async def transfer(self, call: Started, to: str) -> None:
        """Have `call` go on with `to`; its sound ends here."""
        ...

    async def hang_up(self, call: Started) -> None:
        """End `call`."""
        ...


class TwilioControl:
    """`url`: of Twilio's API. `token`: the account's auth token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    async def transfer(self, call: Started, to: str) -> None:
        await self._update(call, twiml.transfer(to))

    async def hang_up(self, call: Started) -> None:
        await self._update(call, twiml.hang_up())

    async def _update(self, call: Started, document: str) -> None:
        account, name = quote(call.account, safe=""), quote(call.call, safe="")
        url = f"{self._url}/2010-04-01/Accounts/{account}/Calls/{name}.json"
        await _post(url, data={"Twiml": document}, auth=(call.account, self._token))


class TelnyxControl:
    """`url`: of Telnyx's API. `key`: an API key."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}

    async def transfer(self, call: Started, to: str) -> None:
        await self._act(call, "transfer", {"to": to})

    async def hang_up(self, call: Started) -> None:
        await self._act(call, "hangup", {})

    async def _act(self, call: Started, action: str, body: dict[str, str]) -> None:
        url = f"{self._url}/v2/calls/{quote(call.call, safe='')}/actions/{action}"
        await _post(url, json=body, headers=self._headers)


class PbxControl:
    """A PBX has no API of this kind: `url` is its owner's own, which gets what is wanted of which channel."""

    def __init__(self, url: str, login: tuple[str, str] | None) -> None:
        self._url = url
        self._login = login

    async def transfer(self, call: Started, to: str) -> None:
        await self._ask(call, "transfer", {"to": to})

    async def hang_up(self, call: Started) -> None:
        await self._ask(call, "hangup", {})

    async def _ask(self, call: Started, action: str, more: dict[str, str]) -> None:
        body = {"action": action, "channel_id": call.call, "connection_id": call.stream, **more}
        await _post(self._url, json=body, auth=self._login)


async def _post(url: str, **request: Any) -> None:
    timeout = httpx2.Timeout(REQUEST_S_MAX)
    try:
        async with httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False) as client:
            answer = await client.post(url, **request)
    except httpx2.HTTPError as error:
        raise ControlError(f"the carrier does not answer ({type(error).__name__})") from error
    if not answer.is_success:
        raise ControlError(f"the carrier has answered {answer.status_code}", is_refused=answer.is_client_error)
