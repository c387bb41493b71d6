"""What the page shows of a reply as it is heard: ink that follows the ear, holds, and what was thrown away."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.fake_service import WORD_SAMPLES, FakeCall, FakeService
from tests.browser.steps import activity, assert_accessible, lines, phase, start

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = ("Once", "upon", "a", "time", "there", "was", "a", "king.")
TEXT = " ".join(WORDS)


def telling(page: Page, service: FakeService) -> FakeCall:
    """A call in which a reply sounds, and nothing of it has been heard."""
    start(page)
    call = service.call()
    call.begin_reply("resp_1", TEXT)
    call.time_words("resp_1", *WORDS)
    activity(page, "speaking")
    expect(page.locator(".unheard")).to_have_text(TEXT)
    return call


def test_ink_follows_the_ear_and_a_reply_that_was_heard_is_all_ink(page: Page, service: FakeService) -> None:
    call = telling(page, service)
    call.acknowledge("resp_1", 2 * WORD_SAMPLES)
    expect(page.locator(".unheard")).to_have_text(" a time there was a king.")
    assert_accessible(page)
    call.acknowledge("resp_1", 2 * WORD_SAMPLES, 4 * WORD_SAMPLES)
    expect(page.locator(".unheard")).to_have_text(" there was a king.")
    call.end_reply("resp_1", TEXT)
    expect(page.locator(".unheard")).to_have_count(0)
    assert lines(page, "service") == [TEXT]


def test_what_nobody_will_hear_is_struck_out_and_the_cut_word_is_marked(page: Page, service: FakeService) -> None:
    call = telling(page, service)
    call.acknowledge("resp_1", 3 * WORD_SAMPLES)
    call.end_reply("resp_1", "Once upon a", reason="client_cancelled", cut_word="time")
    expect(page.locator("s")).to_have_text("time there was a king.")
    expect(page.locator(".cut-word")).to_have_text("time")
    expect(page.locator(".unheard")).to_have_count(0)
    assert lines(page, "service") == ["Once upon a"]
    assert_accessible(page)


def test_what_the_service_learns_later_is_shown(page: Page, service: FakeService) -> None:
    call = telling(page, service)
    call.end_reply("resp_1", "Once", reason="turn_detected", cut_word="upon")
    expect(page.locator(".cut-word")).to_have_text("upon")
    truth = {"item_id": "item_resp_1", "content_index": 0, "audio_end_ms": 500}
    call.say("conversation.item.truncated", **truth, transcript="Once upon", cut=True, cut_word="")
    expect(page.locator("s")).to_have_text("a time there was a king.")
    expect(page.locator(".cut-word")).to_have_count(0)
    assert lines(page, "service") == ["Once upon"]


def test_a_hold_is_shown_once_it_lasts_and_goes_when_the_reply_goes_on(page: Page, service: FakeService) -> None:
    call = telling(page, service)
    call.say("turn.held", audio_start_ms=0)
    activity(page, "held")
    expect(page.locator("#state")).to_have_text("Paused")
    assert page.locator("#announcer").inner_text().count("Paused") == 0, "it would be over before it was said"
    assert_accessible(page)
    call.say("turn.resumed", reason="backchannel")
    activity(page, "speaking")
    expect(page.locator("#state")).to_have_text("Speaking")


def test_a_reply_that_broke_off_with_its_connection_shows_what_the_service_remembers(
    page: Page, service: FakeService
) -> None:
    call = telling(page, service)
    call.acknowledge("resp_1", int(3.5 * WORD_SAMPLES))
    expect(page.locator(".unheard")).to_have_text("me there was a king.")
    call.drop()
    phase(page, "reconnecting")
    assert lines(page, "service") == ["Once upon a"]
    content = [{"type": "output_audio", "transcript": "Once upon"}]
    cut = {"cut": True, "cut_word": "a", "heard_ms": 600, "heard_basis": "acked"}
    caller = {"id": "item_9", "type": "message", "role": "user"}
    again = service.call(2)
    again.next("session.resume")
    again.resume(
        {"id": "item_resp_1", "type": "message", "role": "assistant", "content": content, **cut},
        {**caller, "content": [{"type": "input_audio", "transcript": "Go on."}]},
    )
    phase(page, "connected")
    expect(page.locator(".cut-word")).to_have_text("a")
    assert lines(page, "service") == ["Once upon"]
    assert lines(page, "caller") == ["Go on."]


def test_where_motion_is_unwelcome_words_change_whole(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, reduced_motion="reduce") as page:
        call = telling(page, service)
        call.acknowledge("resp_1", int(1.9 * WORD_SAMPLES))
        expect(page.locator(".unheard")).to_have_text("upon a time there was a king.")
