"""The entrance of all telephone calls: who may come in, with what settings, and how a call is served to its end.

Rules
* A call needs a ticket: a client secret, spent by it. Where nothing is configured and only this machine can reach the
  service, calls of this machine need none, as elsewhere; those that a tunnel or a proxy brings do.
* What a call is named in its `start` is anybody's to say. So the operator's own means (`Line.control`) are used only on
  calls that a carrier has brought, or announced by their name: a ticket that somebody else made lets in, and no more.
* At most `STRANGERS_MAX` connections wait for their ticket to come. Carriers that have shown who they are as they
  connected (a signature, a token, a login) have room of their own, which strangers cannot take.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial

import msgspec
import structlog
from starlette.websockets import WebSocket

from duplex.admission import RefusedError
from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.call import INTERNAL_ERROR, Call
from duplex.client_secrets import Grant, TransportName
from duplex.gateway import Admitted, Gateway
from duplex.loopback_guard import is_from_here
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.connection import SocketClosedError
from duplex.realtime.session_config import apply_patch
from duplex.realtime.sockets import CLOSE_CODES, CLOSE_S_MAX, limits_of
from duplex.realtime.websocket import PROBE_EXTENSION
from duplex.session_watch import SESSION_REPLACED
from duplex.telephony.call_backs import CallBacks
from duplex.telephony.carrier import CarrierError, Started
from duplex.telephony.carrier_faults import CarrierFaults
from duplex.telephony.inbound import InboundCounts
from duplex.telephony.phone_call import START_S_MAX, Line, Opened, PhoneCall, opening, transport_of
from duplex.telephony.phone_tools import phone_tools
from duplex.tenancies import Tenancy
from duplex.tenants import Permission
from duplex.transport import Transport
from media.heard_estimate import Probe
from sessions.service_calls import ServiceTool
from sessions.settings import SessionSettings, TurnDetection

TELEPHONY: TransportName = "telephony"
STRANGERS_MAX = 64
KNOWN_MAX = 256  # of one gateway, which starts no more calls than that within `START_S_MAX`
BUSY_RETRY_S = 5
NS_PER_S = 1_000_000_000

# Ends that neither we nor anybody's rule has wanted: the caller may be lost to a tunnel, or have said goodbye.
_CUT_OFF = frozenset({"client_closed", "idle", "slow_client", "service_shutdown", "stage_unresponsive", INTERNAL_ERROR})

_log = structlog.get_logger("duplex.telephony")


class Entrance:
    """Of one gateway."""

    def __init__(self, gateway: Gateway, authority: Authority) -> None:
        self._gateway = gateway
        self._authority = authority
        self._call_backs = CallBacks(gateway.store, gateway.config.phone_resume_s)
        self._waiting: Counter[bool] = Counter()  # those that are known, and those that are not

    @property
    def permission(self) -> Permission:
        """Of calls that the service itself lets in."""
        return Permission(self._gateway.config.phone_tenant)

    def is_from_here(self, headers: Mapping[str, str]) -> bool:
        """A program of this machine asks, of a service that is for this machine alone."""
        return self._gateway.config.is_private and is_from_here(headers)

    @contextmanager
    def waiting(self, *, is_known: bool) -> Iterator[None]:
        """Somebody has yet to start, and to say who they are unless that `is_known`. Raises `RefusedError`."""
        if self._waiting[is_known] >= (KNOWN_MAX if is_known else STRANGERS_MAX):
            code = "too_many_beginnings" if is_known else "too_many_strangers"
            raise RefusedError(code, "too many calls are just beginning", BUSY_RETRY_S)
        self._waiting[is_known] += 1
        try:
            yield
        finally:
            self._waiting[is_known] -= 1

    async def grant(self, ticket: str, *, needed: bool) -> Grant:
        """What `ticket` grants, which is spent; where there is none and none is `needed`, what anybody may.

        Raises `UnauthorizedError`.
        """
        if ticket:
            return await self._authority.spend_ticket(ticket, TELEPHONY)
        if needed:
            raise UnauthorizedError(Refusal(401, "missing_ticket", "a call needs a ticket: see docs/telephony.md"))
        return Grant(None, self.permission)

    async def receive(
        self, line: Line, admit: Callable[[Started], Awaitable[Grant]], *, is_known: bool = False
    ) -> None:
        """Serve whoever is at the other end of an open socket, once it has started and `admit` has let it in: that
        raises `UnauthorizedError`. `is_known`: it has shown that it is a carrier of ours. Never raises but by a fault
        of ours."""
        try:
            with self.waiting(is_known=is_known):
                opened = await opening(
                    line.socket, line.carrier, CarrierFaults(line.carrier.name, self._count_error, {})
                )
                grant = await admit(opened.started)
            is_carriers = is_known or _is_announced(grant, opened.started)
            await self._serve(line if is_carriers else replace(line, control=None), opened, grant)
        except UnauthorizedError as error:
            await self._turn_away(line, error.refusal.code, str(error))
        except (RefusedError, CarrierError, ClientEventError) as error:
            await self._turn_away(line, error.code, str(error))
        except TimeoutError:
            await self._turn_away(line, "no_start", f"nothing started within {START_S_MAX} s")
        except SocketClosedError:
            _log.info("phone_call_never_began", carrier=line.carrier.name)

    async def _turn_away(self, line: Line, code: str, why: str) -> None:
        _log.warning("phone_call_refused", carrier=line.carrier.name, code=code, why=why)
        self._count_error(code)
        with suppress(SocketClosedError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await line.socket.close(CLOSE_CODES.get(code, CLOSE_CODES["refused"]), code)

    def _count_error(self, code: str) -> None:
        self._gateway.metrics.errors.labels("client", code).inc()

    async def _serve(self, line: Line, opened: Opened, grant: Grant) -> None:
        """Raises `RefusedError`, or `ClientEventError` where what came with the ticket cannot be used."""
        gateway, tenant, caller = self._gateway, grant.permission.tenant, grant.bounds.caller or ""
        async with gateway.place(grant.permission) as tenancy:
            tenancy.bind(grant.bounds.session)
            tenancy.check_session(None)
            tools = phone_tools(line.control, gateway.config.phone_transfer_to)
            transport = transport_of(line.carrier, opened.started.format, tools)
            async with self._begun(tenancy, transport, grant, caller) as admitted:
                call_back = self._call_backs.of(tenant, caller, admitted.resume_token)
                async with call_back.living():
                    reason = await self._converse(line, opened, admitted.call, tools)
                if reason in _CUT_OFF:
                    await call_back.cut_off()
                elif reason != SESSION_REPLACED:  # else it is of whoever has the session now
                    await call_back.over()

    @asynccontextmanager
    async def _begun(
        self, tenancy: Tenancy, transport: Transport, grant: Grant, caller: str
    ) -> AsyncIterator[Admitted]:
        """The call that `caller` goes on with, or a new one."""
        async with AsyncExitStack() as stack:
            token = await self._call_backs.take(grant.permission.tenant, caller)
            admitted = None
            if token is not None:
                with suppress(RefusedError):  # the session is gone, or somebody's who is there
                    resumed = self._gateway.resumed_call(token, transport, tenancy, gives_way=True)
                    admitted = await stack.enter_async_context(resumed)
            if admitted is None:
                begun = self._gateway.new_call(self._settings(grant), transport, tenancy)
                admitted = await stack.enter_async_context(begun)
            yield admitted

    async def _converse(self, line: Line, opened: Opened, call: Call, tools: tuple[ServiceTool, ...]) -> str:
        config, started = self._gateway.config, opened.started
        _log.info("phone_call_began", session=call.session, carrier=line.carrier.name, call=started.call)
        phone = PhoneCall(
            line,
            opened,
            call,
            limits_of(config),
            stall_ns_max=config.client_stall_s * NS_PER_S,
            sound_mended=partial(self._count, line.carrier.name),
        )
        phone.offer(tools)
        reason = await phone.serve("" if call.conversation.items else config.phone_greeting)
        call.end(reason)
        await phone.finish(reason)
        return reason

    def _count(self, carrier: str, found: InboundCounts) -> None:
        metrics = self._gateway.metrics
        chunks = {"lost": found.lost, "late": found.late, "doubled": found.doubled, "reordered": found.reordered}
        for what, count in chunks.items():
            metrics.phone_chunks_misplaced.labels(carrier, what).inc(count)
        metrics.phone_silence_seconds.labels(carrier).inc(found.filled_ms / 1e3)

    def _settings(self, grant: Grant) -> SessionSettings:
        config = self._gateway.config
        idle_ms = config.phone_idle_s * 1_000 or None
        detection = TurnDetection(silence_duration_ms=config.silence_ms, idle_timeout_ms=idle_ms)
        settings = SessionSettings(turn_detection=detection)
        if grant.session is not None:
            settings = apply_patch(settings, grant.session, self._gateway.tools.tools)
        return settings


def _is_announced(grant: Grant, started: Started) -> bool:
    """The carrier itself has told of this very call, for which the ticket was made."""
    return grant.bounds.call is not None and grant.bounds.call == started.call


def from_number(grant: Grant, caller: str) -> Grant:
    """`grant`, for a call from the number `caller`, as somebody says who is to be believed."""
    return msgspec.structs.replace(grant, bounds=msgspec.structs.replace(grant.bounds, caller=caller or None))


def probe_of(websocket: WebSocket) -> Callable[[], Probe]:
    """What the server's pings show of the way to the carrier."""
    probe: Callable[[], Probe] = websocket.scope.get("extensions", {}).get(PROBE_EXTENSION, Probe)
    return probe
