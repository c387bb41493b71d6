"""One connection: what waits to be written, what is read and followed, and what ends it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duplex.call import Call, Services
from duplex.journal import Journal
from duplex.log_queue import CROWDED_MIN, WAITING_MAX
from duplex.metrics import Metrics
from duplex.realtime import client_events as ask
from duplex.realtime.connection import (
    Allowance,
    Limits,
    Outbox,
    RealtimeConnection,
    SocketClosedError,
    created_message,
    resumed_message,
)
from duplex.realtime.dialect import RealtimeDialect
from duplex.tasks import stop_task
from duplex.vad_service import VadService
from media.rtp_map import Position
from sessions.conversation import Conversation
from sessions.memory_store import MemorySessionStore
from sessions.planner import Identity, ReplyDefaults
from sessions.records import SessionRecord, token_digest
from sessions.settings import SessionSettings

EPOCH = 1 << 20
S_MAX = 10
NS_PER_S = 1_000_000_000
NEVER_NS = 3_600 * NS_PER_S


class Silent:
    def probabilities(self, batch: Any) -> list[float]:
        return [0.0] * len(batch)


class FakeSocket:
    """Gives what stands in `incoming`, then waits; keeps what is sent. `reads` cleared: the client takes nothing."""

    def __init__(self, *incoming: str | bytes) -> None:
        self.incoming = deque(incoming)
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.offered = asyncio.Event()
        self.took = asyncio.Event()
        self.closed = asyncio.Event()
        self.endless: str | None = None

    async def receive(self) -> str | bytes:
        if self.incoming:
            return self.incoming.popleft()
        if self.endless is not None:
            return self.endless
        await self.closed.wait()
        raise SocketClosedError

    async def send(self, text: str) -> None:
        self.offered.set()
        await self.reads.wait()
        if self.closed.is_set():
            raise SocketClosedError
        self.sent.append(json.loads(text))
        self.took.set()

    async def until_sent(self, count: int) -> None:
        while len(self.sent) < count:
            await self.took.wait()
            self.took.clear()

    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    def errors(self) -> list[dict[str, Any]]:
        return [message["error"] for message in self.sent if message["type"] == "error"]


class Bench:
    """A call without stages, and its connection."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self.socket = FakeSocket()
        self.metrics = Metrics()
        self.vad = VadService(Silent())
        self.store = MemorySessionStore(lambda: 0)
        self.dialect = RealtimeDialect(self.new_id)
        self.outbox = Outbox(self.dialect)
        self.limits = Limits(1 << 30, NEVER_NS, NEVER_NS)
        self.medium: FakeMedium | None = None

    async def open(self) -> None:
        record = SessionRecord("sess_1", "default", 0, b"{}", token_digest("x"))
        journal = Journal(self.store, await self.store.create(record, "gw_1", 10_000))
        identity = Identity("sess_1", EPOCH, self.new_id)
        talk = Conversation(identity, SessionSettings(), ReplyDefaults("Hi.", 10), transport_lead_ms=0)
        self.call = Call(talk, "sess_1", Services({}, self.vad, self.metrics), journal)

    def new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids[prefix]}"

    async def serve(self, first: ask.Command | None = None) -> str:
        one = RealtimeConnection(self.socket, self.call, self.outbox, self.dialect, self.limits, medium=self.medium)
        return await one.serve(first)

    async def exchange(self, *messages: str | bytes | dict[str, Any], count: int) -> None:
        """Send `messages`, and serve until `count` have been answered."""
        self.socket.incoming.extend(m if isinstance(m, str | bytes) else json.dumps(m) for m in messages)
        serving = asyncio.create_task(self.serve())
        await self.socket.until_sent(count)
        self.socket.closed.set()
        assert await serving == "client_closed"


