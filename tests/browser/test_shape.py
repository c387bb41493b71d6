"""How the page looks and is operated: sizes, fonts, colours that the system forces, focus, and what is said aloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect

from tests.browser.conftest import opened
from tests.browser.fake_service import FakeService
from tests.browser.steps import (
    activity,
    assert_accessible,
    focused,
    lines,
    lose_for_good,
    phase,
    shows_notice,
    start,
    type_text,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]

PHONE = {"width": 360, "height": 740}
SIZES = {
    "laptop": (1280, 800, 16),
    "phone": (360, 740, 16),
    "small phone": (320, 568, 16),
    "phone on its side": (740, 360, 16),
    "tablet on its side": (1000, 420, 16),
    "laptop at 200 %": (640, 400, 16),
    "laptop at 400 %": (320, 200, 16),
    "laptop, large font": (1280, 800, 32),
    "phone, large font": (360, 740, 32),
    "small phone, large font": (320, 568, 32),
}
LONG = "a very long reason " * 12

# Of what can be pressed or filled, what is covered by something else where one would press it, or cut at the side, when
# it is scrolled into view.
OUT_OF_REACH = """
() => {
  const found = [];
  for (const part of document.querySelectorAll("main button, main input, header button")) {
    if (!part.checkVisibility({ visibilityProperty: true })) continue;
    part.scrollIntoView({ block: "nearest" });
    const { left, right, x, y, width, height } = part.getBoundingClientRect();
    const hit = document.elementFromPoint(x + width / 2, y + height / 2);
    if (!part.contains(hit) || left < 0 || right > innerWidth + 0.5) found.push(part.id || part.innerText);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
  return found;
}
"""
OVERLAPPING = """
() => {
  const parts = [".bar", "#notice", "#captions", "#composer", "#stage"]
    .map((one) => document.querySelector(one))
    .filter((one) => one.checkVisibility());
  const boxes = parts.map((one) => one.getBoundingClientRect());
  const meet = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1;
  return boxes.flatMap((one, at) =>
    boxes.slice(at + 1).flatMap((other, after) =>
      meet(one, other) ? [parts[at].id + " and " + parts[at + 1 + after].id] : []));
}
"""


def assert_in_reach(page: Page) -> None:
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate(OUT_OF_REACH) == []


@contextmanager
def sized(browser: Browser, service: FakeService, size: str) -> Iterator[Page]:
    width, height, font_px = SIZES[size]
    with opened(browser, service.url, viewport={"width": width, "height": height}) as page:
        devtools = page.context.new_cdp_session(page)
        devtools.send("Page.enable")
        fonts = {"fontSizes": {"standard": font_px, "fixed": font_px}}
        devtools.send("Page.setFontSizes", fonts)
        page.reload()
        yield page


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_covered_or_cut(browser: Browser, service: FakeService, size: str) -> None:
    with sized(browser, service, size) as page:
        assert_in_reach(page)
        service.token = "secret"
        page.get_by_role("button", name="Start talking").click()
        shows_notice(page, "This service asks for a token")
        assert_in_reach(page)
        page.get_by_label("Access token").fill("secret")
        page.get_by_role("button", name="Continue").click()
        phase(page, "connected")
        call = service.call()
        call.hear("item_1", "When is high tide?")
        call.begin_reply("resp_1", "At six in the morning. " * 20)
        activity(page, "speaking")
        assert_in_reach(page)
        call.say("error", error={"code": "any", "message": LONG})
        shows_notice(page, "A very long reason")
        assert_in_reach(page)
        assert_accessible(page)
        lose_for_good(page, service)
        expect(page.get_by_role("button", name="New conversation")).to_be_visible()
        assert_in_reach(page)


def boxes(page: Page, *selectors: str) -> list[FloatRect]:
    """Where they stand, all at one moment."""
    script = "(all) => all.map((one) => document.querySelector(one).getBoundingClientRect().toJSON())"
    found: list[FloatRect] = page.evaluate(script, selectors)
    return found


@pytest.mark.parametrize("width", [360, 320])
def test_a_phone_has_its_buttons_in_one_row(browser: Browser, service: FakeService, width: int) -> None:
    with opened(browser, service.url, viewport={"width": width, "height": 640}) as page:
        type_text(page, "Hello?")
        phase(page, "connected")
        expect(page.get_by_role("button", name="Use microphone")).to_be_visible()
        use, stop = boxes(page, "#mute", "#stop")
        assert use["y"] == stop["y"]
        assert stop["x"] + stop["width"] <= width
        assert_accessible(page)


def test_before_a_call_the_words_stand_beside_the_middle_of_the_button(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, viewport=PHONE) as page:
        expect(page.locator("#hint")).to_have_text("Your microphone opens when you press the button.")
        state, hint, orb = boxes(page, "#state", "#hint", ".orb")
        middle = (state["y"] + hint["y"] + hint["height"]) / 2
        assert middle == pytest.approx(orb["y"] + orb["height"] / 2, abs=2)


# ---- colours ---------------------------------------------------------------------------------------


def colour(page: Page, selector: str, what: str = "backgroundColor") -> str:
    found: str = page.evaluate("([one, what]) => getComputedStyle(document.querySelector(one))[what]", [selector, what])
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_that_ends_the_call_has_one_colour(browser: Browser, service: FakeService, scheme: Any) -> None:
    with opened(browser, service.url, color_scheme=scheme, reduced_motion="reduce") as page:
        before = colour(page, "#talk")
        start(page)
        call = service.call()
        seen = {colour(page, "#talk")}
        rings = {colour(page, ".ring")}
        call.say("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
        for wanted in ("hearing", "thinking", "speaking"):
            if wanted == "thinking":
                call.hear("item_1", "Hello?")
            elif wanted == "speaking":
                call.begin_reply("resp_1", "Well")
            page.wait_for_function("(wanted) => document.body.dataset.activity === wanted", arg=wanted)
            seen.add(colour(page, "#talk"))
            rings.add(colour(page, ".ring"))
        assert len(seen) == 1
        assert before not in seen
        assert len(rings) == 4


def test_forced_colours_leave_states_to_be_seen(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, forced_colors="active") as page:
        start(page)
        for bar in ("#level-mic", "#level-speaker"):
            assert colour(page, bar) != colour(page, "body")
        assert page.evaluate("getComputedStyle(document.querySelector('.level')).borderStyle") == "solid"
        unpressed = colour(page, "#mute")
        page.get_by_role("button", name="Mute").click()
        page.get_by_label("Message", exact=True).hover()
        assert colour(page, "#mute") not in (unpressed, colour(page, "body"))
        assert_accessible(page)


# ---- focus -----------------------------------------------------------------------------------------


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")


def test_stop_keeps_the_focus(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.begin_reply("resp_1", "Well")
    activity(page, "speaking")
    press(page, "Stop reply")
    call.next("response.cancel")
    call.end_reply("resp_1", "Well", reason="client_cancelled")
    activity(page, "listening")
    expect(page.locator("#stop")).to_be_disabled()
    assert focused(page) == "stop"
    page.keyboard.press("Enter")
    type_text(page, "Go on.")
    call.next("response.create")
    assert call.types().count("response.cancel") == 1


def test_the_newest_line_gets_the_focus(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, viewport={"width": 700, "height": 420}) as page:
        start(page)
        for number in range(20):
            service.call().hear(f"item_{number}", f"Number {number}")
        page.wait_for_function("() => document.querySelectorAll('#lines .caller.final').length === 20")
        page.locator("#captions").evaluate("(one) => { one.scrollTop = 0; }")
        press(page, "Newest line")
        expect(page.get_by_role("button", name="Newest line")).to_be_hidden()
        assert focused(page) == "captions"


def test_a_notice_hands_its_focus_on(page: Page, service: FakeService) -> None:
    start(page)
    service.call().say("error", error={"code": "any", "message": "no"})
    press(page, "Dismiss")
    assert focused(page) == "captions"
    page.get_by_label("Message", exact=True).focus()
    service.call().say("error", error={"code": "any", "message": "no"})
    shows_notice(page, "No.")
    page.get_by_role("button", name="Dismiss").click()
    service.refusal = (500, "internal_error", None)
    page.get_by_role("button", name="End call").click()
    phase(page, "closed")
    page.get_by_role("button", name="Start talking").click()
    press(page, "Try again")
    shows_notice(page, "Refused.")
    assert focused(page) == "captions"


def test_what_vanishes_with_the_call_hands_the_focus_to_the_button(page: Page, service: FakeService) -> None:
    start(page)
    page.get_by_role("button", name="Mute").focus()
    lose_for_good(page, service)
    assert focused(page) == "talk"
    press(page, "New conversation")
    service.call(2)
    assert focused(page) == "talk"


@pytest.mark.parametrize(
    ("width", "order"),
    [(1280, ["talk", "captions", "message"]), (360, ["captions", "message", "send", "talk"])],
)
def test_tab_goes_as_the_eye_does(browser: Browser, service: FakeService, width: int, order: list[str]) -> None:
    with opened(browser, service.url, viewport={"width": width, "height": 740}) as page:
        page.locator("#settings-open").focus()
        for expected in order:
            page.keyboard.press("Tab")
            assert focused(page) == expected
        page.locator("#talk").focus()
        page.set_viewport_size({"width": 360 + 1280 - width, "height": 740})
        page.wait_for_function(
            "(wide) => (document.querySelector('main').firstElementChild.id === 'stage') === wide", arg=width == 360
        )
        assert focused(page) == "talk"


# ---- what is shown and said ------------------------------------------------------------------------


def tick(page: Page, name: str) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label(name).click()
    page.keyboard.press("Escape")


def test_figures_can_be_left_out(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.hear("item_1", "Hello?")
    call.begin_reply("resp_1", "Well")
    expect(page.locator(".first-audio")).to_be_visible()
    call.say("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
    call.end_reply("resp_1", "Well", reason="turn_detected")
    expect(page.locator(".was-cut .figure")).to_be_visible()
    tick(page, "Show figures")
    expect(page.locator(".figure:visible")).to_have_count(0)
    expect(page.locator(".was-cut")).to_have_text("Interrupted", use_inner_text=True)
    page.reload()
    expect(page.locator("#figures")).not_to_be_checked()
    expect(page.locator("body")).to_have_class("no-figures")


def turn(service: FakeService, item: str) -> None:
    call = service.call()
    call.hear(item, "Hello there.")
    call.begin_reply(f"resp_{item}", *("word " for _ in range(20)))
    call.end_reply(f"resp_{item}", "Hello to you.")


def test_a_screen_reader_is_told_states_and_leaves_the_reply_to_its_voice(page: Page, service: FakeService) -> None:
    start(page)
    turn(service, "item_1")
    expect(page.locator(".drain")).to_be_visible()
    assert page.locator("#announcer p").all_inner_texts() == ["Connected. Listening."]
    service.call().begin_reply("resp_2", "Well")
    activity(page, "speaking")
    service.call().end_reply("resp_2", "Well", reason="client_cancelled")
    expect(page.locator("#announcer p").last).to_have_text("Interrupted.")
    page.get_by_role("button", name="End call").click()
    expect(page.locator("#announcer p").last).to_have_text("Call ended.")


def test_a_screen_reader_reads_each_line_once_where_that_is_wished(page: Page, service: FakeService) -> None:
    tick(page, "Read captions aloud to screen readers")
    start(page)
    turn(service, "item_1")
    expect(page.locator("#announcer p").last).to_have_text("Duplex: Hello to you.")
    assert page.locator("#announcer p").all_inner_texts() == [
        "Connected. Listening.",
        "You: Hello there.",
        "Duplex: Hello to you.",
    ]


def test_a_broken_call_says_what_can_be_done(page: Page, service: FakeService) -> None:
    start(page)
    service.call().hear("item_1", "Remember me.")
    expect(page.locator("#lines .caller .words")).to_have_text("Remember me.")
    lose_for_good(page, service)
    expect(page.locator("#state")).to_have_text("Disconnected")
    expect(page.locator("#hint")).to_have_text("Your conversation is kept. Reconnect to go on.")
    assert_accessible(page)
    page.get_by_role("button", name="New conversation").click()
    call = service.call(2)
    call.next("session.update")
    phase(page, "connected")
    assert "session.resume" not in call.types()
    assert lines(page, "caller") == ["Remember me."]
    page.get_by_role("button", name="End call").click()
    expect(page.locator("#hint")).to_have_text("Press the button to talk again.")
    expect(page.get_by_role("button", name="New conversation")).to_be_hidden()
