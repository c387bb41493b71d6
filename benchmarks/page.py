"""The page in Chromium on the local engine, by the page's own clock: connecting, answering, stopping, being understood.

The browser's microphone says the sentences of the other measurements. What the page is given to play is recorded there
and recognised by a recogniser that the service does not use.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, Playwright, sync_playwright

from benchmarks import figures
from benchmarks.hearing import say_what_was_said
from benchmarks.service import Service, running_service
from benchmarks.speech import QUESTIONS, utterance, word_errors, words
from benchmarks.turns import SILENCE_MS, Say
from loadtest.realtime_wire import SAMPLE_RATE
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from tests.browser.conftest import launched, opened
from tests.browser.recording import record, recorded_pcm
from tests.browser.sounds import RATE, Pcm, silence, write_wav
from tests.browser.steps import activity, lines, phase, start

CONNECTIONS = 20
REPLY_S_MAX = 12.0  # the pause after a sentence that is to be answered in full
INTERRUPT_S = 1.8  # the pause before the next sentence that talks into the reply
LAST_S = 15.0
WAIT_MS_MAX = 240_000
HTTP_S_MAX = 5
POLL_S = 0.05

_FIGURE = re.compile(r"([\d.]+) (ms|s)\b")


async def page(say: Say, *, turns: int) -> bool:
    """Click to connected, last sound to first audible sample, interruption to silence, and what was heard in it."""
    async with running_service(silence_ms=str(SILENCE_MS)) as service:
        return await asyncio.to_thread(_measure, say, service, turns)


def _measure(say: Say, service: Service, turns: int) -> bool:
    said = [QUESTIONS[number % len(QUESTIONS)] for number in range(turns)]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        file = Path(folder) / "microphone.wav"
        _connect(say, playwright, service)
        good = _converse(say, playwright, service, _spoken(file, said, REPLY_S_MAX), said)
        _interrupt(say, playwright, service, _spoken(file, said, INTERRUPT_S), said)
        _lose_the_gateway(say, playwright, service)
        _vanish(say, playwright, service)
    return good


@contextmanager
def _page(playwright: Playwright, service: Service, microphone: Path | None = None) -> Iterator[Page]:
    with launched(playwright, microphone=microphone) as browser, opened(browser, service.url) as one:
        one.set_default_timeout(WAIT_MS_MAX)
        yield one


def _connect(say: Say, playwright: Playwright, service: Service) -> None:
    with launched(playwright) as browser:
        took = []
        for _ in range(CONNECTIONS):
            with opened(browser, service.url) as one:
                start(one)
                took += _milliseconds(one, "#lines .note")
    say(figures.line("click to connected", took))


def _converse(say: Say, playwright: Playwright, service: Service, file: Path, said: list[str]) -> bool:
    with _page(playwright, service, file) as one:
        start(one)
        record(one)
        _wait_for_replies(one, len(said))
        first_sounds = _milliseconds(one, "#lines .first-audio")
        heard, replies = lines(one, "caller"), lines(one, "service")
        recording = recorded_pcm(one, SAMPLE_RATE)
    say(figures.line("caller's last sound to first audible sample", first_sounds))
    wrong = word_errors(words(" ".join(said)), words(" ".join(heard)))
    say(f"captions of the caller: {wrong} of {len(words(' '.join(said)))} words wrong, {len(replies)} replies")
    say_what_was_said(say, replies, recording)
    return len(replies) == len(said) == len(first_sounds)


def _wait_for_replies(one: Page, count: int) -> None:
    one.locator("#lines .service .drain").nth(count - 1).wait_for()
    activity(one, "listening")


def _interrupt(say: Say, playwright: Playwright, service: Service, file: Path, said: list[str]) -> None:
    with _page(playwright, service, file) as one:
        start(one)
        _wait_for_replies(one, len(said))
        stops = _milliseconds(one, "#lines .was-cut")
        drains = _milliseconds(one, "#lines .drain")
    say(figures.line("interrupting sound to the page's silence", stops))
    say(figures.line("done to drained, at the page", drains))


def _lose_the_gateway(say: Say, playwright: Playwright, service: Service) -> None:
    with _page(playwright, service) as one:
        start(one)
        one.get_by_role("button", name="Mute").click()
        one.get_by_label("Message", exact=True).fill("What is the capital of France?")
        one.get_by_role("button", name="Send message").click()
        _wait_for_replies(one, 1)
        began_s = time.monotonic()
        service.kill("gateway")
        phase(one, "reconnecting")
        noticed_s = time.monotonic()
        phase(one, "connected")
        back_s = time.monotonic()
    say(f"kill -9 of the gateway: noticed by the page after {noticed_s - began_s:.1f} s, back {back_s - began_s:.1f} s")


def _vanish(say: Say, playwright: Playwright, service: Service) -> None:
    """As in a crash, nothing of the page runs any more, so nothing says goodbye."""
    with launched(playwright) as browser, opened(browser, service.url) as one:
        start(one)
        one.evaluate("() => { setTimeout(() => { for (;;) {} }); }")
        began_s = time.monotonic()
        browser.close()
        while _calls(service):
            time.sleep(POLL_S)
    say(f"a page that vanishes without a word: its place is free after {time.monotonic() - began_s:.1f} s")


def _calls(service: Service) -> int:
    with urllib.request.urlopen(f"{service.url}/readyz", timeout=HTTP_S_MAX) as answer:
        return int(json.load(answer)["calls"])


def _milliseconds(one: Page, where: str) -> list[float]:
    """The figures that the page shows at these places."""
    shown = [_FIGURE.search(text) for text in one.locator(where).all_inner_texts()]
    return [float(found[1]) * (1 if found[2] == "ms" else 1_000) for found in shown if found]


def _spoken(file: Path, said: list[str], pause_s: float) -> Path:
    parts = [part for text in said for part in (_narrow(utterance(text).pcm), silence(pause_s))]
    return write_wav(file, silence(1.0), *parts, silence(LAST_S))


def _narrow(pcm: bytes) -> Pcm:
    resampler = StreamResampler(SAMPLE_RATE, RATE)
    sound = np.concatenate([resampler.process(pcm16_to_float(pcm)), resampler.flush()])
    return np.frombuffer(float_to_pcm16(sound), np.int16)
