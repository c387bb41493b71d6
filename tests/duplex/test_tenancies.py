"""Calls of tenants: whose each session is, what ends one that is permitted no longer, and what its quotas refuse."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from duplex import tenancies
from duplex.admission import RefusedError
from duplex.config import Config
from duplex.gateway import Gateway
from duplex.operations import Operations
from duplex.pipeline import graph_of
from duplex.stage_pool import StagePool
from duplex.tenancies import LEASE_TTL_MS
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import Permission, key_digest
from sessions.memory_store import Fault, MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.settings import ResponseSpec, SessionSettings
from sessions.store import SessionUnknown
from stages.messages import Frame, Open
from tests.duplex.test_gateway import Deaf, Faults
from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace

S_MAX = 10
ACME, OTHER = Permission("acme", key_digest(KEY)), Permission("other", key_digest(OTHER_KEY))


class House:
    """Two gateways over one store and one file of tenants; their stages take everything."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tenants.toml"
        replace(self.path, TWO)
        self.now_ms, self.faults = 1_000_000_000, Faults()
        self.store = MemorySessionStore(lambda: self.now_ms, faults=self.faults)
        config = Config(engine="scripted", data_dir=folder, calls_max=20)
        self.directories = [TenantDirectory(self.path) for _ in range(2)]
        self.here, self.there = (
            Gateway(
                config,
                graph_of(config),
                self.store,
                Deaf(),
                ReplyDefaults("Hi.", 10, prepare=False),
                directory=directory,
            )
            for directory in self.directories
        )

    def rewrite(self, old: str, new: str) -> None:
        replace(self.path, self.path.read_text(encoding="utf-8").replace(old, new))
        for directory in self.directories:
            directory.look()


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """What stages are asked to do."""
    orders: list[Frame] = []
    monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))
    order = StagePool.order

    def noted(pool: StagePool, frame: Frame) -> None:
        orders.append(frame)
        order(pool, frame)

    monkeypatch.setattr(StagePool, "order", noted)
    return orders


