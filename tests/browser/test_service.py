"""The page and the real service: processes, sound both ways, interruptions, a gateway that dies.

The scripted engine hears what it is told and hums its replies at 440 Hz; the browser's microphone says recorded
sentences, once, with silence around them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect

from tests.browser.conftest import launched, opened
from tests.browser.sounds import recorded, silence, write_wav
from tests.browser.steps import activity, assert_accessible, lines, phase, shows_notice, start, type_text
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

HEARD = "good morning"
REPLY = "This is a reply that goes on until the caller has enough."
TONE_HZ = 440
WORD_SAMPLES = 4_800
CALLS_MAX = 2
RETURN_MS_MAX = 30_000

# Resolves with the strongest frequency of the page's sound once it is audible.
STRONGEST_HZ = """
() => new Promise((resolve) => {
  const context = new AudioContext();
  const analyser = new AnalyserNode(context, { fftSize: 8192 });
  context.createMediaStreamSource(document.querySelector("#sound").srcObject).connect(analyser);
  const bins = new Float32Array(analyser.frequencyBinCount);
  const timer = setInterval(() => {
    analyser.getFloatFrequencyData(bins);
    const strongest = bins.indexOf(Math.max(...bins));
    if (bins[strongest] < -50) return;
    clearInterval(timer);
    context.close();
    resolve(strongest * context.sampleRate / analyser.fftSize);
  }, 50);
})
"""


# Keeps the page's data channel and what comes over it.
KEEP_CHANNEL = """
window.told = [];
const create = RTCPeerConnection.prototype.createDataChannel;
RTCPeerConnection.prototype.createDataChannel = function (...given) {
  window.channel = create.apply(this, given);
  channel.addEventListener("message", ({ data }) => told.push(JSON.parse(data)));
  return channel;
};
"""
# Keeps what is in ink of the first reply at each change of the page, and up to which sample it was known to sound then.
WATCH_INK = """
window.inks = [];
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  const words = document.querySelector("#lines .service .words");
  const inked = words?.firstChild instanceof Text ? words.firstChild.data : "";
  inks.push([inked, told.findLast(({ type }) => type === "playback.acknowledged")?.until_sample ?? 0]);
}).observe(document.querySelector("#lines"), { subtree: true, childList: true }));
"""
# The item of the reply that was cut, as the service has it.
RETRIEVE_CUT = """
async () => {
  const item_id = told.find(({ response }) => response?.status === "cancelled").response.output[0].id;
  channel.send(JSON.stringify({ type: "conversation.item.retrieve", item_id }));
  for (;;) {
    const found = told.find(({ type, item }) => type === "conversation.item.retrieved" && item.id === item_id);
    if (found) return found.item;
    await new Promise((come) => channel.addEventListener("message", come, { once: true }));
  }
}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {
        "scripted_heard": HEARD,
        "scripted_replies": REPLY,
        "calls_max": str(CALLS_MAX),
        "webrtc_silence_s": "2",
    }
    with serving(tmp_path_factory.mktemp("web"), settings) as running:
        yield running


@contextmanager
def calling(browser: Browser, service: Service, **options: Any) -> Iterator[Page]:
    with opened(browser, f"http://{service.address}/", **options) as page:
        yield page


@contextmanager
def talking(playwright: Playwright, service: Service, microphone: Path) -> Iterator[Page]:
    """A page whose microphone says what is in the file."""
    with (
        launched(playwright, microphone=microphone) as browser,
        calling(browser, service, scripts=(KEEP_CHANNEL,)) as page,
    ):
        yield page


def test_what_is_said_is_answered_and_heard(playwright: Playwright, service: Service, tmp_path: Path) -> None:
    spoken = write_wav(tmp_path / "mic.wav", silence(0.6), recorded("yes"), silence(8))
    with talking(playwright, service, spoken) as page:
        start(page)
        hz = page.evaluate(STRONGEST_HZ)
        activity(page, "listening")
        expect(page.locator(".drain")).to_be_visible()
        assert lines(page, "caller") == [HEARD]
        assert lines(page, "service") == [REPLY]
        expect(page.locator(".first-audio")).to_have_text(re.compile(r"First sound (\d+ ms|[\d.]+ s)"))
    assert hz == pytest.approx(TONE_HZ, abs=12)


