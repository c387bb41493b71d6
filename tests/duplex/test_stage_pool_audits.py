"""What a pool asks once something was given back, and after a link was lost; and what it finds in its own books."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duplex.lost_streams import PROBE_AGAIN_NS
from duplex.surroundings import RunningLoop
from stages.edges import GATEWAY
from stages.messages import Audit, Audited, Cancel, Closed, CloseSession, Opened, OpenSession, Refused, SessionOpened
from stages.pool import Pool
from tests.duplex.pool_bench import S1, S2, TAG, Bench, Worker, asked, bench, tag
from tests.stages.link_bench import play

KEY = TAG.key
CLEAN_HERE = Audited(GATEWAY, S1, KEY, {}, {})


def answer(held: dict[str, int], replica: str = "a", stream: str = KEY) -> Audited:
    return Audited(replica, S1, stream, held, {})


async def lost_with_its_links(one: Bench) -> None:
    """`TAG` had begun at a worker that lives on, and is connected again."""
    worker = await one.begun()
    await one.dies(worker)
    assert one.lost == [TAG]


def test_every_replica_is_asked_and_the_pool_answers_for_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            workers = [await one.worker(name) for name in ("a", "b")]
            one.pool.audit(TAG)
            for name, worker in zip("ab", workers, strict=True):
                assert await worker.orders() == [Audit(S1, KEY)]
                worker.says(answer({"blocks": 2}, name))
                await one.told.until("talker", answer({"blocks": 2}, name))
            assert one.heard[0] == CLEAN_HERE

    play(scenario())


def test_a_replica_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.audit_session(S1)
            await one.told.until("talker", answer({}, GATEWAY, ""))

    play(scenario())


def test_a_stream_and_a_place_that_are_still_in_the_books_are_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await one.begun()
            one.pool.audit(TAG)
            await one.told.until("talker", answer({"streams": 1, "places": 1}, GATEWAY))
            one.pool.audit(tag(9))
            await one.told.until("talker", answer({}, GATEWAY, "resp_9"))

    play(scenario())


def test_a_place_that_was_not_given_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            monkeypatch.setattr(Pool, "end", lambda pool, work, now_ns: [])
            worker.says(Closed(TAG, "finished", {}))
            await one.told.until("talker", Closed(TAG, "finished", {}))
            one.pool.audit(TAG)
            await one.told.until("talker", answer({"places": 1}, GATEWAY))

    play(scenario())


def test_what_was_lost_is_found_of_a_stream_and_accounted_for_of_a_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            one.pool.order(CloseSession(S1))
            one.pool.audit(TAG)
            await one.told.until("talker", answer({"lost": 1}, GATEWAY))
            one.pool.audit_session(S1)
            await one.told.until("talker", answer({}, GATEWAY, ""))

    play(scenario())


# ---- after a link was lost --------------------------------------------------------------------------------------


def test_what_a_worker_has_let_go_of_since_its_links_were_lost_is_given_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            assert one.pool.streams == 1, "it may still be held"
            worker.says(answer({}))
            await one.told.until("talker", Closed(TAG, "cancelled", {"link_lost": 1}))
            assert one.pool.streams == 0
            assert not [frame for frame in one.heard if isinstance(frame, Audited)]

    play(scenario())


def test_a_worker_that_still_holds_it_is_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            for _ in range(2):
                assert await worker.orders() == [Audit(S1, KEY)]
                worker.says(answer({"streams": 1}))
            assert await worker.orders() == [Audit(S1, KEY)]
            assert one.pool.streams == 1
            worker.says(answer({}))
            await one.told.until("talker", Closed(TAG, "cancelled", {"link_lost": 1}))

    play(scenario())


def test_a_process_that_dies_while_it_is_asked_gives_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            await one.dies(worker)
            worker = await one.worker(incarnation=2)
            await one.told.until("talker", Closed(TAG, "cancelled", {"process_exit": 1}))
            one.pool.order(asked(tag(2)))
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(tag(2))], "there is nothing to ask about"

    play(scenario())


def test_an_answer_about_what_was_not_lost_goes_to_who_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            other = tag(2)
            one.pool.order(asked(other))
            one.pool.order(Cancel(other))
            worker.says(Opened(other), Closed(other, "cancelled", {}), answer({}, stream=other.key))
            await one.told.until("talker", answer({}, stream=other.key))

    play(scenario())


def test_who_asked_before_the_links_were_lost_again_asks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off: list[Callable[[], None]] = []
    later = RunningLoop.later

    def hold_back(loop: RunningLoop, delay_ns: int, call: Callable[[], None]) -> None:
        if delay_ns == PROBE_AGAIN_NS:
            put_off.append(call)
        else:
            later(loop, delay_ns, call)

    async def still_held(one: Bench) -> Worker:
        worker = await one.worker(incarnation=1)
        assert await worker.orders() == [Audit(S1, KEY)]
        told = SessionOpened(f"after {len(put_off)}")
        worker.says(answer({"streams": 1}), told)
        await one.told.until("talker", told)
        return worker

    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            await one.dies(await still_held(one))
            worker = await still_held(one)
            before, again = put_off
            before()
            one.pool.order(OpenSession(S2, 5))
            again()
            assert await worker.orders(2) == [OpenSession(S2, 5), Audit(S1, KEY)]

    monkeypatch.setattr(RunningLoop, "later", hold_back)
    play(scenario())


# ---- what may have reached a worker that was lost -----------------------------------------------------------------


async def asked_and_lost(one: Bench) -> None:
    """`TAG` was asked of the replica `a`, whose links were lost before it had answered."""
    worker = await one.worker("a")
    one.pool.order(OpenSession(S1, 5))
    one.pool.order(asked())
    assert await worker.orders(2) == [OpenSession(S1, 5), asked()]
    await one.dies(worker, "a")
    assert one.lost == []


def test_a_stream_that_is_given_up_has_ended_once_nobody_who_was_asked_may_hold_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await asked_and_lost(one)
            one.pool.order(Cancel(TAG))
            worker = await one.worker(incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            assert one.heard == [], "the order may have come there"
            worker.says(answer({}))
            await one.told.until("talker", Closed(TAG, "cancelled", {}))
            assert one.pool.streams == 0

    play(scenario())


def test_a_stream_that_was_given_up_ends_with_the_process_that_was_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await asked_and_lost(one)
            one.pool.order(Cancel(TAG))
            await one.worker(incarnation=2)
            assert one.heard == [Closed(TAG, "cancelled", {})]

    play(scenario())


def test_who_is_asked_again_answers_for_its_past(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await asked_and_lost(one)
            worker = await one.worker(incarnation=1)
            assert await worker.orders(3) == [OpenSession(S1, 5), asked(), Audit(S1, KEY)]
            worker.says(answer({"streams": 1}), Opened(TAG), Closed(TAG, "finished", {}))
            await one.told.until("talker", Closed(TAG, "finished", {}))
            assert one.pool.streams == 0

    play(scenario())


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (Closed(TAG, "finished", {"frames": 3}), Closed(TAG, "finished", {"frames": 3})),
        (Closed(TAG, "failed", {}, "engine", "it broke"), Closed(TAG, "failed", {}, "engine", "it broke")),
        (Refused(TAG, "busy", "still leaving"), Closed(TAG, "cancelled", {})),
    ],
    ids=["finished", "failed", "refused"],
)
def test_a_stream_that_another_worker_has_made_has_ended_once_the_first_holds_nothing(
    tmp_path: Path, last: Closed | Refused, told: Closed
) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            other = await one.worker("b")
            await asked_and_lost(one)
            assert await other.orders(2) == [OpenSession(S1, 5), asked()]
            behind = SessionOpened(S2)
            other.says(last, behind)
            await one.told.until("talker", behind)
            assert one.heard == [behind]
            assert one.lost == ([] if told.outcome == "finished" else [TAG]), "what came to nothing is told at once"
            worker = await one.worker("a", incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            worker.says(answer({}))
            await one.told.until("talker", told)

    play(scenario())


# ---- sessions ---------------------------------------------------------------------------------------------------


def test_a_session_is_looked_for_once_all_its_streams_have_been_answered_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            one.pool.order(CloseSession(S1))
            one.pool.audit_session(S1)
            assert (await worker.orders(3))[2:] == [CloseSession(S1)]
            worker.says(Closed(TAG, "cancelled", {}))
            assert await worker.orders() == [Audit(S1)]
            await one.told.until("talker", answer({}, GATEWAY, ""))

    play(scenario())


def test_a_session_that_has_begun_anew_is_not_looked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.audit_session(S1)
            one.pool.order(CloseSession(S1))
            assert await worker.orders(2) == [OpenSession(S1, 5), CloseSession(S1)]
            assert one.heard == []

    play(scenario())
