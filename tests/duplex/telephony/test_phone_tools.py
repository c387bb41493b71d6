"""What a model can do with its call: once it was heard, and not while the caller speaks on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from duplex.telephony.carrier import MU_LAW_LINE, Started
from duplex.telephony.control import ControlError
from duplex.telephony.phone_tools import HUNG_UP, TRANSFERRED, PhoneActions, phone_tools
from sessions.service_calls import Failure, Result

CALL = Started("MZ01", "CA01", MU_LAW_LINE)
PLACES = ("+15550199", "sip:desk@pbx")


@dataclass
class Control:
    error: ControlError | None = None
    done: list[str] = field(default_factory=list)

    async def transfer(self, call: Started, to: str) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(to)

    async def hang_up(self, call: Started) -> None:
        raise NotImplementedError


@dataclass
class Bench:
    control: Control = field(default_factory=Control)
    is_heard: bool = True
    ended: list[str] = field(default_factory=list)

    def act(self, name: str, arguments: str) -> Result | Failure:
        async def until_heard() -> bool:
            return self.is_heard

        actions = PhoneActions(CALL, self.control, until_heard, self.ended.append)
        own = {each.tool.name: each for each in actions.own_tools(phone_tools(self.control, PLACES))}

        async def run() -> Result | Failure:
            return await own[name].act(arguments)

        return asyncio.run(run())


def test_calls_go_on_elsewhere_where_that_is_allowed_and_can_be_asked_for() -> None:
    assert [each.tool.name for each in phone_tools(None, PLACES)] == ["hang_up"]
    assert [each.tool.name for each in phone_tools(Control(), ())] == ["hang_up"]
    hang_up, transfer = phone_tools(Control(), PLACES)
    assert '"enum": ["+15550199", "sip:desk@pbx"]' in transfer.tool.parameters
    assert [(each.safe, each.filler) for each in (hang_up, transfer)] == [(False, "")] * 2


def test_what_was_said_is_heard_first() -> None:
    bench = Bench()
    assert bench.act("hang_up", "{}") == Result("The call has ended.")
    assert bench.act("transfer_call", '{"to": "+15550199"}') == Result("The call goes on there.")
    assert (bench.ended, bench.control.done) == ([HUNG_UP, TRANSFERRED], ["+15550199"])


@pytest.mark.parametrize(("name", "arguments"), [("hang_up", "{}"), ("transfer_call", '{"to": "+15550199"}')])
def test_who_speaks_on_keeps_the_call(name: str, arguments: str) -> None:
    bench = Bench(is_heard=False)
    answer = bench.act(name, arguments)
    assert isinstance(answer, Result)
    assert "goes on" in answer.text
    assert (bench.ended, bench.control.done) == ([], [])


@pytest.mark.parametrize(("is_refused", "code"), [(True, "refused"), (False, "unavailable")])
def test_a_carrier_that_does_not_do_it_keeps_the_call(*, is_refused: bool, code: str) -> None:
    bench = Bench(Control(ControlError("no", is_refused=is_refused)))
    answer = bench.act("transfer_call", '{"to": "+15550199"}')
    assert isinstance(answer, Failure)
    assert (answer.code, bench.ended) == (code, [])
