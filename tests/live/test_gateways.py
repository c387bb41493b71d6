"""Several gateways behind one address: callers spread, one that dies or stands still takes nobody with it, and what
belongs to a call is done by the gateway that has it, whichever was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.live.caller import calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

GATEWAYS = ("gateway-1", "gateway-2")
SETTINGS = {"gateways": "2", "calls_max": "6", "operator_token": "of-an-operator"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("gateways"), SETTINGS) as running:
        yield running


def calls_at(service: Service) -> list[int]:
    return [service.alone(name).get("/readyz").json["calls"] for name in GATEWAYS]


def test_callers_spread_over_the_gateways(service: Service) -> None:
    with ExitStack() as calls:
        for _ in range(6):
            calls.enter_context(calling(service))
        spread = calls_at(service)
    assert spread == [3, 3]
