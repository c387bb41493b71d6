"""The words that reached the caller's ear are those of history: over a good network, an uneven one, and WebRTC."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest

from loadtest.coded_ear import wholly_heard, words_heard
from tests.live.coded import ask, serving_words
from tests.live.coded_caller import Delay, at_once, coded_calling, stored_items
from tests.live.rtc_caller import RATE as RTC_RATE
from tests.live.rtc_caller import rtc_calling
from tests.live.service import Service

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 12


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("coded"), WORDS) as running:
        yield running


def numbers(transcript: str) -> list[int]:
    """ "w3," is word 3."""
    return [int(word.strip("w,.")) for word in transcript.split()]


def jitter() -> Delay:
    """150 ms, and up to 120 more."""
    dice = random.Random(7)
    return lambda: 150 + dice.randrange(120)


def stalls() -> Delay:
    """A client that looks at its socket every 50 messages, 400 ms late."""
    turns = itertools.cycle([400, *[0] * 49])
    return lambda: next(turns)


@pytest.mark.parametrize("delay_ms", [at_once, jitter(), stalls()], ids=["at once", "jitter", "stalls"])
def test_what_was_heard_is_what_history_says(service: Service, delay_ms: Delay) -> None:
    with coded_calling(service, delay_ms=delay_ms) as caller:
        response = ask(caller)
        caller.hear_out(response)
        words = caller.words()
        caller.send("conversation.item.retrieve", item_id=caller.item_of(response))
        item = caller.until("conversation.item.retrieved")["item"]
        created = caller.events[0]
    heard = wholly_heard(words, response)
    assert heard == list(range(WORDS))
    assert not any(word.repeated_samples for word in words)
    assert numbers(item["content"][0]["transcript"]) == heard
    assert numbers(stored_items(service, created)[caller.item_of(response)].content) == heard


def test_what_was_flushed_was_not_heard(service: Service) -> None:
    """The caller hears nothing behind the cut, however much of it had come."""
    with coded_calling(service, delay_ms=jitter()) as caller:
        response = ask(caller)
        caller.until("response.output_audio.delta")
        caller.listen_for(900)
        caller.send("response.cancel")
        caller.until("response.done")
        heard = wholly_heard(caller.words(), response)
    assert heard == list(range(len(heard)))
    assert 2 <= len(heard) < WORDS


def test_the_track_of_a_browser_is_heard_as_well(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await caller.hear_frames(10)
            await caller.ask("Tell me everything.")
            response = (await caller.until("response.created"))["response"]["id"]
            stopped = await caller.until("output_audio_buffer.stopped")
            await caller.hear_frames(15)
            item_id = (await caller.until("response.done"))["response"]["output"][0]["id"]
            caller.send("conversation.item.retrieve", item_id=item_id)
            item = (await caller.until("conversation.item.retrieved"))["item"]
            words = words_heard(caller.sound(), RTC_RATE)
            assert stopped["response_id"] == response
            assert wholly_heard(words, response) == list(range(WORDS))
            assert numbers(item["content"][0]["transcript"]) == list(range(WORDS))

    asyncio.run(run())
