"""What an operator does with sessions that run here, elsewhere or not at all; and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import secrets
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import CellType, CoroutineType, FrameType

import msgspec
import pytest

from duplex import operations
from duplex.config import Config
from duplex.errands import Outcome, What
from duplex.gateway import Admitted, Gateway
from duplex.operations import Operations
from duplex.pipeline import graph_of
from duplex.tasks import stop_task
from duplex.tenants import DEFAULT_TENANT
from sessions.memory_store import Fault, MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.records import SessionRecord
from sessions.settings import SessionSettings
from sessions.store import CursorRefused, SessionUnknown, StoreUnavailable
from tests.duplex.test_gateway import Deaf, say

S_MAX = 10
WORDS = "The herons are by the lake."


class Visit:
    """A call in a task of its own, from its beginning to its end. `says` empty: nobody speaks."""

    def __init__(self, gateway: Gateway, resume_token: str | None = None, *, says: str = WORDS) -> None:
        self._gateway = gateway
        self._token = resume_token
        self._says = says
        self._begun = asyncio.Event()
        self._admitted: Admitted | None = None
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str | None:
        calling = (
            self._gateway.new_call(SessionSettings())
            if self._token is None
            else self._gateway.resumed_call(self._token)
        )
        async with calling as admitted:
            self._admitted = admitted
            if self._says:
                say(admitted, self._says)
            self._begun.set()
            await admitted.call.ended.wait()
            reason = admitted.call.end_reason
        self._admitted = None
        return reason

    async def begin(self) -> Admitted:
        await self._begun.wait()
        assert self._admitted is not None
        return self._admitted


class House:
    """Two gateways on one store, which hear its notices; their clock stands."""

    def __init__(self, folder: Path, *, reads_words: bool = False) -> None:
        self.faults: dict[str, Fault] = {}
        self.now_ms = 1_000_000
        self.store = MemorySessionStore(lambda: self.now_ms, faults=self.faults.get)
        config = Config(engine="scripted", data_dir=folder, operator_reads_words=reads_words)
        stages, defaults = graph_of(config), ReplyDefaults("Hi.", 10)
        self.here = Gateway(config, stages, self.store, Deaf(), defaults)
        self.there = Gateway(config, stages, self.store, Deaf(), defaults)
        self.operations = Operations(self.here)

    async def run(self, scenario: Callable[[House], Coroutine[None, None, None]]) -> None:
        watches = [gateway._session_watch for gateway in (self.here, self.there)]
        listening = [asyncio.create_task(watch.listen()) for watch in watches]
        await asyncio.sleep(0)
        try:
            await scenario(self)
        finally:
            for task in listening:
                await stop_task(task)


def play(folder: Path, scenario: Callable[[House], Coroutine[None, None, None]], *, reads_words: bool = False) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await House(folder, reads_words=reads_words).run(scenario)

    asyncio.run(run())


def test_sessions_here_elsewhere_and_stored_are_told_apart(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        here, there, past = Visit(house.here), Visit(house.there), Visit(house.here)
        call = (await past.begin()).call
        await there.begin()
        call.end("client_closed")
        await past.task
        mine = await here.begin()
        page = await house.operations.page("", 10)
        found = {(view.state, view.owner, view.here) for view in page.sessions}
        assert found == {
            ("running", house.here.name, True),
            ("running", house.there.name, False),
            ("stored", None, False),
        }
        (only,) = (await house.operations.here()).sessions
        assert (only.id, only.state) == (mine.call.session, "running")
        mine.call.end("client_closed")
        assert (await house.operations.here()).sessions[0].state == "ending"
        (await there.begin()).call.end("client_closed")
        await asyncio.gather(here.task, there.task)

    play(tmp_path, scenario)


def test_pages_follow_each_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for number in range(5):
            await house.store.create(SessionRecord(f"sess_{number}", "t", 0, b"{}", b"x"), "gw", 0)
        first = await house.operations.page("", 3)
        assert first.cursor is not None
        second = await house.operations.page(first.cursor, 3)
        ids = [[view.id for view in page.sessions] for page in (first, second)]
        assert (ids, second.cursor) == ([["sess_0", "sess_1", "sess_2"], ["sess_3", "sess_4"]], None)
        with pytest.raises(CursorRefused):
            await house.operations.page("?", 3)

    play(tmp_path, scenario)


@pytest.mark.parametrize("reads_words", [False, True])
def test_a_session_that_runs_is_shown_with_as_much_as_the_operator_may_read(tmp_path: Path, reads_words: bool) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        call = (await visit.begin()).call
        await call.flush()
        view = await house.operations.show(call.session)
        shown = view.contents
        assert shown is not msgspec.UNSET
        assert (view.state, shown.turns, shown.items[0].characters) == ("running", 1, len(WORDS))
        assert shown.call is not None
        assert (shown.call.unwritten, shown.call.store_errors, shown.call.end_reason) == (0, 0, None)
        assert (WORDS.encode() in msgspec.json.encode(view)) is reads_words
        call.end("client_closed")
        await visit.task
        stored = await house.operations.show(call.session)
        assert stored.state == "stored"
        assert stored.contents is not msgspec.UNSET
        assert stored.contents.call is None

    play(tmp_path, scenario, reads_words=reads_words)


def test_a_call_that_is_ended_is_over_and_its_words_are_kept(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        admitted = await visit.begin()
        view = await house.operations.end(admitted.call.session)
        assert (view.state, view.owner) == ("stored", None)
        assert await visit.task == "ended_by_operator"
        again = await house.operations.end(admitted.call.session)
        assert again.state == "stored", "to end it once more changes nothing"
        async with house.here.resumed_call(admitted.resume_token) as resumed:
            assert [item.text for item in resumed.call.conversation.items] == [WORDS]

    play(tmp_path, scenario)


def test_a_call_at_another_gateway_is_ended_there(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        session = (await visit.begin()).call.session
        view = await house.operations.end(session)
        assert (view.state, view.owner) == ("running", house.there.name), "the word has just been sent"
        assert await visit.task == "ended_by_operator"
        assert (await house.operations.show(session)).state == "stored"

    play(tmp_path, scenario)


def test_whoever_asks_for_an_end_waits_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "END_S_MAX", 0)

    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        session = (await visit.begin()).call.session
        assert (await house.operations.end(session)).state == "ending"
        assert await house.operations.delete(session) is False
        await visit.task

    play(tmp_path, scenario)


def test_what_was_never_there_or_is_gone_is_unknown(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for act in (house.operations.show, house.operations.end, house.operations.delete):
            for session in ("sess_absent", "no id", ""):
                with pytest.raises(SessionUnknown):
                    await act(session)

    play(tmp_path, scenario)


def test_a_deleted_session_is_gone_while_its_call_still_writes(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        admitted = await visit.begin()
        for number in range(20):
            say(admitted, f"Word {number}.")
        session = admitted.call.session
        assert await house.operations.delete(session) is True
        assert await visit.task == "session_deleted"
        with pytest.raises(SessionUnknown):
            await house.store.read(session)
        with pytest.raises(SessionUnknown):
            await house.operations.delete(session)
        assert house.here.calls_of(session) == ()

    play(tmp_path, scenario)


def test_a_deletion_ends_the_silent_call_of_another_gateway(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        session = (await visit.begin()).call.session
        assert await house.operations.delete(session) is True
        assert await visit.task == "session_deleted"

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("outcome", "drained"),
    [(Outcome.DONE, True), (Outcome.NOBODY, True), (Outcome.NOT_DONE, False), (Outcome.NO_ANSWER, False)],
)
def test_a_deletion_has_drained_where_the_gateway_that_had_it_says_so_or_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, *, drained: bool
) -> None:
    async def scenario(house: House) -> None:
        asked: list[tuple[str, What, str]] = []

        async def ask(gateway: str, what: What, of: str, *, s_max: float) -> Outcome:
            assert s_max > operations.END_S_MAX
            asked.append((gateway, what, of))
            return outcome

        monkeypatch.setattr(house.here.errands, "ask", ask)
        await house.store.create(SessionRecord("sess_away", "t", 0, b"{}", b"x"), "gw_far", 30_000)
        assert await house.operations.delete("sess_away") is drained
        assert asked == [("gw_far", What.DRAIN, "sess_away")]

    play(tmp_path, scenario)


def test_whoever_had_a_session_before_is_not_asked_as_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(house: House) -> None:
        async def ask(*_what: object, **_more: object) -> Outcome:
            raise AssertionError

        monkeypatch.setattr(house.here.errands, "ask", ask)
        await house.store.create(SessionRecord("sess_past", "t", 0, b"{}", b"x"), "gw_far", 30_000)
        house.now_ms += 30_001
        (held,) = await house.store.describe(["sess_past"])
        assert (held.owner, held.lease_ms) == ("gw_far", 0)
        assert await house.operations.delete("sess_past") is True

    play(tmp_path, scenario)


def test_for_a_tenant_there_are_its_own_sessions_alone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        call = (await visit.begin()).call
        for act in (house.operations.show, house.operations.end, house.operations.delete):
            with pytest.raises(SessionUnknown):
                await act(call.session, "other")
        assert (await house.operations.here("other")).sessions == ()
        assert call.end_reason is None
        assert (await house.operations.show(call.session, DEFAULT_TENANT)).id == call.session
        assert await house.operations.delete(call.session, DEFAULT_TENANT) is True
        await visit.task

    play(tmp_path, scenario)


def test_a_notice_that_was_lost_shows_when_the_lease_is_renewed(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        call = (await visit.begin()).call
        await call.flush()
        house.there._session_watch._calls_of = lambda _session: ()  # as if nothing had been said
        await house.operations.delete(call.session)
        assert call.end_reason is None
        call.look_after_session()
        assert await visit.task == "session_deleted"

    play(tmp_path, scenario)


def test_a_deletion_between_a_takeover_and_its_call_ends_that_call(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        first = Visit(house.here)
        admitted = await first.begin()
        await house.operations.end(admitted.call.session)
        acquire = house.store.acquire

        async def overtaken(*asked: object, **more: object) -> object:
            taken = await acquire(*asked, **more)  # type: ignore[arg-type]
            await house.operations.delete(admitted.call.session)
            for _ in range(10):
                await asyncio.sleep(0)  # the notice has come, and found no call
            return taken

        house.store.acquire = overtaken  # type: ignore[method-assign, assignment]
        second = Visit(house.there, admitted.resume_token, says="")
        assert await second.task == "session_deleted"

    play(tmp_path, scenario)


def test_a_store_that_is_away_confirms_no_deletion_yet_the_call_is_ended(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        session = (await visit.begin()).call.session
        house.faults["delete"] = Fault.UNAVAILABLE
        with pytest.raises(StoreUnavailable):
            await house.operations.delete(session)
        assert await visit.task == "session_deleted"
        house.faults.clear()
        assert await house.operations.delete(session) is True, "asked again, it is done"

    play(tmp_path, scenario)


@pytest.mark.slow
def test_the_gateway_keeps_no_word_of_a_deleted_session(tmp_path: Path) -> None:
    word = secrets.token_hex(16)  # which nothing else in this process can hold

    async def scenario(house: House) -> None:
        visit = Visit(house.here, says=word)
        call = weakref.ref((await visit.begin()).call)
        session = next(iter(house.here.sessions))
        assert "Item" in holders_of(word), "the test finds what is held"
        await house.operations.delete(session)
        await visit.task
        del visit
        gc.collect()
        assert call() is None
        assert holders_of(word) == set()
        assert session not in house.here.render_metrics().decode()

    play(tmp_path, scenario)


def holders_of(word: str) -> set[str]:
    """The types of all objects that hold a text with `word`, but for what runs this test."""
    own = (FrameType, CellType, CoroutineType)
    return {type(one).__name__ for one in gc.get_objects() if not isinstance(one, own) and _holds(one, word)}


def _holds(one: object, word: str) -> bool:
    """Whether `one` holds such a text itself, or by what the collector does not list apart."""
    for part in gc.get_referents(one):
        if isinstance(part, str | bytes):
            if (word in part) if isinstance(part, str) else (word.encode() in part):
                return True
        elif not gc.is_tracked(part) and _holds(part, word):
            return True
    return False


def test_a_lease_is_kept_while_nobody_speaks_and_given_back_at_the_end(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        call = (await visit.begin()).call
        await call.flush()
        for _ in range(10):
            house.now_ms += 20_000
            call.look_after_session()
            for _ in range(5):
                await asyncio.sleep(0)
            assert (await house.operations.page("", 1)).sessions[0].state == "running"
        (before,) = await house.store.describe([call.session])
        assert before.active_ms == 1_000_000, "a renewal is no activity"
        call.end("client_closed")
        await visit.task
        (after,) = await house.store.describe([call.session])
        assert after.lease_ms == 0

    play(tmp_path, scenario)
