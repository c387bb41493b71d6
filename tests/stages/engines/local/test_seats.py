"""One step at a time in a slot, responses first, and the spare forgets."""

from __future__ import annotations

from stages.engines.local.kv_slot import Slot
from stages.engines.local.seats import SessionSeat, SpareSeat, Turns
from stages.kv_cache import KvCache, KvLimits


def cache(slots: int = 1) -> KvCache[Slot]:
    kv = KvCache(KvLimits(slots), Slot)
    for session in "st":
        kv.open(session)
    return kv


def test_a_slot_has_one_step_at_a_time() -> None:
    kv, turns = cache(), Turns()
    one, other = (SessionSeat(kv, turns, "s", ahead=True) for _ in range(2))
    slot = one.take()
    assert slot is not None
    assert one.take() is slot
    assert other.take() is None
    other.leave()
    assert one.is_taken
    one.step_over()
    assert other.take() is slot


def test_what_a_step_has_read_is_told_once() -> None:
    kv = cache()
    seat = SessionSeat(kv, Turns(), "s", ahead=False)
    slot = seat.take()
    assert slot is not None
    slot.tokens, slot.read = 40, 40
    seat.step_over()
    seat.leave()
    assert kv.statistics().tokens == 40
    assert slot.take_read() == 0


def test_who_reads_ahead_waits_for_the_responses_of_its_session() -> None:
    kv, turns = cache(), Turns(responses=1)
    ahead = SessionSeat(kv, turns, "s", ahead=True)
    assert ahead.take() is None
    turns.responses = 0
    assert ahead.take() is not None
    turns.responses = 1
    assert ahead.take() is None, "what was planned before the response came is given up"
    assert SessionSeat(kv, turns, "s", ahead=False).take() is not None


def test_there_may_be_no_slot() -> None:
    kv = cache()
    first, second = SessionSeat(kv, Turns(), "s", ahead=False), SessionSeat(kv, Turns(), "t", ahead=False)
    assert first.take() is not None
    assert second.take() is None
    assert not second.is_taken
    first.leave()
    assert second.take() is not None


def test_the_spare_forgets_when_another_stream_takes_it() -> None:
    slot, turns = Slot(0), Turns()
    one, other = SpareSeat(slot, turns), SpareSeat(slot, turns)
    assert one.take() is slot
    slot.text = "mine"
    assert other.take() is None
    other.leave()
    assert one.is_taken
    one.step_over()
    assert one.take() is slot
    assert slot.begin("mine and more")
    one.leave()
    assert other.take() is slot
    assert not slot.begin("mine and more")
