"""Sound that its client commits: heard as it comes, from its beginning, however long it is."""

from __future__ import annotations

import asyncio

from duplex.encoder_feed import ENCODER_CREDIT_SAMPLES, FEED_SAMPLES_MAX
from duplex.listening import RING_SECONDS
from sessions.settings import INPUT_RATE, SessionSettings
from stages.contracts import EndOfTurn
from tests.duplex.test_listening import Ears, manual, play, silence, tone


def test_a_long_push_is_heard_from_its_beginning_while_it_comes() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(RING_SECONDS * 1_000 + 11_000))
        assert ears.span()[1] > ears.listening.newest - FEED_SAMPLES_MAX, "nothing is left for the commit"
        end = ears.listening.newest
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, end, 0))
        await asyncio.sleep(0)
        assert ears.span() == (0, end)
        assert ears.told() == [EndOfTurn(end)]
        await ears.listening.hear(silence(100))
        assert ears.span(2)[0] == end, "what follows is pushed anew"

    play(scenario, manual)


def test_a_long_push_waits_for_an_encoder_that_lags() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        flood = asyncio.create_task(ears.listening.hear(tone(RING_SECONDS * 1_000 + 5_000)))
        for _ in range(2_000):  # each window is a turn of the loop
            await asyncio.sleep(0)
        assert not flood.done()
        assert ears.listening.newest > (RING_SECONDS - 1) * INPUT_RATE
        ears.busy = False
        ears.listening.credit_returned(ears.fed[0][0], ENCODER_CREDIT_SAMPLES // 2)
        await flood
        assert ears.span()[0] == 0

    play(scenario, manual)


def test_a_push_that_was_cleared_is_in_no_later_one() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(tone(1_000))
        ears.carry_out(ears.talk.clear_input(0))
        start = ears.listening.newest
        await ears.listening.hear(silence(500))
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, ears.listening.newest, 0))
        assert ears.told(1) == []
        assert ears.span(2) == (start, ears.listening.newest)

    play(scenario, manual)


def test_speech_amid_which_detection_is_switched_off_is_pushed_on() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(500) + tone(600))
        first = ears.span()[0]
        ears.update(SessionSettings(turn_detection=None))
        await ears.listening.hear(silence(2_000))
        assert ears.ends() == []
        ears.update(SessionSettings())
        assert ears.ends() == [EndOfTurn(ears.listening.newest)]
        assert ears.span() == (first, ears.listening.newest)

    play(scenario)
