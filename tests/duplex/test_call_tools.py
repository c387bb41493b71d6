"""The shell around calls of the service's own tools: first in the store, then over HTTP, whenever the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

from structlog.testing import capture_logs

from duplex.call import Call
from duplex.call_tools import CallTools, OwnTool
from duplex.service_tools import HttpTool
from duplex.webhook_signature import SigningSecret
from sessions.conversation import Conversation
from sessions.effects import CancelTool, FollowTool, RequestTool
from sessions.events import CallUnknown, ItemAdded
from sessions.records import CallBegun, CallSettled
from sessions.service_calls import Failure, Result, ServiceTool
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import CallDelta, CallDone, Tag, TextDone, Tool
from stages.messages import Closed, Open, Opened, Published
from tests.duplex.test_call import SESSION, Bench, play
from tests.duplex.tool_server import S_MAX, SECRET, Gate, ToolServer, gate, tool_server

CALL = "call_0_resp_1"
WRITTEN = SessionSettings(modalities=("text",))
Scenario = Callable[[Bench, ToolServer, Gate], Coroutine[None, None, None]]


def play_with(scenario: Scenario, *, safe: bool = False) -> None:
    """A call whose tool answers once its gate is open."""
    with tool_server() as server:
        held = gate()
        server.answer = held.then(b"booked")
        secret = SigningSecret.of(SECRET)
        tool = HttpTool(ServiceTool(Tool("book"), safe), f"http://{server.host}/", secret, time_limit_s=S_MAX)

        async def run(one: Bench) -> None:
            try:
                await scenario(one, server, held)
            finally:
                held.open()

        play(run, WRITTEN, tools=(tool,))


async def called(one: Bench, server: ToolServer) -> Tag:
    """A response has called the tool, whose server has been asked."""
    one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 0))
    tag = next(frame.tag for frame in one.at("thinker") if isinstance(frame, Open) and frame.tag.response)
    one.call.frame("thinker", Opened(tag))
    for event in (CallDelta(0, "book", "{}"), CallDone(0, "{}"), TextDone("", "stop", 1, 0, 1)):
        one.call.frame("thinker", Published(tag, event))
    await asyncio.to_thread(server.until_asked)
    one.call.frame("thinker", Closed(tag, "finished", {}))
    return tag


def outputs(talk: Conversation) -> list[str]:
    return [item.text for item in talk.items if item.kind == "function_call_output"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


def entries(stored: list[object]) -> list[type]:
    return [type(entry) for entry in stored if isinstance(entry, CallBegun | CallSettled)]


def test_a_call_is_in_the_store_before_its_server_is_asked_and_with_what_came_of_it() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        assert entries([*await one.stored()]) == [CallBegun]
        assert server.asked[0].key == CALL
        held.open()
        await until(lambda: bool(outputs(one.call.conversation)))
        assert outputs(one.call.conversation) == ["booked"]
        assert one.metric('duplex_service_calls_total{outcome="succeeded"}') == 1
        assert [event.item.kind for event in one.told(ItemAdded)] == ["function_call", "function_call_output"]

    play_with(scenario)


def test_a_compaction_that_stands_for_it_counts_as_well() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        held.open()
        await until(lambda: bool(outputs(one.call.conversation)))
        one.call._stored(one.call._recorder.compacted())
        assert len(server.asked) == 1

    play_with(scenario)


def test_what_comes_after_the_end_is_recorded_and_waited_for() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.call.end("client_closed")
        draining = asyncio.create_task(one.call.until_drained())
        await asyncio.sleep(0)
        assert not draining.done()
        held.open()
        await draining
        assert entries([*await one.stored()]) == [CallBegun, CallSettled]

    play_with(scenario)


def test_what_does_no_harm_is_not_waited_for() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.call.end("client_closed")
        await one.call.until_drained()
        assert one.client_of_tools.under_way == 0
        assert entries([*await one.stored()]) == [CallBegun], "whoever comes next does it again"

    play_with(scenario, safe=True)


def test_a_call_does_not_leave_while_a_tool_is_at_work() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.call.end_in_pause("service_shutdown", 1 << 62)
        one.call.pace(1)
        assert one.call.end_reason is None

    play_with(scenario)


def taken_over(one: Bench) -> Call:
    """The session goes on in another call of this process."""
    before = one.call.conversation
    one.call.end("session_replaced")
    call = one.another(before=before)
    call.attach(one.client)
    return call


def test_who_comes_back_to_the_same_process_finds_it_at_work() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        call = taken_over(one)
        await one.call.until_drained()
        held.open()
        await until(lambda: bool(outputs(call.conversation)))
        assert (outputs(call.conversation), outputs(one.call.conversation)) == (["booked"], [])
        assert len(server.asked) == 1
        assert one.told(CallUnknown) == []

    play_with(scenario)


def test_who_has_gone_before_the_session_went_over_does_not_wait_for_it() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.call.end("connection_closed")
        call = one.another(before=one.call.conversation)
        one.call.leave_stages()
        call.attach(one.client)
        await one.call.until_drained()
        held.open()
        await until(lambda: bool(outputs(call.conversation)))
        assert outputs(one.call.conversation) == []

    play_with(scenario)


def test_elsewhere_nobody_knows_what_came_of_it() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.client_of_tools.cancel(CALL)  # as the end of its process does
        call = taken_over(one)
        await until(lambda: bool(outputs(call.conversation)))
        assert one.told(CallUnknown) == [CallUnknown(CALL, "book")]
        assert len(server.asked) == 1

    play_with(scenario)


def test_what_can_be_recorded_no_more_is_dropped_and_counted() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        await one.store.delete(SESSION)
        one.call.look_after_session()
        assert await one.journal.failed == "session_deleted"
        one.call.end("session_deleted")
        await one.call.until_drained()
        held.open()
        line = 'duplex_stale_dropped_total{where="tools"}'
        await until(lambda: one.metric(line) == 1)
        assert outputs(one.call.conversation) == []

    play_with(scenario)


def test_a_service_without_tools_has_lost_what_it_finds() -> None:
    async def scenario(one: Bench) -> None:
        told: list[tuple[str, Result | Failure]] = []
        tools = CallTools("sess_1", None, lambda: True, lambda *answer: told.append(answer))
        for order in (FollowTool("call_1"), RequestTool("call_2", "book", "{}"), CancelTool("call_3")):
            tools.order(order)
        assert (told, tools.tools) == ([], ()), "behind what is being carried out"
        await asyncio.sleep(0)
        assert told == [("call_1", Failure("lost")), ("call_2", Failure("lost"))]

    play(scenario)


def test_a_call_beyond_what_its_tenant_may_make_is_not_made() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        told: list[tuple[str, Result | Failure]] = []
        tools = CallTools("sess_1", one.client_of_tools, lambda: False, lambda *answer: told.append(answer))
        tools.order(RequestTool("call_1", "book", "{}"))
        assert (told, one.client_of_tools.under_way) == ([], 0)
        await asyncio.sleep(0)
        assert told == [("call_1", Failure("quota_exceeded"))]

    play_with(scenario)


def test_nobody_can_be_kept_from_cancelling() -> None:
    async def scenario(one: Bench, server: ToolServer, held: Gate) -> None:
        await called(one, server)
        one.call.tools.order(replace(CancelTool("x"), call_id=CALL))
        assert one.client_of_tools.under_way == 0

    play_with(scenario)


class OwnBench:
    """Tools that the connection of a call carries out."""

    def __init__(self, *, may_call: bool = True) -> None:
        self.answers: list[tuple[str, Result | Failure]] = []
        self.tools = CallTools("sess", None, lambda: may_call, lambda *answer: self.answers.append(answer))
        self.tools.offer(OwnTool(Tool("echo"), self._echo), OwnTool(Tool("fail"), self._fail))

    async def _echo(self, arguments: str) -> Result | Failure:
        return Result(arguments)

    async def _fail(self, arguments: str) -> Result | Failure:
        raise ValueError(arguments)

    async def order(self, effect: RequestTool | FollowTool | CancelTool) -> None:
        self.tools.order(effect)
        while self.tools._acting:
            await asyncio.wait(self.tools._acting)
        await asyncio.sleep(0)


def test_a_connection_s_own_tools_are_carried_out_by_it() -> None:
    async def scenario() -> None:
        one = OwnBench()
        assert [tool.name for tool in one.tools.tools] == ["echo", "fail"]
        await one.order(RequestTool("call_1", "echo", "{}"))
        with capture_logs() as logs:
            await one.order(RequestTool("call_2", "fail", "a secret"))
        assert one.answers == [("call_1", Result("{}")), ("call_2", Failure("broken"))]
        assert [entry["event"] for entry in logs] == ["tool_failed"]

    asyncio.run(scenario())


def test_they_count_in_the_tenant_s_quota_and_another_connection_s_are_lost() -> None:
    async def scenario() -> None:
        one = OwnBench(may_call=False)
        await one.order(RequestTool("call_1", "echo", "{}"))
        await one.order(FollowTool("call_2"))
        await one.order(RequestTool("call_3", "unknown", "{}"))
        await one.order(CancelTool("call_4"))
        assert one.answers == [
            ("call_1", Failure("quota_exceeded")),
            ("call_2", Failure("lost")),
            ("call_3", Failure("lost")),
        ]

    asyncio.run(scenario())
