"""`ink.js` on a clock of the test's own: how many characters of a reply were heard, and when."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.fake_service import OUTPUT_RATE, WORD_SAMPLES

pytestmark = [pytest.mark.live, pytest.mark.slow]

TEXT = "Once upon a time"
WORD_MS = WORD_SAMPLES * 1000 // OUTPUT_RATE

# Shows `text` as a reply, applies steps [moment, method, ...arguments], and tells how much was in ink at each moment.
FLOW = """
async ([text, steps, moments]) => {
  const { Inks } = await import("/web/ink.js");
  const [inks, line] = [new Inks(), { text, heard: null }];
  const heard = [];
  const inkAt = (now) => { inks.follow(now); heard.push(line.heard); };
  inks.begin("r", line);
  for (const moment of moments) {
    while (steps.length && steps[0][0] <= moment) {
      const [now, what, given] = steps.shift();
      if (what === "finish" || what === "stop") inks[what](line, now);
      else inks[what](given, now);
    }
    inkAt(moment);
  }
  return heard;
}
"""


def words(*texts: str) -> list[list[Any]]:
    """Each has `WORD_SAMPLES`."""
    place = {"response_id": "r", "samples": WORD_SAMPLES, "sample_rate": OUTPUT_RATE}
    return [[0, "word", {**place, "text": text, "start_sample": at * WORD_SAMPLES}] for at, text in enumerate(texts)]


def report(now: int, played: float, until: float) -> list[Any]:
    """Words played, and words until which it sounds on."""
    place = {"played_samples": int(played * WORD_SAMPLES), "until_sample": int(until * WORD_SAMPLES)}
    return [now, "report", {"response_id": "r", "sample_rate": OUTPUT_RATE, **place}]


def flow(page: Page, steps: list[list[Any]], moments: list[int], text: str = TEXT) -> list[int | None]:
    found: list[int | None] = page.evaluate(FLOW, [text, steps, moments])
    return found


def test_ink_flows_through_a_word_at_the_pace_of_the_sound(page: Page) -> None:
    steps = [*words(*TEXT.split()), report(100, 0, 9)]
    moments = [100, 100 + WORD_MS // 2, 100 + WORD_MS, 100 + WORD_MS * 3 // 2, 100 + WORD_MS * 4]
    assert flow(page, steps, moments) == [0, 2, 4, 7, len(TEXT)]


def test_it_stops_where_it_is_not_known_to_sound_on(page: Page) -> None:
    steps = [*words(*TEXT.split()), report(100, 0.5, 1), report(5_000, 1, 1), report(6_000, 1, 2)]
    assert flow(page, steps, [100, 4_000, 5_500, 6_000 + WORD_MS // 2]) == [2, 4, 4, 7]


def test_it_never_goes_back(page: Page) -> None:
    steps = [*words(*TEXT.split()), report(100, 2, 9), report(110, 0.5, 9)]
    assert flow(page, steps, [100, 120]) == [9, 9]


def test_words_that_the_text_does_not_hold_or_does_not_hold_yet_are_passed_over(page: Page) -> None:
    steps = [*words("Once", "hm", "upon", "time"), report(100, 3, 3)]
    assert flow(page, steps, [100]) == [9]
    assert flow(page, steps, [100], text="Once") == [4]
    assert flow(page, steps, [100], text="Once — upon") == [11]
    assert flow(page, steps, [100], text="Once they had been there, upon") == [4]


def test_what_was_said_to_its_end_is_followed_to_the_last_word_or_for_a_while(page: Page) -> None:
    steps = [*words(*TEXT.split()), report(0, 3, 4), [0, "finish"]]
    assert flow(page, steps, [WORD_MS - 1, WORD_MS]) == [15, None]
    stuck = [*words(*TEXT.split()), report(0, 1, 1), [100, "finish"]]
    assert flow(page, stuck, [699, 700]) == [4, None]


def test_where_nobody_says_what_was_heard_text_is_in_ink(page: Page) -> None:
    steps = [*words(*TEXT.split()), [100, "sounds", "r"]]
    assert flow(page, steps, [2_100, 2_101]) == [0, None]
    assert flow(page, [[0, "stop"]], [1]) == [None]


def test_so_it_is_where_nobody_says_where_the_words_are(page: Page) -> None:
    a_second = OUTPUT_RATE / WORD_SAMPLES
    assert flow(page, [report(0, a_second, 99)], [0, 1]) == [0, len(TEXT)]


@pytest.mark.parametrize(
    ("heard", "text", "end"),
    [
        ("", " Once", 0),
        ("Once upon", " Once  upon\na time", 11),
        ("Once upon a time", "Once upon a time", 16),
        ("Twice", "Once upon", -1),
        ("Once upon a time", "Once upon", -1),
    ],
)
def test_where_the_services_words_end_in_the_text(page: Page, heard: str, text: str, end: int) -> None:
    script = "async (given) => (await import('/web/ink.js')).endOf(...given)"
    assert page.evaluate(script, [heard, text]) == end


@pytest.mark.parametrize(("heard", "end"), [(0, 0), (2, 0), (4, 4), (5, 5), (7, 5), (16, 16), (99, 16)])
def test_whole_words_are_those_that_were_heard_to_their_end(page: Page, heard: int, end: int) -> None:
    script = "async (given) => (await import('/web/ink.js')).wholeWords(...given)"
    assert page.evaluate(script, [TEXT, heard]) == end
