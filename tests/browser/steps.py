"""What a person does on the page and looks for, for tests."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.fake_service import FakeService

# The rules of WCAG 2.2 A and AA, and what the library's authors hold to be good practice.
AXE_OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}

WAIT_MS_MAX = 10_000

# One that is cut short, as what moved is gone, is over too.
MOTION_OVER = """
() => {
  const passing = document.getAnimations().filter((one) => one.effect.getTiming().iterations === 1);
  return Promise.allSettled(passing.map((one) => one.finished));
}
"""


# Notes each state of the call that the page has shown, so that none is missed that passes between two looks.
NOTE_STATES = """
window.shown = { phase: [], activity: [] };
addEventListener("DOMContentLoaded", () => {
  const note = () => {
    for (const [what, states] of Object.entries(shown)) {
      const state = document.body.dataset[what];
      if (state !== states.at(-1)) states.push(state);
    }
    dispatchEvent(new Event("noted"));
  };
  new MutationObserver(note).observe(document.body, { attributes: true });
  note();
});
"""
_UNTIL_SHOWN = """
([what, wanted, msMax]) => new Promise((resolve, reject) => {
  const look = () => {
    const at = shown[what].indexOf(wanted);
    if (at < 0) return;
    shown[what].splice(0, at);
    removeEventListener("noted", look);
    clearTimeout(late);
    resolve();
  };
  const late = setTimeout(() => reject(new Error(`${what} was ${shown[what]}, never ${wanted}`)), msMax);
  addEventListener("noted", look);
  look();
})
"""


# Captions are drawn with the next frame, behind the state that a test has waited for.
_SAID = """
(selector) => new Promise((resolve) => requestAnimationFrame(() => resolve(
  [...document.querySelectorAll(selector)].map((box) => {
    const said = box.cloneNode(true);
    for (const struck of said.querySelectorAll("s")) struck.remove();
    return said.textContent.trim();
  }),
)))
"""


def phase(page: Page, wanted: str, *, ms_max: int = WAIT_MS_MAX) -> None:
    """Wait until the call is, or since the last such wait has been, in this phase."""
    page.evaluate(_UNTIL_SHOWN, ["phase", wanted, ms_max])


def activity(page: Page, wanted: str, *, ms_max: int = WAIT_MS_MAX) -> None:
    """Wait until the conversation is, or since the last such wait has been, in this state."""
    page.evaluate(_UNTIL_SHOWN, ["activity", wanted, ms_max])


def start(page: Page) -> None:
    """Press the button and be connected."""
    page.get_by_role("button", name="Start talking").click()
    phase(page, "connected")


def type_text(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send message").click()


def lines(page: Page, kind: str) -> list[str]:
    """The words of one side or status, as shown, but for those that are struck out."""
    found: list[str] = page.evaluate(_SAID, f"#lines .{kind} .words")
    return found


def shows_notice(page: Page, title: str) -> None:
    expect(page.get_by_role("group", name="Notice")).to_contain_text(title)


def assert_accessible(page: Page) -> None:
    """No rule of axe-core is broken. Motion is over first, as its colours are in between."""
    page.evaluate(MOTION_OVER)
    violations: list[Any] = Axe().run(page, options=AXE_OPTIONS).response["violations"]
    found = [
        (one["id"], [node["html"][:120] + " " + node.get("failureSummary", "") for node in one["nodes"]])
        for one in violations
    ]
    assert found == [], found


# From here on the page's microphones are noted, and with `holdMicrophone` the browser's question stays open until
# `allow()`, which answers all of them in order.
HOLD_MICROPHONE = """
window.tracks = [];
window.asked = [];
window.holdMicrophone = false;
window.allow = () => asked.splice(0).forEach((answer) => answer());
const openOne = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  const stream = await openOne(wanted);
  tracks.push(...stream.getAudioTracks());
  if (holdMicrophone) await new Promise((answer) => asked.push(answer));
  return stream;
};
"""

# Holds the answer to each offer back in the page until `letAnswer()`.
HOLD_ANSWERS = """
() => {
  const before = window.fetch;
  const released = new Promise((resolve) => { window.letAnswer = resolve; });
  window.fetch = async (url, ...rest) => {
    const answer = await before(url, ...rest);
    if (!new URL(url, location).pathname.endsWith("/calls")) return answer;
    window.isAnswered = true;
    await released;
    return answer;
  };
}
"""


def hold_microphone(page: Page) -> None:
    """From now on the browser asks the caller before it opens a microphone."""
    page.evaluate("() => { holdMicrophone = true; }")


def until_asked(page: Page, number: int = 1) -> None:
    """Wait until the browser has asked for so many microphones that nobody has answered."""
    page.wait_for_function(f"() => asked.length >= {number}")


def live_tracks(page: Page) -> list[bool]:
    """Of each microphone that was opened, whether it is open."""
    found: list[bool] = page.evaluate("tracks.map((one) => one.readyState === 'live')")
    return found


def lose_for_good(page: Page, service: FakeService, number: int = 1) -> None:
    """The `number`th connection breaks, and no try brings it back; the next by hand does."""
    service.refusal = (403, "origin_not_allowed", None)
    service.call(number).drop()
    phase(page, "reconnecting")
    phase(page, "closed")
    service.refusal = None


def focused(page: Page) -> str:
    """The id of what has the focus, else its words."""
    found: str = page.evaluate("document.activeElement.id || document.activeElement.innerText")
    return found
