"""Shared memory that is full because its reader stands still: who writes waits, nobody else does, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checks import SUCCESS, check_order, check_sound, terminal_of
from tests.chaos.house import WORDS, figure_of, house
from tests.chaos.phases import sounding
from tests.chaos.strike import Blow, Strike
from tests.chaos.table import Table
from tests.live.caller import Caller, calling
from tests.live.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

# Nobody may be replaced for standing still.
PATIENT = {"worker_silence_s": "30"}
TINY = PATIENT | {"arena_blocks": "2", "session_blocks_max": "2"}
SHARED = PATIENT | {"arena_blocks": "3", "session_blocks_max": "2", "replicas_vocoder": "2"}


def wait_until_full(service: Service) -> None:
    """Until the Talker has two blocks with its reader, and waits for one more."""
    used, waiting = figure_of("arena_blocks_used", "talker"), figure_of("room_waiting", "talker")
    service.wait_for_metrics(lambda found: (found[used], found[waiting]) == (2, 1))


def hear_out(caller: Caller, response: str) -> str:
    caller.until(lambda event: event["type"] == "response.drained" and event["response_id"] == response)
    return terminal_of(caller.events, response)


def test_a_full_arena_holds_up_who_writes_and_loses_nothing(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("arena full, its reader stands still")
    with house(tmp_path, TINY) as running:
        service = running.service
        with calling(service) as caller:
            name, since = sounding(caller), len(service.lines)
            with service.stopped("vocoder"):
                wait_until_full(service)
                service.wait_for_event("block_orphaned", since=since)  # late, and still the reader's
                wait_until_full(service)
            row.terminal = hear_out(caller, name)
            check_sound(caller.events, name, words=WORDS)
            check_order(caller)
        assert row.terminal in SUCCESS
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")


def test_what_a_reader_held_when_it_was_killed_is_free_again(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("arena full, its reader is killed")
    with house(tmp_path, TINY) as running:
        service = running.service
        with calling(service) as caller:
            lost = sounding(caller)
            with service.stopped("vocoder"):
                wait_until_full(service)
                strike = Strike(service, "vocoder", Blow.KILL)
            row.terminal = hear_out(caller, lost)
            check_sound(caller.events, lost, words=None)
            following = sounding(caller)
            row.sound_ms = strike.ms_ago()
            assert hear_out(caller, following) in SUCCESS
            check_sound(caller.events, following, words=WORDS)
            row.successor_ms = strike.wait_for_successor()
        assert row.terminal == "failed"
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")


def test_a_session_whose_reader_stands_still_leaves_room_for_the_others(tmp_path: Path, chaos_table: Table) -> None:
    row = chaos_table.begin("arena full for one session, another speaks")
    with house(tmp_path, SHARED) as running:
        service = running.service
        with calling(service) as held_up, calling(service) as other:  # the first goes to the first replica
            waiting = sounding(held_up)
            with service.stopped("vocoder-1"):
                wait_until_full(service)
                speaking = sounding(other)
                assert hear_out(other, speaking) in SUCCESS
                check_sound(other.events, speaking, words=WORDS)
                wait_until_full(service)
            row.terminal = hear_out(held_up, waiting)
            check_sound(held_up.events, waiting, words=WORDS)
        assert row.terminal in SUCCESS
        row.passed("sound")
        running.check_given_back()
        row.passed("given back")
