"""What a hold must leave of a reply: every sample but those of the ramps, and no step."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from benchmarks.holds import AUDIO, CLICK_RATIO_MAX, FADE, Held, judge_frames, judge_words, said
from media.fade import faded_in, faded_out
from media.pcm import float_to_pcm16
from tests.live.caller import RATE, Message

RESPONSE = "resp_one"
WORDS = 3
FRAME = RATE // 50
ALL: bytes = said(RESPONSE, WORDS, RATE).astype("<i2").tobytes()


def frames(seam: int | None, *, fades: bool = True, pcm: bytes = ALL) -> list[Message]:
    """The reply as it comes, held at frame number `seam`."""
    made: list[Message] = []
    start, resumes = 0, False
    while start < len(pcm) // 2:
        held = seam is not None and start == seam * FRAME
        size = FADE if held else FRAME
        piece = pcm[2 * start : 2 * (start + size)]
        if fades:
            piece = faded_out(piece) if held else faded_in(piece, FADE) if resumes else piece
        delta = base64.b64encode(piece).decode()
        made.append({"type": AUDIO, "start_sample": start, "samples": len(piece) // 2, "delta": delta})
        start, resumes = start + len(piece) // 2, held
    return made


def judged(came: list[Message]) -> Held:
    return judge_frames(came, RESPONSE, WORDS, 1)


@pytest.mark.parametrize("seam", [None, 1, 7, 12, 28])
def test_a_reply_that_goes_on_where_it_stopped_is_whole(seam: int | None) -> None:
    held = judged(frames(seam))
    assert (held.faults, held.seams) == ({}, seam is not None)
    assert held.samples == len(ALL) // 2 - 2 * FADE * held.seams
    assert all(ratio <= CLICK_RATIO_MAX for ratio in held.click_ratios)


def test_a_stop_without_a_ramp_is_a_click() -> None:
    (ratio,) = judged(frames(7, fades=False)).click_ratios
    assert ratio > CLICK_RATIO_MAX


def test_what_is_lost_doubled_or_changed_is_found() -> None:
    whole = frames(7)
    assert "a gap or a sample twice" in judged([*whole[:3], *whole[4:]]).faults
    assert "a gap or a sample twice" in judged([*whole[:3], whole[2], *whole[3:]]).faults
    assert judged(whole[:-1]).faults == {"not as long as the reply": 1}
    changed = bytearray(ALL)
    changed[2 * 4_000] ^= 4
    assert judged(frames(7, pcm=bytes(changed))).faults == {"a sample that differs": 1}


def test_a_word_that_is_lost_or_heard_twice_behind_a_codec_is_found() -> None:
    word = len(ALL) // 2 // WORDS
    assert judge_words(sound(ALL), RESPONSE, WORDS, 1).faults == {}
    assert judge_words(sound(ALL[: 4 * word]), RESPONSE, WORDS, 1).faults == {"words out of order, or twice": 1}
    hole = ALL[: 3 * word] + bytes(word) + ALL[4 * word :]
    assert judge_words(sound(hole), RESPONSE, WORDS, 1).faults == {"a word that is not whole": 1}


def sound(pcm: bytes) -> bytes:
    """`pcm` at 48 kHz between silences, with a halt in it."""
    doubled = np.repeat(np.frombuffer(pcm, dtype="<i2"), 2).astype(np.float32) / 32_768
    silence = np.zeros(9_600, dtype=np.float32)
    return float_to_pcm16(np.concatenate((silence, doubled[:9_600], silence, doubled[9_600:], silence)))
