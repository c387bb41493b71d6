"""The voices of callers, by the real program: repeatable, and spoken once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.turn_taking.corpus import BACKCHANNELS, TEST_VOICES, TUNING_VOICES
from benchmarks.turn_taking.voices import RATE, Voice, Voices, VoicesMissing
from loadtest.loudness import audible_span

VOICE = Voice("en-us+m1", 165, 50)

# It starts a program for each sentence.
pytestmark = pytest.mark.slow


def test_what_has_been_said_is_kept_and_said_again(tmp_path: Path) -> None:
    pcm = Voices(tmp_path).speak("wait a second", VOICE)
    kept = list(tmp_path.iterdir())
    assert [path.suffix for path in kept] == [".wav"]
    written_ns = kept[0].stat().st_mtime_ns
    assert Voices(tmp_path).speak("wait a second", VOICE) == pcm
    assert kept[0].stat().st_mtime_ns == written_ns
    assert RATE // 2 < len(pcm) // 2 < 2 * RATE


def test_whatever_changes_the_sound_changes_where_it_is_kept(tmp_path: Path) -> None:
    voices = Voices(tmp_path)
    voiced = {
        voices.speak(text, Voice("en-us+m1", speed, pitch))
        for text, speed, pitch in (("stop", 165, 50), ("stop", 185, 50), ("stop", 165, 65), ("stop it", 165, 50))
    }
    assert len(voiced) == len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("name", [*TUNING_VOICES, *TEST_VOICES])
def test_every_voice_is_there_and_says_every_backchannel(name: str, tmp_path: Path) -> None:
    voices = Voices(tmp_path)
    for text in BACKCHANNELS[:3]:
        assert audible_span(voices.speak(text, Voice(name, 165, 50)), RATE) is not None


def test_a_voice_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        Voices(tmp_path).speak("hello", Voice("none-of-these", 165, 50))
    assert list(tmp_path.iterdir()) == []


def test_without_the_program_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(VoicesMissing, match="apt-get install -y espeak-ng"):
        Voices(tmp_path)
