"""`GET /v1/events`: what happened, for operators, of a session or of a response, as JSON or as a page of text.

Rules
* Each gateway of the host tells of itself; the one that was asked, of the workers as well.
* It is for whoever may read `/metrics`, and shows no more of anybody than the logs do: ids, numbers and names.
* A parameter that is unknown or cannot be used is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from duplex.auth import Authority
from duplex.event_reader import EVENTS_READ_MAX, EventReader, ReaderBusyError, ReadEvent, Reading, Wanted, joined
from duplex.neighbour_logs import NeighbourLogs
from duplex.neighbours import Neighbours, is_passed_on
from stages.event_log import NAME_CHARACTERS_MAX, EventKind

EVENTS_USUAL = 500
RETRY_AFTER_S = 1
NS_PER_MS = 1_000_000
PARAMETERS = ("session", "response", "limit", "format")
FORMATS = ("json", "text")
TIMES = frozenset({EventKind.STARTED, EventKind.COMPUTED, EventKind.DRAINED})  # their value is one


class BadParameterError(ValueError):
    """The client must ask otherwise; the text names the parameter."""


class EventsEndpoint:
    """`neighbours`: the gateways beside this one."""

    def __init__(self, reader: EventReader, authority: Authority, neighbours: Neighbours | None = None) -> None:
        self._reader = reader
        self._neighbours = NeighbourLogs(neighbours)
        self._authority = authority

    async def read(self, request: Request) -> Response:
        refusal = self._authority.overview_refusal(request.headers)
        if refusal is not None:
            return _refused(refusal.status, refusal.code, refusal.message)
        try:
            wanted, as_text = parse_query(request.query_params)
            reading = await self._read(wanted, request.headers)
        except BadParameterError as error:
            return _refused(400, "invalid_value", str(error))
        except ReaderBusyError as error:
            return _refused(503, "busy", str(error), {"Retry-After": str(RETRY_AFTER_S)})
        if as_text:
            return PlainTextResponse(timeline(reading))
        return Response(msgspec.json.encode(reading), media_type="application/json")

    async def _read(self, wanted: Wanted, headers: Mapping[str, str]) -> Reading:
        """Raises `ReaderBusyError`."""
        if is_passed_on(headers):
            return await self._reader.read(wanted, own_only=True)
        own = await self._reader.read(wanted)
        return joined([own, *await self._neighbours.read(wanted, headers)], wanted)


def _refused(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def parse_query(query: Mapping[str, str]) -> tuple[Wanted, bool]:
    """What is asked for, and whether as text. Raises `BadParameterError`."""
    for name in query:
        if name not in PARAMETERS:
            raise BadParameterError(f"{name}: there is no such parameter; there are {', '.join(PARAMETERS)}")
    for name in ("session", "response"):
        if len(query.get(name, "")) > NAME_CHARACTERS_MAX:
            raise BadParameterError(f"{name}: no id has more than {NAME_CHARACTERS_MAX} characters")
    limit = query.get("limit", str(EVENTS_USUAL))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= EVENTS_READ_MAX):
        raise BadParameterError(f"limit: a number from 1 to {EVENTS_READ_MAX}")
    form = query.get("format", "json")
    if form not in FORMATS:
        raise BadParameterError(f"format: one of {', '.join(FORMATS)}")
    return Wanted(query.get("session", ""), query.get("response", ""), int(limit)), form == "text"


# ---- the page of text ---------------------------------------------------------------------------


def timeline(reading: Reading) -> str:
    """A line for each event: ms since the first, ms since the one before, who, what, of which stream."""
    return "".join(f"{line}\n" for line in (*_head(reading), *_lines(reading.events)))


def _head(reading: Reading) -> Iterator[str]:
    if reading.truncated:
        yield "# there are, or were, more events than these"
    for log in reading.processes:
        if log.fault:
            yield f"# not all of {log.process}: {log.fault}"
        if log.overwritten:
            yield f"# {log.process} has recorded {log.recorded} events, of which the oldest {log.overwritten} are gone"
        if reading.events and not log.fault and log.since_ns > reading.events[0].at_ns:
            later_ms = (log.since_ns - reading.events[0].at_ns) / NS_PER_MS
            yield f"# {log.process} tells nothing of the time before {later_ms:.3f} ms"


def _lines(events: Sequence[ReadEvent]) -> Iterator[str]:
    width = max((len(event.process) for event in events), default=0)
    began_ns = before_ns = events[0].at_ns if events else 0
    for event in events:
        at_ms, later_ms = (event.at_ns - began_ns) / NS_PER_MS, (event.at_ns - before_ns) / NS_PER_MS
        before_ns = event.at_ns
        number = f"{event.value / NS_PER_MS:.3f} ms" if event.kind in TIMES else str(event.value)
        names = " ".join(name for name in (event.link, event.state, event.cause) if name)
        about = f"{event.kind:<15} {number:>12}  {names:<28} {event.stream or event.session}"
        yield f"{at_ms:11.3f} {later_ms:+10.3f}  {event.process:<{width}}  {about}"
