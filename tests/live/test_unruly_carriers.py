"""Carriers that misbehave, before the real service: each call goes on, and history holds what the ear has had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loadtest.caller import MonotonicClock
from loadtest.carriers.doors import AsteriskDoor, TwilioDoor
from loadtest.carriers.phone_call import Door, PhoneCall, PhonePlan
from loadtest.carriers.unruly_line import ORDERLY, Fault, Habits
from loadtest.coded_ear import words_heard
from loadtest.timeline import CallPlan
from loadtest.turns import CallOutcome, TurnOutcome, Utterance
from tests.live.coded import numbers, serving_words
from tests.live.phone import items_of, speaking
from tests.live.service import Service

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 14
RATE = 24_000

HABITS = {
    "orderly": ORDERLY,
    "stalls": Habits({Fault.STALL: 0.3}),
    "reads late": Habits({}, read_pause_ms=10),
    "fast clock": Habits({}, skew_ppm=200),
    "slow clock": Habits({}, skew_ppm=-200),
    "loses": Habits({Fault.LOSS: 0.05}),
    "doubles": Habits({Fault.DOUBLE: 0.05}),
    "swaps": Habits({Fault.SWAP: 0.05}),
    "is early": Habits({}, early_sounds=10),
    "talks nonsense": Habits({Fault.MALFORMED: 0.1, Fault.OTHER_STREAM: 0.1, Fault.BINARY: 0.1}, faults_max=20),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("unruly"), WORDS) as running:
        yield running


def door_of(service: Service, carrier: str) -> Door:
    make = TwilioDoor if carrier == "twilio" else AsteriskDoor
    return make(f"ws://{service.address}")


def said(ms: int) -> Utterance:
    return Utterance.from_pcm(f"{ms} ms", speaking((0, ms))(0, ms * RATE // 1_000, RATE))


def place(service: Service, carrier: str, habits: Habits) -> PhoneCall:
    """One that interrupts a reply, and hears the next to its end."""
    talk = CallPlan((said(700), said(1_200)), lead_ms=300, barge_in_after_ms=1_200, turn_timeout_ms=8_000)
    call = PhoneCall(door_of(service, carrier), PhonePlan(talk, habits=habits, seed=7), MonotonicClock())
    asyncio.run(call.run())
    return call


@pytest.mark.parametrize("carrier", ["twilio", "asterisk"])
@pytest.mark.parametrize("name", HABITS)
def test_history_holds_what_was_heard_whatever_the_carrier_does(service: Service, carrier: str, name: str) -> None:
    since, habits = len(service.lines), HABITS[name]
    call = place(service, carrier, habits)
    result = call.result()

    assert [turn.outcome for turn in result.turns] == [TurnOutcome.INTERRUPTED, TurnOutcome.ANSWERED]
    assert (result.outcome, result.complaints) == (CallOutcome.COMPLETED, ())
    words = words_heard(call.recording.pcm, call.recording.sample_rate)
    replies = list(dict.fromkeys(word.response for word in words))
    heard = [[word.word for word in words if word.response == reply and word.whole] for reply in replies]
    assert [len(one) for one in heard][1:] == [WORDS]
    assert all(one == list(range(len(one))) for one in heard)

    session = service.wait_for_event("phone_call_began", since=since)["session"]
    history = [numbers(item.content.split()) for item in items_of(service, session) if item.role == "assistant"]
    assert history[1] == heard[1]
    assert len(heard[0]) - 1 <= len(history[0]) <= len(heard[0])


@pytest.mark.parametrize("carrier", ["twilio", "asterisk"])
def test_a_message_that_is_too_long_ends_the_call_and_no_other(service: Service, carrier: str) -> None:
    call = place(service, carrier, Habits({Fault.OVERSIZED: 1.0}, faults_max=1))
    assert call.result().outcome is CallOutcome.CONNECTION_LOST
    assert "1009" in call.result().detail
    assert place(service, carrier, ORDERLY).result().went_well
