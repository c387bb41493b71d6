"""Who of those that came in may stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.lobby import GREETING_MS_MAX, LINKS_MAX, UNGREETED_MAX, Lobby

TIME_NS = GREETING_MS_MAX * 1_000_000


def test_who_does_not_greet_goes_when_its_time_is_over() -> None:
    lobby: Lobby[str] = Lobby()
    assert [lobby.entered(name, now_ns) for name, now_ns in (("a", 0), ("b", 1), ("c", 2))] == [None] * 3
    lobby.greeted("b")
    assert lobby.next_due_ns == TIME_NS
    assert lobby.overdue(TIME_NS - 1) == []
    assert lobby.overdue(TIME_NS) == [("a", f"no greeting came within {GREETING_MS_MAX} ms")]
    assert lobby.next_due_ns == TIME_NS + 2
    lobby.left("c")
    assert lobby.overdue(2 * TIME_NS) == []
    assert lobby.next_due_ns is None


def test_the_first_of_too_many_that_wait_goes_for_the_last() -> None:
    lobby: Lobby[int] = Lobby()
    assert [lobby.entered(number, number) for number in range(UNGREETED_MAX)] == [None] * UNGREETED_MAX
    dismissed = lobby.entered(UNGREETED_MAX, UNGREETED_MAX)
    assert dismissed is not None
    assert dismissed[0] == 0
    assert lobby.next_due_ns == 1 + TIME_NS


def test_there_is_an_end_to_links_that_have_greeted_too_and_who_leaves_makes_room() -> None:
    lobby: Lobby[int] = Lobby()
    for number in range(LINKS_MAX):
        assert lobby.entered(number, 0) is None
        lobby.greeted(number)
    dismissed = lobby.entered(LINKS_MAX, 0)
    assert dismissed is not None
    assert dismissed[0] == LINKS_MAX
    assert lobby.next_due_ns is None
    lobby.left(7)
    assert lobby.entered(LINKS_MAX + 1, 0) is None


def test_who_was_dismissed_and_greets_after_all_is_not_counted() -> None:
    lobby: Lobby[int] = Lobby()
    for number in range(2 * LINKS_MAX):
        lobby.entered(number, 0)
        lobby.overdue(TIME_NS)
        lobby.greeted(number)
    assert lobby.entered(-1, 0) is None


@given(
    st.lists(st.tuples(st.sampled_from(["entered", "greeted", "left", "overdue"]), st.integers(0, 600)), max_size=99)
)
def test_nobody_is_dismissed_twice_and_nobody_who_greeted_in_time(moves: list[tuple[str, int]]) -> None:
    lobby: Lobby[int] = Lobby()
    waiting: dict[int, int] = {}
    now_ns = 0
    for what, number in moves:
        now_ns += 1 + number * 10_000_000
        if what == "entered":
            assert lobby.entered(now_ns, now_ns) is None
            waiting[now_ns] = now_ns + TIME_NS
        elif what == "overdue":
            late = [link for link, due_ns in waiting.items() if due_ns <= now_ns]
            assert [link for link, _ in lobby.overdue(now_ns)] == late
            waiting = {link: due_ns for link, due_ns in waiting.items() if link not in late}
        elif waiting:
            link = list(waiting)[number % len(waiting)]
            (lobby.greeted if what == "greeted" else lobby.left)(link)
            del waiting[link]
        assert lobby.next_due_ns == min(waiting.values(), default=None)
