"""A closed session has left when each stream that it had was answered for, or its worker is gone; told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duplex.leaving_sessions import LeavingSessions, Left
from stages.contracts import Tag

S1, S2 = "sess_1", "sess_2"


def tag(number: int, session: str = S1) -> Tag:
    return Tag(session, 1 << 20, 1, f"resp_{number}")


def leaving(*streams: tuple[Tag, str]) -> LeavingSessions:
    sessions = LeavingSessions()
    for of, replica in streams:
        sessions.leave(of, replica)
    return sessions


def test_a_session_leaves_with_the_last_of_its_streams() -> None:
    sessions = leaving((tag(1), "a"), (tag(2), "b"), (tag(3, S2), "a"))
    assert sessions.let_go(tag(1)) == []
    assert sessions.let_go(tag(1)) == [], "told twice"
    assert S1 in sessions
    assert sessions.let_go(tag(2)) == [Left(S1, audited=False)]
    assert (S1 in sessions, S2 in sessions) == (False, True)
    assert sessions.let_go(tag(2)) == []


def test_streams_that_it_did_not_have_then_are_not_waited_for() -> None:
    sessions = leaving((tag(1), "a"))
    assert sessions.let_go(tag(9)) == []
    assert sessions.let_go(tag(1)) == [Left(S1, audited=False)]


def test_nobody_waits_for_a_worker_that_is_lost() -> None:
    sessions = leaving((tag(1), "a"), (tag(2), "a"), (tag(3), "b"), (tag(4, S2), "a"))
    assert sessions.lost("a") == [Left(S2, audited=False)]
    assert sessions.lost("a") == []
    assert sessions.lost("b") == [Left(S1, audited=False)]


def test_who_is_to_be_audited_is_told_so_once_he_has_left() -> None:
    sessions = leaving((tag(1), "a"))
    sessions.audit(S1)
    assert sessions.let_go(tag(1)) == [Left(S1, audited=True)]
    sessions.leave(tag(2), "a")
    assert sessions.let_go(tag(2)) == [Left(S1, audited=False)], "another time is another"


STREAMS = st.tuples(st.integers(0, 3), st.sampled_from((S1, S2)), st.sampled_from("ab"))
GONE = st.one_of(st.sampled_from("ab"), st.tuples(st.integers(0, 3), st.sampled_from((S1, S2))))


@given(st.sets(STREAMS), st.lists(GONE))
def test_each_session_is_told_once_and_when_nothing_is_waited_for(
    streams: set[tuple[int, str, str]], gone: list[str | tuple[int, str]]
) -> None:
    waits = {tag(number, session): replica for number, session, replica in sorted(streams)}
    sessions = leaving(*waits.items())
    for one in gone:
        before = {of.session for of in waits}
        if isinstance(one, str):
            left = sessions.lost(one)
            waits = {of: replica for of, replica in waits.items() if replica != one}
        else:
            left = sessions.let_go(tag(*one))
            waits.pop(tag(*one), None)
        now = {of.session for of in waits}
        assert sorted(told.session for told in left) == sorted(before - now)
        assert [session in sessions for session in (S1, S2)] == [session in now for session in (S1, S2)]
