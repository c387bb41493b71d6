"""The page against a service that does as it is told: every state, every notice, keyboard and screen reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import opened
from tests.browser.fake_service import FakeService
from tests.browser.steps import activity, assert_accessible, lines, phase, shows_notice, start, type_text

pytestmark = [pytest.mark.live, pytest.mark.slow]

FIGURE = re.compile(r"First sound (\d+) ms")


@pytest.fixture
def page_without_microphone(browser: Browser, service: FakeService) -> Iterator[Page]:
    with opened(browser, service.url, permissions=()) as page:
        yield page


# ---- a call ----------------------------------------------------------------------------------------


def test_before_the_call_one_line_says_what_to_do(page: Page) -> None:
    expect(page.get_by_text("Press “Start talking” and speak, or type a message below.")).to_be_visible()
    expect(page.get_by_role("button", name="Transcript")).to_be_disabled()
    assert_accessible(page)


def test_a_call_connects_with_extensions_and_says_its_wishes(page: Page, service: FakeService) -> None:
    start(page)
    update = service.call().next("session.update")
    assert service.requests[0]["query"] == "extensions=1"
    assert service.requests[0]["content-type"] == "application/sdp"
    assert update["session"]["audio"]["output"] == {"voice": "", "speed": 1}
    expect(page.locator("#lines .note")).to_have_text(re.compile(r"Connected in \d+ ms"))
    assert_accessible(page)


def test_captions_and_figures_of_a_turn(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.say("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
    activity(page, "hearing")
    call.hear("item_1", "When is high tide?")
    activity(page, "thinking")
    call.begin_reply("resp_1", "At six ", "in the ", "morning.")
    activity(page, "speaking")
    expect(page.locator(".first-audio")).to_be_visible()
    assert_accessible(page)
    call.end_reply("resp_1", "At six in the morning.", lag_ms=41.7)
    activity(page, "listening")
    expect(page.locator(".drain")).to_have_text("Released +42 ms")
    assert lines(page, "caller") == ["When is high tide?"]
    assert lines(page, "service") == ["At six in the morning."]
    figure = FIGURE.search(page.locator(".first-audio").inner_text())
    assert figure
    assert int(figure[1]) < 2_000


def test_an_interrupted_reply_shows_what_was_said(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.hear("item_1", "Tell me a story.")
    call.begin_reply("resp_1", "Once upon a time ", "there was a king ", "who had three sons.")
    expect(page.locator(".first-audio")).to_be_visible()
    call.say("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
    call.end_reply("resp_1", "Once upon a time", reason="turn_detected")
    activity(page, "interrupted")
    assert_accessible(page)
    activity(page, "hearing")
    expect(page.locator(".was-cut")).to_have_text(re.compile(r"Interrupted, silent in \d+ ms"))
    assert lines(page, "service") == ["Once upon a time"]


def test_escape_stops_a_reply(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.begin_reply("resp_1", "Well, ")
    activity(page, "speaking")
    page.keyboard.press("Escape")
    call.next("response.cancel")
    call.next("output_audio_buffer.clear")
    call.end_reply("resp_1", "Well,", reason="client_cancelled")
    activity(page, "interrupted")


def test_the_ear_is_reported_while_a_reply_plays_and_not_before(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.next("session.update")
    call.begin_reply("resp_1", "Hello.")
    first, second = call.next("playback.ack"), call.next("playback.ack", 2)
    assert set(first) == {"type", "rtp_timestamp", "age_ms", "output_latency_ms"}
    assert 0 <= first["age_ms"] < 500
    # Reports are 100 ms apart, on a clock of 48 kHz that moves by packets; the browser's timers may be late.
    assert 1_920 <= (second["rtp_timestamp"] - first["rtp_timestamp"]) % 2**32 <= 48_000
    assert call.types().index("playback.ack") > call.types().index("session.update")


def test_what_is_said_enters_the_page_as_text(page: Page, service: FakeService) -> None:
    start(page)
    service.call().hear("item_1", "<img src=x onerror=alert(1)>")
    expect(page.locator("#lines .caller .words")).to_have_text("<img src=x onerror=alert(1)>")
    assert page.locator("#lines img").count() == 0


def test_hanging_up_tells_the_service_and_closes_the_microphone(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    page.get_by_role("button", name="End call").click()
    phase(page, "closed")
    call.wait(lambda: call.hung_up, "the goodbye")
    expect(page.get_by_role("button", name="Start talking")).to_be_visible()
    expect(page.locator("#lines .note").last).to_have_text(re.compile(r"Call ended after 0:0\d"))
    assert page.evaluate("document.querySelector('#sound').srcObject") is None
    assert_accessible(page)


def test_a_page_that_is_left_says_goodbye(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    page.goto("about:blank")
    call.wait(lambda: call.hung_up, "the goodbye")


def test_muting_sends_silence_and_shows_it(page: Page, service: FakeService) -> None:
    start(page)
    mute = page.get_by_role("button", name="Mute")
    mute.click()
    expect(mute).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#state")).to_have_text("Muted")
    assert_accessible(page)
    mute.click()
    expect(mute).to_have_attribute("aria-pressed", "false")


# ---- typing ----------------------------------------------------------------------------------------


def test_a_typed_message_asks_for_a_reply(page: Page, service: FakeService) -> None:
    start(page)
    type_text(page, "What time is it?")
    call = service.call()
    assert call.next("conversation.item.create")["item"]["content"] == [
        {"type": "input_text", "text": "What time is it?"}
    ]
    call.next("response.create")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_typing_needs_no_microphone(page_without_microphone: Page, service: FakeService) -> None:
    page = page_without_microphone
    type_text(page, "Hello?")
    phase(page, "connected")
    service.call().next("response.create")
    page.get_by_role("button", name="Use microphone").click()
    shows_notice(page, "Your microphone is blocked")
    phase(page, "connected")


def test_typing_over_a_reply_stops_it_first(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.begin_reply("resp_1", "Well, ")
    activity(page, "speaking")
    type_text(page, "Something else.")
    call.next("response.create")
    sent = call.types()
    assert sent.index("response.cancel") < sent.index("conversation.item.create") < sent.index("response.create")


# ---- connections -----------------------------------------------------------------------------------


def test_a_broken_connection_is_restored_with_its_token(page: Page, service: FakeService) -> None:
    start(page)
    call = service.call()
    call.hear("item_1", "Remember me.")
    call.drop()
    phase(page, "reconnecting")
    again = service.call(2)
    assert again.next("session.resume")["token"] == "sess.1"
    assert again.types()[0] == "session.resume"
    again.resume()
    phase(page, "connected")
    expect(page.locator("#lines .note").last).to_have_text("Reconnected")
    assert lines(page, "caller") == ["Remember me."]
    again.begin_reply("resp_2", "I do.")
    expect(page.locator("#lines .service .words")).to_have_text("I do.")
    again.next("playback.ack")


def test_a_full_service_while_reconnecting_is_waited_for(page: Page, service: FakeService) -> None:
    start(page)
    service.refusal = (503, "service_not_ready", 1)
    service.call().drop()
    phase(page, "reconnecting")
    page.wait_for_function(
        "() => performance.getEntries().filter((one) => one.name.includes('/v1/realtime/calls?')).length >= 2"
    )
    assert_accessible(page)
    service.refusal = None
    service.call(2).next("session.resume")


def test_a_conversation_that_is_gone_is_not_asked_for_again(page: Page, service: FakeService) -> None:
    start(page)
    service.call().drop()
    again = service.call(2)
    again.next("session.resume")
    again.say("error", error={"type": "invalid_request_error", "code": "session_not_resumable", "message": "gone"})
    shows_notice(page, "This conversation has expired")
    page.get_by_role("button", name="Start a new one").click()
    phase(page, "connected")
    assert "session.resume" not in service.call(3).types()


def test_another_window_takes_the_conversation(page: Page, service: FakeService) -> None:
    start(page)
    error = {"type": "server_error", "code": "session_replaced", "message": "taken"}
    service.call().say("error", error=error)
    shows_notice(page, "This conversation went on elsewhere")
    phase(page, "closed")
    assert_accessible(page)


@pytest.mark.parametrize(
    ("code", "title"),
    [("ended_by_operator", "The call was ended"), ("session_deleted", "This conversation was deleted")],
)
def test_what_an_operator_has_done_is_told(page: Page, service: FakeService, code: str, title: str) -> None:
    start(page)
    service.call().say("error", error={"type": "server_error", "code": code, "message": "so it is"})
    shows_notice(page, title)
    phase(page, "closed")


# ---- what can go wrong -----------------------------------------------------------------------------


def test_a_refused_microphone_is_explained(page_without_microphone: Page, service: FakeService) -> None:
    page = page_without_microphone
    page.get_by_role("button", name="Start talking").click()
    shows_notice(page, "Your microphone is blocked")
    phase(page, "idle")
    assert service.calls == []
    assert_accessible(page)
    page.context.grant_permissions(["microphone"])
    page.get_by_role("button", name="Try again").click()
    phase(page, "connected")


def test_a_full_service_counts_down(page: Page, service: FakeService) -> None:
    service.refusal = (503, "capacity_exceeded", 2)
    page.get_by_role("button", name="Start talking").click()
    shows_notice(page, "All lines are busy")
    expect(page.locator(".count")).to_have_text("Try again in 1 s.")
    assert_accessible(page)
    expect(page.locator(".count")).to_have_text("You can try again now.")
    service.refusal = None
    page.get_by_role("button", name="Try again").click()
    phase(page, "connected")
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()


def test_a_token_is_asked_for_and_kept_in_memory_only(page: Page, service: FakeService) -> None:
    service.token = "secret"
    page.get_by_role("button", name="Start talking").click()
    shows_notice(page, "This service asks for a token")
    assert_accessible(page)
    page.get_by_label("Access token").fill("wrong")
    page.get_by_label("Access token").press("Enter")
    shows_notice(page, "That token was not accepted")
    page.get_by_label("Access token").fill("secret")
    page.get_by_role("button", name="Continue").click()
    phase(page, "connected")
    kept = page.evaluate(
        "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert "secret" not in kept


def test_a_service_that_is_away_is_said_to_be(page: Page) -> None:
    page.context.set_offline(True)
    page.get_by_role("button", name="Start talking").click()
    shows_notice(page, "The service does not answer")
    assert_accessible(page)


@pytest.mark.parametrize(
    ("script", "title"),
    [
        ("Object.defineProperty(window, 'isSecureContext', {value: false})", "This page needs a secure address"),
        ("delete window.RTCPeerConnection", "This browser cannot make voice calls"),
    ],
    ids=["insecure", "unsupported"],
)
def test_where_no_call_is_possible_the_page_says_why(page: Page, service: FakeService, script: str, title: str) -> None:
    page.add_init_script(script)
    page.goto(service.url)
    shows_notice(page, title)
    expect(page.get_by_role("button", name="Start talking")).to_be_disabled()
    assert_accessible(page)


def test_an_error_of_the_service_is_shown_in_its_words(page: Page, service: FakeService) -> None:
    start(page)
    service.call().say("error", error={"type": "server_error", "code": "stage_lost", "message": "the voice is away"})
    shows_notice(page, "The voice is away.")
    phase(page, "connected")


# ---- settings, transcript, layout ------------------------------------------------------------------


def test_settings_count_at_once_and_are_kept(page: Page, service: FakeService) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Instructions").fill("Be brief.")
    page.get_by_label("Speaking rate").select_option("Faster")
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    start(page)
    call = service.call()
    session = call.next("session.update")["session"]
    assert (session["instructions"], session["audio"]["output"]["speed"]) == ("Be brief.", 1.2)
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Voice").get_by_role("option")).to_have_text(["joe (usual)", "amy"])
    page.get_by_label("Voice").select_option("amy")
    page.get_by_role("button", name="Done").click()
    assert call.next("session.update", 2)["session"]["audio"]["output"]["voice"] == "amy"
    page.reload()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Instructions")).to_have_value("Be brief.")
    expect(page.get_by_label("Voice")).to_have_value("amy")


def test_another_microphone_can_be_chosen_during_the_call(page: Page, service: FakeService) -> None:
    start(page)
    page.get_by_role("button", name="Settings").click()
    field = page.get_by_label("Microphone")
    names = field.locator("option").all_inner_texts()
    assert names[0] == "System default"
    field.select_option(names[-1])
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("group", name="Notice")).to_be_hidden()
    assert service.call().types().count("session.resume") == 0


def test_the_transcript_can_be_saved(page: Page, service: FakeService, tmp_path: Path) -> None:
    start(page)
    call = service.call()
    call.hear("item_1", "Good morning.")
    call.begin_reply("resp_1", "Good ")
    call.end_reply("resp_1", "Good", reason="turn_detected")
    expect(page.locator(".line.cut")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Transcript").click()
    saved.value.save_as(tmp_path / "transcript.txt")
    text = (tmp_path / "transcript.txt").read_text(encoding="utf-8")
    assert "You: Good morning." in text
    assert "Duplex: Good [interrupted]" in text
    assert saved.value.suggested_filename.endswith(".txt")


@pytest.mark.parametrize(
    ("scheme", "width", "height"),
    [("light", 360, 640), ("dark", 360, 640), ("dark", 740, 360)],
    ids=["light", "dark", "on-its-side"],
)
def test_a_phone_shows_everything_without_scrolling_sideways(
    browser: Browser, service: FakeService, scheme: str, width: int, height: int
) -> None:
    with opened(browser, service.url, viewport={"width": width, "height": height}, color_scheme=scheme) as page:
        assert_accessible(page)
        start(page)
        call = service.call()
        call.hear("item_1", "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen " * 3)
        call.begin_reply("resp_1", "That is long.")
        activity(page, "speaking")
        assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for name in ("End call", "Mute", "Stop reply", "Settings", "Send message"):
            expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=0.99)


def test_the_whole_call_works_by_keyboard(page: Page, service: FakeService) -> None:
    order = []
    for _ in range(4):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
    assert order == ["settings-open", "talk", "captions", "message"]
    page.locator("#talk").focus()
    page.keyboard.press("Space")
    phase(page, "connected")
    expect(page.locator("#talk")).to_be_focused()
    page.keyboard.press("Enter")
    phase(page, "closed")
    assert service.call().number == 1


def test_motion_is_reduced_where_that_is_wished(browser: Browser, service: FakeService) -> None:
    with opened(browser, service.url, reduced_motion="reduce") as page:
        start(page)
        service.call().say("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
        activity(page, "hearing")
        running = page.evaluate("document.getAnimations().filter(a => a.playState === 'running').length")
    assert running == 0
