"""Which words a caller heard: however late the sound came, wherever it stood still, wherever it was cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadtest.coded_ear import LOST_MS_MAX, SHORTEST_SAMPLES, CodedEar, WordHeard, wholly_heard, words_heard
from loadtest.playout_model import NS_PER_S, AudioFrame, PlayoutModel
from loadtest.recording import Recording
from media.coded_tones import EDGE_SAMPLES, encode, response_number, word_samples
from media.pcm import FloatSamples, float_to_pcm16

RATE = 24_000
WORD = word_samples(RATE)
FRAME = RATE // 50
MS = NS_PER_S // 1_000
ID, OTHER = "resp_one", "resp_two"
SYMBOL = WORD // 16


def speech(response_id: str, words: int) -> FloatSamples:
    return np.concatenate([encode(response_number(response_id), word, RATE) for word in range(words)])


def silence(samples: int) -> FloatSamples:
    return np.zeros(samples, dtype=np.float32)


def whole_words(*pieces: FloatSamples, rate: int = RATE) -> list[int]:
    return wholly_heard(words_heard(float_to_pcm16(np.concatenate(pieces)), rate), ID)


def test_a_reply_that_came_whole_was_heard_whole() -> None:
    heard = words_heard(float_to_pcm16(speech(ID, 5)), RATE)
    assert heard == [WordHeard(response_number(ID), word, word * WORD, 0, 0) for word in range(5)]
    assert wholly_heard(heard, ID) == [0, 1, 2, 3, 4]
    assert wholly_heard(heard, OTHER) == []


def test_nothing_was_heard_in_silence() -> None:
    assert words_heard(b"", RATE) == []
    assert words_heard(bytes(2 * RATE), RATE) == []


def test_a_recording_at_the_rate_of_a_browser_is_heard_as_well() -> None:
    sound = np.concatenate([encode(response_number(ID), word, 48_000) for word in range(4)])
    assert whole_words(sound, rate=48_000) == [0, 1, 2, 3]


@pytest.mark.parametrize("symbols", range(1, 16))
def test_a_word_in_which_the_reply_stood_still_was_heard_whole(symbols: int) -> None:
    at = WORD + symbols * SYMBOL + 77
    said = speech(ID, 3)
    assert whole_words(said[:at], silence(9_000), said[at:]) == [0, 1, 2]


@pytest.mark.parametrize("frame", [23, 24])
def test_a_symbol_that_sounds_the_same_five_milliseconds_later_misleads_nobody(frame: int) -> None:
    """One of the third word does: a halt of as much leaves it, too short to be a piece, at two places."""
    said, at = speech(ID, 4), frame * FRAME
    assert whole_words(said[:at], silence(RATE * 5 // 1_000), said[at:]) == [0, 1, 2, 3]


def test_a_fade_on_either_side_of_a_halt_loses_no_word() -> None:
    at, ramp = WORD + 5 * SYMBOL, RATE // 100
    said = speech(ID, 3)
    fade = np.linspace(1, 0, ramp, dtype=np.float32)
    before = np.concatenate([said[: at - ramp], said[at - ramp : at] * fade])
    after = np.concatenate([said[at : at + ramp] * fade[::-1], said[at + ramp :]])
    assert whole_words(before, silence(7_000), after) == [0, 1, 2]


@pytest.mark.parametrize("symbols", [2, 8, 14])
def test_what_was_thrown_away_in_a_halt_is_missing(symbols: int) -> None:
    at = WORD + symbols * SYMBOL
    said = speech(ID, 4)
    assert whole_words(said[:at], silence(9_000), said[2 * WORD :]) == [0, 2, 3]


def test_what_was_lost_in_the_middle_of_a_word_is_missing() -> None:
    at = WORD + 7 * SYMBOL
    said = speech(ID, 3)
    gone = np.concatenate([said[:at], silence(2 * SYMBOL), said[at + 2 * SYMBOL :]])
    heard = words_heard(float_to_pcm16(gone), RATE)
    assert [word.word for word in heard if not word.whole] == [1]
    assert abs(heard[1].lost_samples - 2 * SYMBOL) <= 2 * EDGE_SAMPLES


def test_what_was_said_twice_is_told() -> None:
    said = speech(ID, 3)
    again = np.concatenate([said[: 2 * WORD], silence(5_000), said[WORD:]])
    heard = words_heard(float_to_pcm16(again), RATE)
    assert [(word.word, word.repeated_samples > WORD - 2 * EDGE_SAMPLES) for word in heard] == [
        (0, False),
        (1, True),
        (2, False),
    ]


def test_a_word_that_was_cut_is_not_whole() -> None:
    said = speech(ID, 4)
    assert whole_words(said[: 3 * WORD - RATE * LOST_MS_MAX // 1_000 - 2 * EDGE_SAMPLES]) == [0, 1]
    assert whole_words(said[: 3 * WORD]) == [0, 1, 2]


def test_words_of_two_responses_are_kept_apart() -> None:
    cut = speech(ID, 3)[: 2 * WORD + 3 * SYMBOL]
    heard = words_heard(float_to_pcm16(np.concatenate([cut, speech(OTHER, 2)])), RATE)
    assert wholly_heard(heard, ID) == [0, 1]
    assert wholly_heard(heard, OTHER) == [0, 1]


# ---- through a caller's loudspeaker -----------------------------------------------------------------


def played(arrivals_ns: Sequence[int], cut_ns: int | None = None, words: int = 4) -> tuple[list[int], int]:
    """The words wholly heard of frames that arrive at these times, and how many samples of them were heard."""
    said = float_to_pcm16(speech(ID, words))
    model, recording = PlayoutModel(RATE), Recording(RATE, 60)
    for number, arrival_ns in enumerate(arrivals_ns):
        if cut_ns is not None and arrival_ns > cut_ns:
            break
        for piece in model.advance(arrival_ns):
            recording.add(piece)
        pcm = said[2 * FRAME * number : 2 * FRAME * (number + 1)]
        model.receive(AudioFrame(ID, pcm, start_sample=number * FRAME, samples=FRAME), arrival_ns)
    end_ns = cut_ns if cut_ns is not None else arrivals_ns[-1] + NS_PER_S
    for piece in model.cut(end_ns):
        recording.add(piece)
    return wholly_heard(words_heard(recording.pcm, RATE), ID), model.reply(ID).heard_samples


FRAMES = 4 * WORD // FRAME


def test_delay_changes_nothing() -> None:
    assert played([300 * MS + number * 20 * MS for number in range(FRAMES)]) == ([0, 1, 2, 3], 4 * WORD)


def late(frames: dict[int, int]) -> list[int]:
    """By how many ms each frame is late."""
    return [frames.get(number, 0) for number in range(FRAMES)]


@settings(max_examples=10)
@example(late({0: 33, 24: 42}))  # symbols of both sides of the hole agree with the word at a place between them
@given(st.lists(st.integers(0, 90), min_size=FRAMES, max_size=FRAMES))
def test_jitter_tears_holes_and_loses_no_word(late_ms: list[int]) -> None:
    """In order, as over TCP, and none closer than a frame: each one that is late leaves a hole."""
    arrivals: list[int] = []
    for number, late in enumerate(late_ms):
        after = arrivals[-1] if arrivals else 0
        arrivals.append(max(after, (number * 20 + (late if number % 12 == 0 else 0)) * MS))
    assert played(arrivals) == ([0, 1, 2, 3], 4 * WORD)


def test_a_slow_client_hears_all_of_it_late() -> None:
    """It reads nothing for a second, and then everything at once."""
    arrivals = [(number * 20 if number < 13 else 1_300) * MS for number in range(FRAMES)]
    assert played(arrivals) == ([0, 1, 2, 3], 4 * WORD)


def test_what_a_slow_client_flushed_was_not_heard() -> None:
    """All frames have come, and 500 ms of them have been played, when it is told to be silent."""
    assert played([0] * FRAMES, cut_ns=500 * MS) == ([0, 1], RATE // 2)


@pytest.mark.parametrize("cut", [0, 100, 500, SYMBOL * 5, WORD - 700, WORD, WORD + 300, 3 * WORD + 1_500, 5 * WORD])
@pytest.mark.parametrize("before", [0, 5_000])
def test_it_is_known_to_the_millisecond_how_much_was_heard(cut: int, before: int) -> None:
    sound = np.concatenate([speech(OTHER, 1), silence(before), speech(ID, 5)[:cut], silence(before), speech(OTHER, 1)])
    ear = CodedEar(float_to_pcm16(sound), RATE)
    heard = ear.samples_of(ID)
    assert abs(heard - cut) <= 2 * EDGE_SAMPLES or (cut <= SHORTEST_SAMPLES and heard == 0)
