"""A request to go on with a session that its client has left behind, at a gateway that stood still."""

from __future__ import annotations

import pytest

from duplex.admission import RefusedError
from duplex.claims import RESUME_OUTDATED
from duplex.gateway import Gateway
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