def play(scenario: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        one = Bench()
        await one.open()
        running = asyncio.create_task(one.vad.run())
        try:
            async with asyncio.timeout(S_MAX):
                await scenario(one)
        finally:
            await stop_task(running)

    asyncio.run(run())


def item(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    body = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}
    return {"type": "conversation.item.create", "item": body}


# ---- what is read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        b"\x00\x01",
        "[]",
        {"type": "response.sing"},
        {"type": "input_audio_buffer.append", "audio": "not base64"},
        {"type": "input_audio_buffer.append", "audio": "naïve"},
        {"type": "input_audio_buffer.append", "audio": "AAA"},
        {"type": "session.update", "session": {"temperature": 9}},
        {"type": "response.create", "response": {"output_modalities": ["audio", "text"]}},
        {"type": "session.resume", "token": "a.b"},
        {"type": "conversation.item.delete", "item_id": "nobody"},
        {"type": "playback.ack"},
        {"type": "playback.ack", "rtp_timestamp": 960},
        {"type": "playback.ack", "response_id": "resp_1"},
    ],
)
def test_a_bad_message_is_answered_and_the_call_goes_on(bad: str | bytes | dict[str, Any]) -> None:
    async def scenario(one: Bench) -> None:
        await one.exchange(bad, item(), count=3)
        assert one.socket.types() == ["error", "conversation.item.added", "conversation.item.done"]
        assert one.socket.errors()[0]["type"] == "invalid_request_error"
        assert 'owner="client"' in one.metrics.render().decode()

    play(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "session.update", "session": {"temperature": 9}},
        {"type": "session.update", "session": 9},
        {"type": "conversation.item.delete", "item_id": "nobody"},
        {"type": "response.cancel"},
        {"type": "response.sing"},
    ],
)
def test_a_refusal_names_the_event_that_it_answers(bad: dict[str, Any]) -> None:
    async def scenario(one: Bench) -> None:
        await one.exchange(bad | {"event_id": "mine"}, {"type": "response.cancel"}, count=2)
        assert [error["event_id"] for error in one.socket.errors()] == ["mine", None]

    play(scenario)


def test_every_command_reaches_the_conversation() -> None:
    async def scenario(one: Bench) -> None:
        await one.exchange(
            item(id="item_a"),
            {"type": "conversation.item.retrieve", "item_id": "item_a"},
            {"type": "conversation.item.truncate", "item_id": "item_a", "audio_end_ms": 1.5},
            {"type": "conversation.item.truncate", "item_id": "item_a", "audio_end_ms": -1},
            {"type": "conversation.item.delete", "item_id": "item_a"},
            {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(4_800)).decode()},
            {"type": "input_audio_buffer.clear"},
            {"type": "input_audio_buffer.commit"},
            count=8,
        )
        assert one.socket.types() == [
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.retrieved",
            *["error"] * 2,
            "conversation.item.deleted",
            "input_audio_buffer.cleared",
            "error",
        ]
        errors = [error["param"] or error["code"] for error in one.socket.errors()]
        assert errors == ["item_id", "audio_end_ms", "input_audio_buffer_commit_empty"]
        assert one.call.listening.received_samples == 2_400

    play(scenario)


