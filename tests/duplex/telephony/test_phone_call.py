"""The shell of a telephone call: what ends it, and what its carrier is told then. Its stages are never there."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from duplex.log_queue import CROWDED_MIN
from duplex.realtime.connection import Limits, SocketClosedError
from duplex.telephony import digits, phone_call
from duplex.telephony.asterisk import Asterisk
from duplex.telephony.carrier import Carrier, CarrierError, Message, Played, Started
from duplex.telephony.carrier_faults import FAULTS_MAX, CarrierFaults
from duplex.telephony.control import ControlError
from duplex.telephony.inbound import Inbound, InboundCounts
from duplex.telephony.media_streams import TELNYX, TWILIO, MediaStreams
from duplex.telephony.outbound import MESSAGES_WAITING_MAX
from duplex.telephony.phone_call import Line, PhoneCall, opening, transport_of
from duplex.telephony.phone_tools import HUNG_UP, TRANSFERRED, phone_tools
from media.playout import Frame
from sessions.events import ReplyAudio, TurnHeld, TurnResumed
from sessions.records import InputTaken
from sessions.settings import ResponseSpec
from sessions.store import Appended, Ownership
from tests.duplex.realtime.test_connection import NEVER_NS, S_MAX
from tests.duplex.test_call import Bench as CallBench
from tests.duplex.test_call import play as play_call

MS = 1_000_000
TWILIO_START = {
    "event": "start",
    "streamSid": "MZ01",
    "start": {"callSid": "CA01", "mediaFormat": {"encoding": "PCMU"}},
}
TELNYX_START = {
    "event": "start",
    "stream_id": "s",
    "start": {"call_control_id": "c", "media_format": {"encoding": "PCMU"}},
}
CHANNEL_START = {"event": "MEDIA_START", "channel_id": "pbx-1", "format": "ulaw", "optimal_frame_size": 160}


class FakeSocket:
    """Gives what stands in `incoming`, then waits until it is closed; keeps what is sent."""

    def __init__(self, *incoming: Any) -> None:
        self.incoming: deque[Any] = deque(incoming)
        self.sent: list[Message] = []
        self.closed: tuple[int, str] | None = None
        self.gone = asyncio.Event()
        self.emptied = asyncio.Event()

    async def receive(self) -> Message:
        if not self.incoming:
            self.emptied.set()
            await self.gone.wait()
            raise SocketClosedError
        message = self.incoming.popleft()
        if isinstance(message, Exception):
            raise message
        return json.dumps(message) if isinstance(message, dict) else message

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason


def faults_of(carrier: Carrier) -> CarrierFaults:
    return CarrierFaults(carrier.name, lambda _code: None, {})


class Control:
    def __init__(self, error: ControlError | None = None) -> None:
        self.error = error
        self.hung_up: list[str] = []

    async def transfer(self, call: Started, to: str) -> None:
        raise NotImplementedError

    async def hang_up(self, call: Started) -> None:
        self.hung_up.append(call.call)
        if self.error is not None:
            raise self.error


class Bench:
    def __init__(self, one: CallBench) -> None:
        self.call = one.call
        self.socket = FakeSocket()
        self.carrier: Carrier = MediaStreams(TWILIO)
        self.control: Control | None = None
        self.mended: list[InboundCounts] = []
        self.limits = Limits(1 << 30, NEVER_NS, NEVER_NS)

    async def open(self, start: dict[str, Any] = TWILIO_START) -> PhoneCall:
        self.socket.incoming.appendleft(start)
        line = Line(self.socket, self.carrier, self.control)
        opened = await opening(self.socket, self.carrier, faults_of(self.carrier))
        return PhoneCall(line, opened, self.call, self.limits, stall_ns_max=NEVER_NS, sound_mended=self.mended.append)

    async def serve(self, start: dict[str, Any] = TWILIO_START) -> str:
        phone = await self.open(start)
        reason = await phone.serve()
        self.call.end(reason)
        await phone.finish(reason)
        return reason

    def texts(self) -> list[Any]:
        return [json.loads(message) for message in self.socket.sent if isinstance(message, str)]


def play(scenario: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def run(one: CallBench) -> None:
        async with asyncio.timeout(S_MAX):
            await scenario(Bench(one))

    play_call(run)


def test_a_carrier_that_hangs_up_ends_the_call() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.append({"event": "stop"})
        assert await one.serve() == "client_closed"
        assert one.socket.closed == (1000, "client_closed")

    play(scenario)


def test_a_socket_that_closes_ends_the_call() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.gone.set()
        assert await one.serve() == "client_closed"

    play(scenario)


@pytest.mark.parametrize(("limits", "reason"), [((0, NEVER_NS), "call_too_long"), ((NEVER_NS, 0), "idle")])
def test_a_call_has_an_end(limits: tuple[int, int], reason: str) -> None:
    async def scenario(one: Bench) -> None:
        one.limits = Limits(1 << 30, *limits)
        assert await one.serve() == reason
        assert one.socket.closed == (1008, reason)

    play(scenario)


def test_an_end_of_ours_hangs_up_where_a_message_does() -> None:
    async def scenario(one: Bench) -> None:
        one.carrier, one.limits = Asterisk(), Limits(1 << 30, 0, NEVER_NS)
        await one.serve(CHANNEL_START)
        assert one.texts()[-1] == {"command": "HANGUP"}

    play(scenario)


@pytest.mark.parametrize("error", [None, ControlError("no")])
def test_or_asks_the_carrier_where_none_does(error: ControlError | None) -> None:
    async def scenario(one: Bench) -> None:
        one.carrier, one.limits = MediaStreams(TELNYX), Limits(1 << 30, 0, NEVER_NS)
        one.control = Control(error)
        with capture_logs() as logs:
            await one.serve(TELNYX_START)
        assert one.control.hung_up == ["c"]
        assert [entry["event"] for entry in logs if entry["event"] == "not_hung_up"] == ["not_hung_up"] * (
            error is not None
        )
        assert one.socket.closed == (1008, "call_too_long")

    play(scenario)


def test_and_asks_nobody_where_closing_does() -> None:
    async def scenario(one: Bench) -> None:
        one.limits, one.control = Limits(1 << 30, 0, NEVER_NS), Control()
        await one.serve()
        assert one.control.hung_up == []

    play(scenario)


def test_a_channel_that_rings_is_answered() -> None:
    async def scenario(one: Bench) -> None:
        one.carrier = Asterisk()
        serving = asyncio.create_task(one.serve(CHANNEL_START))
        await _until(lambda: bool(one.socket.sent))
        one.socket.gone.set()
        await serving
        assert one.texts()[0] == {"command": "ANSWER"}

    play(scenario)


def test_who_sends_more_than_may_be_is_read_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)

    async def scenario(one: Bench) -> None:
        message = json.dumps({"event": "media", "media": {"payload": "/w=="}})
        one.limits = Limits(len(message), NEVER_NS, NEVER_NS)
        one.socket.incoming.extend([message] * 4)
        one.socket.gone.set()
        await one.serve()
        assert pauses == [0, pytest.approx(1, abs=0.5), pytest.approx(2, abs=0.5), pytest.approx(3, abs=0.5)]

    play(scenario)


def test_a_call_that_was_passed_on_is_not_hung_up() -> None:
    async def scenario(one: Bench) -> None:
        one.carrier = Asterisk()
        phone = await one.open(CHANNEL_START)
        await phone.finish(TRANSFERRED)
        assert one.socket.sent == []

    play(scenario)


def test_what_the_carrier_says_wrong_is_passed_over_up_to_an_end() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.extend(["{"] * FAULTS_MAX + [{"event": "error", "payload": {"code": 1, "title": "x"}}])
        with capture_logs() as logs:
            assert await one.serve() == "too_many_faults"
        assert [entry["event"] for entry in logs].count("carrier_fault") == 1, "one tells enough"
        assert one.socket.closed == (1008, "too_many_faults")

    play(scenario)


def test_what_no_call_survives_ends_it() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.append(CarrierError("message_too_large", "x", fatal=True))
        assert await one.serve() == "message_too_large"
        assert one.socket.closed == (1009, "message_too_large")

    play(scenario)


def test_what_was_wrong_with_the_callers_sound_is_told() -> None:
    async def scenario(one: Bench) -> None:
        media = [{"chunk": chunk, "payload": "/w=="} for chunk in (1, 4, 3, 4)]
        one.socket.incoming.extend({"event": "media", "media": each} for each in media)
        one.socket.gone.set()
        assert await one.serve() == "client_closed"
        assert one.mended == [InboundCounts(lost=2), InboundCounts(late=1), InboundCounts(doubled=1)]

    play(scenario)


def test_asterisk_1712_what_came_before_the_start_is_heard() -> None:
    async def scenario(one: Bench) -> None:
        one.carrier = Asterisk()
        one.carrier.receive(bytes(800))
        one.socket.gone.set()
        await one.serve(CHANNEL_START)
        assert one.call.listening.newest > 0

    play(scenario)


def test_a_fault_of_ours_ends_this_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Bench) -> None:
        monkeypatch.setattr(Inbound, "take", lambda *_: 1 / 0)
        one.socket.incoming.append({"event": "media", "media": {"payload": "/w=="}})
        assert await one.serve() == "internal_error"
        assert one.socket.closed == (1011, "internal_error")

    play(scenario)


def test_a_carrier_that_takes_nothing_is_let_go() -> None:
    async def scenario(one: Bench) -> None:
        one.carrier = Asterisk()
        phone = await one.open(CHANNEL_START)
        serving = asyncio.create_task(phone.serve())
        await one.socket.emptied.wait()
        for _ in range(MESSAGES_WAITING_MAX):
            one.call.audience.tell(TurnHeld(0), phone._line)
            one.call.audience.tell(TurnResumed("short"), phone._line)
        assert await serving == "slow_client"

    play(scenario)


def test_keys_become_words_of_the_callers() -> None:
    async def scenario(one: Bench) -> None:
        one.socket.incoming.extend({"event": "dtmf", "dtmf": {"digit": digit}} for digit in "42#")
        serving = asyncio.create_task(one.serve())
        await one.socket.emptied.wait()
        one.socket.gone.set()
        await serving
        (pressed,) = one.call.conversation.items
        assert (pressed.role, pressed.text) == ("user", "[keys pressed on the telephone: 4 2]")
        assert not pressed.spoken

    play(scenario)


def test_a_pause_ends_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "PAUSE_NS", MS)

    async def scenario(one: Bench) -> None:
        phone = await one.open()
        serving = asyncio.create_task(phone.serve())
        await one.socket.emptied.wait()
        phone._press("4")
        talk = one.call.conversation
        await _until(lambda: bool(talk.items))
        assert [item.text for item in talk.items] == ["[keys pressed on the telephone: 4]"]
        one.socket.gone.set()
        await serving

    play(scenario)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


def test_keys_wait_while_much_is_to_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(bench: CallBench) -> None:
        append, answers = bench.store.append, asyncio.Event()

        async def slow_append(ownership: Ownership, seq: int, entry: bytes) -> Appended:
            await answers.wait()
            return await append(ownership, seq, entry)

        monkeypatch.setattr(bench.store, "append", slow_append)
        for _ in range(CROWDED_MIN + 1):
            bench.journal.write(InputTaken(0))
        one = Bench(bench)
        one.socket.incoming.extend({"event": "dtmf", "dtmf": {"digit": digit}} for digit in "42#")
        serving = asyncio.create_task(one.serve())
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(one.socket.incoming) == 2
        answers.set()
        await one.socket.emptied.wait()
        one.socket.gone.set()
        assert await serving == "client_closed"

    play_call(run)


def test_a_model_hangs_up_once_it_was_heard() -> None:
    async def scenario(one: Bench) -> None:
        phone = await one.open()
        phone.offer(phone_tools(None, ()))
        serving = asyncio.create_task(phone.serve())
        await one.socket.emptied.wait()
        (own,) = one.call.tools._own.values()
        await own.act("{}")
        assert await serving == HUNG_UP
        await phone.finish(HUNG_UP)
        assert one.socket.closed == (1000, HUNG_UP)

    play(scenario)


def test_who_speaks_keeps_the_call() -> None:
    async def scenario(one: Bench) -> None:
        phone = await one.open()
        phone.offer(phone_tools(None, ()))
        one.call.carry_out(one.call.conversation.speech_started(0, 0))
        (own,) = one.call.tools._own.values()
        await own.act("{}")
        assert one.call.end_reason is None

    play(scenario)


class Goodbye:
    """A frame of it has been sent, and a model wants to hang up behind it."""

    def __init__(self, one: Bench, phone: PhoneCall) -> None:
        self.one, self.phone = one, phone
        self.hung_up = asyncio.create_task(phone._until_heard())

    async def is_waiting(self) -> bool:
        for _ in range(10):
            await asyncio.sleep(0)
        return not self.hung_up.done()


@asynccontextmanager
async def goodbye(one: Bench) -> AsyncIterator[Goodbye]:
    phone = await one.open()
    one.call.attach(phone._line)
    one.call.audience.tell(ReplyAudio("item", 7, Frame("a", 0, bytes(320), final=True), 160, "audio/pcmu"), phone._line)
    yield Goodbye(one, phone)
    one.call.attach(None)


def test_a_goodbye_is_waited_for_until_its_mark_comes_back() -> None:
    async def scenario(one: Bench) -> None:
        async with goodbye(one) as said:
            assert await said.is_waiting()
            said.phone._line.told(Played(7, 160), 0)
            assert await said.hung_up

    play(scenario)


def test_a_goodbye_is_waited_for_until_the_ear_has_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Bench) -> None:
        speaking = type(one.call.conversation.speaking)
        monkeypatch.setattr(speaking, "played_out_ns", time.monotonic_ns() + NEVER_NS)
        async with goodbye(one) as said:
            said.phone._line.told(Played(7, 160), 0)
            assert await said.is_waiting()
            monkeypatch.setattr(speaking, "played_out_ns", time.monotonic_ns() + 20 * MS)
            said.phone._moved.set()
            assert await said.hung_up

    play(scenario)


def test_who_speaks_over_a_goodbye_keeps_the_call() -> None:
    async def scenario(one: Bench) -> None:
        async with goodbye(one) as said:
            assert await said.is_waiting()
            one.call.carry_out(one.call.conversation.speech_started(0, 0))
            assert not await said.hung_up

    play(scenario)


def test_so_does_who_stops_it_by_a_key() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 0))
        async with goodbye(one) as said:
            assert await said.is_waiting()
            said.phone._press("1")
            assert not await said.hung_up

    play(scenario)


def test_a_goodbye_is_waited_for_no_longer_than_the_call_lasts() -> None:
    async def scenario(one: Bench) -> None:
        async with goodbye(one) as said:
            assert await said.is_waiting()
            one.call.end("idle")
            await said.phone.finish("idle")
            assert await said.hung_up

    play(scenario)


def test_nor_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phone_call, "HEARD_NS_MAX", 0)

    async def scenario(one: Bench) -> None:
        async with goodbye(one) as said:
            assert await said.hung_up

    play(scenario)


def test_a_carrier_that_does_not_start_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Bench) -> None:
        monkeypatch.setattr(phone_call, "START_S_MAX", 0)
        with pytest.raises(TimeoutError):
            await opening(FakeSocket(), carrier := MediaStreams(TWILIO), faults_of(carrier))

    play(scenario)


EARLY = {
    "twilio": ('{"event": "media"}', '{"event": "mark"}', '{"event": "dtmf"}', '{"event": "stop"}', "{", b"\x00"),
    "telnyx": ('{"event": "media"}', '{"event": "error", "payload": {"code": 100003}}', "["),
    "asterisk": ("{", '{"event": "MEDIA_MARK_PROCESSED", "correlation_id": "1:2"}', '{"event": "ERROR"}', "{}"),
}
CARRIERS: dict[str, tuple[Callable[[], Carrier], dict[str, Any]]] = {
    "twilio": (lambda: MediaStreams(TWILIO), TWILIO_START),
    "telnyx": (lambda: MediaStreams(TELNYX), TELNYX_START),
    "asterisk": (Asterisk, CHANNEL_START),
}


@pytest.mark.parametrize("name", EARLY)
def test_what_comes_too_early_or_is_wrong_before_the_start_is_passed_over(name: str) -> None:
    async def scenario(_one: Bench) -> None:
        make, start = CARRIERS[name]
        carrier, codes = make(), list[str]()
        faults = CarrierFaults(name, codes.append, {})
        with capture_logs() as logs:
            opened = await opening(FakeSocket(*EARLY[name], start), carrier, faults)
        assert isinstance(opened.started, Started)
        assert len(codes) == len(EARLY[name])
        assert [entry["event"] for entry in logs] == ["carrier_fault"], "one tells enough"

    play(scenario)


@pytest.mark.parametrize("wrong", ['{"event": "media"}', '{"event": "error"}'])
def test_up_to_an_end(wrong: str) -> None:
    async def scenario(one: Bench) -> None:
        most = [wrong] * FAULTS_MAX
        carrier = MediaStreams(TELNYX)
        assert await opening(FakeSocket(*most, TELNYX_START), carrier, faults_of(carrier))
        carrier = MediaStreams(TELNYX)
        with pytest.raises(CarrierError) as ended:
            await opening(FakeSocket(*most, wrong, TELNYX_START), carrier, faults_of(carrier))
        assert ended.value.code == "too_many_faults"

    play(scenario)


@pytest.mark.parametrize(
    ("carrier", "start"),
    [
        (MediaStreams(TWILIO), {**TWILIO_START, "start": {"mediaFormat": {"encoding": 5}}}),
        (MediaStreams(TWILIO), {**TWILIO_START, "start": {"mediaFormat": None}}),
        (Asterisk(), {**CHANNEL_START, "format": None}),
    ],
)
def test_of_a_start_that_is_wrong_no_call_can_come(carrier: Carrier, start: dict[str, Any]) -> None:
    async def scenario(_one: Bench) -> None:
        with pytest.raises(CarrierError) as refused:
            await opening(FakeSocket(start), carrier, faults_of(carrier))
        assert (refused.value.code, refused.value.fatal) == ("invalid_field", True)

    play(scenario)


def test_replies_have_the_lines_rate_where_that_is_a_telephones() -> None:
    formats = {
        "ulaw": "audio/pcmu",
        "alaw": "audio/pcma",
        "slin": "audio/pcmu",
        "slin16": "audio/pcm",
        "slin24": "audio/pcm",
    }
    for name, output in formats.items():
        carrier = Asterisk()
        size = {"ulaw": 160, "alaw": 160, "slin": 320, "slin16": 640, "slin24": 960}[name]
        (started,) = carrier.receive(json.dumps({**CHANNEL_START, "format": name, "optimal_frame_size": size}))
        assert isinstance(started, Started)
        transport = transport_of(carrier, started.format)
        assert (transport.output_format, transport.reports, transport.lead_ms) == (output, "mark", 80)
        assert transport.input_format == started.format
