"""What a person does on the page and looks for, for tests."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

# The rules of WCAG 2.2 A and AA, and what the library's authors hold to be good practice.
AXE_OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}

MOTION_OVER = """
() => {
  const passing = document.getAnimations().filter((one) => one.effect.getTiming().iterations === 1);
  return Promise.all(passing.map((one) => one.finished));
}
"""


def phase(page: Page, wanted: str) -> None:
    page.wait_for_selector(f'body[data-phase="{wanted}"]')


def activity(page: Page, wanted: str) -> None:
    page.wait_for_selector(f'body[data-activity="{wanted}"]')


def start(page: Page) -> None:
    """Press the button and be connected."""
    page.get_by_role("button", name="Start talking").click()
    phase(page, "connected")


def type_text(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send message").click()


def lines(page: Page, speaker: str) -> list[str]:
    """The words of one side, as shown."""
    return page.locator(f"#lines .{speaker} .words").all_inner_texts()


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
