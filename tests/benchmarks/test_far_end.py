"""The sounds of a line that the benchmark plays, and what a real VAD makes of a few; its figures are its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import line_sounds
from benchmarks.far_end import SPEAKING, Ear, greetings, over_music
from benchmarks.turn_taking.voices import PROGRAM, Voices
from media.speech_gate import VAD_SAMPLE_RATE as RATE
from media.turn_events import SILENT, Held, TurnStarted
from media.wav import read_wav

SPEECH = Path(__file__).parents[1] / "data" / "speech"


def test_the_same_seed_is_the_same_music_at_its_level() -> None:
    played = line_sounds.music(3, 4)
    np.testing.assert_array_equal(played, line_sounds.music(3, 4))
    assert len(played) == 3 * RATE
    assert np.sqrt(np.mean(played**2)) == pytest.approx(line_sounds.MUSIC_LEVEL, rel=1e-3)
    assert not np.array_equal(played, line_sounds.music(3, 4, drums=False))


@pytest.mark.parametrize("name", line_sounds.network(1))
def test_each_sound_of_a_network_lasts_as_long_as_it_is_asked_for(name: str) -> None:
    sound = line_sounds.network(7)[name]
    assert len(sound) == 7 * RATE
    assert 0.05 < np.abs(sound).max() <= 0.3


def test_a_cadence_comes_and_goes() -> None:
    ringing = line_sounds.cadence([440, 480], 2, 4, 8)
    assert np.abs(ringing[2 * RATE : 6 * RATE]).max() == 0
    assert np.abs(ringing[6 * RATE :]).max() > 0.1


def test_a_speaker_is_so_much_louder_than_the_music() -> None:
    voice = np.full(RATE, 0.1, dtype=np.float32)
    played = over_music(voice, 20, seed=1) - voice
    assert np.sqrt(np.mean(played**2)) == pytest.approx(0.01, rel=0.3)


@pytest.mark.models
@pytest.mark.slow
def test_tones_and_music_hold_nothing_and_a_speaker_over_music_does() -> None:
    ear = Ear()
    voice = (np.frombuffer(read_wav(SPEECH / "weather.wav", RATE), "<i2") / 32_768).astype(np.float32)
    for sound in (*line_sounds.network(4).values(), line_sounds.music(4, 0)):
        heard = ear.hear(sound, SPEAKING)
        assert (heard.events, heard.beeps) == ((), ())
    assert ear.hear(over_music(voice, 10, seed=1), SPEAKING).count(Held) >= 1
    assert ear.hear(over_music(voice, 10, seed=1), SILENT).count(TurnStarted) >= 1


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed")
def test_the_beep_behind_a_greeting_is_known(tmp_path: Path) -> None:
    end, call = next(greetings(Voices(tmp_path)))
    ((at, beep),) = Ear().hear(call, SILENT).beeps
    assert beep.end == pytest.approx(end, abs=1_024)
    assert 0 < at - end < RATE
