"""When a caller who says nothing is spoken to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.events import CallerIdle
from sessions.idle import IN_A_ROW_MAX, OBJECTION_NS, IdlePrompts
from sessions.settings import INPUT_RATE

MS = 1_000_000
TIMEOUT_MS = 6_000


def after_a_reply(since_ms: int = 1_000, *, leaves: bool = False) -> IdlePrompts:
    """Silent since then."""
    idle = IdlePrompts(leaves=leaves)
    idle.reply_ended(can_speak=True)
    idle.silent_since(since_ms * MS)
    return idle


def test_a_silence_after_a_reply_lasts_so_long() -> None:
    assert after_a_reply().due_ns(TIMEOUT_MS) == 7_000 * MS
    assert after_a_reply().due_ns(None) is None


def test_nobody_is_prompted_who_was_never_spoken_to() -> None:
    idle = IdlePrompts()
    idle.silent_since(0)
    assert idle.due_ns(TIMEOUT_MS) is None


def test_nobody_is_prompted_where_something_is_broken() -> None:
    idle = after_a_reply()
    idle.reply_ended(can_speak=False)
    assert idle.due_ns(TIMEOUT_MS) is None


def test_a_silence_goes_on_until_it_is_disturbed() -> None:
    idle = after_a_reply()
    idle.silent_since(3_000 * MS)
    assert idle.since_ns == 1_000 * MS
    idle.disturbed()
    assert idle.due_ns(TIMEOUT_MS) is None
    idle.silent_since(3_000 * MS)
    assert idle.due_ns(TIMEOUT_MS) == 9_000 * MS


def test_what_still_sounds_puts_the_silence_off() -> None:
    idle = after_a_reply()
    idle.put_off(1_500 * MS)
    idle.put_off(1_200 * MS)
    assert idle.since_ns == 1_500 * MS
    idle.disturbed()
    idle.put_off(2_000 * MS)
    assert idle.since_ns is None


def test_only_so_many_prompts_follow_each_other() -> None:
    idle = after_a_reply()
    for _ in range(IN_A_ROW_MAX):
        assert idle.due_ns(TIMEOUT_MS) is not None
        idle.prompted()
        assert idle.due_ns(TIMEOUT_MS) is None, "the prompt is being made"
        idle.reply_ended(can_speak=True)
        idle.silent_since(9_000 * MS)
    assert idle.due_ns(TIMEOUT_MS) is None
    idle.caller_is_there()
    assert idle.due_ns(TIMEOUT_MS) == 15_000 * MS


def is_answered(idle: IdlePrompts, since_ms: int, *, can_speak: bool = True) -> None:
    """What was just prompted has been said."""
    idle.prompted()
    idle.reply_ended(can_speak=can_speak)
    idle.silent_since(since_ms * MS)


def test_behind_the_last_prompt_goodbye_is_said_and_then_it_is_the_end() -> None:
    idle = after_a_reply(leaves=True)
    for _ in range(IN_A_ROW_MAX):
        assert idle.step == "prompt"
        is_answered(idle, 9_000)
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("goodbye", 15_000 * MS)
    assert idle.due_ns(None) is None
    is_answered(idle, 20_000)
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("end", 20_000 * MS + OBJECTION_NS)
    idle.caller_is_there()
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("prompt", 26_000 * MS)


def test_a_caller_who_cannot_be_prompted_is_left_when_the_prompts_would_be_over() -> None:
    idle = IdlePrompts(leaves=True)
    idle.silent_since(0)
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("goodbye", (IN_A_ROW_MAX + 1) * TIMEOUT_MS * MS)
    is_answered(idle, 30_000, can_speak=False)
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("end", 30_000 * MS + OBJECTION_NS)
    idle = after_a_reply(leaves=True)
    is_answered(idle, 9_000, can_speak=False)
    assert (idle.step, idle.due_ns(TIMEOUT_MS)) == ("goodbye", (9_000 + IN_A_ROW_MAX * TIMEOUT_MS) * MS)


EVENTS = ("reply", "failure", "disturbed", "silent", "put off", "caller", "prompt")


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_a_prompt_comes_only_after_so_long_a_silence_and_never_too_often(events: list[str]) -> None:
    idle, now_ns, in_a_row = IdlePrompts(), 0, 0
    silent_ns: int | None = None
    for event in events:
        now_ns += 500 * MS
        match event:
            case "reply" | "failure":
                idle.reply_ended(can_speak=event == "reply")
            case "disturbed":
                idle.disturbed()
                silent_ns = None
            case "silent":
                idle.silent_since(now_ns)
                silent_ns = now_ns if silent_ns is None else silent_ns
            case "put off":
                idle.put_off(now_ns)
            case "caller":
                idle.caller_is_there()
                in_a_row = 0
            case _:
                due_ns = idle.due_ns(1_000)
                if due_ns is not None and now_ns >= due_ns:
                    assert silent_ns is not None
                    assert now_ns - silent_ns >= 1_000 * MS
                    idle.prompted()
                    silent_ns, in_a_row = None, in_a_row + 1
        assert in_a_row <= IN_A_ROW_MAX


def test_the_silence_is_told_in_the_inputs_time() -> None:
    idle = IdlePrompts()
    idle.silent_since(1_000 * MS)
    assert idle.silence("item_1", 5 * INPUT_RATE, 3_000 * MS) == CallerIdle("item_1", 3_000, 5_000)
    assert idle.silence("item_1", INPUT_RATE, 3_000 * MS) == CallerIdle("item_1", 0, 1_000), "no earlier than the input"
