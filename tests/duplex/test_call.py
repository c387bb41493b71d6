"""The shell around a conversation: what it sends where, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from duplex.call import Call, Services
from duplex.journal import Journal
from duplex.listening import RING_SECONDS
from duplex.metrics import Metrics
from duplex.service_tools import HttpTool
from duplex.stage_pool import StagePool, StageUnresponsiveError
from duplex.tasks import stop_task
from duplex.tool_client import ToolClient
from duplex.vad_service import VadService, Window
from media.audio_format import FormatName
from media.chunk import samples_to_ms
from media.heard_estimate import Path
from media.rtp_map import Position
from sessions.conversation import Conversation
from sessions.effects import CutStream, OpenStream
from sessions.events import (
    Event,
    ReplyAudio,
    ResponseDrained,
    ResponseFinished,
    ResponseLost,
    ResponseStarted,
    SpeechStarted,
)
from sessions.memory_store import MemorySessionStore
from sessions.planner import Identity, ReplyDefaults
from sessions.records import (
    ItemChanged,
    SessionRecord,
    TurnRecord,
    decode_entry,
    token_digest,
)
from sessions.response import Deadlines
from sessions.settings import ResponseSpec, SessionSettings
from sessions.store import LogLimits
from stages.contracts import AudioIn, AudioOut, Item, Tag, TalkerOptions, TextDelta, Transcript
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Frame,
    Grant,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
)
from stages.pool import PoolLimits
from tests.duplex.pool_bench import NOBODY

EPOCH = 1 << 20
SESSION = "sess_1"
STAGES = ("encoder", "thinker", "talker", "vocoder")
NS_PER_S = 1_000_000_000
S_MAX = 10
FAR_NS = 1 << 62  # by then all has been heard that was sent


class Loudness:
    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        return [1.0 if float(np.abs(window).max()) > 0.05 else 0.0 for _, window in batch]


class Stage(StagePool):
    """Keeps what was ordered and fed, in one log for all stages and the client; takes at most `feeds_max` feeds."""

    def __init__(self, stage: str, log: list[tuple[str, object]]) -> None:
        super().__init__(stage, {}, "gw_1", NOBODY, limits=PoolLimits(1, 1))
        self.log = log
        self.feeds_max: int | None = None

    def order(self, frame: Frame) -> None:
        self.log.append((self.stage, frame))

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        self.log.append((self.stage, item))
        if self.feeds_max is not None:
            self.feeds_max -= 1
            if self.feeds_max < 0:
                raise StageUnresponsiveError(self.stage)


class Client:
    """`silences_due`: how many frames of silence it wants where no frame is due; it has taken `silences`."""

    def __init__(self, log: list[tuple[str, object]]) -> None:
        self.log = log
        self.has_room = True
        self.silences_due = self.silences = 0
        self.written: Position | None = None
        self.paced_ns: list[int] = []
        self.seen = Path()

    def path(self, _now_ns: int) -> Path:
        return self.seen

    def pace(self, now_ns: int) -> None:
        self.paced_ns.append(now_ns)

    def next_frame_ns(self, now_ns: int) -> int | None:
        return now_ns if self.has_room else None

    def pad(self) -> bool:
        if self.silences == self.silences_due:
            return False
        self.silences += 1
        return True

    def tell(self, event: Event) -> None:
        self.log.append(("client", event))

    def drop_audio(self) -> Position | None:
        self.log.append(("client", "drop_audio"))
        return self.written


class Bench:
    """`tools`: those of the service."""

    def __init__(
        self, settings: SessionSettings, limits: LogLimits | None = None, tools: tuple[HttpTool, ...] = ()
    ) -> None:
        self.tools = tools
        self.log: list[tuple[str, object]] = []
        self.metrics = Metrics()
        self.stages = {name: Stage(name, self.log) for name in STAGES}
        self.vad = VadService(Loudness())
        self.store = MemorySessionStore(lambda: 0, limits=limits)
        self.client = Client(self.log)
        self._ids: Counter[str] = Counter()
        self._settings = settings

    async def open(self) -> None:
        record = SessionRecord(SESSION, "default", 0, b"{}", token_digest("x"))
        self.journal = Journal(self.store, await self.store.create(record, "gw_1", 10_000))
        self._identity = Identity(SESSION, EPOCH, self._new_id)
        self.client_of_tools = ToolClient(self.tools, self.metrics)
        self.call = Call(self._talk(60_000), SESSION, self._services(), self.journal)
        self.call.attach(self.client)
        self.call.begin()

    def _talk(self, lead_ms: int, before: Conversation | None = None) -> Conversation:
        defaults = ReplyDefaults("Hi.", 10, service_tools=tuple(tool.served for tool in self.tools))
        items, calls = (before.items, before.begun_calls) if before else ((), ())
        return Conversation(
            self._identity, self._settings, defaults, transport_lead_ms=lead_ms, items=items, calls=calls
        )

    def _services(self) -> Services:
        return Services(self.stages, self.vad, self.metrics, tools=self.client_of_tools if self.tools else None)

    def another(self, *, responses: Sequence[str] = (), before: Conversation | None = None) -> Call:
        """The same session, taken up by a client that holds `responses` open; it goes on where `before` is."""
        return Call(self._talk(0, before), SESSION, self._services(), self.journal, responses=responses)

    def _new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids[prefix]}"

    def at(self, place: str) -> list[object]:
        return [what for where, what in self.log if where == place]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.at("client") if isinstance(event, kind)]

    def start_reply(self, now_ns: int = 0, *, rate: int = 24_000, in_conversation: bool = True) -> Tag:
        """A response, asked for then, whose stages are all open, with a second of sound made."""
        talk = self.call.conversation
        self.call.carry_out(talk.create_response(ResponseSpec(in_conversation=in_conversation), now_ns))
        tag = next(frame.tag for frame in self.at("talker") if isinstance(frame, Open))
        for stage in ("talker", "vocoder", "thinker"):
            self.call.frame(stage, Opened(tag))
        self.call.frame("thinker", Published(tag, TextDelta("Well")))
        self.call.frame("vocoder", Published(tag, AudioOut(0, rate, 0, bytes(2 * rate))))
        return tag

    async def written(self) -> None:
        """The store has all that was to be stored so far."""
        assert await self.journal.flush(S_MAX * NS_PER_S)

    async def stored(self) -> list[TurnRecord]:
        await self.written()
        _, snapshot = await self.store.acquire(SESSION, "reader", token_digest("x"), 0)
        return [decode_entry(entry) for entry in snapshot.entries]

    def metric(self, line: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next((float(text.rpartition(" ")[2]) for text in lines if text.startswith(f"{line} ")), 0.0)


def play(
    scenario: Callable[[Bench], Coroutine[None, None, None]],
    settings: SessionSettings | None = None,
    limits: LogLimits | None = None,
    tools: tuple[HttpTool, ...] = (),
) -> None:
    async def run() -> None:
        one = Bench(settings or SessionSettings(), limits, tools)
        await one.open()
        tasks = [asyncio.create_task(each.run()) for each in (one.vad, one.journal, one.client_of_tools)]
        try:
            async with asyncio.timeout(S_MAX):
                await scenario(one)
        finally:
            for task in tasks:
                await stop_task(task)

    asyncio.run(run())


def tone(ms: int) -> bytes:
    clock = np.arange(ms * 24) / 24_000
    pcm: bytes = (np.sin(2 * np.pi * 300 * clock) * 0.3 * 32767).astype("<i2").tobytes()
    return pcm


def silence(ms: int) -> bytes:
    return bytes(ms * 48)


def test_a_call_opens_its_session_everywhere_and_reads_the_prompt() -> None:
    async def scenario(one: Bench) -> None:
        for stage in STAGES:
            assert one.at(stage)[0] == OpenSession(SESSION, EPOCH)
        assert isinstance(one.at("thinker")[1], Open)

    play(scenario)


def test_a_call_ends_once_and_closes_its_session_everywhere_once() -> None:
    async def scenario(one: Bench) -> None:
        one.call.end("client_closed")
        one.call.end("idle")
        assert one.call.end_reason == "client_closed"
        assert one.call.ended.is_set()
        await one.call.until_drained()
        assert CloseSession(SESSION) not in one.at("talker")
        one.call.leave_stages()
        one.call.leave_stages()
        for stage in STAGES:
            assert one.at(stage)[-1] == CloseSession(SESSION)
            assert one.at(stage).count(CloseSession(SESSION)) == 1

    play(scenario)


def test_a_call_is_drained_once_every_stage_has_let_go_of_its_responses() -> None:
    async def scenario(one: Bench) -> None:
        tag = one.start_reply()
        one.call.end("client_closed")
        draining = asyncio.create_task(one.call.until_drained())
        for stage in ("thinker", "talker", "vocoder"):  # the first of them is no final one
            await asyncio.sleep(0)
            assert not draining.done()
            one.call.frame(stage, Closed(tag, "cancelled", {}))
        await draining

    play(scenario)


def test_an_ended_call_of_which_a_stage_says_nothing_drains_at_its_deadline() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply()
        one.call.end("client_closed")
        while (due_ns := one.call.conversation.next_deadline_ns()) is not None:
            one.call.pace(due_ns)
        await one.call.until_drained()
        assert one.metric('duplex_drain_lag_seconds_count{status="orphaned"}') == 1

    play(scenario)


def test_what_the_caller_said_last_is_understood_before_an_ended_call_is_drained() -> None:
    async def scenario(one: Bench) -> None:
        await one.call.listening.hear(silence(300) + tone(400) + silence(800))
        tag = next(frame.tag for frame in one.at("encoder") if isinstance(frame, Open))
        one.call.end("client_closed")
        draining = asyncio.create_task(one.call.until_drained())
        await asyncio.sleep(0)
        assert not draining.done()
        one.call.frame("encoder", Published(tag, Transcript("goodbye", 1, settled=True, final=True)))
        await draining
        assert [item.text for item in one.call.conversation.items] == ["goodbye"]
        assert one.told(ResponseStarted) == []

    play(scenario)


def test_a_stream_that_is_lost_is_asked_for_again_under_another_name() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 0))
        tag = next(frame.tag for frame in one.at("talker") if isinstance(frame, Open))
        one.log.clear()
        one.call.lost("vocoder", tag)
        again = structs.replace(tag, attempt=1)
        assert [type(frame) for frame in one.at("vocoder")] == [Cancel, Open]
        cancelled, opened = one.at("talker")
        assert isinstance(opened, Open)
        timeless = structs.replace(opened, lasts_ns_max=None)
        assert [cancelled, timeless] == [Cancel(tag), Open(again, TalkerOptions(), ("vocoder",))]
        assert one.told(ResponseFinished) == []
        assert one.metric("duplex_responses_retried_total") == 1

    play(scenario)


def test_a_stage_is_told_how_long_a_stream_may_last() -> None:
    async def scenario(one: Bench) -> None:
        tag = Tag(SESSION, EPOCH, 1, "resp_9")
        one.call.carry_out([OpenStream("talker", tag, TalkerOptions(), ("vocoder",), 7)])
        assert one.at("talker")[-1] == Open(tag, TalkerOptions(), ("vocoder",), lasts_ns_max=7)

    play(scenario)


def test_a_frame_that_was_taken_back_unwritten_was_not_heard() -> None:
    """The ledger has taken it for sent."""

    async def scenario(one: Bench) -> None:
        response = one.start_reply().response
        await one.written()
        (*_, last) = one.told(ReplyAudio)
        one.client.written = Position(response, last.frame.start_sample, last.frame.start_sample)
        one.call.carry_out(one.call.conversation.cancel_response(None, FAR_NS))
        assert one.call.conversation.items[-1].heard_samples == last.frame.start_sample > 0
        *_, saved = await one.stored()
        assert isinstance(saved, ItemChanged)
        assert saved.item.audio_ms_cut == samples_to_ms(last.frame.start_sample, 24_000)

    play(scenario)


def test_the_abort_is_on_its_way_before_the_client_is_told() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply()
        one.log.clear()
        await one.call.listening.hear(silence(300) + tone(1_000))
        order = [(where, what) for where, what in one.log if where != "encoder"]
        ends = [order.index((stage, EndEpoch(SESSION, EPOCH + 1))) for stage in ("thinker", "talker", "vocoder")]
        # That our sound was held before is told at once: it destroys nothing.
        first_told = next(at for at, (_, what) in enumerate(order) if isinstance(what, SpeechStarted))
        assert max(ends) < order.index(("client", "drop_audio")) < first_told
        assert ("encoder", EndEpoch(SESSION, EPOCH + 1)) in one.log
        (finished,) = one.told(ResponseFinished)
        assert (finished.response.status, finished.response.reason) == ("cancelled", "turn_detected")
        assert one.metric("duplex_barge_in_stop_seconds_count") == 1
        assert one.metric('duplex_responses_total{status="cancelled"}') == 1

    play(scenario)


def test_sound_is_handed_over_while_the_client_has_room() -> None:
    async def scenario(one: Bench) -> None:
        one.client.has_room = False
        tag = one.start_reply()
        await one.written()
        assert one.told(ReplyAudio) == []
        assert [ledger.unsent for ledger in one.call.ledgers()] == [24_000]
        one.client.has_room = True
        one.call.pace(NS_PER_S)
        assert sum(event.frame.samples for event in one.told(ReplyAudio)) == 24_000
        assert sum(frame.units for frame in one.at("vocoder") if isinstance(frame, Grant)) == 24_000
        assert [ledger.unsent for ledger in one.call.ledgers()] == [0]
        assert {frame.tag for frame in one.at("vocoder") if isinstance(frame, Grant)} == {tag}

    play(scenario)


@pytest.mark.parametrize(("name", "rate"), [("audio/pcm", 24_000), ("audio/pcmu", 8_000)])
def test_the_way_in_knows_what_was_sent_and_when_it_sounds(
    monkeypatch: pytest.MonkeyPatch, name: FormatName, rate: int
) -> None:
    async def scenario(one: Bench) -> None:
        sent: list[tuple[bytes, int, int]] = []
        monkeypatch.setattr(one.call.listening, "sent", lambda *frame: sent.append(frame))
        one.client.has_room = False
        one.start_reply(rate=rate)
        await one.written()
        one.client.has_room = True
        one.call.pace(NS_PER_S)
        frames = [event.frame for event in one.told(ReplyAudio)]
        assert len(frames) == 50
        assert sent == [(frame.pcm, rate, NS_PER_S + place * NS_PER_S // 50) for place, frame in enumerate(frames)]

    play(scenario, SessionSettings(output_format=name))


def test_a_client_that_wants_silence_where_no_frame_is_due_gets_as_much_as_it_wants() -> None:
    async def scenario(one: Bench) -> None:
        one.client.silences_due = 3
        one.call.pace(NS_PER_S)
        assert (one.client.paced_ns, one.client.silences) == ([NS_PER_S], 3)
        one.client.silences_due = 4
        one.start_reply()
        await one.written()
        assert sum(event.frame.samples for event in one.told(ReplyAudio)) == 24_000
        assert one.client.silences == 4

    play(scenario)


def test_what_its_caller_has_heard_is_the_clients_to_say() -> None:
    async def scenario(one: Bench) -> None:
        tag = one.start_reply()
        await one.written()
        one.call.heard(tag.response, 9_000)
        before = one.call.conversation.items
        one.call.heard("resp_nobody", 9_000)
        assert one.call.conversation.items == before
        assert b'duplex_stale_dropped_total{where="reports"} 1.0' in one.metrics.render()
        (ledger,) = one.call.ledgers()
        assert (ledger.basis, ledger.sent) == ("acked", 24_000)
        assert ledger.heard >= 9_000

    play(scenario)


def test_what_its_caller_has_heard_is_estimated_by_the_path_to_its_client() -> None:
    async def scenario(one: Bench) -> None:
        one.client.seen = Path(delay_ns_max=10 * NS_PER_S)
        one.call.pace(time.monotonic_ns())
        tag = one.start_reply()
        await one.written()
        view = one.call.conversation.speaking.ledger(tag.response, time.monotonic_ns() + NS_PER_S)
        assert view is not None
        assert (view.heard, view.error_samples, view.basis) == (0, 24_000, "estimated")

    play(scenario)


def test_responses_that_the_client_holds_open_are_ended_once_it_is_there_and_drain_with_the_stages() -> None:
    async def scenario(one: Bench) -> None:
        call = one.another(responses=["resp_old"])
        call.frame("encoder", SessionOpened(SESSION))
        one.log.clear()
        call.attach(one.client)
        assert one.log == [("client", ResponseLost("resp_old"))]
        for stage in STAGES[1:]:
            call.frame(stage, SessionOpened(SESSION))
        _, event = one.log[-1]
        assert isinstance(event, ResponseDrained)
        assert (event.response, event.status) == ("resp_old", "complete")

    play(scenario)


def test_a_stage_that_does_not_open_the_session_leaves_them_orphaned() -> None:
    async def scenario(one: Bench) -> None:
        call = one.another(responses=["resp_old"])
        call.attach(one.client)
        call.pace(time.monotonic_ns())
        assert [event for _, event in one.log if isinstance(event, ResponseDrained)] == []
        call.pace(time.monotonic_ns() + Deadlines().drain_ns_max)
        assert [event.status for _, event in one.log if isinstance(event, ResponseDrained)] == ["orphaned"]

    play(scenario)


def test_deadlines_are_acted_on_by_the_pacer() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 0))
        deadline_ns = one.call.conversation.next_deadline_ns()
        assert deadline_ns is not None
        one.call.pace(deadline_ns - 1)
        assert one.told(ResponseFinished) == []
        one.call.pace(deadline_ns)
        (finished,) = one.told(ResponseFinished)
        assert (finished.response.status, finished.response.code) == ("failed", "deadline_exceeded")
        assert one.metric('duplex_errors_total{code="deadline_exceeded",owner="service"}') == 1

    play(scenario)


def test_an_observer_is_told_how_much_was_sent() -> None:
    async def scenario(one: Bench) -> None:
        tag = one.start_reply()
        one.call.carry_out([CutStream("vocoder", tag, 2_400)])
        assert one.at("vocoder")[-1] == Cut(tag, 2_400)

    play(scenario)


@pytest.mark.parametrize("code", ["downstream_lost", "stage_lost"])
def test_the_loss_of_a_stage_is_one_fault_whoever_tells_it(code: str) -> None:
    async def scenario(one: Bench) -> None:
        tag = one.start_reply()
        one.call.frame("talker", Closed(tag, "failed", {}, code, "gone"))
        (finished,) = one.told(ResponseFinished)
        assert finished.response.code == "stage_lost"

    play(scenario)


def test_a_refused_stream_fails_its_response_with_the_same_words() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 0))
        tag = next(frame.tag for frame in one.at("talker") if isinstance(frame, Open))
        one.call.frame("talker", Refused(tag, "capacity", "full"))
        (finished,) = one.told(ResponseFinished)
        assert finished.response.code == "capacity"

    play(scenario)


def test_a_session_that_a_stage_refuses_ends_the_call() -> None:
    async def scenario(one: Bench) -> None:
        one.call.frame("thinker", SessionRefused(SESSION, "capacity", "4 sessions are open"))
        assert one.call.end_reason == "thinker_capacity"

    play(scenario)


def test_credit_for_the_encoder_comes_from_the_encoder() -> None:
    async def scenario(one: Bench) -> None:
        await one.call.listening.hear(silence(300) + tone(400))
        tag = next(frame.tag for frame in one.at("encoder") if isinstance(frame, Open))
        # The Thinker reads along for the same turn, under the same name.
        one.call.frame("thinker", Grant(tag, 1 << 30))
        fed = sum(len(item.pcm) // 2 for item in one.at("encoder") if isinstance(item, AudioIn))
        one.call.frame("encoder", Grant(tag, fed))

    play(scenario)


def test_an_encoder_that_does_not_answer_ends_the_call_and_nothing_else() -> None:
    async def scenario(one: Bench) -> None:
        one.stages["encoder"].feeds_max = 3
        await one.call.listening.hear(silence(300) + tone(2_000))
        assert one.call.end_reason == "stage_unresponsive"

    play(scenario)


def test_nor_does_one_that_fails_while_its_credit_comes_back() -> None:
    async def scenario(one: Bench) -> None:
        await one.call.listening.hear(silence(300) + tone(3_000))
        tag = next(frame.tag for frame in one.at("encoder") if isinstance(frame, Open))
        one.stages["encoder"].feeds_max = 0
        one.call.frame("encoder", Grant(tag, 1_600))
        assert one.call.end_reason == "stage_unresponsive"

    play(scenario)


def test_a_turn_that_was_thrown_away_while_the_encoder_was_gone_holds_nobody_up() -> None:
    async def scenario(one: Bench) -> None:
        # Nobody gives credit back: after two seconds nothing more can be fed.
        await one.call.listening.hear(silence(300) + tone(4_000))
        tag = next(frame.tag for frame in one.at("encoder") if isinstance(frame, Open))
        one.call.lost("encoder", tag)
        one.call.carry_out(one.call.conversation.clear_input(0))
        assert any(isinstance(frame, Cancel) for frame in one.at("encoder"))
        await one.call.listening.hear(silence(RING_SECONDS * 1_000 + 2_000))

    play(scenario)


def test_without_a_client_the_conversation_goes_on() -> None:
    async def scenario(one: Bench) -> None:
        one.call.attach(None)
        tag = one.start_reply()
        one.call.pace(NS_PER_S)
        one.call.end("connection_closed")
        assert one.told(ResponseStarted) == []
        assert one.at("thinker")[-1] == Cancel(tag)

    play(scenario)
