"""The marks that a carrier has yet to send back, and which of them were played.

Rules
* Marks come back in the order in which they were sent: one that does answers for all before it.
* Behind a flush of what was before it, a mark was returned, whenever it arrives; where carriers drop marks as well, it
  was on its way by then.
* At most `MARKS_MAX` are waited for; of older ones nothing is known any more.
"""

from __future__ import annotations

from collections import deque

from duplex.telephony.carrier import CarrierError, Played, Returned

MARKS_MAX = 256  # half a minute of sound: no carrier is sent that much ahead


class Marks:
    """Of one call."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)
        self._flushed = -1

    def sent(self, epoch: int, offset: int) -> None:
        self._waiting.append((epoch, offset))

    def flushed(self, offset: int) -> None:
        """What was sent up to `offset` is thrown away."""
        self._flushed = offset

    def came_back(self, epoch: int, offset: int) -> Played | Returned:
        """Raises `CarrierError` where it is not waited for."""
        if (epoch, offset) not in self._waiting:
            raise CarrierError("unknown_mark", "a mark came back that is not waited for")
        while self._waiting.popleft() != (epoch, offset):
            pass
        return Returned(epoch, offset) if offset <= self._flushed else Played(epoch, offset)
