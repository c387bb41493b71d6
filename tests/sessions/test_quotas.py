"""What is left of a tenant's quotas for one call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.quotas import (
    AUDIO_MS_DRAWN,
    BYTES_DRAWN,
    KINDS,
    TOOL_CALLS_DRAWN,
    Allowance,
    Amounts,
    Quotas,
)

ALL = Quotas(audio_seconds_per_day=100, tokens_per_day=1_000, bytes_per_day=1 << 30, tool_calls_per_day=9)


def drawn(allowance: Allowance, **given_: int) -> None:
    wanted = allowance.wanted()
    allowance.drawn(wanted, {kind: given_.get(kind, amount) for kind, amount in wanted.items()})


def test_what_has_no_quota_is_not_counted() -> None:
    one = Allowance(Quotas(sessions=1), 96)
    assert one.wanted() == {}
    for kind in KINDS:
        one.spend(kind, 1 << 40)
    assert one.take("tool_calls")
    assert one.reserve("r", 1 << 40) == "granted"
    one.settle("r", 5)
    assert (one.overdrawn, one.unspent()) == ("", {})


def test_a_slice_is_drawn_when_half_of_it_is_spent() -> None:
    one = Allowance(ALL, 96)
    assert one.wanted() == {
        "audio_ms": AUDIO_MS_DRAWN,
        "tokens": 192,
        "bytes": BYTES_DRAWN,
        "tool_calls": TOOL_CALLS_DRAWN,
    }
    drawn(one)
    assert one.wanted() == {}
    one.spend("audio_ms", AUDIO_MS_DRAWN // 2 - 1)
    assert one.wanted() == {}
    one.spend("audio_ms", 1)
    assert one.wanted() == {"audio_ms": AUDIO_MS_DRAWN // 2}


def test_a_call_is_over_when_its_debt_is_not_covered() -> None:
    one = Allowance(ALL, 96)
    drawn(one)
    one.spend("audio_ms", AUDIO_MS_DRAWN + 10)
    assert one.overdrawn == "", "it may be covered"
    drawn(one, audio_ms=20)
    assert one.overdrawn == "", "it has 10 ms left"
    one.spend("audio_ms", 10)
    assert one.overdrawn == "audio_seconds_per_day"
    drawn(one)
    assert one.overdrawn == "", "the next day has begun"
    one.spend("bytes", BYTES_DRAWN)
    drawn(one, bytes=0)
    assert one.overdrawn == "bytes_per_day"


def test_a_response_waits_for_its_tokens_and_is_refused_where_there_are_none() -> None:
    one = Allowance(ALL, 10)
    assert one.reserve("first", 10) == "waits"
    drawn(one)
    assert one.reserve("first", 10) == one.reserve("first", 10) == "granted"
    assert one.reserve("second", 50) == "waits"
    assert one.wanted() == {"tokens": 90}
    drawn(one, tokens=30)
    assert one.reserve("second", 50) == "refused"
    one.settle("first", 4)
    one.settle("first", 4)
    one.settle("nobody", 4)
    assert one.unspent()["tokens"] == 46
    assert one.reserve("third", 46) == "granted"
    assert one.unspent()["tokens"] == 46, "what was taken for what never ended goes back too"


def test_tools_are_called_while_there_is_room() -> None:
    one = Allowance(Quotas(tool_calls_per_day=1), 10)
    assert not one.take("tool_calls")
    drawn(one, tool_calls=1)
    assert one.take("tool_calls")
    assert not one.take("tool_calls")
    assert one.overdrawn == "", "a call can do without"


@given(
    st.integers(1, 5_000),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["reserve", "settle", "draw"]), st.integers(0, 300)), max_size=60
    ),
)
def test_no_sum_of_calls_ever_samples_more_than_the_quota(quota: int, steps: list[tuple[int, str, int]]) -> None:
    calls = [Allowance(Quotas(tokens_per_day=quota), 96) for _ in range(4)]
    left, sampled, running = quota, 0, dict[tuple[int, int], int]()
    for number, (call, step, tokens) in enumerate(steps):
        one = calls[call]
        if step == "draw":
            wanted = one.wanted()
            got: Amounts = {kind: min(amount, left) for kind, amount in wanted.items()}
            left -= sum(got.values())
            one.drawn(wanted, got)
        elif step == "reserve":
            if one.reserve(str(number), tokens) == "granted":
                running[call, number] = tokens
        elif (mine := next((key for key in running if key[0] == call), None)) is not None:
            used = min(tokens, running.pop(mine))
            sampled += used
            one.settle(str(mine[1]), used)
        assert sampled + sum(running.values()) <= quota
    assert left + sum(one.unspent().get("tokens", 0) for one in calls) + sampled == quota
