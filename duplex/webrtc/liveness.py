"""When a caller from whom nothing comes has gone.

Rules
* Silence counts from the last sign of the caller, and only once there was one.
* Silence during which we did not run ourselves (a stopped process, a suspended machine) is no silence of theirs: what
  they sent meanwhile still waits in the sockets. Whoever is asked too late starts again.
"""

from __future__ import annotations

STALL_NS_MAX = 500_000_000  # being asked so much later than the time that was named is a stall of ours


class Liveness:
    """`silence_ns`: so long may nothing come."""

    def __init__(self, silence_ns: int) -> None:
        self._silence_ns = silence_ns
        self._asked_again_ns: int | None = None
        self._excused_ns = 0

    def left_ns(self, last_sign_ns: int | None, now_ns: int) -> int:
        """How long to wait before asking again; the caller has gone where nothing is left."""
        if self._asked_again_ns is not None and now_ns - self._asked_again_ns > STALL_NS_MAX:
            self._excused_ns = now_ns
        since_ns = now_ns if last_sign_ns is None else max(last_sign_ns, self._excused_ns)
        left_ns = since_ns + self._silence_ns - now_ns
        self._asked_again_ns = now_ns + max(0, left_ns)
        return left_ns
