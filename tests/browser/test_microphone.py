"""The microphone is open while the caller wants it, and not a moment longer; whose retry opens it, and who is muted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.fake_service import FakeService
from tests.browser.steps import (
    HOLD_MICROPHONE,
    hold_microphone,
    live_tracks,
    lose_for_good,
    phase,
    shows_notice,
    start,
    type_text,
    until_asked,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]

UNPLUG = "() => { tracks.at(-1).stop(); tracks.at(-1).dispatchEvent(new Event('ended')); }"
NO_MICROPHONE = (
    "() => { navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotFoundError'); }; }"
)
ALL_CLOSED = "() => tracks.every((one) => one.readyState === 'ended')"


@pytest.fixture
def page(browser: Browser, service: FakeService) -> Iterator[Page]:
    """A page whose microphones are noted, and can be held back."""
    with opened(browser, service.url, scripts=(HOLD_MICROPHONE,)) as one:
        yield one


def choose_microphone(page: Page, index: int) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Microphone", exact=True).select_option(index=index)
    page.keyboard.press("Escape")


# ---- a track that comes too late -------------------------------------------------------------------


def press_start(page: Page) -> None:
    hold_microphone(page)
    page.get_by_role("button", name="Start talking").click()


def use_microphone(page: Page) -> None:
    type_text(page, "Hello?")
    phase(page, "connected")
    hold_microphone(page)
    page.get_by_role("button", name="Use microphone").click()


def choose_another(page: Page) -> None:
    start(page)
    hold_microphone(page)
    choose_microphone(page, 1)


def unplug(page: Page) -> None:
    start(page)
    hold_microphone(page)
    page.evaluate(UNPLUG)


def try_again(page: Page) -> None:
    start(page)
    asks = page.evaluate_handle("() => navigator.mediaDevices.getUserMedia")
    page.evaluate(NO_MICROPHONE)
    page.evaluate(UNPLUG)
    shows_notice(page, "No microphone was found")
    page.evaluate("(asks) => { navigator.mediaDevices.getUserMedia = asks; }", asks)
    hold_microphone(page)
    page.get_by_role("button", name="Try again").click()


@pytest.mark.parametrize("ask", [press_start, use_microphone, choose_another, unplug, try_again])
def test_a_microphone_that_comes_after_the_call_is_closed_at_once(page: Page, ask: Callable[[Page], None]) -> None:
    ask(page)
    until_asked(page)
    page.get_by_role("button", name="End call").click()
    expect(page.get_by_role("button", name="Start talking")).to_be_visible()
    page.evaluate("allow()")
    page.wait_for_function(ALL_CLOSED)
    expect(page.get_by_role("button", name="Start talking")).to_be_visible()


def test_a_refusal_that_comes_after_the_call_is_not_told(page: Page) -> None:
    page.evaluate("""() => {
        navigator.mediaDevices.getUserMedia = () => new Promise((_, refuse) => {
            window.refuse = () => refuse(new DOMException("", "NotAllowedError"));
        });
    }""")
    page.get_by_role("button", name="Start talking").click()
    page.get_by_role("button", name="End call").click()
    page.evaluate("refuse()")
    start_again = page.get_by_role("button", name="Start talking")
    start_again.click()
    page.get_by_role("button", name="End call").click()
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()


def test_of_two_choices_the_last_one_counts(page: Page) -> None:
    start(page)
    hold_microphone(page)
    choose_microphone(page, 1)
    choose_microphone(page, 0)
    until_asked(page, 2)
    page.evaluate("() => { asked.reverse(); allow(); }")
    page.wait_for_function("() => tracks.map((one) => one.readyState).join() === 'ended,ended,live'")


def test_a_choice_made_while_connecting_counts(page: Page) -> None:
    names = page.evaluate("async () => (await navigator.mediaDevices.enumerateDevices()).map((one) => one.label)")
    hold_microphone(page)
    page.get_by_role("button", name="Start talking").click()
    until_asked(page)
    choose_microphone(page, 1)
    page.evaluate("() => { holdMicrophone = false; allow(); }")
    phase(page, "connected")
    page.wait_for_function("() => tracks.length === 2 && tracks[0].readyState === 'ended'")
    assert page.evaluate("tracks[1].label") in names
    assert page.evaluate("tracks[1].label !== tracks[0].label")


# ---- what a retry opens ----------------------------------------------------------------------------


def failed_reply(service: FakeService, response: str, number: int = 1) -> None:
    error = {"type": "server_error", "code": "stage_lost", "message": "the talker was lost during the response"}
    call = service.call(number)
    call.begin_reply(response, "Well")
    details = {"type": "failed", "error": error}
    call.say("response.done", response={"id": response, "status": "failed", "status_details": details, "output": []})


def test_a_failed_reply_is_asked_for_again_without_a_microphone(page: Page, service: FakeService) -> None:
    type_text(page, "Hello?")
    call = service.call()
    call.next("response.create")
    failed_reply(service, "resp_1")
    shows_notice(page, "The talker was lost during the response.")
    page.get_by_role("button", name="Ask again").click()
    call.next("response.create", 2)
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()
    assert live_tracks(page) == []
    failed_reply(service, "resp_2")
    shows_notice(page, "The reply failed")
    call.begin_reply("resp_3", "Hello.")
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()


def test_other_faults_in_a_call_offer_nothing_to_open(page: Page, service: FakeService) -> None:
    type_text(page, "Hello?")
    phase(page, "connected")
    service.call().say("error", error={"code": "invalid_value", "message": "that is no value", "retry_after_s": 3})
    shows_notice(page, "That is no value.")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()
    assert live_tracks(page) == []


@pytest.mark.parametrize("button", ["Reconnect", "New conversation"])
def test_a_typed_call_goes_on_without_a_microphone(page: Page, service: FakeService, button: str) -> None:
    type_text(page, "Hello?")
    phase(page, "connected")
    lose_for_good(page, service)
    page.get_by_role("button", name=button).click()
    service.call(2)
    expect(page.get_by_role("button", name="Use microphone")).to_be_visible()
    assert live_tracks(page) == []


# ---- mute ------------------------------------------------------------------------------------------


def test_who_is_muted_stays_so_when_the_call_goes_on(page: Page, service: FakeService) -> None:
    start(page)
    page.get_by_role("button", name="Mute").click()
    lose_for_good(page, service)
    page.get_by_role("button", name="Reconnect").click()
    again = service.call(2)
    again.next("session.resume")
    again.resume()
    phase(page, "connected")
    expect(page.get_by_role("button", name="Mute")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("tracks.at(-1).enabled") is False
    page.get_by_role("button", name="End call").click()
    phase(page, "closed")
    start(page)
    expect(page.get_by_role("button", name="Mute")).to_have_attribute("aria-pressed", "false")
    assert page.evaluate("tracks.at(-1).enabled") is True


def test_who_asks_for_a_microphone_is_heard(page: Page, service: FakeService) -> None:
    start(page)
    page.get_by_role("button", name="Mute").click()
    lose_for_good(page, service)
    type_text(page, "Hello?")
    again = service.call(2)
    again.next("session.resume")
    again.resume()
    phase(page, "connected")
    page.get_by_role("button", name="Use microphone").click()
    expect(page.get_by_role("button", name="Mute")).to_have_attribute("aria-pressed", "false")
    assert page.evaluate("tracks.at(-1).enabled") is True


# ---- the screen ------------------------------------------------------------------------------------

# The browser's lock on the screen, which it gives on `grant()`.
HOLD_SCREEN = """
window.locks = [];
const waiting = [];
window.grant = () => waiting.splice(0).forEach((answer) => answer());
Object.defineProperty(navigator, "wakeLock", { value: {
  async request() {
    await new Promise((answer) => waiting.push(answer));
    const lock = { released: false, release() { this.released = true; } };
    locks.push(lock);
    return lock;
  },
} });
"""


def test_the_screen_may_go_off_after_the_call(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, scripts=(HOLD_SCREEN,)) as page:
        start(page)
        page.evaluate("() => { document.dispatchEvent(new Event('visibilitychange')); grant(); }")
        page.wait_for_function("() => locks.filter((one) => !one.released).length === 1 && locks.length === 2")
        page.get_by_role("button", name="End call").click()
        page.wait_for_function("() => locks.every((one) => one.released)")
        phase(page, "closed")
        start(page)
        page.get_by_role("button", name="End call").click()
        page.evaluate("grant()")
        page.wait_for_function("() => locks.length === 3 && locks.every((one) => one.released)")
