"""Sound that stops coming amid a turn: it ends as by silence, unless it is we who have yet to take what has come."""

from __future__ import annotations

import asyncio
import time

from duplex.listening import RING_SECONDS
from media.missing_sound import LATE_NS_MAX, LOOK_NS_MAX
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import InputCommitted, ItemAdded, SpeechStarted, SpeechStopped
from sessions.settings import OUTPUT_RATE
from tests.duplex.test_listening import SECOND_NS, Ears, play, silence, tone

HELD_BACK_NS = 1_000_000  # by the resampler


def wait(ears: Ears, until_ns: int) -> None:
    """Deadlines are kept until then, while no sound comes."""
    for at_ns in range(time.monotonic_ns(), until_ns, LOOK_NS_MAX):
        ears.listening.tick(at_ns)
    ears.listening.tick(until_ns)


STOPPED = silence(500) + tone(600)


def test_sound_that_stops_amid_a_turn_ends_it() -> None:
    async def scenario(ears: Ears) -> None:
        before_ns = time.monotonic_ns()
        await ears.listening.hear(STOPPED)
        said_ns = time.monotonic_ns()
        wait(ears, before_ns + len(STOPPED) // 2 * SECOND_NS // OUTPUT_RATE + LATE_NS_MAX - HELD_BACK_NS)
        assert ears.ends() == [], "it may only be late"
        wait(ears, said_ns + SECOND_NS * 5)
        (end,) = ears.ends()
        assert ears.span()[1] == end.sample == ears.listening.uncommitted_from
        assert [type(event) for event in ears.events()] == [SpeechStarted, SpeechStopped, InputCommitted, ItemAdded]
        wait(ears, said_ns + SECOND_NS * 50)
        assert len(ears.ends()) == 1

    play(scenario)


def test_sound_that_goes_on_later_is_a_turn_of_its_own() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(STOPPED)
        wait(ears, time.monotonic_ns() + SECOND_NS * 5)
        await ears.listening.hear(tone(600) + silence(700))
        assert len(ears.ends()) == 2

    play(scenario)


def test_what_we_have_yet_to_take_is_not_missing() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        flood = asyncio.create_task(ears.listening.hear(silence(500) + tone(RING_SECONDS * 1_000 + 5_000)))
        await ears.until_full()
        wait(ears, time.monotonic_ns() + SECOND_NS * 60)
        assert not flood.done()
        assert not [effect for effect in ears.effects if isinstance(effect, do.StopHearing)]
        ears.listening.drop(ears.fed[0][0])
        await flood
        wait(ears, time.monotonic_ns() + SECOND_NS * 60)
        assert [effect for effect in ears.effects if isinstance(effect, do.StopHearing)]

    play(scenario)


def test_the_last_sound_of_a_turn_came_before_what_is_missing() -> None:
    ended: list[int] = []

    class Timed(Conversation):
        def speech_ended(self, sample: int, speech_end_ns: int, now_ns: int) -> list[do.Effect]:
            ended.append(speech_end_ns)
            return super().speech_ended(sample, speech_end_ns, now_ns)

    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(STOPPED)
        came_ns = time.monotonic_ns()
        wait(ears, came_ns + SECOND_NS * 5)
        assert ended[0] <= came_ns

    play(scenario, lambda: Ears(conversation=Timed))
