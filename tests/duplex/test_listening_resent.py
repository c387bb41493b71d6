"""A client that comes back sends again what may not have been understood: it is heard once, at its own place."""

from __future__ import annotations

import pytest

from media.input_offsets import InputGapError, Placed
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import SpeechStarted
from sessions.items import InputSpan, Item
from sessions.planner import Identity, ReplyDefaults
from sessions.settings import SessionSettings
from stages.contracts import EndOfTurn
from tests.duplex.test_listening import Ears, at, play, silence, tone

TAKEN = 3 * 16_000  # of the input, by the owner before
BEFORE = TAKEN * 3 // 2  # the same at the client's rate
LOST = Item("item_lost", "user", "", spoken=True, span=InputSpan(TAKEN, TAKEN + 16_000))
OLDER = Item("item_older", "user", "", spoken=True, span=InputSpan(0, 16_000))


class Restored(Conversation):
    """One that was taken over: of `LOST` the words were awaited."""

    def __init__(self, identity: Identity, settings: SessionSettings, defaults: ReplyDefaults, **kwargs: int) -> None:
        lead_ms = kwargs["transport_lead_ms"]
        super().__init__(identity, settings, defaults, transport_lead_ms=lead_ms, items=(OLDER, LOST), input_from=TAKEN)


def restored() -> Ears:
    return Ears(conversation=Restored)


SPOKEN = silence(400) + tone(700) + silence(800)


def onsets(ears: Ears) -> list[int]:
    return [event.audio_start_ms for event in ears.events() if isinstance(event, SpeechStarted)]


def test_what_is_sent_again_is_heard_at_its_place_and_what_came_before_is_not() -> None:
    async def scenario(ears: Ears) -> None:
        assert (ears.listening.received_samples, ears.listening.heard_samples) == (BEFORE, 0)
        early = tone(200)
        placed = await ears.listening.hear(early + SPOKEN, BEFORE - len(early) // 2)
        assert placed == Placed(len(early) // 2, 0, BEFORE)

    ears = play(scenario, restored)
    assert onsets(ears) == [pytest.approx(3_400, abs=40)]
    assert ears.span()[0] >= TAKEN
    (end,) = [item for item in ears.told() if isinstance(item, EndOfTurn)]
    assert abs(end.sample - TAKEN - at(1_100)) <= 512
    assert ears.listening.heard_samples == ears.listening.newest - TAKEN


def test_turns_that_come_again_replace_those_without_words() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(SPOKEN, BEFORE)
        await ears.listening.hear(SPOKEN, BEFORE)

    ears = play(scenario, restored)
    assert [effect.item for effect in ears.effects if isinstance(effect, do.SaveDeletion)] == ["item_lost"]
    assert len(onsets(ears)) == 1, "the second time it has been heard"


def test_a_client_that_names_no_place_goes_on_and_replaces_nothing() -> None:
    ears = play(say_twice, restored)
    assert onsets(ears) == [pytest.approx(3_400, abs=40), pytest.approx(5_300, abs=40)]
    assert [item.id for item in ears.talk.items][:2] == ["item_older", "item_lost"]


async def say_twice(ears: Ears) -> None:
    await ears.listening.hear(SPOKEN)
    await ears.listening.hear(SPOKEN)


def test_a_client_that_has_kept_less_begins_behind() -> None:
    async def scenario(ears: Ears) -> None:
        placed = await ears.listening.hear(SPOKEN, BEFORE + 60 * 24_000)
        assert placed.gap == 60 * 24_000
        assert ears.listening.oldest == TAKEN + 60 * 16_000

    ears = play(scenario, restored)
    assert onsets(ears) == [pytest.approx(63_400, abs=40)]
    assert LOST in ears.talk.items, "it has not come again"


def test_what_is_left_out_amid_the_input_is_silence() -> None:
    async def scenario(ears: Ears) -> None:
        said = silence(400) + tone(700)
        await ears.listening.hear(said)
        placed = await ears.listening.hear(tone(100), len(said) // 2 + 24_000)
        assert placed.gap == 24_000
        before = ears.listening.received_samples
        with pytest.raises(InputGapError):
            await ears.listening.hear(tone(100), before + 21 * 24_000)
        assert ears.listening.received_samples == before

    ears = play(scenario)
    assert len(ears.ends()) == 1, "it has ended the turn"


def test_half_a_sample_is_forgotten_where_another_place_is_named() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(b"\x01\x02\x03")
        await ears.listening.hear(b"\x05\x06", 2)
        assert ears.listening.received_samples == 3

    play(scenario)
