"""Who may have a session, and the responses of a client that comes back: ended once, drained when every stage has let
go of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.effects import Tell
from sessions.events import ResponseDrained, ResponseLost
from sessions.response import Deadlines
from sessions.takeover import FORGOTTEN_MAX, Takeover, is_believable, is_outdated, is_overtaken

STAGES = ("encoder", "thinker", "vocoder")
MS = 1_000_000
DEADLINES = Deadlines(drain_ns_max=500 * MS)


def drained(response: str, status: str, lag_ms: float) -> Tell:
    return Tell(ResponseDrained(response, status, lag_ms, ()))


@pytest.mark.parametrize(
    ("seen", "is_there", "expected"), [(4, True, True), (4, False, False), (5, True, False), (0, True, False)]
)
def test_a_request_from_before_the_owner_that_has_the_client_is_outdated(
    seen: int, is_there: bool, expected: bool
) -> None:
    assert is_outdated(seen, 5, is_there=is_there) is expected


@pytest.mark.parametrize("seen", [0, 5, 5 + FORGOTTEN_MAX])
def test_a_store_may_have_forgotten_a_few_owners_and_no_more(seen: int) -> None:
    assert is_believable(seen, 5)
    assert not is_believable(5 + FORGOTTEN_MAX + 1, 5)


@pytest.mark.parametrize(("fence", "present", "expected"), [(2, 3, True), (3, 2, False), (3, 3, False)])
def test_who_took_a_session_over_before_its_present_owner_did_has_lost_it(
    fence: int, present: int, expected: bool
) -> None:
    assert is_overtaken(fence, present) is expected


def test_each_is_ended_when_the_client_is_there_and_drains_with_the_last_stage() -> None:
    one = Takeover(["resp_1", "resp_2", "resp_1"], STAGES, DEADLINES)
    assert one.next_deadline_ns() is None
    assert one.opened("encoder", 0) == []
    assert one.tell(1 * MS) == [Tell(ResponseLost("resp_1")), Tell(ResponseLost("resp_2"))]
    assert one.opened("thinker", 2 * MS) == []
    assert one.tick(500 * MS) == []
    assert one.opened("vocoder", 5 * MS) == [drained("resp_1", "complete", 4.0), drained("resp_2", "complete", 4.0)]
    assert one.next_deadline_ns() is None
    assert one.opened("vocoder", 6 * MS) == []


def test_what_the_stages_let_go_of_before_the_client_was_there_drains_at_once() -> None:
    one = Takeover(["resp_1"], STAGES, DEADLINES)
    for stage in STAGES:
        assert one.opened(stage, 0) == []
    assert one.tell(3 * MS) == [Tell(ResponseLost("resp_1")), drained("resp_1", "complete", 0.0)]


def test_a_stage_that_says_nothing_leaves_them_orphaned() -> None:
    one = Takeover(["resp_1"], STAGES, DEADLINES)
    one.tell(1 * MS)
    assert one.next_deadline_ns() == 501 * MS
    assert one.tick(501 * MS) == [drained("resp_1", "orphaned", 500.0)]
    for stage in STAGES:
        assert one.opened(stage, 502 * MS) == []
    assert one.tick(9_000 * MS) == []


def test_a_client_that_holds_nothing_open_is_told_nothing() -> None:
    one = Takeover([], STAGES)
    assert one.tell(0) == []
    assert [one.opened(stage, 1) for stage in STAGES] == [[], [], []]
    assert one.tick(10**12) == []


@given(st.lists(st.sampled_from(["tell", "tick", *STAGES]), max_size=12))
def test_in_any_order_each_ends_once_and_drains_once_after_that(deeds: list[str]) -> None:
    one, said, told = Takeover(["resp_1"], STAGES, DEADLINES), list[object](), False
    for now_ns, deed in enumerate(deeds):
        if deed == "tell" and not told:
            told, effects = True, one.tell(now_ns)
        elif deed == "tell":
            continue
        else:
            effects = one.tick(now_ns + 10**12) if deed == "tick" else one.opened(deed, now_ns)
        said += [type(effect.event) for effect in effects]
    assert said == [ResponseLost, ResponseDrained][: len(said)]
    assert bool(said) == told
