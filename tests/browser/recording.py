"""What the page plays, recorded there: what its audio element is given, as samples."""

from __future__ import annotations

import base64
import io

import av
import numpy as np
from playwright.sync_api import Page

_RECORD = """
() => {
  window.parts = [];
  window.recorder = new MediaRecorder(document.querySelector("#sound").srcObject);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.start(200);
}
"""
_RECORDED = """
async () => {
  const stopped = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.stop();
  await stopped;
  const reader = new FileReader();
  const read = new Promise((resolve) => { reader.onload = resolve; });
  reader.readAsDataURL(new Blob(parts));
  await read;
  return reader.result.split(",")[1];
}
"""


def record(page: Page) -> None:
    """Begin to keep what the page plays."""
    page.evaluate(_RECORD)


def recorded_pcm(page: Page, rate: int) -> bytes:
    """End the recording: PCM16 mono at `rate`."""
    encoded = base64.b64decode(page.evaluate(_RECORDED))
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
    with av.open(io.BytesIO(encoded), "r") as container:
        parts = [part.to_ndarray() for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate(parts, axis=1).astype("<i2").tobytes()
