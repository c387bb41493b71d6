"""When what is sent on a link is written: credit together, everything else at once."""

from __future__ import annotations

import asyncio

from stages.link import KEPT_PIECES_MAX
from stages.messages import EndEpoch, Grant
from tests.stages.link_bench import play
from tests.stages.test_link import HELLO, TAG, Wired


def test_grants_of_one_moment_are_written_together_at_its_end() -> None:
    async def scenario() -> None:
        wired = Wired()
        wired.link.send(HELLO)
        grants = [Grant(TAG, units) for units in (1, 2, 3)]
        for grant in grants:
            wired.link.send(grant)
        assert (wired.sent, wired.transport.writes) == ([HELLO], 1)
        await asyncio.sleep(0)
        assert (wired.sent, wired.transport.writes) == ([HELLO, *grants], 2)
        await asyncio.sleep(0)
        assert wired.transport.writes == 2

    play(scenario())


def test_what_does_not_wait_takes_along_what_came_before_it() -> None:
    async def scenario() -> None:
        wired = Wired()
        frames = (HELLO, Grant(TAG, 1), EndEpoch("s", 4))
        for frame in frames:
            wired.link.send(frame)
        assert (wired.sent, wired.transport.writes) == (list(frames), 2)
        await asyncio.sleep(0)
        assert wired.transport.writes == 2

    play(scenario())


def test_what_waits_is_bounded_and_goes_before_a_close_and_never_after_an_abort() -> None:
    async def scenario() -> None:
        many, closed, aborted = Wired(), Wired(), Wired()
        for wired in (many, closed, aborted):
            wired.link.send(HELLO)
            wired.link.send(Grant(TAG, 1))
        for _ in range(KEPT_PIECES_MAX // 2 - 1):
            many.link.send(Grant(TAG, 1))
        assert len(many.sent) == 1 + KEPT_PIECES_MAX // 2
        closed.link.close()
        assert closed.sent == [HELLO, Grant(TAG, 1)]
        aborted.link.abort()
        await asyncio.sleep(0)
        assert aborted.sent == [HELLO]

    play(scenario())
