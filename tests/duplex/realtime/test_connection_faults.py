"""What goes wrong in a connection by a fault of ours ends its call, with a reason that its client is told."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from duplex.realtime.connection import SocketTakenError
from tests.duplex.realtime.test_connection import Bench, FakeMedium, play


async def broken(*_args: object) -> str:
    raise ZeroDivisionError


@pytest.mark.parametrize("where", ["the reader", "the command", "the medium", "the writer"])
def test_a_fault_of_ours_ends_the_call_and_is_logged_once(where: str) -> None:
    async def scenario(one: Bench) -> None:
        one.medium = FakeMedium(one.outbox)
        match where:
            case "the reader":
                one.socket.receive = broken  # type: ignore[method-assign]
            case "the command":
                one.call.conversation.create_response = lambda *_: 1 // 0  # type: ignore[assignment, method-assign]
                one.socket.incoming.append(json.dumps({"type": "response.create"}))
            case "the medium":
                one.medium.run = broken  # type: ignore[assignment, method-assign]
            case _:
                one.socket.send = broken  # type: ignore[assignment, method-assign]
                one.outbox.post({"type": "session.created"})
        with capture_logs() as logs:
            assert await one.serve() == "internal_error"
        assert one.call.end_reason == "internal_error"
        assert [type(log["exc_info"]) for log in logs if log["event"] == "call_failed"] == [ZeroDivisionError]
        labels = {"owner": "service", "code": "internal_error"}
        assert one.metrics.registry.get_sample_value("duplex_errors_total", labels) == 1

    play(scenario)


def test_a_fault_behind_the_end_of_a_call_is_not_its_reason() -> None:
    async def scenario(one: Bench) -> None:
        async def late() -> str:
            one.call.end("service_shutdown")
            raise ZeroDivisionError

        one.socket.receive = late  # type: ignore[method-assign]
        assert await one.serve() == "service_shutdown"

    play(scenario)


def test_a_socket_that_is_wanted_for_something_else_is_handed_on() -> None:
    async def scenario(one: Bench) -> None:
        async def taken() -> str:
            raise SocketTakenError

        one.socket.receive = taken  # type: ignore[method-assign]
        with pytest.raises(SocketTakenError):
            await one.serve()
        assert one.call.end_reason is None

    play(scenario)
