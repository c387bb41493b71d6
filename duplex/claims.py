"""Who may take a living session over, and how the call that has it makes way.

Theory of operation
    A session goes on at whichever gateway its client comes back to. The call that it still has is ended first, here or,
    by an errand, at another gateway, and all that it had to write is written: what was said last must not be lost.

    A request that its client has left behind ends nothing, and is refused: one whose connection the client has closed
    by then, and one from before the present call, which has its client (`sessions.takeover.is_outdated`): its sound
    comes, or it has taken what it was sent.

Rules
* Who cannot show the session's token moves nobody. Whether it is that of the session at all, the store says.
* A gateway that does not answer is not waited for, as it may stand still: whoever acquires the session is told next.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from duplex.admission import RefusedError
from duplex.call import Call
from duplex.errands import Errands, Outcome, What
from duplex.session_watch import SESSION_REPLACED
from sessions.store import SessionStore, StoredSession, StoreError
from sessions.takeover import is_believable, is_outdated
from stages.contracts import EPOCHS_PER_FENCE

# The last entries of a call are in the store within milliseconds; who waits for them has somebody waiting.
WAY_S_MAX = 0.5
# A client over WebSocket is asked each second. One that was there so short a time ago has gone on with its call.
ATTENDED_NS_MAX = 3_000_000_000
RESUME_OUTDATED = "resume_outdated"
CLIENT_GONE = "client_gone"


class Claimant(msgspec.Struct, frozen=True, array_like=True):
    """Who wants a session. `seen_fence`: that of the last owner that its client has seen; 0: it does not say.
    `gives_way`: a call whose client is there keeps the session, whatever that has seen."""

    token_digest: bytes
    seen_fence: int = 0
    gives_way: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What `call` has of its session, since `since_ns`. `written`: all that it had to write is, but for what is known
    as it drains."""

    call: Call
    token_digest: bytes
    written: asyncio.Event
    since_ns: int

    def stands_against(self, claimant: Claimant, now_ns: int) -> bool:
        """The client has gone on with this call since it asked, or is there, where that is enough."""
        is_there = self.call.listening.is_coming(now_ns) or self._is_attended(now_ns)
        if claimant.gives_way:
            return is_there and self.call.end_reason is None
        return is_outdated(claimant.seen_fence, self.call.conversation.epoch // EPOCHS_PER_FENCE, is_there=is_there)

    def _is_attended(self, now_ns: int) -> bool:
        """What the call has sent its client has arrived there, and it was there a moment ago."""
        return self.call.arrived_ns > max(self.since_ns, now_ns - ATTENDED_NS_MAX)


def _check_there(is_there: Callable[[], bool]) -> None:
    if not is_there():
        raise RefusedError(CLIENT_GONE, "the client that asked is not there any more", retry_after_s=None)


class Claims:
    """Those of one gateway, of its calls that are the present ones of their sessions."""

    def __init__(self, store: SessionStore, errands: Errands, gateway: str) -> None:
        self._store = store
        self._errands = errands
        self._gateway = gateway
        self._claims: dict[str, Claim] = {}
        errands.offer(What.MAKE_WAY, self._asked_to_give_way)

    def __len__(self) -> int:
        return len(self._claims)

    def hold(self, call: Call, token_digest: bytes) -> Claim:
        """`call` has its session from now on."""
        claim = self._claims[call.session] = Claim(call, token_digest, asyncio.Event(), time.monotonic_ns())
        return claim

    def drop(self, call: Call) -> None:
        """`call` is over. Its session may have gone on to another one here."""
        claim = self._claims.get(call.session)
        if claim is not None and claim.call is call:
            del self._claims[call.session]

    async def has_call(self, session: str, tenant: str) -> bool:
        """Whether `session`, where it is this tenant's, has a call, as far as the store knows."""
        with suppress(StoreError):
            stored = await self._store.describe([session])
            return any(held.lease_ms and held.tenant in ("", tenant) for held in stored)
        return False

    async def make_way(self, session: str, claimant: Claimant, is_there: Callable[[], bool] = lambda: True) -> None:
        """End the session's present call, wherever it is, and wait until all of it is written; for one elsewhere not
        for long. Raises `RefusedError` where the claim is outdated, or of an owner that there cannot have been, and
        where its client is not there any more: it may have gone on elsewhere."""
        stored: tuple[StoredSession, ...] = ()
        with suppress(StoreError):  # whoever acquires it next is told
            stored = await self._store.describe([session])
        if not all(is_believable(claimant.seen_fence, held.fence) for held in stored):
            message = "epoch is beyond any that the session can have had"
            raise RefusedError("invalid_value", message, retry_after_s=None)
        _check_there(is_there)
        has_way = await self._give_way(session, claimant)
        for held in stored:
            if has_way and held.lease_ms and held.owner != self._gateway:
                _check_there(is_there)
                has_way = await self._ask(held.owner, session, claimant)
        if not has_way:
            message = "the client has gone on with the session over another connection since"
            raise RefusedError(RESUME_OUTDATED, message, retry_after_s=None)
        _check_there(is_there)

    async def _ask(self, owner: str, session: str, claimant: Claimant) -> bool:
        proof = msgspec.msgpack.encode(claimant)
        outcome = await self._errands.ask(owner, What.MAKE_WAY, session, s_max=WAY_S_MAX, proof=proof)
        return outcome is not Outcome.NOT_DONE

    async def _asked_to_give_way(self, session: str, proof: bytes) -> bool:
        return await self._give_way(session, msgspec.msgpack.decode(proof, type=Claimant))

    async def _give_way(self, session: str, claimant: Claimant) -> bool:
        """False where the session's call is here, and stays."""
        claim = self._claims.get(session)
        if claim is None or not secrets.compare_digest(claim.token_digest, claimant.token_digest):
            return True
        if claim.stands_against(claimant, time.monotonic_ns()):
            return False
        claim.call.end(SESSION_REPLACED)
        await claim.written.wait()
        return True
