"""What is typed and chosen is never lost: while a connection is made, dies, is restored, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.fake_service import FakeCall, FakeService
from tests.browser.steps import (
    HOLD_ANSWERS,
    assert_accessible,
    lines,
    lose_for_good,
    phase,
    shows_notice,
    start,
    type_text,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]


def field_has(page: Page, text: str) -> None:
    expect(page.get_by_label("Message", exact=True)).to_have_value(text)


def pending(page: Page) -> list[str]:
    return lines(page, "pending")


def typed(call: FakeCall, number: int = 1) -> str:
    text: str = call.next("conversation.item.create", number)["item"]["content"][0]["text"]
    return text


# ---- messages --------------------------------------------------------------------------------------


def test_a_line_stands_at_once_and_is_confirmed(page: Page, service: FakeService) -> None:
    start(page)
    service.call().deaf = True
    type_text(page, "Are you there?")
    expect(page.locator("#lines .pending .who")).to_have_text("You · not sent yet")
    field_has(page, "")
    assert_accessible(page)
    item = service.call().next("conversation.item.create")["item"]
    service.call().say("conversation.item.added", item=item, previous_item_id=None)
    expect(page.locator("#lines .caller .who")).to_have_text("You")
    assert lines(page, "caller") == ["Are you there?"]


def test_what_a_dying_connection_lost_is_sent_after_it(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.deaf = True
    type_text(page, "Remember 42.")
    call.next("response.create")
    call.drop()
    phase(page, "reconnecting")
    type_text(page, "And 43.")
    assert pending(page) == ["Remember 42.", "And 43."]
    again = service.call(2)
    again.next("session.resume")
    again.resume()
    assert [typed(again), typed(again, 2)] == ["Remember 42.", "And 43."]
    again.next("response.create")
    expect(page.locator("#lines .pending")).to_have_count(0)
    assert lines(page, "caller") == ["Remember 42.", "And 43."]
    again.begin_reply("resp_2", "I do.")
    expect(page.locator(".first-audio")).to_be_visible()


def test_what_had_arrived_unconfirmed_is_shown_so(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.deaf = True
    type_text(page, "Remember 42.")
    item = call.next("conversation.item.create")["item"]
    call.drop()
    again = service.call(2)
    again.next("session.resume")
    again.resume(item)
    expect(page.locator("#lines .pending")).to_have_count(0)
    again.next("response.create")
    assert "conversation.item.create" not in again.types()


def test_what_was_not_sent_goes_back_into_the_field_when_the_call_ends(page: Page, service: FakeService) -> None:
    start(page)
    service.call().deaf = True
    type_text(page, "Remember 42.")
    service.call().next("response.create")
    page.get_by_label("Message", exact=True).fill("And more")
    page.get_by_role("button", name="End call").click()
    phase(page, "closed")
    field_has(page, "Remember 42. And more")
    assert lines(page, "caller") == []


def test_it_goes_back_when_another_conversation_begins(page: Page, service: FakeService) -> None:
    start(page)
    service.call().deaf = True
    type_text(page, "Remember 42.")
    service.call().next("response.create")
    lose_for_good(page, service)
    page.get_by_role("button", name="New conversation").click()
    call = service.call(2)
    call.next("session.update")
    phase(page, "connected")
    field_has(page, "Remember 42.")
    assert {"session.resume", "conversation.item.create"}.isdisjoint(call.types())
    expect(page.locator("#lines .note").last).to_contain_text("Connected in")


def test_a_message_that_the_service_refuses_is_given_back(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.deaf = True
    type_text(page, "Too much.")
    item = call.next("conversation.item.create")["item"]["id"]
    call.say("error", error={"code": "string_above_max_length", "message": "too long", "event_id": item})
    shows_notice(page, "Too long.")
    field_has(page, "Too much.")
    assert lines(page, "caller") == []


def test_a_message_that_was_there_already_stands(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.deaf = True
    type_text(page, "Twice.")
    item = call.next("conversation.item.create")["item"]["id"]
    call.say("error", error={"code": "item_exists", "message": "it exists", "event_id": item})
    expect(page.locator("#lines .pending")).to_have_count(0)
    assert lines(page, "caller") == ["Twice."]
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()


def test_typing_goes_on_while_the_first_message_connects(page: Page, service: FakeService) -> None:
    page.evaluate(HOLD_ANSWERS)
    type_text(page, "First.")
    page.wait_for_function("() => window.isAnswered")
    type_text(page, "Second.")
    page.get_by_label("Message", exact=True).fill("Third, half")
    page.evaluate("letAnswer()")
    call = service.call()
    assert [typed(call), typed(call, 2)] == ["First.", "Second."]
    phase(page, "connected")
    field_has(page, "Third, half")


def test_a_message_waits_for_the_token(page: Page, service: FakeService) -> None:
    service.token = "secret"
    type_text(page, "Hello?")
    shows_notice(page, "This service asks for a token")
    assert pending(page) == ["Hello?"]
    expect(page.locator("#state")).to_have_text("Ready")
    page.get_by_label("Access token").fill("secret")
    page.get_by_role("button", name="Continue").click()
    assert typed(service.call()) == "Hello?"
    expect(page.locator("#lines .pending")).to_have_count(0)


def test_a_message_that_no_way_leads_on_from_is_given_back(page: Page, service: FakeService) -> None:
    service.refusal = (403, "origin_not_allowed", None)
    type_text(page, "Hello?")
    shows_notice(page, "This page may not use the service")
    field_has(page, "Hello?")
    expect(page.locator("#lines li")).to_have_count(0)


KEEP_CHANNEL = """
const make = RTCPeerConnection.prototype.createDataChannel;
RTCPeerConnection.prototype.createDataChannel = function (...given) {
  window.channel = make.apply(this, given);
  return window.channel;
};
"""
STOP_AND_TYPE_WHILE_IT_CLOSES = """
() => {
  channel.close();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  document.querySelector("#message").value = "Hello?";
  document.querySelector("#composer").requestSubmit();
}
"""


def test_stopping_and_typing_while_the_channel_closes_is_no_fault(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, scripts=(KEEP_CHANNEL,)) as page:
        start(page)
        service.call().begin_reply("resp_1", "Well")
        expect(page.get_by_role("button", name="Stop reply")).to_be_enabled()
        page.evaluate(STOP_AND_TYPE_WHILE_IT_CLOSES)
        phase(page, "reconnecting")
        again = service.call(2)
        again.next("session.resume")
        again.resume()
        assert typed(again) == "Hello?"


# ---- settings --------------------------------------------------------------------------------------


def choose_faster(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Speaking rate").select_option("Faster")
    page.keyboard.press("Escape")


def while_connecting(page: Page, service: FakeService) -> FakeCall:
    page.evaluate(HOLD_ANSWERS)
    page.get_by_role("button", name="Start talking").click()
    page.wait_for_function("() => window.isAnswered")
    choose_faster(page)
    page.evaluate("letAnswer()")
    return service.call()


def while_reconnecting(page: Page, service: FakeService) -> FakeCall:
    start(page)
    service.call().next("session.update")
    page.evaluate(HOLD_ANSWERS)
    service.call().drop()
    page.wait_for_function("() => window.isAnswered")
    choose_faster(page)
    page.evaluate("letAnswer()")
    service.call(2).next("session.resume")
    service.call(2).resume()
    return service.call(2)


def while_disconnected(page: Page, service: FakeService) -> FakeCall:
    start(page)
    service.call().next("session.update")
    lose_for_good(page, service)
    choose_faster(page)
    page.get_by_role("button", name="Reconnect").click()
    service.call(2).next("session.resume")
    service.call(2).resume()
    return service.call(2)


@pytest.mark.parametrize("choose", [while_connecting, while_reconnecting, while_disconnected])
def test_a_choice_made_without_a_connection_counts_on_the_next(
    page: Page, service: FakeService, choose: Callable[[Page, FakeService], FakeCall]
) -> None:
    call = choose(page, service)
    assert call.next("session.update")["session"]["audio"]["output"]["speed"] == 1.2


def test_a_voice_chosen_before_the_list_came_stays_chosen(browser: Browser, service: FakeService) -> None:
    hold = """
        const before = fetch;
        window.fetch = async (url, ...rest) => {
          if (String(url).endsWith("/capabilities")) await new Promise((answer) => { window.tell = answer; });
          return before(url, ...rest);
        };
        localStorage.setItem("duplex.preferences", JSON.stringify({ voice: "amy" }));
    """
    with opened(browser, service.url, scripts=(hold,)) as page:
        page.get_by_role("button", name="Settings").click()
        page.evaluate("""() => {
            const field = document.querySelector("#voice");
            field.value = "";
            field.dispatchEvent(new Event("change"));
            tell();
        }""")
        expect(page.get_by_label("Voice").get_by_role("option")).to_have_text(["joe (usual)", "amy"])
        expect(page.get_by_label("Voice")).to_have_value("")


# ---- what is stored --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        '{"instructions": 5}',
        '{"voice": null}',
        '{"speed": "abc"}',
        '{"speed": 2, "figures": "yes", "microphone": {}}',
        '{"instructions": ["a"], "voice": "amy"}',
        "null",
        '"x"',
        "[1]",
        "not json",
    ],
)
def test_odd_stored_preferences_do_no_harm(browser: Browser, service: FakeService, stored: str) -> None:
    script = f"localStorage.setItem('duplex.preferences', {stored!r});"
    with opened(browser, service.url, scripts=(script,)) as page:
        start(page)
        session = service.call().next("session.update")["session"]
        assert session["instructions"] == ""
        assert session["audio"]["output"] == {"voice": "amy" if "amy" in stored else "", "speed": 1}
        expect(page.locator("#figures")).to_be_checked()


def test_too_long_a_preference_is_none(browser: Browser, service: FakeService) -> None:
    script = "localStorage.setItem('duplex.preferences', JSON.stringify({ instructions: 'x'.repeat(8001) }));"
    with opened(browser, service.url, scripts=(script,)) as page:
        start(page)
        assert service.call().next("session.update")["session"]["instructions"] == ""


def test_a_fault_that_nobody_foresaw_is_shown(browser: Browser, service: FakeService) -> None:
    script = "window.AudioContext = class { constructor() { throw new Error('no sound card'); } };"
    with opened(browser, service.url, scripts=(script,)) as page:
        page.get_by_role("button", name="Start talking").click()
        shows_notice(page, "No sound card.")
        phase(page, "idle")
        expect(page.get_by_role("button", name="Start talking")).to_be_enabled()
