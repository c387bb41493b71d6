"""What callers do: the same from the same seed, with labels that are where they say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.turn_taking import corpus
from benchmarks.turn_taking.corpus import Plan
from benchmarks.turn_taking.labels import NOT_FOR_IT, TURNS, Clip, Kind
from benchmarks.turn_taking.voices import RATE, Voice
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float

VOICE = Voice("en-us+m1", 165, 50)
SPOKEN = 4_800  # samples of every word that the fake voice says


def speak(text: str, voice: Voice) -> bytes:
    """A tone for each word, with silence around the whole."""
    samples = SPOKEN * len(text.split())
    tone = np.sin(np.arange(samples) * 0.2).astype(np.float32) * np.float32(0.3)
    quiet = np.zeros(2_400, dtype=np.float32)
    return float_to_pcm16(np.concatenate([quiet, tone, quiet]))


def plan_of(kind: Kind, texts: tuple[str, ...] = (), gaps_ms: tuple[int, ...] = (), seed: int = 1) -> Plan:
    return Plan(0, kind, texts, gaps_ms, VOICE, seed, 900)


def samples(clip: Clip) -> FloatSamples:
    return pcm16_to_float(clip.pcm)


def dbfs(sound: FloatSamples) -> float:
    return float(10 * np.log10(np.mean(sound.astype(np.float64) ** 2)))


def test_a_seed_gives_the_same_events_and_another_gives_others() -> None:
    assert corpus.plan(1, 64) == corpus.plan(1, 64)
    assert corpus.plan(1, 64) != corpus.plan(2, 64)
    assert [corpus.build(one, speak) for one in corpus.plan(3, 12)] == [
        corpus.build(one, speak) for one in corpus.plan(3, 12)
    ]


def test_sixty_four_events_are_enough_for_every_rate_that_is_compared() -> None:
    plans = corpus.plan(1_000, 64)
    counts = Counter(one.kind for one in plans)
    assert counts == {kind: int(share) for kind, share in corpus.SHARES.items()}
    assert sorted(one.number for one in plans) == list(range(64))
    events = [corpus.build(one, speak) for one in plans]
    assert sum(event.kind is Kind.INTERRUPTION and event.wants_answer for event in events) >= 10


def test_few_events_are_of_the_commonest_kinds() -> None:
    assert len(corpus.plan(1, 1)) == 1
    assert {one.kind for one in corpus.plan(1, 8)} >= {Kind.INTERRUPTION, Kind.BACKCHANNEL, Kind.TIC, Kind.SIDE_TALK}


def test_turns_and_some_asides_happen_in_silence() -> None:
    plans = corpus.plan(5, 64)
    for one in plans:
        assert one.moment_ms is None or corpus.MOMENTS_MS[0] <= one.moment_ms < corpus.MOMENTS_MS[1]
        assert not (one.kind in TURNS and one.moment_ms is not None)
    aside = Counter(one.kind for one in plans if one.moment_ms is None and one.kind not in TURNS)
    assert aside == {Kind.TIC: 4, Kind.SIDE_TALK: 4}


def test_tuning_and_testing_share_neither_seeds_nor_voices() -> None:
    assert corpus.part_of(corpus.TEST_SEED_MIN - 1) == "tuning"
    assert corpus.part_of(corpus.TEST_SEED_MIN) == "test"
    assert {one.voice.name for one in corpus.plan(999, 64)} <= set(corpus.TUNING_VOICES)
    assert {one.voice.name for one in corpus.plan(1_000, 64)} <= set(corpus.TEST_VOICES)
    assert not set(corpus.TUNING_VOICES) & set(corpus.TEST_VOICES)


@pytest.mark.parametrize("seed", [-1, corpus.SEED_MAX + 1])
def test_a_seed_outside_both_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"is not within 0\.\.1999"):
        corpus.plan(seed, 1)


def test_pauses_are_silent_and_as_long_as_labelled() -> None:
    event = corpus.build(plan_of(Kind.PAUSED, ("one two", "three", "four"), (300, 1_000)), speak)
    clip, sound = event.clip, samples(event.clip)
    assert clip.voiced == ((0, 9_600), (16_800, 21_600), (45_600, 50_400))
    assert clip.pauses == ((9_600, 16_800), (21_600, 45_600))
    assert len(sound) == 50_400
    assert all(not sound[start:end].any() for start, end in clip.pauses)
    assert all(sound[start] or sound[start + 1] for start, _ in clip.voiced)
    assert clip.label == "one two … three … four"


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (Kind.INTERRUPTION, corpus.SPEECH_DBFS),
        (Kind.BACKCHANNEL, corpus.BACKCHANNEL_DBFS),
        (Kind.SIDE_TALK, corpus.BACKGROUND_DBFS),
    ],
)
def test_levels_are_those_of_the_kind(kind: Kind, level: float) -> None:
    clip = corpus.build(plan_of(kind, ("right",)), speak).clip
    assert dbfs(samples(clip)) == pytest.approx(level, abs=0.1)


def test_people_in_the_background_sound_dull() -> None:
    def bright(text: str, voice: Voice) -> bytes:
        sound = np.random.default_rng(1).standard_normal(RATE).astype(np.float32) * np.float32(0.1)
        return float_to_pcm16(sound)

    def high_share(kind: Kind) -> float:
        energy = np.abs(np.fft.rfft(samples(corpus.build(plan_of(kind, ("right",)), bright).clip))) ** 2
        return float(energy[len(energy) // 2 :].sum() / energy.sum())

    assert high_share(Kind.SIDE_TALK) < 0.01
    assert high_share(Kind.BACKCHANNEL) > 0.4


@pytest.mark.parametrize("kind", [Kind.TIC, Kind.BURST, Kind.NOISE, Kind.SILENCE])
def test_sounds_without_words_are_labelled_whole(kind: Kind) -> None:
    clips = [corpus.build(plan_of(kind, seed=seed), speak).clip for seed in range(8)]
    for clip in clips:
        assert clip.voiced == ((0, len(samples(clip))),)
    labels = {clip.label.split(" at ")[-1] for clip in clips}
    assert labels <= {"cough", "clicks", "door", "nothing", *(f"{level:g} dBFS" for level in corpus.NOISE_DBFS)}
    assert any(samples(clips[0])) == (kind is not Kind.SILENCE)


def test_steady_noise_is_as_loud_as_its_label_says() -> None:
    for seed in range(6):
        clip = corpus.build(plan_of(Kind.NOISE, seed=seed), speak).clip
        level = float(clip.label.removesuffix(" dBFS").rpartition(" ")[2])
        assert dbfs(samples(clip)) == pytest.approx(level, abs=0.5)


def test_only_what_is_said_to_the_service_wants_an_answer() -> None:
    for one in corpus.plan(7, 64):
        event = corpus.build(one, speak)
        meant = event.kind not in NOT_FOR_IT and event.clip.label not in corpus.WITHOUT_ANSWER
        assert event.wants_answer == meant
