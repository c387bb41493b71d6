"""What a carrier says wrong, before its stream has started and afterwards: counted, logged once, and passed over.

Rule
* Of a carrier that speaks another language nothing will come: `FAULTS_MAX` are passed over, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from duplex.telephony.carrier import CarrierError

FAULTS_MAX = 100

_log = structlog.get_logger("duplex.telephony")


class CarrierFaults:
    """Of one connection of `carrier`. `count` is told the code of each; `of`: what else the log says."""

    def __init__(self, carrier: str, count: Callable[[str], None], of: Mapping[str, str]) -> None:
        self._carrier = carrier
        self._count = count
        self._of = of
        self._noted = 0

    def note(self, code: str, message: str) -> None:
        """One more. Raises `CarrierError` where that is too many."""
        self._count(code)
        if not self._noted:
            _log.warning("carrier_fault", carrier=self._carrier, code=code, why=message, **self._of)
        self._noted += 1
        if self._noted > FAULTS_MAX:
            raise CarrierError("too_many_faults", "nothing that the carrier says is understood", fatal=True)
