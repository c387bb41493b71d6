"""How long things have been waiting, as far as looking at them tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.waits import Waits


def test_a_wait_begins_at_the_first_look_that_finds_it() -> None:
    waits = Waits[str]()
    assert waits.look({"a": 1}, 100) == {"a": 0}
    assert waits.look({"a": 1, "b": 7}, 130) == {"a": 30, "b": 0}
    assert waits.look({"a": 1, "b": 7}, 200) == {"a": 100, "b": 70}


def test_who_gets_on_begins_anew() -> None:
    waits = Waits[str]()
    waits.look({"a": 1}, 100)
    assert waits.look({"a": 2}, 130) == {"a": 0}
    assert waits.look({"a": 2}, 150) == {"a": 20}


def test_who_ceases_to_wait_is_forgotten() -> None:
    waits = Waits[str]()
    waits.look({"a": 1}, 100)
    assert waits.look({}, 130) == {}
    assert waits.look({"a": 1}, 150) == {"a": 0}


@given(st.lists(st.tuples(st.integers(0, 50), st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))), max_size=20))
def test_a_wait_is_never_told_too_long(looks: list[tuple[int, dict[str, int]]]) -> None:
    waits, now_ns = Waits[str](), 0
    since: dict[str, tuple[int, int]] = {}
    for passed_ns, waiting in looks:
        now_ns += passed_ns
        since = {
            name: since[name] if name in since and since[name][0] == progress else (progress, now_ns)
            for name, progress in waiting.items()
        }
        assert waits.look(waiting, now_ns) == {name: now_ns - began_ns for name, (_, began_ns) in since.items()}
