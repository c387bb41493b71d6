"""Telephone calls over a real loopback WebSocket, with a clock that waits for the exchange and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadtest.caller import Clock
from loadtest.carriers import phone_ear
from loadtest.carriers.doors import AsteriskDoor, TelnyxDoor, TwilioDoor
from loadtest.carriers.effects import Cleared
from loadtest.carriers.phone_call import KEY_GAP_MS, Door, PhoneCall, PhonePlan
from loadtest.carriers.phone_ear import REPLY_PAUSE_MS
from loadtest.carriers.unruly_line import Fault, Habits
from loadtest.errors import Unreachable
from loadtest.timeline import CallPlan
from loadtest.turns import CallOutcome, CallResult, TurnOutcome
from media.chunk import samples_to_ms
from tests.loadtest.carriers.scripted_service import Kind, Script, ScriptedService, serving
from tests.loadtest.link import utterances
from tests.loadtest.lockstep import LockstepClock

DOORS: dict[Kind, Callable[[str], Door]] = {"twilio": TwilioDoor, "telnyx": TelnyxDoor, "asterisk": AsteriskDoor}


class Placed:
    """A call to its end."""

    def __init__(self, service: ScriptedService, plan: PhonePlan, stop_after_frames: int | None = None) -> None:
        self.service = service
        self.progress: list[str] = []
        self.call = asyncio.run(self._place(plan, stop_after_frames))
        self.result: CallResult = self.call.result()
        self.conversation = service.conversations[0]

    async def _place(self, plan: PhonePlan, stop_after_frames: int | None) -> PhoneCall:
        async with serving(self.service):
            clock: Clock = LockstepClock(self.service, stop_after_frames)
            call = PhoneCall(DOORS[self.service.kind](self.service.url), plan, clock, self.progress.append)
            try:
                await call.run()
            except asyncio.CancelledError:
                self.progress.append("cancelled")
            return call

    @property
    def heard_ms(self) -> int:
        """How much of the recording is no silence."""
        pcm = self.call.recording.pcm
        return samples_to_ms(sum(pcm[at : at + 2] != b"\0\0" for at in range(0, len(pcm), 2)), 8_000)


def talk(*lengths_ms: int, barge_in_after_ms: int | None = None) -> CallPlan:
    said = utterances(*lengths_ms)
    return CallPlan(said, lead_ms=40, think_ms=40, barge_in_after_ms=barge_in_after_ms, turn_timeout_ms=4_000)


@pytest.mark.parametrize("kind", ["twilio", "telnyx", "asterisk"])
def test_two_turns(kind: Kind) -> None:
    placed = Placed(ScriptedService(kind=kind), PhonePlan(talk(100, 100)))

    assert [turn.outcome for turn in placed.result.turns] == [TurnOutcome.ANSWERED] * 2
    assert [turn.heard_ms for turn in placed.result.turns] == [300, 300]
    # The service answers 80 ms of silence, of which 2 ms lie in the frame that ends the speech.
    assert all(80 <= (turn.ttfa_ms or 0) <= 120 for turn in placed.result.turns)
    assert placed.result.went_well
    assert placed.heard_ms == 600
    assert placed.conversation.marks == ["1:2400", "2:2400"]
    assert placed.progress[0] == f"call {placed.result.session_id} is open"
    assert placed.progress[-1] == "call completed"


@pytest.mark.parametrize("kind", ["twilio", "telnyx", "asterisk"])
def test_a_barge_in(kind: Kind) -> None:
    service = ScriptedService(Script((2_000, 300)), kind)
    placed = Placed(service, PhonePlan(talk(100, 200, barge_in_after_ms=200)))

    first, second = placed.result.turns
    assert (first.outcome, first.yielded, second.outcome) == (TurnOutcome.INTERRUPTED, True, TurnOutcome.ANSWERED)
    assert 40 <= (first.barge_in_stop_ms or 0) <= 100
    assert first.heard_ms + first.discarded_ms == first.reply_ms == 2_000
    ((_at_ns, cleared),) = [one for one in placed.call.clears if one[1].samples]
    assert samples_to_ms(cleared.samples, 8_000) == first.discarded_ms
    assert cleared.marks == ("1:16000",)
    assert placed.conversation.marks == (["2:2400"] if kind == "asterisk" else ["1:16000", "2:2400"])


def test_a_service_that_talks_on_has_not_yielded() -> None:
    script = Script((1_000, 300), stops_when_interrupted=False)
    placed = Placed(ScriptedService(script), PhonePlan(talk(100, 100, barge_in_after_ms=200)))

    assert placed.result.turns[0].yielded is False
    assert placed.result.turns[0].heard_ms + placed.result.turns[1].heard_ms == 1_300


def test_a_greeting_is_heard_out_and_belongs_to_no_turn() -> None:
    placed = Placed(ScriptedService(Script(greeting_ms=400)), PhonePlan(talk(100)))

    assert placed.result.unprompted_replies == 1
    assert placed.result.turns[0].outcome is TurnOutcome.ANSWERED
    assert placed.heard_ms == 700
    assert placed.result.duration_ms > 400 + REPLY_PAUSE_MS


def test_keys_and_the_planned_end() -> None:
    plan = PhonePlan(talk(100, 100), keys="5#", keys_after_ms=100, hang_up_after_ms=1_000)
    placed = Placed(ScriptedService(), plan)

    digits = [event for event in placed.conversation.received if event["event"] == "dtmf"]
    assert [event["dtmf"]["digit"] for event in digits] == ["5", "#"]
    chunks = [event["media"]["chunk"] for event in placed.conversation.received if event["event"] == "media"]
    place = [event["event"] for event in placed.conversation.received].index("dtmf")
    assert place == 2 + 5
    assert len(chunks) == 50
    assert KEY_GAP_MS == 300
    assert placed.result.detail == "hung up as planned"
    assert placed.result.turns[1].outcome is TurnOutcome.NOT_SAID
    assert placed.conversation.received[-1]["event"] == "stop"


def test_a_service_that_hangs_up() -> None:
    placed = Placed(ScriptedService(Script(hangs_up=True)), PhonePlan(talk(100, 100)))
    assert placed.result.outcome is CallOutcome.CONNECTION_LOST
    assert "goodbye" in placed.result.detail


def test_asterisk_is_told_to_hang_up() -> None:
    service = ScriptedService(Script(mistake='{"command":"HANGUP"}'), "asterisk")
    placed = Placed(service, PhonePlan(talk(100)))
    assert placed.result.outcome is CallOutcome.CONNECTION_LOST
    assert "the service hung up" in placed.result.detail


@pytest.mark.parametrize(
    ("kind", "mistake", "code"),
    [
        ("twilio", b"\xff" * 160, "31950"),
        ("twilio", '{"event":"clear","streamSid":"MZ0"}', "31951"),
        ("twilio", '{"event":"bye"}', "31924"),
        ("telnyx", '{"event":"bye"}', "100002"),
        ("asterisk", b"\xff" * 100, "the rest of a message"),
    ],
)
def test_what_the_carrier_complains_of_spoils_the_call(kind: Kind, mistake: str | bytes, code: str) -> None:
    placed = Placed(ScriptedService(Script(mistake=mistake), kind), PhonePlan(talk(100)))

    assert [complaint.startswith(code) for complaint in placed.result.complaints] == [True]
    assert placed.result.turns[0].outcome is TurnOutcome.ANSWERED
    assert not placed.result.went_well
    assert f"the carrier complains: {placed.result.complaints[0]}" in placed.progress


def test_what_goes_wrong_on_the_way_is_counted() -> None:
    shares = {Fault.STALL: 0.3, Fault.LOSS: 0.3, Fault.DOUBLE: 0.3, Fault.SWAP: 0.3, Fault.OTHER_STREAM: 0.3}
    habits = Habits(shares, early_sounds=1)

    async def place() -> PhoneCall:
        service = ScriptedService()
        async with serving(service):
            # Frames that are lost settle nothing, so the clock gives up waiting for them.
            plan = PhonePlan(talk(100), hang_up_after_ms=400, habits=habits, seed=3)
            call = PhoneCall(TwilioDoor(service.url), plan, LockstepClock(service, rounds_max=100))
            await call.run()
            return call

    assert all(asyncio.run(place()).played[fault] > 0 for fault in shares)


def test_a_clock_that_is_off_by_a_little_changes_no_call() -> None:
    placed = Placed(ScriptedService(), PhonePlan(talk(100), habits=Habits({}, skew_ppm=200)))
    assert placed.result.went_well
    assert placed.heard_ms == 300


class DozingClock(LockstepClock):
    """Who is not the caller sleeps at once for as long as asked; until when is in `dozed_until_ns`."""

    def __init__(self, service: ScriptedService) -> None:
        super().__init__(service)
        self._caller = asyncio.current_task()
        self.dozed_until_ns: list[int] = []

    async def sleep_until(self, deadline_ns: int) -> None:
        if asyncio.current_task() is self._caller:
            await super().sleep_until(deadline_ns)
        else:
            self.dozed_until_ns.append(deadline_ns - self._now_ns)


def test_a_carrier_that_reads_late_pauses_after_each_message() -> None:
    async def place() -> list[int]:
        service = ScriptedService()
        async with serving(service):
            clock = DozingClock(service)
            plan = PhonePlan(talk(100), habits=Habits({}, read_pause_ms=70))
            await PhoneCall(TwilioDoor(service.url), plan, clock).run()
            return clock.dozed_until_ns

    assert asyncio.run(place()) == [70_000_000] * 2


def test_a_service_that_answers_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phone_ear, "REPLIES_MAX", 1)
    placed = Placed(ScriptedService(), PhonePlan(talk(100, 100)))
    assert placed.result.outcome is CallOutcome.PROTOCOL_VIOLATION


def test_a_call_that_is_stopped_keeps_what_it_measured() -> None:
    placed = Placed(ScriptedService(), PhonePlan(talk(100, 100)), stop_after_frames=30)
    assert placed.result.outcome is CallOutcome.INTERRUPTED_BY_USER
    assert placed.result.turns[0].ttfa_ms is not None
    assert placed.progress[-1] == "cancelled"


def test_no_connection_no_record() -> None:
    call = PhoneCall(TwilioDoor("ws://127.0.0.1:1"), PhonePlan(talk(100)), LockstepClock(ScriptedService()))
    with pytest.raises(Unreachable):
        asyncio.run(call.run())
    assert call.result().turns[0].outcome is TurnOutcome.NOT_SAID
    assert (call.recording.pcm, call.played, list(call.clears)) == (b"", {}, list[tuple[int, Cleared]]())


def test_the_service_is_told_who_calls() -> None:
    placed = Placed(ScriptedService(), PhonePlan(talk(100)))
    start = placed.conversation.received[1]
    assert start["start"]["streamSid"].startswith("MZ")
    assert start["start"]["callSid"] == placed.result.session_id
