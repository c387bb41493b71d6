"""What a carrier says wrong is counted each time, logged once, and passed over up to an end."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from duplex.telephony.carrier import CarrierError
from duplex.telephony.carrier_faults import FAULTS_MAX, CarrierFaults


def test_each_is_counted_the_first_is_logged_and_one_too_many_ends_it() -> None:
    counted: list[str] = []
    faults = CarrierFaults("twilio", counted.append, {"session": "s"})
    with capture_logs() as logs:
        for _ in range(FAULTS_MAX):
            faults.note("invalid_json", "why")
        with pytest.raises(CarrierError) as ended:
            faults.note("other_stream", "why not")
    assert (ended.value.code, ended.value.fatal) == ("too_many_faults", True)
    assert counted == ["invalid_json"] * FAULTS_MAX + ["other_stream"]
    assert [(entry["event"], entry["code"], entry["session"]) for entry in logs] == [
        ("carrier_fault", "invalid_json", "s")
    ]