def test_a_call_of_a_function_and_what_came_of_it_are_items() -> None:
    async def scenario(one: Bench) -> None:
        call = {"type": "function_call", "id": "call", "call_id": "c", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c"}
        create: dict[str, Any] = {"type": "conversation.item.create", "item": output}
        found = {**create, "item": {**output, "output": "it"}}
        await one.exchange(item(**call), item(), found, {**found, "event_id": "again"}, create, count=8)
        kinds = [message["item"]["type"] for message in one.socket.sent if message["type"].endswith("added")]
        assert kinds == ["function_call", "message", "function_call_output"]
        assert one.socket.sent[4]["previous_item_id"] == "call", "it stands behind its call"
        errors = [(error["code"], error["param"], error["event_id"]) for error in one.socket.errors()]
        assert errors == [
            ("tool_call_already_answered", "item.call_id", "again"),
            ("missing_value", "item.output", None),
        ]

    play(scenario)


def test_an_update_is_answered_with_the_session_as_it_then_stands() -> None:
    async def scenario(one: Bench) -> None:
        session = {"instructions": "Be brief.", "extensions": True, "audio": {"input": {"transcription": None}}}
        await one.exchange({"type": "session.update", "session": session}, count=1)
        assert one.socket.sent[0]["session"]["instructions"] == "Be brief."
        assert one.dialect.extensions
        assert not one.dialect.transcription
        assert one.call.conversation.settings.instructions == "Be brief."

    play(scenario)


def test_reports_and_flushes_are_followed_without_a_word() -> None:
    async def scenario(one: Bench) -> None:
        report = {"type": "playback.ack", "response_id": "resp_gone", "played_samples": 480}
        await one.exchange(report, {"type": "output_audio_buffer.clear"}, {"type": "input_audio_buffer.clear"}, count=1)
        assert one.socket.types() == ["input_audio_buffer.cleared"]

    play(scenario)


def test_a_report_names_the_field_that_it_lacks() -> None:
    async def scenario(one: Bench) -> None:
        report = {"type": "playback.ack", "played_samples": 480}
        await one.exchange(report, {"type": "playback.ack", "response_id": "resp_1"}, count=2)
        assert [error["param"] for error in one.socket.errors()] == ["response_id", "played_samples"]

    play(scenario)


@pytest.mark.parametrize("detection", [{"type": "server_vad"}, None])
def test_a_client_that_notices_speech_is_believed_where_it_can_be_confirmed(detection: dict[str, str] | None) -> None:
    async def scenario(one: Bench) -> None:
        alerts: list[None] = []
        one.call.listening.alert = lambda: alerts.append(None)  # type: ignore[method-assign]
        update = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": detection}}}}
        await one.exchange(update, {"type": "turn.hold"}, {"type": "input_audio_buffer.clear"}, count=2)
        assert len(alerts) == (detection is not None)
        assert [error["code"] for error in one.socket.errors()] == ["turn_detection_off"] * (detection is None)

    play(scenario)


@pytest.mark.parametrize(("played", "known"), [(960, 960), (90_000, 4_800), (0, 0)])
def test_a_report_is_answered_with_what_was_sent_of_it(played: int, known: int) -> None:
    async def scenario(one: Bench) -> None:
        one.dialect.extensions = True
        one.call.conversation.speaking.sent_of = lambda *_: 4_800  # type: ignore[method-assign]
        one.call.conversation.speaking.rate_of = lambda *_: 8_000  # type: ignore[method-assign]
        await one.exchange({"type": "playback.ack", "response_id": "resp_1", "played_samples": played}, count=1)
        place = {"response_id": "resp_1", "played_samples": known, "until_sample": 4_800, "sample_rate": 8_000}
        assert one.socket.types() == ["playback.acknowledged"]
        assert one.socket.sent[0].items() >= place.items()

    play(scenario)


@pytest.mark.parametrize(("reported", "stated"), [(480, 960), (2_400, 2_400)])
def test_a_report_that_falls_behind_is_answered_with_the_furthest(reported: int, stated: int) -> None:
    async def scenario(one: Bench) -> None:
        one.dialect.extensions = True
        speaking = one.call.conversation.speaking
        speaking.sent_of = lambda *_: 4_800  # type: ignore[method-assign]
        speaking.rate_of = lambda *_: 24_000  # type: ignore[method-assign]
        speaking.reported_of = lambda response: 960  # type: ignore[method-assign]
        await one.exchange({"type": "playback.ack", "response_id": "resp_1", "played_samples": reported}, count=1)
        assert (one.socket.sent[0]["played_samples"], one.socket.sent[0]["until_sample"]) == (stated, 4_800)

    play(scenario)


def test_on_a_track_too_the_furthest_is_stated_and_never_lies_behind_what_sounds_on() -> None:
    async def scenario(one: Bench) -> None:
        one.dialect.extensions = True
        one.medium = FakeMedium(one.outbox)
        one.call.conversation.speaking.reported_of = lambda response: 6_000  # type: ignore[method-assign]
        await one.exchange({"type": "playback.ack", "rtp_timestamp": 1_920}, count=1)
        assert (one.socket.sent[0]["played_samples"], one.socket.sent[0]["until_sample"]) == (6_000, 6_000)

    play(scenario)


def test_a_report_of_the_tracks_clock_is_answered_with_where_that_stands() -> None:
    async def scenario(one: Bench) -> None:
        one.dialect.extensions = True
        one.medium = FakeMedium(one.outbox)
        reports = [{"type": "playback.ack", "rtp_timestamp": ticks} for ticks in (5, 1_920)]
        await one.exchange(*reports, count=1)
        place = {"response_id": "resp_1", "played_samples": 960, "until_sample": 5_000, "sample_rate": 24_000}
        assert one.socket.sent[0].items() >= place.items()

    play(scenario)


def test_a_message_that_is_too_large_for_its_transport_is_refused_and_the_call_goes_on() -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1 << 30, NEVER_NS, NEVER_NS, message_bytes_max=200)
        await one.exchange({"type": "response.cancel", "event_id": "x" * 200}, item(), count=3)
        assert one.socket.types() == ["error", "conversation.item.added", "conversation.item.done"]
        assert one.socket.errors()[0]["code"] == "message_too_large"

    play(scenario)


