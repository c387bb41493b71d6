"""What reading will take is what it has been taking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.prefill_speed import PrefillSpeed

MS = 1_000_000


def test_nothing_is_expected_before_anything_was_read() -> None:
    assert PrefillSpeed().predicted_ns(2_000) == 0


def test_the_first_piece_is_believed() -> None:
    speed = PrefillSpeed()
    speed.observe(20, 160 * MS)
    assert speed.predicted_ns(200) == 1_600 * MS


def test_a_machine_that_has_become_busy_is_noticed_within_a_few_pieces() -> None:
    speed = PrefillSpeed()
    speed.observe(20, 100 * MS)
    for _ in range(5):
        speed.observe(20, 300 * MS)
    assert 1_200 * MS < speed.predicted_ns(100) <= 1_500 * MS


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 10**10)), min_size=1))
def test_a_prediction_lies_between_what_was_seen(seen: list[tuple[int, int]]) -> None:
    speed = PrefillSpeed()
    for tokens, took_ns in seen:
        speed.observe(tokens, took_ns)
    token_ns = [took_ns // tokens for tokens, took_ns in seen]
    assert min(token_ns) <= speed.predicted_ns(1) <= max(token_ns)
