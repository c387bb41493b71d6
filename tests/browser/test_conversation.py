"""`conversation.js` on a clock of the test's own: what is shown, and the figures of a turn."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = [pytest.mark.live, pytest.mark.slow]

# Lets a reply be heard from 1,000 ms on, then applies steps [moment, event], or [moment, method, ...arguments].
PLAY = """
async (steps) => {
  const { Conversation } = await import("/web/conversation.js");
  const talk = new Conversation();
  const begun = { type: "response.created", response: { id: "resp_1" } };
  const said = { type: "response.output_audio_transcript.delta", item_id: "item_1", delta: "Once upon a time" };
  for (const event of [begun, said, { type: "output_audio_buffer.started" }]) talk.apply(event, 900);
  talk.replyAudible(1000);
  for (const [now, what, ...given] of steps) {
    if (typeof what === "string") talk[what](...given);
    else talk.apply(what, now);
  }
  const { status, figures } = talk.lines.find((line) => line.id === "item_1");
  return { status, figures, activity: talk.activity };
}
"""
BEGAN = {"type": "input_audio_buffer.speech_started", "item_id": "item_2"}
CLEARED = {"type": "output_audio_buffer.cleared"}


def ended(reason: str) -> dict[str, Any]:
    item = {"id": "item_1", "content": [{"transcript": "Once upon"}]}
    details = {"type": "cancelled", "reason": reason}
    response = {"id": "resp_1", "status": "cancelled", "status_details": details, "output": [item]}
    return {"type": "response.done", "response": response}


def test_the_time_to_silence_runs_from_the_sound_that_interrupted(page: Page) -> None:
    placed_at_once = [[2_000, BEGAN], [2_001, "speechBegan", 1_840, 2_001], [2_005, ended("turn_detected")]]
    placed_late = [[2_000, BEGAN], [2_005, ended("turn_detected")], [2_090, "speechBegan", 1_840, 2_090]]
    for steps in (placed_at_once, placed_late):
        shown = page.evaluate(PLAY, [*steps, [2_006, CLEARED], [2_140, "fellSilent", 2_100]])
        assert shown == {"status": "cut", "figures": {"stop": 260}, "activity": "interrupted"}


def test_where_that_sound_cannot_be_placed_it_runs_from_its_event(page: Page) -> None:
    steps = [[2_000, BEGAN], [2_050, ended("turn_detected")], [2_051, CLEARED], [2_140, "fellSilent", 2_100]]
    assert page.evaluate(PLAY, steps)["figures"] == {"stop": 100}


def test_or_from_the_press_of_the_button(page: Page) -> None:
    steps = [[2_000, "stopPressed", 2_000], [2_060, ended("client_cancelled")], [2_140, "fellSilent", 2_100]]
    assert page.evaluate(PLAY, steps)["figures"] == {"stop": 100}


HELD = {"type": "turn.held", "audio_start_ms": 0}
RESUMED = {"type": "turn.resumed", "reason": "noise"}


@pytest.mark.parametrize(
    ("steps", "activity"),
    [
        ([[2_000, HELD], [2_249, "follow", 2_249]], "speaking"),
        ([[2_000, HELD], [2_250, "follow", 2_250]], "held"),
        ([[2_000, HELD], [2_200, RESUMED], [2_300, "follow", 2_300]], "speaking"),
        ([[2_000, HELD], [2_300, "follow", 2_300], [2_400, RESUMED]], "speaking"),
        ([[2_000, HELD], [2_300, "follow", 2_300], [2_400, BEGAN]], "hearing"),
        ([[2_000, HELD], [2_300, "follow", 2_300], [2_400, {"type": "output_audio_buffer.stopped"}]], "listening"),
    ],
    ids=["short", "lasting", "over before it is shown", "goes on", "an interruption", "over"],
)
def test_a_hold_is_shown_once_it_lasts(page: Page, steps: list[Any], activity: str) -> None:
    assert page.evaluate(PLAY, steps)["activity"] == activity


def test_an_interruption_after_a_hold_counts_from_its_sound(page: Page) -> None:
    held = [[2_000, HELD], [2_300, "follow", 2_300], [2_400, BEGAN], [2_401, "speechBegan", 1_960, 2_401]]
    shown = page.evaluate(
        PLAY, [*held, [2_405, ended("turn_detected")], [2_406, CLEARED], [2_450, "fellSilent", 2_060]]
    )
    assert shown == {"status": "cut", "figures": {"stop": 100}, "activity": "interrupted"}


# What is said around a call, and of the call alone: the lines that are shown.
LINES = """
async (events) => {
  const { Conversation } = await import("/web/conversation.js");
  const talk = new Conversation();
  for (const event of events) talk.apply(event, 1000);
  return talk.lines.map(({ id, text, status }) => [id, text, status]);
}
"""
CALL = {"id": "call", "type": "function_call", "status": "completed", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"id": "found", "type": "function_call_output", "status": "completed", "call_id": "c", "output": "it"}
MESSAGE = {"id": "item_1", "type": "message", "role": "assistant", "content": [{"transcript": "Let me see."}]}


@pytest.mark.parametrize("said", [[], [MESSAGE]], ids=["a call alone", "words before it"])
def test_calls_of_functions_are_no_lines(page: Page, said: list[dict[str, Any]]) -> None:
    items = [*said, CALL]
    response = {"id": "resp_1", "status": "completed", "output": items, "output_modalities": ["audio"]}
    events = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        *({"type": f"conversation.item.{what}", "item": item} for item in items for what in ("added", "done")),
        {"type": "response.function_call_arguments.done", "item_id": "call", "arguments": "{}"},
        {"type": "response.done", "response": response},
        {"type": "conversation.item.added", "item": OUTPUT},
        {"type": "session.resumed", "items": [CALL, OUTPUT]},
    ]
    assert page.evaluate(LINES, events) == [["item_1", "Let me see.", "final"] for _ in said]
