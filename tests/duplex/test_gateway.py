"""Admission, sessions and their takeover, and the end of a gateway; stages are never there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from structlog.testing import capture_logs

from duplex.admission import RETRY_AFTER_S, RefusedError
from duplex.config import Config
from duplex.gateway import Admitted, Gateway, new_id
from duplex.pipeline import graph_of
from duplex.stage_pool import StagePool
from duplex.tasks import stop_task
from duplex.transport import Client
from duplex.vad_service import Window
from duplex.webrtc.visit import TRANSPORT
from media.heard_estimate import Path as EarPath
from media.pcm import FloatSamples
from media.vad import VadState
from sessions.events import Event, ResponseLost
from sessions.items import Item
from sessions.memory_store import Fault, MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.records import ConfigChanged, ItemAppended, ItemRecord, SessionRecord, encode_entry, token_digest
from sessions.settings import SessionSettings
from sessions.store import Ownership
from stages.contracts import Tag
from stages.event_log import EventKind
from stages.messages import (
    ArenaSnapshot,
    Audited,
    Closed,
    EdgeSnapshot,
    ReplicaReport,
    SchedulerSnapshot,
    SessionOpened,
    WorkerSnapshot,
)
from tests.duplex.test_path_load import BEHIND, IDLE

S_MAX = 10
EPOCHS = 1 << 20


class Deaf:
    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        return [0.0] * len(batch)


class Failing:
    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        raise RuntimeError("the model is broken")


class Faults:
    def __init__(self) -> None:
        self.now: dict[str, Fault] = {}

    def __call__(self, operation: str) -> Fault | None:
        return self.now.get(operation)


class Bench:
    def __init__(self, folder: Path, *, calls_max: int = 2) -> None:
        self.faults = Faults()
        self.store = MemorySessionStore(lambda: 0, faults=self.faults)
        config = Config(engine="scripted", data_dir=folder, calls_max=calls_max)
        self.gateway = Gateway(config, graph_of(config), self.store, Deaf(), ReplyDefaults("Hi.", 10))

    def metrics(self) -> list[str]:
        return self.gateway.render_metrics().decode().splitlines()


def play(folder: Path, scenario: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario(Bench(folder))

    asyncio.run(run())


@pytest.fixture
def _stages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))


def say(admitted: Admitted, text: str) -> None:
    call = admitted.call
    call.carry_out(call.conversation.create_item(Item(new_id("item"), "user", text, spoken=False), None))


def texts(admitted: Admitted) -> list[str]:
    return [item.text for item in admitted.call.conversation.items]


def test_ids_are_never_the_same() -> None:
    ids = {new_id("sess") for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(name.startswith("sess_") and len(name) == 29 for name in ids)


def test_no_call_is_taken_while_a_stage_is_away(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        assert one.gateway.not_ready() == "not connected: encoder, thinker, talker, vocoder"
        with pytest.raises(RefusedError) as refused:
            one.gateway.admit()
        assert (refused.value.code, refused.value.retry_after_s) == ("service_not_ready", RETRY_AFTER_S)
        assert one.gateway.calls == 0
        assert 'duplex_calls_refused_total{reason="not_ready"} 1.0' in one.metrics()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_places_are_taken_and_given_back(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        one.gateway.admit()
        one.gateway.admit()
        with pytest.raises(RefusedError, match="all 2 lines") as refused:
            one.gateway.admit()
        assert (refused.value.code, refused.value.retry_after_s) == ("capacity_exceeded", RETRY_AFTER_S)
        assert "duplex_calls 2.0" in one.metrics()
        one.gateway.leave()
        one.gateway.admit()
        assert one.gateway.calls == 2

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_no_call_is_taken_while_a_stage_has_fallen_behind(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        one.gateway._frame("talker", BEHIND)
        with pytest.raises(RefusedError, match="the talker has had work waiting") as refused:
            one.gateway.admit()
        assert (refused.value.code, refused.value.status, refused.value.retry_after_s) == ("service_overloaded", 503, 5)
        assert 'duplex_calls_refused_total{reason="overload"} 1.0' in one.metrics()
        one.gateway._frame("talker", IDLE)
        one.gateway.admit()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_a_drain_ends_calls_waits_for_them_and_takes_no_more(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        one.gateway.admit()
        async with one.gateway.new_call(SessionSettings()) as admitted:
            draining = asyncio.create_task(one.gateway.drain())
            await admitted.call.ended.wait()
            assert admitted.call.end_reason == "service_shutdown"
            with pytest.raises(RefusedError, match="shutting down"):
                one.gateway.admit()
            assert not draining.done()
        one.gateway.leave()
        await draining

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_a_call_that_was_on_its_way_in_during_a_drain_ends_too(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        await one.gateway.drain()
        async with one.gateway.new_call(SessionSettings()) as admitted:
            assert admitted.call.end_reason == "service_shutdown"

    play(tmp_path, scenario)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.REQUEST_LOST])
def test_without_the_store_no_session_is_made(tmp_path: Path, fault: Fault) -> None:
    async def scenario(one: Bench) -> None:
        one.faults.now["create"] = fault
        with pytest.raises(RefusedError) as refused:
            async with one.gateway.new_call(SessionSettings()):
                pass
        assert (refused.value.code, refused.value.retry_after_s) == ("store_unavailable", RETRY_AFTER_S)
        assert [line for line in one.metrics() if line.startswith("duplex_store_errors_total{")]

    play(tmp_path, scenario)


def test_a_conversation_goes_on_where_it_ended(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings(instructions="Be brief.")) as first:
            say(first, "One.")
            say(first, "Two.")
            first.call.update(SessionSettings(instructions="Be kind."))
        for fence in (2, 3):
            async with one.gateway.resumed_call(first.resume_token) as again:
                assert texts(again) == ["One.", "Two."]
                assert again.call.session == first.call.session
                assert again.call.conversation.settings.instructions == "Be kind."
                assert again.call.conversation.epoch == fence * EPOCHS
                assert again.resume_token == first.resume_token

    play(tmp_path, scenario)


def test_formats_of_messages_are_kept_for_who_comes_back_and_mean_nothing_on_a_track(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        telephone = SessionSettings(input_format="audio/pcmu", output_format="audio/pcma")
        async with one.gateway.new_call(telephone) as first:
            pass
        async with one.gateway.resumed_call(first.resume_token) as again:
            assert again.call.conversation.settings == telephone
        async with one.gateway.resumed_call(first.resume_token, TRANSPORT) as on_a_track:
            assert on_a_track.call.conversation.settings == SessionSettings()
            await on_a_track.call.listening.hear(bytes(2 * 48 * 100))
            assert 1_584 <= on_a_track.call.listening.newest <= 1_600

    async def run(one: Bench) -> None:
        serving = asyncio.create_task(one.gateway.run())
        try:
            await scenario(one)
        finally:
            await stop_task(serving)

    play(tmp_path, run)


def test_the_present_call_of_a_session_is_written_down_before_the_next_begins(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        began, leave = asyncio.Event(), asyncio.Event()
        token = ""

        async def earlier() -> None:
            nonlocal token
            async with one.gateway.new_call(SessionSettings()) as admitted:
                token = admitted.resume_token
                say(admitted, "Said just now.")
                began.set()
                await admitted.call.ended.wait()
                assert admitted.call.end_reason == "session_replaced"
                say(admitted, "The last words.")
                leave.set()

        task = asyncio.create_task(earlier())
        await began.wait()
        async with one.gateway.resumed_call(token) as again:
            assert leave.is_set()
            assert texts(again) == ["Said just now.", "The last words."]
        await task

    play(tmp_path, scenario)


def test_whoever_has_no_token_ends_nobodys_call(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            for token in (f"{admitted.call.session}.guess", admitted.call.session, "", "sess_other.guess", "a.b.c"):
                with pytest.raises(RefusedError) as refused:
                    async with one.gateway.resumed_call(token):
                        pass
                assert refused.value.code == "session_not_resumable"
                assert refused.value.retry_after_s is None
            assert admitted.call.end_reason is None
            assert not [line for line in one.metrics() if line.startswith("duplex_store_errors_total{")]

    play(tmp_path, scenario)


async def stored(one: Bench, session: str, *entries: bytes, config: bytes = b"{}") -> str:
    """A session as another gateway may have left it; gives its token."""
    owner = await one.store.create(SessionRecord(session, "default", 0, config, token_digest("x")), "gw_0", 1)
    for seq, entry in enumerate(entries, 1):
        await one.store.append(Ownership(session, "gw_0", owner.fence, 1), seq, entry)
    return f"{session}.x"


def test_a_session_that_cannot_be_read_is_no_conversation(tmp_path: Path) -> None:
    item = encode_entry(ItemAppended(ItemRecord("item_1", "user", content="Hello.")))

    async def scenario(one: Bench) -> None:
        for number, (entries, config) in enumerate(
            [
                ((b"garbage",), b"{}"),
                ((item, item), b"{}"),
                ((), b"no settings"),
                ((encode_entry(ConfigChanged(b'{"speed": "fast"}')),), b"{}"),
            ]
        ):
            token = await stored(one, f"sess_{number}", *entries, config=config)
            with pytest.raises(RefusedError) as refused:
                async with one.gateway.resumed_call(token):
                    pass
            assert (refused.value.code, refused.value.retry_after_s) == ("session_unreadable", None)
        async with one.gateway.resumed_call(await stored(one, "sess_good", item)) as admitted:
            assert texts(admitted) == ["Hello."]

    play(tmp_path, scenario)


def test_a_session_that_was_taken_elsewhere_ends_its_call_here(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            session, _, secret = admitted.resume_token.partition(".")
            await one.store.acquire(session, "gw_other", token_digest(secret), 1_000)
            say(admitted, "Too late.")
            await admitted.call.ended.wait()
            assert admitted.call.end_reason == "session_replaced"

    play(tmp_path, scenario)


def test_a_session_that_was_never_used_is_forgotten(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            pass
        await one.gateway.forget(admitted.call.session)
        with pytest.raises(RefusedError):
            async with one.gateway.resumed_call(admitted.resume_token):
                pass
        one.faults.now["delete"] = Fault.UNAVAILABLE
        await one.gateway.forget(admitted.call.session)  # a store that is away forgets it by itself, in time

    play(tmp_path, scenario)


def test_frames_find_their_call_or_are_counted(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            session = admitted.call.session
            one.gateway._frame("talker", SessionOpened(session))
            one.gateway._frame("talker", Closed(Tag(session, EPOCHS, 1, "resp_old"), "finished", {}))
            one.gateway._frame("talker", Closed(Tag("sess_old", EPOCHS, 1, "resp_old"), "finished", {}))
            one.gateway._frame("talker", SessionOpened("sess_old"))
        lines = one.metrics()
        assert 'duplex_stale_dropped_total{where="speaking"} 1.0' in lines
        assert 'duplex_stale_dropped_total{where="gateway"} 2.0' in lines
        told = [(event.session, event.stream, event.link, event.state) for event in one.gateway.events.read().events]
        assert [event for event in told if event[3] in ("closed", "sessionopened")] == [
            (session, "resp_old", "talker", "closed"),
            ("sess_old", "resp_old", "talker", "closed"),
            ("sess_old", "", "talker", "sessionopened"),
        ]

    play(tmp_path, scenario)


def test_a_lost_stream_is_told_to_its_call_and_to_no_other(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            lost: list[tuple[str, Tag]] = []
            admitted.call.lost = lambda stage, tag: lost.append((stage, tag))  # type: ignore[method-assign]
            mine = Tag(admitted.call.session, EPOCHS, 1, "resp_1")
            for tag in (mine, Tag("sess_old", EPOCHS, 1, "resp_old")):
                one.gateway._lost("talker", tag)
            assert lost == [("talker", mine)]

    play(tmp_path, scenario)


def test_figures_of_replicas_are_those_that_the_supervisor_reports_and_that_are_reached(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        one.gateway._reachable("vocoder", "vocoder", True)
        one.gateway.report(ReplicaReport("talker", "talker", "quarantined", 7, 6, 2))
        one.gateway.report(ReplicaReport("vocoder", "vocoder", "up", 1, 0, 0))
        lines = one.metrics()
        for stage, figures in (("talker", (0, 7, 6, 2, 1)), ("vocoder", (1, 1, 0, 0, 0))):
            names = ("stage_up", "replica_incarnation", "replica_deaths", "replica_hangs", "replica_quarantined")
            for name, value in zip(names, figures, strict=True):
                assert f'duplex_{name}{{replica="{stage}",stage="{stage}"}} {value:.1f}' in lines

    play(tmp_path, scenario)


def test_the_event_log_of_a_gateway_begins_with_it(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        began = one.gateway.events.statistics()
        assert (began.recorded, 0 < began.since_ns <= time.monotonic_ns()) == (0, True)

    play(tmp_path, scenario)


def test_figures_of_the_event_logs_are_those_of_the_processes_that_answer(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        one.gateway.events.of("sess_1").add(EventKind.STALE)
        await one.gateway.measure()
        lines = one.metrics()
        assert 'duplex_events_recorded{process="gateway"} 1.0' in lines
        assert 'duplex_events_overwritten{process="gateway"} 0.0' in lines
        assert not [line for line in lines if 'process="talker"' in line], "no stage is there"

    play(tmp_path, scenario)


def test_figures_of_no_calls(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        lines = one.metrics()
        for figure in ("calls", "undrained_responses", "credit_in_use_samples", "pacer_lateness_seconds"):
            assert f"duplex_{figure} 0.0" in lines

    play(tmp_path, scenario)


def test_it_serves_until_it_is_cancelled(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        running = asyncio.create_task(one.gateway.run())
        waiting = asyncio.create_task(one.gateway.until_ready())
        await asyncio.sleep(0)
        assert not running.done()
        await stop_task(running)
        assert not waiting.done()
        waiting.cancel()

    play(tmp_path, scenario)


def test_calls_are_told_how_finished_their_pauses_sound(tmp_path: Path) -> None:
    class Listening:
        def probability(self, sound: FloatSamples) -> float:
            return float(sound[0])

    async def scenario() -> None:
        config = Config(engine="scripted", data_dir=tmp_path)
        stages, store = graph_of(config), MemorySessionStore(lambda: 0)
        gateway = Gateway(config, stages, store, Deaf(), ReplyDefaults("Hi.", 10), load_turn_sound=Listening)
        running = asyncio.create_task(gateway.run())
        assert gateway._services.turn_sound is not None
        assert await asyncio.wait_for(gateway._services.turn_sound.ask(b"\x00\x40"), S_MAX) == 0.5
        await stop_task(running)

    asyncio.run(scenario())


def test_a_part_that_fails_ends_the_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = Config(engine="scripted", data_dir=tmp_path)
        store = MemorySessionStore(lambda: 0)
        gateway = Gateway(config, graph_of(config), store, Failing(), ReplyDefaults("Hi.", 10))
        running = asyncio.create_task(gateway.run())
        asked = asyncio.create_task(gateway._vad.probability(VadState(), np.zeros(512, np.float32)))
        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.wait_for(running, S_MAX)
        await asyncio.wait([asked])

    asyncio.run(scenario())


def test_what_a_worker_says_of_itself_is_told_until_it_is_down(tmp_path: Path) -> None:
    edges = (EdgeSnapshot("vocoder", 1, 16, 48, 0, 10, 20),)
    arena = ArenaSnapshot(64, 1, 2, 0, 0)
    snapshot = WorkerSnapshot("talker", 1, 1, 0, 0, SchedulerSnapshot(0, 0, 0, 0, 0, ()), arena, edges)

    async def scenario(one: Bench) -> None:
        one.gateway._frame("talker", snapshot)
        assert 'duplex_edge_credit_out{edge="vocoder",replica="talker",stage="talker"} 16.0' in one.metrics()
        one.gateway._reachable("talker", "talker", True)
        assert any("duplex_edge_credit_out{" in line for line in one.metrics())
        one.gateway._reachable("talker", "talker", False)
        assert not any("duplex_edge_credit_out{" in line for line in one.metrics())

    play(tmp_path, scenario)


def test_what_is_found_where_nothing_should_be_is_told_to_whoever_runs_the_service(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        with capture_logs() as logs:
            one.gateway._frame("talker", Audited("talker-2", "sess_1", "resp_1", {}, {}))
            assert logs == []
            one.gateway._frame("talker", Audited("talker-2", "sess_1", "resp_1", {"steps": 2}, {"steps": 1}))
        (log,) = logs
        names = [log[name] for name in ("event", "log_level", "stage", "replica", "held", "strays")]
        assert names == ["audit_found", "error", "talker", "talker-2", {"steps": 2}, {"steps": 1}]
        excerpt = one.gateway.events.read(None, session="sess_1", response="resp_1", events_max=9)
        found = [(each.kind, each.value, each.link, each.state, each.cause) for each in excerpt.events]
        assert found == [
            (EventKind.AUDITED, 0, "talker", "", "talker-2"),
            (EventKind.AUDITED, 2, "talker", "steps", "talker-2"),
            (EventKind.AUDITED, 1, "talker", "stray_steps", "talker-2"),
        ]

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_a_session_that_is_over_is_looked_for_at_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(StagePool, "audit_session", lambda pool, session: asked.append((pool.stage, session)))

    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            session = admitted.call.session
            assert asked == []
        assert sorted(asked) == [(stage, session) for stage in ("encoder", "talker", "thinker", "vocoder")]

    play(tmp_path, scenario)


def test_audits_are_counted_from_none_on(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        for stage in ("encoder", "talker", "thinker", "vocoder"):
            assert f'duplex_audits_total{{outcome="held",stage="{stage}"}} 0.0' in one.metrics()

    play(tmp_path, scenario)


def test_figures_of_workers_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = ArenaSnapshot(64, 1, 1, 0, 0)
    snapshot = WorkerSnapshot("talker", 2, 1, 0, 0, SchedulerSnapshot(0, 0, 0, 0, 0, ()), arena, ())

    async def scenario(one: Bench) -> None:
        talker = one.gateway._stages["talker"]
        monkeypatch.setattr(StagePool, "replicas_up", property(lambda pool: {"talker"} if pool is talker else set()))
        monkeypatch.setattr(talker, "inspect", lambda: one.gateway._frame("talker", snapshot))
        await one.gateway.measure()
        assert 'duplex_stage_streams{replica="talker",stage="talker"} 2.0' in one.metrics()
        assert 'duplex_pool_streams{stage="talker"} 0.0' in one.metrics()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("_stages_are_there")
def test_what_a_client_holds_open_is_the_business_of_the_call_that_goes_on(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as first:
            token = first.resume_token
        heard: list[Event] = []
        async with one.gateway.resumed_call(token, responses=["resp_1"]) as again:
            client = SimpleNamespace(
                tell=heard.append, pace=lambda _: None, next_frame_ns=lambda _: None, path=lambda _: EarPath()
            )
            again.call.attach(cast("Client", client))
            assert heard == [ResponseLost("resp_1")]

    play(tmp_path, scenario)