def test_speech_stops_a_reply_and_the_caption_with_it(playwright: Playwright, service: Service, tmp_path: Path) -> None:
    said = (silence(0.6), recorded("yes"), silence(1.8), recorded("weather"), silence(8))
    spoken = write_wav(tmp_path / "mic.wav", *said)
    with talking(playwright, service, spoken) as page:
        start(page)
        activity(page, "speaking")
        activity(page, "interrupted")
        expect(page.locator(".was-cut")).to_have_text(re.compile(r"Interrupted, silent in \d+ ms"))
        cut, item = lines(page, "service")[0], page.evaluate(RETRIEVE_CUT)
        struck = page.locator("s").first.inner_text()
        activity(page, "speaking")
        assert lines(page, "caller") == [HEARD, HEARD]
    assert cut == item["content"][0]["transcript"]
    assert struck.startswith(item["cut_word"])
    assert f"{cut} {struck}" == REPLY


def test_ink_grows_with_what_is_heard_and_never_ahead_of_it(browser: Browser, service: Service) -> None:
    with calling(browser, service, permissions=(), scripts=(KEEP_CHANNEL, WATCH_INK)) as page:
        type_text(page, "Are you there?")
        expect(page.locator(".drain")).to_be_visible()
        expect(page.locator("#lines .service .unheard")).to_have_count(0)
        inks: list[tuple[str, int]] = page.evaluate("inks")
    assert inks[-1][0] == REPLY
    grown = list(dict.fromkeys(inked for inked, _ in inks))
    assert grown == sorted(grown, key=len)
    assert len(grown) > len(REPLY.split()), "it flows through words"
    for inked, until in inks:
        begun = len(inked.split())
        assert inked == REPLY or not begun or (begun - 1) * WORD_SAMPLES < until


def test_a_typed_message_is_answered_with_speech(browser: Browser, service: Service) -> None:
    with calling(browser, service, permissions=()) as page:
        type_text(page, "Are you there?")
        activity(page, "speaking")
        assert page.evaluate(STRONGEST_HZ) == pytest.approx(TONE_HZ, abs=12)
        page.get_by_role("button", name="Stop reply").click()
        activity(page, "interrupted")
        activity(page, "listening")
        assert lines(page, "caller") == ["Are you there?"]
        assert_accessible(page)


def test_a_full_service_says_so_and_takes_the_call_later(browser: Browser, service: Service) -> None:
    with calling(browser, service) as one, calling(browser, service) as two, calling(browser, service) as three:
        start(one)
        start(two)
        three.get_by_role("button", name="Start talking").click()
        shows_notice(three, "All lines are busy")
        expect(three.locator(".count")).to_have_text(re.compile(r"Try again in \d+ s\."))
        one.get_by_role("button", name="End call").click()
        service.wait_for_calls(CALLS_MAX - 1)
        three.get_by_role("button", name="Try again").click()
        phase(three, "connected")


def test_a_page_that_vanishes_frees_its_line(playwright: Playwright, service: Service) -> None:
    with launched(playwright) as browser, calling(browser, service) as page:
        start(page)
        since = len(service.lines)
        # As a crash does: nothing of the page runs any more, so nothing says goodbye.
        page.evaluate("() => { setTimeout(() => { for (;;) {} }); }")
        browser.close()
        service.wait_for_event("call_ended", since=since)


def test_the_conversation_outlives_the_gateway(browser: Browser, service: Service) -> None:
    with calling(browser, service) as page:
        page.get_by_role("button", name="Start talking").click()
        phase(page, "connected")
        page.get_by_role("button", name="Mute").click()
        type_text(page, "Remember me.")
        activity(page, "speaking")
        service.kill("gateway")
        type_text(page, "Are you there?")
        phase(page, "reconnecting", ms_max=RETURN_MS_MAX)
        phase(page, "connected", ms_max=RETURN_MS_MAX)
        expect(page.locator("#lines .note .words").last).to_have_text("Reconnected")
        activity(page, "listening")
        activity(page, "speaking")
        assert lines(page, "caller") == ["Remember me.", "Are you there?"]
        expect(page.locator("#lines .pending")).to_have_count(0)
        assert page.evaluate(STRONGEST_HZ) == pytest.approx(TONE_HZ, abs=12)


def test_the_conversation_outlives_a_rolling_restart(browser: Browser, service: Service) -> None:
    with calling(browser, service) as page:
        page.get_by_role("button", name="Start talking").click()
        phase(page, "connected")
        page.get_by_role("button", name="Mute").click()
        since = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        phase(page, "reconnecting", ms_max=RETURN_MS_MAX)
        phase(page, "connected", ms_max=RETURN_MS_MAX)
        type_text(page, "Are you there?")
        activity(page, "speaking")
        assert lines(page, "caller") == ["Are you there?"]
        service.wait_for_event("gateways_replaced", since=since)
