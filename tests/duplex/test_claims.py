"""A request to go on with a session that its client has left behind, at a gateway that stood still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from duplex.admission import RefusedError
from duplex.claims import ATTENDED_NS_MAX, CLIENT_GONE, RESUME_OUTDATED, Claim, Claimant
from duplex.gateway import Gateway
from media.heard_estimate import Path
from stages.contracts import EPOCHS_PER_FENCE
from tests.duplex.test_gateway_neighbours import House, Play, play  # noqa: F401 - a fixture
from tests.duplex.test_operations import Visit

FIRST, SECOND = EPOCHS_PER_FENCE, 2 * EPOCHS_PER_FENCE
SOUND = bytes(2 * 24 * 20)


async def gone_on(house: House, *, sound: bytes = SOUND) -> Visit:
    """A call that was taken up again, at `here`, and hears its client."""
    first = Visit(house.here)
    token = (await first.begin()).resume_token
    visit = Visit(house.here, token, says="")
    await (await visit.begin()).call.listening.hear(sound)
    await first.task
    return visit


def gateways(house: House) -> tuple[Gateway, Gateway]:
    return house.here, house.there


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
def test_a_request_from_before_the_client_has_gone_on_ends_nothing(play: Play, at: int) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = await gone_on(house)
        present = await visit.begin()
        with pytest.raises(RefusedError) as refused:
            async with gateways(house)[at].resumed_call(present.resume_token, epoch=FIRST):
                pass
        assert (refused.value.code, refused.value.retry_after_s) == (RESUME_OUTDATED, None)
        assert present.call.end_reason is None
        stored = await house.store.describe([present.call.session])
        assert [held.owner for held in stored] == [house.here.name]
        present.call.end("client_closed")
        await visit.task

    play(scenario)


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize(
    ("sound", "epoch"), [(b"", FIRST), (SOUND, SECOND), (SOUND, 0)], ids=["not heard since", "seen", "not said"]
)
def test_any_other_takes_the_session_over(play: Play, at: int, sound: bytes, epoch: int) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = await gone_on(house, sound=sound)
        token = (await visit.begin()).resume_token
        async with gateways(house)[at].resumed_call(token, epoch=epoch) as after:
            assert await visit.task == "session_replaced"
            assert after.call.end_reason is None

    play(scenario)


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
def test_an_epoch_that_the_session_cannot_have_had_ends_nothing_and_is_an_error(play: Play, at: int) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        present = await visit.begin()
        with pytest.raises(RefusedError, match="epoch is beyond") as refused:
            async with gateways(house)[at].resumed_call(present.resume_token, epoch=1 << 52):
                pass
        assert (refused.value.code, refused.value.retry_after_s) == ("invalid_value", None)
        assert present.call.end_reason is None
        async with gateways(house)[at].resumed_call(
            present.resume_token, epoch=present.call.conversation.epoch
        ) as after:
            assert not after.history_lost
            await visit.task

    play(scenario)


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
def test_who_gives_way_leaves_a_session_to_the_client_that_is_there(play: Play, at: int) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = await gone_on(house)
        present = await visit.begin()
        with pytest.raises(RefusedError) as refused:
            async with gateways(house)[at].resumed_call(present.resume_token, gives_way=True):
                pass
        assert refused.value.code == RESUME_OUTDATED
        assert present.call.end_reason is None
        present.call.end("client_closed")
        await visit.task

    play(scenario)


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize("sound", [b"", SOUND], ids=["not there", "just over"])
def test_and_takes_it_over_from_a_call_without_one(play: Play, at: int, sound: bytes) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = await gone_on(house, sound=sound)
        present = await visit.begin()
        if sound:
            present.call.end("client_closed")
        async with gateways(house)[at].resumed_call(present.resume_token, gives_way=True) as after:
            await visit.task
            assert after.call.end_reason is None

    play(scenario)


# ---- the client of a call is there ------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize(("taken_ns", "stays"), [(0, True), (-ATTENDED_NS_MAX, False)], ids=["now", "long ago"])
def test_a_client_that_has_taken_what_its_call_sent_has_gone_on_with_it(
    play: Play,  # noqa: F811
    at: int,
    taken_ns: int,
    stays: bool,
) -> None:
    async def scenario(house: House) -> None:
        visit = await gone_on(house, sound=b"")
        present = await visit.begin()
        present.call._path = Path(arrived_ns=time.monotonic_ns() + taken_ns)
        if stays:
            with pytest.raises(RefusedError, match="gone on with the session"):
                async with gateways(house)[at].resumed_call(present.resume_token, epoch=FIRST):
                    pass
            assert present.call.end_reason is None
            present.call.end("client_closed")
        else:
            async with gateways(house)[at].resumed_call(present.resume_token, epoch=FIRST):
                assert present.call.end_reason == "session_replaced"
        await visit.task

    play(scenario)


def test_what_a_client_took_before_a_call_says_nothing_of_that_call(play: Play) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = await gone_on(house, sound=b"")
        call = (await visit.begin()).call
        claim = Claim(call, b"", asyncio.Event(), since_ns=100)
        for arrived_ns, is_later in ((100, False), (101, True)):
            call._path = Path(arrived_ns=arrived_ns)
            assert claim.stands_against(Claimant(b"", 1), 200) is is_later
        call.end("client_closed")
        await visit.task

    play(scenario)


# ---- the client that asks is not --------------------------------------------------------------------------------


def hangs_up(looks: int) -> Iterator[bool]:
    """A client that is there for so many looks."""
    yield from [True] * looks
    while True:
        yield False


@pytest.mark.parametrize("at", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_for_a_client_that_has_hung_up_nothing_is_taken(play: Play, at: int, looks: int) -> None:  # noqa: F811
    async def scenario(house: House) -> None:
        visit = Visit(house.here)
        present = await visit.begin()
        session, presence = present.call.session, hangs_up(looks)
        resumed = gateways(house)[at].resumed_call(present.resume_token, is_there=lambda: next(presence))
        if looks > 1 + at:
            async with resumed:
                pass
        else:
            with pytest.raises(RefusedError) as refused:
                async with resumed:
                    pass
            assert refused.value.code == CLIENT_GONE
        (stored,) = await house.store.describe([session])
        assert stored.fence == (2 if looks > 1 + at else 1)
        is_asked_to_go = looks > at
        assert (present.call.end_reason is not None) is is_asked_to_go
        present.call.end("client_closed")
        await visit.task

    play(scenario)