def play(folder: Path, scenario: Callable[[House], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario(House(folder))

    asyncio.run(run())


@pytest.mark.usefixtures("ordered")
def test_a_session_is_its_tenant_s_alone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        operations = Operations(house.there)
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as admitted:
            token, session = admitted.resume_token, admitted.call.session
            async with house.there.place(OTHER) as theirs:
                with pytest.raises(RefusedError) as refused:
                    async with house.there.resumed_call(token, tenancy=theirs):
                        pass
                assert refused.value.code == "session_not_resumable"
                assert admitted.call.end_reason is None, "nobody has noticed"
            for ask in (operations.show, operations.end, operations.delete):
                with pytest.raises(SessionUnknown):
                    await ask(session, "other")
                with pytest.raises(SessionUnknown):
                    await ask("sess_none", "other")
            assert (await operations.page("", 10, "other")).sessions == ()
            assert (await operations.show(session, "acme")).tenant == "acme"
            assert [one.id for one in (await operations.page("", 10, "acme")).sessions] == [session]
            assert [one.id for one in (await operations.page("", 10)).sessions] == [session]
        async with house.there.place(ACME) as again, house.there.resumed_call(token, tenancy=again) as resumed:
            assert resumed.call.conversation.tenant == "acme"
        assert await operations.delete(session, "acme")

    play(tmp_path, scenario)


def test_all_that_is_asked_of_stages_is_asked_for_the_tenant(tmp_path: Path, ordered: list[Frame]) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            one.call.carry_out(one.call.conversation.create_response(ResponseSpec(), 1))

    play(tmp_path, scenario)
    opened = [frame for frame in ordered if isinstance(frame, Open)]
    assert opened
    assert {frame.tenant for frame in opened} == {"acme"}


@pytest.mark.parametrize(("old", "new"), [(key_digest(KEY), key_digest("dk_next")), ('id = "acme"', 'id = "apex"')])
@pytest.mark.usefixtures("ordered")
def test_a_permission_that_is_taken_back_ends_its_calls_and_no_other(tmp_path: Path, old: str, new: str) -> None:
    async def scenario(house: House) -> None:
        async with (
            house.here.place(ACME) as mine,
            house.here.place(ACME) as my_other,
            house.there.place(OTHER) as theirs,
            house.here.new_call(SessionSettings(), tenancy=mine) as one,
            house.there.new_call(SessionSettings(), tenancy=theirs) as other,
        ):
            house.rewrite(old, new)
            assert one.call.end_reason == "permission_revoked"
            assert other.call.end_reason is None
            async with house.here.new_call(SessionSettings(), tenancy=my_other) as late:
                assert late.call.end_reason == "permission_revoked", "also of one that was just beginning"

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_permission_that_is_taken_back_while_the_store_is_asked_begins_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(house: House) -> None:
        open_account = house.store.open_account

        async def amid(*asked: object) -> object:
            house.rewrite(key_digest(KEY), key_digest("dk_next"))
            return await open_account(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(house.store, "open_account", amid)
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as one:
            assert one.call.end_reason == "permission_revoked"

    play(tmp_path, scenario)


@pytest.mark.parametrize(("old", "new"), [(key_digest(KEY), key_digest("dk_next")), ('id = "acme"', 'id = "apex"')])
@pytest.mark.usefixtures("ordered")
def test_a_permission_that_is_taken_back_at_the_door_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    async def scenario(house: House) -> None:
        async def until_room() -> None:
            house.rewrite(old, new)

        monkeypatch.setattr(house.here, "until_room", until_room)
        with pytest.raises(RefusedError) as refused:
            async with house.here.place(ACME):
                pass
        assert (refused.value.code, refused.value.status) == ("permission_revoked", 401)
        assert refused.value.retry_after_s is None
        assert (house.here.calls, account(house)[0]) == (0, 0), "no quota was asked for it"

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_while_permissions_are_not_known_calls_go_on_and_none_begins(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(OTHER) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            house.path.write_text("[[", encoding="utf-8")
            house.directories[0].look()
            with pytest.raises(RefusedError) as refused:
                async with house.here.place(OTHER):
                    pass
            assert (refused.value.code, refused.value.status) == ("permissions_unavailable", 503)
            assert one.call.end_reason is None
        assert house.here.calls == 0

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_the_one_over_its_quota_is_refused_with_a_reason_and_a_time(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("sessions = 4", "sessions = 1")
        async with house.here.place(ACME):
            with pytest.raises(RefusedError, match="sessions") as refused:
                async with house.there.place(ACME):
                    pass
            assert (refused.value.status, refused.value.code) == (429, "quota_exceeded")
            assert refused.value.retry_after_s == 5
            async with house.there.place(OTHER):
                assert house.there.calls == 1
        async with house.there.place(ACME):
            assert (house.here.calls, house.there.calls) == (0, 1), "a place is given back once it is left"

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_store_that_is_away_lets_nobody_in_who_has_quotas(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.faults.now["account"] = Fault.UNAVAILABLE
        with pytest.raises(RefusedError) as refused:
            async with house.here.place(ACME):
                pass
        assert refused.value.code == "store_unavailable"
        async with house.here.place(OTHER):
            assert house.here.calls == 1, "for who has none it is not asked"
        house.faults.now.clear()
        async with house.here.place(ACME):
            house.faults.now["account"] = Fault.UNAVAILABLE
        assert house.here.calls == 0, "the lease runs out by itself"

    play(tmp_path, scenario)


def test_a_response_that_the_quota_has_no_room_for_is_rejected(tmp_path: Path, ordered: list[Frame]) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("tokens_per_day = 1000", "tokens_per_day = 15")
        keeping = asyncio.create_task(house.here.tenancies.run())
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            talk = one.call.conversation
            one.call.carry_out(talk.create_response(ResponseSpec(), 1))
            assert talk.speaking.active is not None, "10 of 15 tokens are at hand"
            with capture_logs() as logs:
                one.call.carry_out(talk.create_response(ResponseSpec(in_conversation=False), 2))
            assert [(log["status"], log["code"]) for log in logs] == [("failed", "quota_exceeded")]
            one.call.carry_out(talk.cancel_response(None, 3))
            one.call.carry_out(talk.create_response(ResponseSpec(), 4))
            assert talk.speaking.active is not None, "what was not sampled is there again"
            assert one.call.end_reason is None
        keeping.cancel()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_tenancy_that_is_over_is_held_by_nobody_until_the_next_turn(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as tenancy:
            keeping = asyncio.create_task(house.here.tenancies.run())
            for _ in range(20):  # it has looked at all of them, and waits
                await asyncio.sleep(0)
            gone = weakref.ref(tenancy)
        del tenancy
        assert gone() is None
        keeping.cancel()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_nothing_is_drawn_for_a_call_that_must_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(house: House) -> None:
        drawn: list[str] = []
        draw = house.store.draw

        async def noted(tenant: str, lease: str, *asked: object) -> object:
            drawn.append(lease)
            return await draw(tenant, lease, *asked)  # type: ignore[arg-type]

        monkeypatch.setattr(house.store, "draw", noted)
        async with house.here.place(ACME) as one, house.here.place(ACME) as other:
            one.renewed_ns = other.renewed_ns = -(1 << 62)  # the leases of both are to be renewed
            one.end("permission_revoked")
            await house.here.tenancies._keep_all()
            assert drawn == [other.lease]

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_response_waits_for_a_draw(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            talk = one.call.conversation
            one.call.carry_out(talk.create_response(ResponseSpec(max_output_tokens=500), 1))
            assert [plan.tokens_max for plan in talk.speaking.accepted] == [500]
            keeping = asyncio.create_task(house.here.tenancies.run())
            while one.call.conversation.speaking.accepted:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
            keeping.cancel()
            assert talk.speaking.active is not None

    play(tmp_path, scenario)


def account(house: House) -> tuple[int, int]:
    """Acme's leases, and the tokens that it has used today."""
    held = house.store._quotas._now_of("acme")
    return len(held.leases), held.used.get("tokens", 0)


@pytest.mark.usefixtures("ordered")
def test_what_is_being_drawn_when_a_call_ends_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(house: House) -> None:
        draw, drawing, goes_on = house.store.draw, asyncio.Event(), asyncio.Event()

        async def slow(*asked: object) -> object:
            drawing.set()
            await goes_on.wait()
            return await draw(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(house.store, "draw", slow)
        keeping = asyncio.create_task(house.here.tenancies.run())
        async with house.here.place(ACME) as tenancy:
            tenancy.allowance.reserve("resp_1", 500)
            tenancy.look()
            await drawing.wait()
            asyncio.get_running_loop().call_soon(goes_on.set)
        assert account(house) == (0, 0)
        keeping.cancel()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_nothing_is_drawn_for_a_call_that_has_ended_while_another_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(house: House) -> None:
        draw, goes_on, leases = house.store.draw, asyncio.Event(), asyncio.Queue[object](2)

        async def slow(*asked: object) -> object:
            leases.put_nowait(asked[1])
            await goes_on.wait()
            return await draw(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(house.store, "draw", slow)
        places = [house.here.place(ACME) for _ in range(2)]
        tenancies = [await place.__aenter__() for place in places]
        for tenancy in tenancies:
            tenancy.renewed_ns = 0
        keeping = asyncio.create_task(house.here.tenancies.run())
        lease = await leases.get()
        (other,) = (place for place, one in zip(places, tenancies, strict=True) if one.lease != lease)
        await other.__aexit__(None, None, None)
        goes_on.set()
        places.remove(other)
        while tenancies[0].renewed_ns == tenancies[1].renewed_ns:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        assert account(house)[0] == 1
        keeping.cancel()
        await places[0].__aexit__(None, None, None)

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_call_whose_sound_is_not_covered_ends(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("tokens_per_day = 1000", "audio_seconds_per_day = 1")
        keeping = asyncio.create_task(house.here.tenancies.run())
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            await asyncio.sleep(0)
            assert not one.call.ended.is_set()
            tenancy.allowance.spend("audio_ms", 1_000)
            tenancy.look()
            await one.call.ended.wait()
            assert one.call.end_reason == "quota_exceeded"
        keeping.cancel()

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_gateway_that_stood_still_has_lost_the_place_that_another_took(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("sessions = 4", "sessions = 1")
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            house.now_ms += LEASE_TTL_MS
            async with house.there.place(ACME):
                tenancy.renewed_ns = 0
                keeping = asyncio.create_task(house.here.tenancies.run())
                await one.call.ended.wait()
                keeping.cancel()
            assert one.call.end_reason == "quota_exceeded"

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_token_for_one_session_serves_no_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as tenancy, house.here.new_call(SessionSettings(), tenancy=tenancy) as one:
            token, session = one.resume_token, one.call.session
        async with house.here.place(ACME) as tenancy:
            tenancy.bind("sess_another")
            with pytest.raises(RefusedError, match="another session"):
                tenancy.check_session(None)
            with pytest.raises(RefusedError, match="another session"):
                async with house.here.resumed_call(token, tenancy=tenancy):
                    pass
        async with house.here.place(ACME) as tenancy:
            tenancy.bind(session)
            async with house.here.resumed_call(token, tenancy=tenancy) as resumed:
                assert resumed.call.session == session

    play(tmp_path, scenario)


def leases(house: House) -> list[str]:
    """The sessions that acme's leases are for."""
    return sorted(lease.partition(":")[0] for lease in house.store._quotas._now_of("acme").leases)


@pytest.mark.usefixtures("ordered")
def test_who_comes_back_takes_their_own_place_of_the_quota(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("sessions = 4", "sessions = 1")
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as one:
            session, token = one.call.session, one.resume_token
            assert leases(house) == [session]
            with pytest.raises(RefusedError, match="sessions"):
                async with house.there.place(ACME):
                    pass
            async with house.there.place(ACME, session) as again:
                assert leases(house) == [session] * 2
                async with house.there.resumed_call(token, tenancy=again) as resumed:
                    assert resumed.call.session == session
            with pytest.raises(RefusedError, match="sessions"):
                async with house.there.place(ACME):
                    pass
        assert leases(house) == []

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_lease_goes_over_to_the_session_that_is_taken_up(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.rewrite("sessions = 4", "sessions = 2")
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as one:
            session, token = one.call.session, one.resume_token
            async with house.there.place(ACME) as again, house.there.resumed_call(token, tenancy=again):
                assert leases(house) == [session] * 2
                async with house.there.place(ACME) as third:
                    assert set(leases(house)) == {session, third.lease.partition(":")[0]}
        async with house.here.place(OTHER) as theirs, house.here.new_call(SessionSettings(), tenancy=theirs) as other:
            token = other.resume_token
        async with house.here.place(OTHER) as theirs, house.here.resumed_call(token, tenancy=theirs):
            assert leases(house) == [], "who has no quotas has none"

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_a_store_that_is_away_as_a_session_is_taken_up_is_told_later(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as one:
            session, token = one.call.session, one.resume_token
        async with house.here.place(ACME) as again:
            house.faults.now["draw"] = Fault.UNAVAILABLE
            async with house.here.resumed_call(token, tenancy=again) as resumed:
                assert leases(house) != [session]
                house.faults.now.clear()
                await house.here.tenancies._draw(again, {})
                assert leases(house) == [session]
                assert resumed.call.end_reason is None
        assert leases(house) == []

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_who_came_in_as_returning_serves_no_other_session(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async with house.here.place(ACME) as mine, house.here.new_call(SessionSettings(), tenancy=mine) as one:
            session, token = one.call.session, one.resume_token
        async with house.here.place(ACME, "sess_another") as tenancy:
            for ask, name in ((tenancy.check_session, None), (tenancy.bind, session)):
                with pytest.raises(RefusedError) as refused:
                    ask(name)
                assert (refused.value.code, refused.value.status) == ("session_not_allowed", 403)
            with pytest.raises(RefusedError, match="another session"):
                async with house.here.resumed_call(token, tenancy=tenancy):
                    pass
            tenancy.bind(None)
            tenancy.bind("sess_another")
            tenancy.check_session("sess_another")

    play(tmp_path, scenario)


@pytest.mark.usefixtures("ordered")
def test_who_came_in_as_returning_says_so_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancies, "RESUME_S_MAX", 0)

    async def scenario(house: House) -> None:
        async with house.here.place(ACME, "sess_mine") as tenancy:
            with pytest.raises(RefusedError) as refused:
                async with tenancy.first_word():
                    await asyncio.Event().wait()
            assert (refused.value.code, refused.value.retry_after_s) == ("resume_timeout", 1)
        async with house.here.place(ACME) as tenancy:
            with pytest.raises(TimeoutError):  # of whoever waits
                async with tenancy.first_word(), asyncio.timeout(0):
                    await asyncio.Event().wait()

    play(tmp_path, scenario)
