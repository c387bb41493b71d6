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
TOO_LARGE = "message_too_large"

NONSENSE = {Fault.MALFORMED: 0.1, Fault.OTHER_STREAM: 0.1, Fault.BINARY: 0.1}
HABITS = {
    "orderly": ORDERLY,
    "reads late": Habits({}, read_pause_ms=10),
    "fast clock, stalls, nonsense": Habits(NONSENSE | {Fault.STALL: 0.3}, skew_ppm=200, faults_max=20),
    "slow clock, loses, doubles, swaps": Habits(
        {Fault.LOSS: 0.05, Fault.DOUBLE: 0.05, Fault.SWAP: 0.05}, skew_ppm=-200
    ),
}
EARLY = Habits({}, early_sounds=10)
DOORS = {"twilio": TwilioDoor, "asterisk": AsteriskDoor}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("unruly"), WORDS) as running:
        yield running


def said(ms: int) -> Utterance:
    return Utterance.from_pcm(f"{ms} ms", speaking((0, ms))(0, ms * RATE // 1_000, RATE))


def call_of(service: Service, carrier: str, habits: Habits) -> PhoneCall:
    """One that interrupts a reply, and hears the next to its end."""
    talk = CallPlan((said(700), said(1_200)), lead_ms=300, barge_in_after_ms=1_200, turn_timeout_ms=8_000)
    door: Door = DOORS[carrier](f"ws://{service.address}")
    return PhoneCall(door, PhonePlan(talk, habits=habits, seed=7), MonotonicClock())


def place(*calls: PhoneCall) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(call.run() for call in calls))

    asyncio.run(all_at_once())


def session_of(service: Service, call: PhoneCall, since: int) -> str:
    name = call.result().session_id
    session: str = service.wait_for_event("phone_call_began", since=since, call=name)["session"]
    return session


def check(service: Service, call: PhoneCall, since: int) -> None:
    """That all turns were as planned, and that history is what was heard."""
    result = call.result()
    assert [turn.outcome for turn in result.turns] == [TurnOutcome.INTERRUPTED, TurnOutcome.ANSWERED]
    assert (result.outcome, result.complaints) == (CallOutcome.COMPLETED, ())
    words = words_heard(call.recording.pcm, call.recording.sample_rate)
    replies = list(dict.fromkeys(word.response for word in words))
    heard = [[word.word for word in words if word.response == reply and word.whole] for reply in replies]
    assert [len(one) for one in heard][1:] == [WORDS]
    assert all(one == list(range(len(one))) for one in heard)

    session = session_of(service, call, since)
    history = [numbers(item.content.split()) for item in items_of(service, session) if item.role == "assistant"]
    assert history[1] == heard[1]
    assert len(heard[0]) - 1 <= len(history[0]) <= len(heard[0])


@pytest.mark.parametrize("name", HABITS)
def test_history_holds_what_was_heard_whatever_the_carriers_do(service: Service, name: str) -> None:
    since, calls = len(service.lines), [call_of(service, carrier, HABITS[name]) for carrier in DOORS]
    place(*calls)
    for call in calls:
        check(service, call, since)
        at_all = {*(Fault.STALL, Fault.LOSS, Fault.DOUBLE, Fault.SWAP), Fault.MALFORMED}
        expected = HABITS[name].shares.keys() & (at_all if call is calls[1] else set(Fault))
        assert call.played.keys() == expected
    twilios = 'duplex_phone_chunks_misplaced_total{carrier="twilio",what='
    for fault, whats in ((Fault.LOSS, ("lost",)), (Fault.SWAP, ("late", "reordered")), (Fault.DOUBLE, ("doubled",))):
        assert sum(service.metric(f'{twilios}"{what}"}}') for what in whats) >= calls[0].played.get(fault, 0)


def test_asterisk_1712_sound_before_the_start_is_passed_over_at_twilio_and_kept_at_asterisk(service: Service) -> None:
    since, calls = len(service.lines), [call_of(service, carrier, EARLY) for carrier in DOORS]
    place(*calls)
    service.wait_for_event("carrier_fault", since=since, carrier="twilio", code="out_of_order")
    for call in calls:
        check(service, call, since)


def test_a_message_that_is_too_long_ends_the_call_and_no_other(service: Service) -> None:
    since, oversized = len(service.lines), Habits({Fault.OVERSIZED: 1.0}, faults_max=1)
    calls = [call_of(service, carrier, oversized) for carrier in DOORS]
    unharmed = call_of(service, "twilio", ORDERLY)
    place(*calls, unharmed)
    assert [call.result().outcome for call in calls] == [CallOutcome.CONNECTION_LOST] * 2
    for call in calls:
        service.wait_for_event("call_ended", since=since, session=session_of(service, call, since), reason=TOO_LARGE)
    check(service, unharmed, since)
