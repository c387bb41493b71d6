from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.engines.local.acoustics import IDS_PER_STEP_MAX, NOISE_VALUES, load_acoustics
from tests.stages.engines.local.tiny_voice import CHANNELS, HOP, write_tiny_voice
from tests.stages.engines.local.voice_bench import FakeAcousticSession, FakeSpeaker, fake_acoustics


def test_a_text_is_written_out() -> None:
    plan = fake_acoustics(FakeAcousticSession()).plan("10:05 ok \N{GRINNING FACE}.", 1.0)
    assert plan is not None
    assert [word.spoken for word in plan.words] == ["10 oh 5", "ok", ""]
    assert [span.word for span in plan.phrases[0].spans] == [0, 1, 2]
    assert plan.unknown == 3


def test_a_plan_waits_for_the_speaker() -> None:
    acoustics = fake_acoustics(FakeAcousticSession(), FakeSpeaker(busy=1))
    assert acoustics.plan("hi", 1.0) is None
    assert acoustics.plan("hi", 1.0) is not None


@pytest.mark.parametrize(("speed", "ids_max"), [(1.0, 160), (1.5, 160), (0.5, 106), (0.25, 64)])
def test_slow_speech_is_made_in_shorter_runs(speed: float, ids_max: int) -> None:
    assert IDS_PER_STEP_MAX == 160
    plan = fake_acoustics(FakeAcousticSession()).plan("a " * 400, speed)
    assert plan is not None
    assert 0.85 * ids_max <= max(len(phrase.ids) for phrase in plan.phrases) <= ids_max


def test_the_model_gets_ids_scales_and_seeded_noise() -> None:
    session = FakeAcousticSession()
    acoustics = fake_acoustics(session)
    plan = acoustics.plan("ab", 0.5)
    assert plan is not None
    speech = acoustics.say(plan.phrases[0], 0.5, (7, 0, 0))
    acoustics.say(plan.phrases[0], 0.5, (7, 0, 0))
    acoustics.say(plan.phrases[0], 0.5, (8, 0, 0))

    assert session.texts[0] == "^_a_b_$"
    first, same, other = session.feeds
    assert first["input_lengths"].tolist() == [7]
    assert first["scales"].tolist() == [0.5, 2.0, 0.0]
    assert len(first["duration_noise"]) == 14
    assert len(first["duration_noise"]) + len(first["latent_noise"]) == NOISE_VALUES
    assert abs(float(np.mean(first["latent_noise"]))) < 0.02
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not np.array_equal(first["latent_noise"], other["latent_noise"])

    assert speech.durations.tolist() == [1] * 7
    assert speech.latents.shape == (7, CHANNELS)
    assert speech.latents.flags.c_contiguous
    assert speech.latents[:, 1].tolist() == list(range(7))


def test_a_phrase_without_ids_is_no_frames() -> None:
    session = FakeAcousticSession()
    acoustics = fake_acoustics(session)
    plan = acoustics.plan("", 1.0)
    assert plan is not None
    speech = acoustics.say(plan.phrases[0], 1.0, (0,))
    assert (speech.latents.shape, len(speech.durations), session.texts) == ((0, CHANNELS), 0, [])


def test_frames_round_down() -> None:
    acoustics = fake_acoustics(FakeAcousticSession())
    assert HOP == 8
    assert [acoustics.frames(milliseconds) for milliseconds in (0, 1, 10)] == [0, 2, 20]


@pytest.mark.slow
def test_a_voice_is_loaded_from_its_files(tmp_path: Path) -> None:
    voice = write_tiny_voice(tmp_path)
    acoustics = load_acoustics(voice, tmp_path / "cache")
    plan = acoustics.plan("Hello.", 1.0)
    assert plan is not None
    speech = acoustics.say(plan.phrases[0], 1.0, (0,))
    assert (acoustics.channels, acoustics.hop) == (CHANNELS, HOP)
    assert speech.latents.shape == (len(plan.phrases[0].ids), CHANNELS)
