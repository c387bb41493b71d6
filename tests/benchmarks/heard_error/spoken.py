"""Replies as they would be heard and stored, for tests of the judge and the report."""

from __future__ import annotations

import numpy as np

from benchmarks.heard_error.judge import Finding, judge
from benchmarks.heard_error.line import Spoken
from benchmarks.heard_error.plan import CallPlan, Cut, Deed
from loadtest.coded_ear import CodedEar
from media.coded_tones import EAR_RATE, encode, response_number, word_samples
from media.pcm import FloatSamples, float_to_pcm16
from sessions.records import ItemRecord
from tests.live.coded_caller import Reports

RESPONSE = "resp_one"
WORD = word_samples(EAR_RATE)
WORD_MS = 200
MS = EAR_RATE // 1_000


def speech(*words: int) -> FloatSamples:
    silence = np.zeros(0, dtype=np.float32)
    return np.concatenate([silence, *(encode(response_number(RESPONSE), word, EAR_RATE) for word in words)])


def item(words: int, cut_ms: int, *, sent_ms: int = 2_000) -> ItemRecord:
    content = ", ".join(f"w{word}" for word in range(words))
    return ItemRecord("item", "assistant", content=content, audio_ms_total=sent_ms, audio_ms_cut=cut_ms, truncated=True)


def judged(
    sound: FloatSamples,
    stored: ItemRecord | None,
    *,
    stale_samples: int = 0,
    reports: Reports = "acks",
    deed: Deed = "cancel",
    stop: tuple[float | None, int | None] = (None, None),
) -> Finding:
    """What is found of one reply whose `sound` was played. `stop`: of a telephone, as `Spoken` has it."""
    cut = Cut(deed, "inside", 0.5)
    ear = CodedEar(float_to_pcm16(np.concatenate((sound, np.zeros(WORD, dtype=np.float32)))), EAR_RATE)
    plan = CallPlan("websocket", "prompt", reports, (cut,), 1)
    return judge(plan, Spoken(RESPONSE, "item", cut, stale_samples, *stop), stored, ear)
