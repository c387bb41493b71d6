"""A browser with a made-up microphone, for tests of the page.

Debian's Chromium is driven by Playwright; permissions are those that a test grants. The browser lives as long as the
tests of one module, as Playwright holds the thread's event loop, which other tests want; each test has a profile of its
own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests.browser.fake_service import FakeService, fake_service
from tests.browser.steps import NOTE_STATES, WAIT_MS_MAX

FLAGS = (
    "--use-fake-device-for-media-stream",
    "--allow-loopback-in-peer-connection",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-dev-shm-usage",
)
MISSING = "Chromium is missing: apt-get install -y chromium"

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@contextmanager
def launched(playwright: Playwright, *, microphone: Path | None = None) -> Iterator[Browser]:
    """A browser whose microphone says what is in the file, once; or beeps once a second."""
    chromium = shutil.which("chromium")
    assert chromium, MISSING
    said = [f"--use-file-for-fake-audio-capture={microphone}%noloop"] if microphone else []
    browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, *said])
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    with launched(playwright) as running:
        yield running


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    permissions: tuple[str, ...] = ("microphone",),
    scripts: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Page]:
    """The page at `url`, after `scripts` of the test's own. No script of it may have failed by the end."""
    context = browser.new_context(permissions=list(permissions), **options)
    context.set_default_timeout(WAIT_MS_MAX)
    for script in (NOTE_STATES, *scripts):
        context.add_init_script(script)
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    try:
        page.goto(url)
        yield page
        assert failures == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def running_service() -> Iterator[FakeService]:
    with fake_service() as running:
        yield running


@pytest.fixture
def service(running_service: FakeService) -> Iterator[FakeService]:
    yield running_service
    running_service.reset()


@pytest.fixture
def page(browser: Browser, service: FakeService) -> Iterator[Page]:
    """The page of the fake service, on a laptop, with a microphone."""
    with opened(browser, service.url) as one:
        yield one
