"""A call that lasts for hours holds no more than one that has just filled what is bounded."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc

import pytest

from duplex.realtime.connection import Outbox
from duplex.realtime.dialect import RealtimeDialect
from sessions import items
from sessions.items import Item
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.store import LogLimits
from stages.contracts import AudioOut, Tag, TextDelta, TextDone, Transcript, Word, WordTimes
from stages.messages import Closed, Open, Opened, Published
from tests.duplex import test_call
from tests.duplex.test_call import NS_PER_S, Bench, play, silence, tone

pytestmark = pytest.mark.slow

HISTORY = 24  # items, in place of the usual hundreds, which would take an hour to be filled
LINE = ("talker", "vocoder", "thinker")
WARM_TURNS, TURNS = 40, 60
S_MAX = 60  # every allocation is traced
KEPT_BYTES_MAX = 32  # of each turn; a set of the ids of its responses would keep twice that


def opened_last(one: Bench, stage: str) -> Tag:
    return [frame.tag for frame in one.at(stage) if isinstance(frame, Open)][-1]


async def held_bytes(one: Bench) -> int:
    """All that the process has allocated and not freed; without what the interpreter keeps of looked up attributes."""
    assert await one.journal.flush(NS_PER_S)
    gc.collect()
    sys._clear_type_cache()
    return tracemalloc.get_traced_memory()[0]


async def take_all(one: Bench, outbox: Outbox) -> None:
    """The client takes what there is, frame by frame."""
    while outbox.waiting:
        await outbox.next()
        one.call.pace(time.monotonic_ns())


async def turn(one: Bench, outbox: Outbox, number: int) -> None:
    """The caller speaks, is understood and answered. Every third reply is cut short, before every fifth he types."""
    call, talk = one.call, one.call.conversation
    if number % 5 == 0:
        call.carry_out(talk.create_item(Item(f"typed_{number}", "user", "Well?", spoken=False), None))
    await call.listening.hear(silence(40) + tone(96) + silence(160))
    heard = opened_last(one, "encoder")
    call.frame("encoder", Published(heard, Transcript(f"Question {number}.", 32_000, settled=True, final=True)))
    call.frame("encoder", Closed(heard, "finished", {}))
    if not talk.speaking.active:
        call.carry_out(talk.create_response(ResponseSpec(), 0))
    tag = opened_last(one, "talker")
    for stage in LINE:
        call.frame(stage, Opened(tag))
    call.frame("thinker", Published(tag, TextDelta(f"Answer {number}.")))
    words = (Word("Answer", 0, 240), Word(f"{number}.", 240, 480))
    call.frame("talker", Published(tag, WordTimes(0, 24_000, words)))
    call.frame("vocoder", Published(tag, AudioOut(0, 24_000, 0, bytes(960), number % 3 > 0)))
    if number % 3 == 0:
        call.carry_out(talk.cancel_response(None, 0))
    else:
        call.frame("thinker", Published(tag, TextDone("", "stop", 7, 3, 5)))
    await take_all(one, outbox)
    for stage in LINE:
        call.frame(stage, Closed(tag, "finished", {}))
    await take_all(one, outbox)
    assert not talk.speaking.undrained
    one.log.clear()


def test_pipecat_docs_1049_nothing_grows_with_the_length_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "ITEMS_MAX", HISTORY)
    monkeypatch.setattr(test_call, "S_MAX", S_MAX)

    async def scenario(one: Bench) -> None:
        outbox = Outbox(RealtimeDialect(one._new_id, extensions=True))
        one.call.attach(outbox)
        for number in range(WARM_TURNS + TURNS):
            if number == WARM_TURNS:
                before = await held_bytes(one)
            await turn(one, outbox, number)
        assert len(one.call.conversation.items) == HISTORY
        assert await held_bytes(one) - before < TURNS * KEPT_BYTES_MAX

    tracemalloc.start()
    try:
        # Sound comes much faster than it is spoken: what is said to the last reply would be over before that is heard.
        detection = TurnDetection(create_response=False, interrupt_response=False, silence_duration_ms=100)
        play(scenario, SessionSettings(turn_detection=detection), LogLimits(compact_entries=8, entries_max=32))
    finally:
        tracemalloc.stop()