def test_a_client_that_says_goodbye() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.append(json.dumps({"type": "bye"}))
        assert await one.serve() == "client_closed"
        assert one.call.end_reason == "client_closed"

    play(scenario)


# ---- sound beside the messages ------------------------------------------------------------------------------


class FakeMedium:
    """Knows where `ticks` of the clock stand: half as many samples of one response, from 960 on."""

    def __init__(self, outbox: Outbox) -> None:
        self.client = outbox
        self.last_input_ns = 0
        self.over = asyncio.Event()

    async def run(self, call: Call) -> str:
        await self.over.wait()
        return "vanished"

    def locate(self, rtp_timestamp: int, age_ms: float, output_latency_ms: float) -> tuple[Position, ...]:
        if rtp_timestamp < 960:
            return ()
        return (Position("resp_1", rtp_timestamp // 2, 5_000), Position("resp_2", 0, 0))


def test_where_sound_has_a_track_reports_name_its_clock_and_messages_carry_none() -> None:
    async def scenario(one: Bench) -> None:
        heard: list[tuple[str, int]] = []
        one.call.heard = lambda response, samples: heard.append((response, samples))  # type: ignore[method-assign]
        one.medium = FakeMedium(one.outbox)
        await one.exchange(
            {"type": "playback.ack", "rtp_timestamp": 1_920},
            {"type": "playback.ack", "rtp_timestamp": 5},
            {"type": "playback.ack", "event_id": "nothing"},
            {"type": "input_audio_buffer.append", "audio": "AAAA"},
            count=2,
        )
        assert heard == [("resp_1", 960), ("resp_2", 0)]
        assert [error["code"] for error in one.socket.errors()] == ["invalid_value", "unsupported_event"]

    play(scenario)


def test_where_sound_has_a_track_no_telephone_can_be_asked_for() -> None:
    async def scenario(one: Bench) -> None:
        one.medium = FakeMedium(one.outbox)
        telephone = {"audio": {"input": {"format": {"type": "audio/pcmu"}}}, "instructions": "Be brief."}
        await one.exchange({"type": "session.update", "session": telephone}, count=1)
        (error,) = one.socket.errors()
        assert (error["code"], error["param"]) == ("unsupported_format", "session.audio.input.format")
        assert one.call.conversation.settings == SessionSettings()

    play(scenario)


def test_a_track_that_is_over_ends_the_connection() -> None:
    async def scenario(one: Bench) -> None:
        one.medium = FakeMedium(one.outbox)
        one.medium.over.set()
        assert await one.serve() == "vanished"

    play(scenario)


def test_who_is_heard_is_not_idle() -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1 << 30, NEVER_NS, 0)
        one.medium = FakeMedium(one.outbox)
        one.medium.last_input_ns = time.monotonic_ns() + NEVER_NS
        serving = asyncio.create_task(one.serve())
        await asyncio.sleep(0)
        one.medium.over.set()
        assert await serving == "vanished"

    play(scenario)


def test_a_command_that_was_read_already_goes_first() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.append(json.dumps({"type": "input_audio_buffer.clear"}))
        serving = asyncio.create_task(one.serve(ask.ItemDelete(item_id="nobody")))
        await one.socket.until_sent(2)
        one.socket.closed.set()
        await serving
        assert one.socket.types() == ["error", "input_audio_buffer.cleared"]

    play(scenario)


# ---- what ends it -------------------------------------------------------------------------------------------


def test_a_call_that_ends_takes_its_connection_along() -> None:
    async def scenario(one: Bench) -> None:
        serving = asyncio.create_task(one.serve())
        await asyncio.sleep(0)
        one.call.end("service_shutdown")
        assert await serving == "service_shutdown"

    play(scenario)


def test_a_client_that_is_gone() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.closed.set()
        assert await one.serve() == "client_closed"

    play(scenario)


def test_a_client_that_is_gone_while_we_write() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.reads.clear()
        serving = asyncio.create_task(one.serve())
        one.outbox.post({"type": "any"})
        await asyncio.sleep(0)
        one.socket.endless = None
        one.socket.closed.set()
        one.socket.reads.set()
        assert await serving == "client_closed"

    play(scenario)


def test_a_client_that_does_not_read() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.reads.clear()
        one.socket.endless = "nonsense"
        assert await one.serve() == "slow_client"

    play(scenario)


def test_a_client_that_never_stops_talking_leaves_others_their_turn() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.endless = "nonsense"
        serving = asyncio.create_task(one.serve())
        turns = 0
        while len(one.socket.sent) < 50:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 25
        one.call.end("idle")
        assert await serving == "idle"

    play(scenario)


def test_who_sends_faster_than_the_store_takes_it_is_read_more_slowly() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.endless = json.dumps({"type": "session.update", "session": {"type": "realtime"}})
        serving = asyncio.create_task(one.serve())
        await one.socket.until_sent(CROWDED_MIN + 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (one.call.journal.waiting, one.call.end_reason) == (CROWDED_MIN + 1, None)
        writing = asyncio.create_task(one.call.write_down())
        await one.socket.until_sent(2 * WAITING_MAX)
        assert one.call.end_reason is None
        one.call.end("idle")
        assert await serving == "idle"
        assert await one.call.flush()
        assert one.call.journal.lost == 0
        await stop_task(writing)

    play(scenario)


def test_what_comes_is_obeyed_before_more_is_waited_for() -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1, NEVER_NS, NEVER_NS)  # after one message, a minute passes until the next is read
        one.socket.incoming.append(json.dumps({"type": "session.update", "session": {"type": "realtime"}}))
        serving = asyncio.create_task(one.serve())
        await one.socket.until_sent(1)
        assert one.socket.types() == ["session.updated"]
        one.call.end("idle")
        assert await serving == "idle"

    play(scenario)


def test_a_call_has_its_longest_time() -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1 << 30, 1_000_000, NEVER_NS)
        assert await one.serve() == "call_too_long"

    play(scenario)


