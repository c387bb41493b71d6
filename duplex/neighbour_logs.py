"""The event logs of the other gateways of the host, each asked for its own.

Rules
* One that cannot be asked, or has not answered within `ANSWER_MS_MAX`, is named with its fault, as a worker is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2
import msgspec

from duplex.event_reader import ANSWER_MS_MAX, AWAY, NO_ANSWER, ProcessLog, Reading, Wanted
from duplex.neighbours import Neighbour, Neighbours, passed_on

_readings = msgspec.json.Decoder(Reading)


class NeighbourLogs:
    """`neighbours` None: there are none."""

    def __init__(self, neighbours: Neighbours | None) -> None:
        self._neighbours = neighbours

    async def read(self, wanted: Wanted, headers: Mapping[str, str]) -> list[Reading]:
        """What each of them tells to who sends these (lower-case) headers."""
        others = self._neighbours.all() if self._neighbours else ()
        return list(await asyncio.gather(*(_read(one, wanted, headers) for one in others)))


async def _read(neighbour: Neighbour, wanted: Wanted, headers: Mapping[str, str]) -> Reading:
    query = {"session": wanted.session, "response": wanted.response, "limit": str(wanted.events_max)}
    transport = httpx2.AsyncHTTPTransport(uds=str(neighbour.socket))
    try:
        async with asyncio.timeout(ANSWER_MS_MAX / 1_000):
            async with httpx2.AsyncClient(transport=transport, trust_env=False) as http:
                answer = await http.get("http://localhost/v1/events", params=query, headers=passed_on(headers))
        return _readings.decode(answer.content) if answer.status_code == httpx2.codes.OK else _nothing(neighbour, AWAY)
    except (httpx2.ConnectError, msgspec.DecodeError):
        return _nothing(neighbour, AWAY)
    except (httpx2.HTTPError, TimeoutError):
        return _nothing(neighbour, NO_ANSWER)


def _nothing(neighbour: Neighbour, fault: str) -> Reading:
    log = ProcessLog(neighbour.replica, 0, "", 0, 0, fault)
    return Reading(partial=True, truncated=False, processes=(log,), events=())
