"""Sound that its client commits: heard as it comes, from its beginning, however long it is."""

from __future__ import annotations

import asyncio

import pytest

from duplex.encoder_feed import ENCODER_CREDIT_SAMPLES, FEED_SAMPLES_MAX
from duplex.listening import RING_SECONDS
from media.speech_gate import WINDOW_SAMPLES
from sessions import hearing
from sessions.events import CommandRefused
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


@pytest.mark.parametrize("more_s", [0, 1, RING_SECONDS + 5])
@pytest.mark.parametrize("message_ms", [20, 100, 10_000])
def test_a_buffer_that_is_full_keeps_its_beginning_whatever_comes_after(
    message_ms: int, more_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = 2 * INPUT_RATE
    monkeypatch.setattr(hearing, "BUFFER_SAMPLES_MAX", full)

    async def scenario(ears: Ears) -> None:
        sound = tone(1_000) + silence((2 + more_s) * 1_000)
        size = message_ms * 48
        for start in range(0, len(sound), size):
            await ears.listening.hear(sound[start : start + size])
        assert [type(event) for event in ears.events()] == [CommandRefused]
        end = ears.listening.newest
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, end, 0))
        until = full + WINDOW_SAMPLES - full % WINDOW_SAMPLES
        assert ears.span() == (0, until)
        assert ears.told() == [EndOfTurn(until)]
        await ears.listening.hear(tone(300))
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, ears.listening.newest, 0))
        await asyncio.sleep(0)
        assert ears.span(2) == (end, ears.listening.newest)

    play(scenario, manual)


@pytest.mark.parametrize("command", ["clear", "commit", "detect"])
def test_what_another_connection_commands_amid_a_message_harms_nothing(command: str) -> None:
    async def scenario(ears: Ears) -> None:
        hearing_all = asyncio.create_task(ears.listening.hear(tone(10_000)))
        await ears.begun.wait()
        if command == "clear":
            ears.carry_out(ears.talk.clear_input(0))
        elif command == "commit":
            ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, ears.listening.newest, 0))
        else:
            ears.update(SessionSettings())
            ears.update(SessionSettings(turn_detection=None))
        taken = ears.listening.newest
        await hearing_all
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, ears.listening.newest, 0))
        await asyncio.sleep(0)
        assert ears.span(2) == (taken, ears.listening.newest)

    play(scenario, manual)


def test_nothing_is_lost_where_the_format_changes() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(tone(100))
        ears.update(SessionSettings(turn_detection=None, input_format="audio/pcmu"))
        await ears.listening.hear(bytes(8))
        assert ears.listening.newest >= INPUT_RATE // 10

    play(scenario, manual)