def test_a_client_that_says_nothing() -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1 << 30, NEVER_NS, 1_000_000)
        assert await one.serve() == "idle"

    play(scenario)


def test_nothing_of_a_connection_is_left_running() -> None:
    async def scenario(one: Bench) -> None:
        before = asyncio.all_tasks()
        one.socket.closed.set()
        await one.serve()
        assert asyncio.all_tasks() == before

    play(scenario)


# ---- how fast it is read ------------------------------------------------------------------------------------


def test_who_sends_more_than_a_second_ahead_is_read_more_slowly() -> None:
    allowance, now_ns, half_ns = Allowance(1_000), 5 * NS_PER_S, NS_PER_S // 2
    assert allowance.spend(1_000, now_ns) == 0, "a second's worth at once is fine"
    assert allowance.spend(500, now_ns) == half_ns
    assert allowance.spend(500, now_ns + half_ns) == half_ns
    now_ns += 20 * NS_PER_S
    assert allowance.spend(1_000, now_ns) == 0
    assert allowance.spend(1_000, now_ns) == NS_PER_S, "what was not used before earns one second, not twenty"


# ---- how it begins ------------------------------------------------------------------------------------------


def test_a_session_is_created_with_a_token_for_those_who_can_use_it() -> None:
    async def scenario(one: Bench) -> None:
        for extensions in (False, True):
            dialect = RealtimeDialect(str, extensions=extensions)
            message = created_message(one.call, SessionSettings(), "sess_1.x", dialect)
            assert message["type"] == "session.created"
            assert message["session"]["id"] == "sess_1"
            assert ("resume_token" in message["session"]) == extensions

    play(scenario)


def test_a_session_is_resumed_as_it_stands() -> None:
    async def scenario(one: Bench) -> None:
        message = resumed_message(one.call, "sess_1.x", [{"id": "item_1"}])
        assert message["session"]["resume_token"] == "sess_1.x"
        assert (message["items"], message["epoch"]) == ([{"id": "item_1"}], EPOCH)
        assert message["input_samples_received"] == 0
        assert not {"history_lost", "resync"} & message.keys()
        assert resumed_message(one.call, "sess_1.x", [], history_lost=True)["history_lost"] is True
        assert resumed_message(one.call, "sess_1.x", [], resync=False)["resync"] is False

    play(scenario)
