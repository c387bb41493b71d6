"""`duplex-client.js` as another page would use it: tokens, limits, and how it comes back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.fake_service import FakeService

pytestmark = [pytest.mark.live, pytest.mark.slow]

# A page of its own over the client. `random` is the smallest there is, so that pauses are half their ceilings.
BEGIN = """
async (options) => {
  const { DuplexClient } = await import("/web/duplex-client.js");
  window.track = (await navigator.mediaDevices.getUserMedia({ audio: true })).getAudioTracks()[0];
  window.states = [];
  window.client = new DuplexClient({ random: () => 0, ...options });
  window.sound = new Audio();
  client.addEventListener("track", ({ detail }) => { sound.srcObject = detail.stream; sound.play(); });
  client.addEventListener("state", ({ detail }) => states.push(detail));
  await client.connect(track);
}
"""
TRIES_MAX = 8


def test_pauses_grow_and_tries_are_bounded(page: Page, service: FakeService) -> None:
    page.clock.install()
    page.evaluate(BEGIN, {})
    service.refusal = (500, "internal_error", None)
    service.call().drop()
    for attempt in range(1, TRIES_MAX + 1):
        page.wait_for_function(f"() => states.some((one) => one.attempt === {attempt})")
        page.clock.fast_forward(10_000)
    page.wait_for_function("() => client.state === 'closed'")
    pauses = page.evaluate("states.filter((one) => one.attempt).map((one) => one.retryInMs)")
    assert pauses == [200, 400, 800, 1_600, 3_200, 4_000, 4_000, 4_000]
    assert page.evaluate("[states.at(-1).error.code, client.isResumable]") == ["connection_lost", True]


def test_a_call_that_was_given_up_can_still_be_resumed(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (403, "origin_not_allowed", None)
    service.call().drop()
    page.wait_for_function("() => client.state === 'closed'")
    service.refusal = None
    page.evaluate("() => { client.connect(track); }")
    assert service.call(2).next("session.resume")["token"] == "sess.1"


def test_a_service_that_hangs_is_noticed_by_its_silence(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    call.begin_reply("resp_1", "Hello.")
    call.next("playback.ack")
    call.tone.frozen = True
    assert service.call(2).next("session.resume")["token"] == "sess.1"


def test_the_service_is_left_alone_for_as_long_as_it_asks(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (503, "service_not_ready", 7)
    service.call().drop()
    page.wait_for_function("() => states.some((one) => one.attempt === 2)")
    assert page.evaluate("states.at(-1).retryInMs") == 7_000
    service.refusal = None
    page.evaluate("client.retryNow()")
    service.call(2).next("session.resume")


def test_hanging_up_ends_a_reconnection(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (503, "service_not_ready", 60)
    service.call().drop()
    page.wait_for_function("() => states.some((one) => one.attempt === 2)")
    page.evaluate("client.hangUp()")
    assert page.evaluate("[client.state, states.at(-1).error, client.isResumable]") == ["closed", None, False]


def test_a_token_is_traded_for_a_secret(page: Page, service: FakeService) -> None:
    service.token = "ek_secret"
    page.evaluate(BEGIN, {"token": "long-lived", "exchangeToken": True})
    assert service.requests[0]["authorization"] == "Bearer ek_secret"
    assert service.calls[0].number == 1


def test_stock_services_get_no_extensions(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {"extensions": False, "model": "any"})
    call = service.call()
    call.begin_reply("resp_1", "Hello.")
    call.end_reply("resp_1", "Hello.")
    page.evaluate("client.send('session.update', { session: { type: 'realtime' } })")
    call.next("session.update")
    assert service.requests[0]["query"] == "model=any"
    assert "playback.ack" not in call.types()


def test_a_message_that_the_channel_cannot_carry_is_refused(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    code = page.evaluate("() => { try { client.sendText('x'.repeat(70000)); } catch (error) { return error.code; } }")
    assert code == "message_too_large"
    page.evaluate("client.hangUp()")
    code = page.evaluate("() => { try { client.sendText('x'); } catch (error) { return error.code; } }")
    assert code == "not_connected"


def test_the_clock_of_the_microphone_is_known(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    first, later = page.evaluate("async () => [await client.timeOfInput(0), await client.timeOfInput(1000)]")
    now = page.evaluate("performance.now()")
    assert later - first == pytest.approx(1_000, abs=100)
    assert now - 10_000 < first < now + 100
