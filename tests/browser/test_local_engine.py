"""The page on the real local engine: a sentence is spoken into the microphone, and its answer heard in the page.

What the page plays is recorded there and recognised by a recogniser that the service does not use.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Playwright
from pocketsphinx import Decoder

from tests.browser.conftest import launched, opened
from tests.browser.recording import record, recorded_pcm
from tests.browser.sounds import recorded, silence, write_wav
from tests.browser.steps import activity, lines, start
from tests.live.service import serving

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.models]

RECOGNISER_RATE = 16_000


def recognised(pcm: bytes) -> str:
    """The words of PCM16 at `RECOGNISER_RATE`."""
    decoder = Decoder(samprate=RECOGNISER_RATE)
    decoder.start_utt()
    decoder.process_raw(pcm, full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return str(hypothesis.hypstr) if hypothesis else ""


def test_a_spoken_question_is_answered_aloud(playwright: Playwright, tmp_path: Path) -> None:
    spoken = write_wav(tmp_path / "mic.wav", silence(0.8), recorded("capital"), silence(30))
    with (
        serving(tmp_path / "data", {}, engine="local") as service,
        launched(playwright, microphone=spoken) as browser,
        opened(browser, f"http://{service.address}/") as page,
    ):
        start(page)
        record(page)
        activity(page, "speaking")
        activity(page, "listening")
        recording = recorded_pcm(page, RECOGNISER_RATE)
        assert lines(page, "caller") == ["What is the capital of France?"]
        assert "Paris" in lines(page, "service")[0]
    assert "capital" in recognised(recording)
