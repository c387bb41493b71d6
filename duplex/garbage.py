"""When the gateway looks for cycles of objects that nobody uses any more.

Theory of operation
    A call's parts know each other, so their memory comes back only when Python's cycle collector finds them. Left
    alone, that goes through all objects of all loaded modules, which holds every call up for tens of milliseconds, and
    therefore comes so seldom that the remains of hundreds of calls pile up. So what was made before the first call is
    set aside, and the collector runs when a call has ended: half a millisecond for one that was alone.

Rules
* It runs once as many calls have ended as are still on: what it costs per call does not grow with the number of calls,
  and there is never more garbage than there are calls.
"""

from __future__ import annotations

import asyncio
import gc


def set_aside_what_stays() -> None:
    """Spare the collector all that was made so far."""
    gc.collect()
    gc.freeze()


class CallGarbage:
    def __init__(self) -> None:
        self._ended = 0

    def call_ended(self, still_on: int) -> None:
        """A call has given its place back; `still_on` others have not."""
        self._ended += 1
        if self._ended >= still_on:
            self._ended = 0
            # Not now: whoever tells us that a call is over still holds it.
            asyncio.get_running_loop().call_soon(gc.collect)
