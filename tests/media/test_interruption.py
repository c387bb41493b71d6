"""The evidence of one burst over our own speech: its voice, its words, our echo, and the verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.backchannels import Meaning
from media.interruption import (
    ECHO_WORDS_MAX,
    NOTHING_HEARD,
    Burst,
    Evidence,
    Heard,
    InterruptionSettings,
    InterruptionSettingsError,
    hear,
)
from media.speech_gate import WINDOW_MS

OURS = "The weather in Paris will be sunny on Tuesday, with a light wind from the west."
SETTINGS = InterruptionSettings()
DB = -26.0


def burst(probability: float, ms: int) -> Burst:
    made = Burst()
    for _ in range(ms // WINDOW_MS):
        made.add(probability, 0.5, DB)
    return made


def evidence(
    made: Burst, means: Meaning = Meaning.NOTHING, *, echo: bool = False, guarded: bool = False, far: bool = False
) -> Evidence:
    return Evidence(made, Heard(means, echo, means), guarded, far, SETTINGS)


# ---- voice -----------------------------------------------------------------------------------------


def test_a_burst_counts_loud_windows_and_measures_loud_and_faint_ones() -> None:
    made = Burst()
    assert (made.voiced_ms, made.mean, made.spread) == (0, 0.0, 0.0)
    for probability in (1.0, 0.6, 0.4, 0.1):
        made.add(probability, 0.5, DB)
    assert made.voiced_ms == 64
    assert made.mean == pytest.approx(2 / 3)
    assert made.spread == pytest.approx(0.2494, abs=1e-4)


@given(st.lists(st.floats(0, 1)), st.lists(st.floats(0, 1)))
def test_bursts_that_are_joined_are_as_one(first: list[float], second: list[float]) -> None:
    whole, left, right = Burst(), Burst(), Burst()
    for into, probabilities in ((whole, first + second), (left, first), (right, second)):
        for probability in probabilities:
            into.add(probability, 0.5, DB)
    left.join(right)
    assert left.voiced_ms == whole.voiced_ms
    assert left.mean == pytest.approx(whole.mean)
    assert left.spread == pytest.approx(whole.spread, abs=1e-6)


def test_what_is_half_our_echo_is_a_voice_over_it() -> None:
    made = burst(0.95, 64)
    made.add_ours(all_of_it=False)
    assert (made.voiced_ms, made.sounded_ms) == (32, 64)
    assert (made.is_ours, made.is_over_echo) == (False, True)
    made.add_ours(all_of_it=False)
    assert (made.is_ours, made.is_over_echo) == (True, False)


# ---- words -----------------------------------------------------------------------------------------


def test_of_an_echo_that_has_lasted_as_much_is_compared_as_is_known_of_ours() -> None:
    ours = " ".join(f"word{number}" for number in range(2 * ECHO_WORDS_MAX))
    assert hear(ours, ours, SETTINGS.echo_share) == Heard(Meaning.NOTHING, is_echo=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", NOTHING_HEARD),
        ("the weather in Paris", Heard(Meaning.NOTHING, is_echo=True)),
        ("The whether in Paris", Heard(Meaning.WORD, is_echo=True, fresh=Meaning.WORD)),
        ("the weather in Rome today", Heard(Meaning.WORDS, is_echo=True, fresh=Meaning.WORDS)),  # 0.6 of it
        ("the weather over Rome", Heard(Meaning.WORDS, is_echo=False, fresh=Meaning.WORDS)),
        ("the weather in Paris will stop", Heard(Meaning.INTERRUPTION, is_echo=True, fresh=Meaning.INTERRUPTION)),
        ("Paris sunny", Heard(Meaning.NOTHING, is_echo=True)),
        ("Tuesday", Heard(Meaning.BACKCHANNEL, is_echo=False)),
        ("Wednesday", Heard(Meaning.WORD, is_echo=False, fresh=Meaning.WORD)),
        ("stop", Heard(Meaning.INTERRUPTION, is_echo=False, fresh=Meaning.INTERRUPTION)),
        ("Is it going to rain in Paris?", Heard(Meaning.INTERRUPTION, is_echo=False, fresh=Meaning.WORDS)),
        ("I need a train to Rome", Heard(Meaning.WORDS, is_echo=False, fresh=Meaning.WORDS)),
        ("mm-hmm", Heard(Meaning.BACKCHANNEL, is_echo=False, fresh=Meaning.BACKCHANNEL)),
    ],
)
def test_our_own_words_are_known_again(text: str, expected: Heard) -> None:
    assert hear(text, OURS, SETTINGS.echo_share) == expected


def test_without_words_of_ours_nothing_is_an_echo() -> None:
    assert hear("the weather in Paris", "", SETTINGS.echo_share) == Heard(Meaning.WORDS, False, Meaning.WORDS)


def test_an_interruption_of_one_word_is_heard_though_we_say_it_too() -> None:
    assert hear("Stop.", "please stop the car", SETTINGS.echo_share) == Heard(Meaning.INTERRUPTION, is_echo=False)


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_two_texts_can_be_compared(text: str, ours: str) -> None:
    heard = hear(text, ours, SETTINGS.echo_share)
    assert not (heard.is_echo and not ours)


# ---- the verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "needed_ms"),
    [
        (evidence(burst(0.95, 320)), 640),
        (evidence(burst(0.95, 320), Meaning.WORD), 512),
        (evidence(burst(0.85, 320), Meaning.WORD), 640),
        (evidence(burst(0.95, 320), Meaning.BACKCHANNEL), 1_200),
        (evidence(burst(0.7, 320)), 1_200),
        (evidence(burst(0.95, 320), guarded=True), 1_200),
        (evidence(burst(0.95, 320), far=True), 2_400),
    ],
)
def test_voice_must_last_the_longer_the_less_is_sure(item: Evidence, needed_ms: int) -> None:
    assert item.yield_ms == needed_ms


def test_a_wide_spread_is_uneven_though_the_mean_is_high() -> None:
    made = burst(1.0, 640)
    for _ in range(5):
        made.add(0.35, 0.5, DB)
    assert made.mean > SETTINGS.doubtful_mean
    assert evidence(made).is_uneven
    assert evidence(burst(1.0, 320)).is_uneven is False


def test_a_clear_voice_is_not_sure_where_it_spreads() -> None:
    made = burst(1.0, 640)
    for _ in range(2):
        made.add(0.35, 0.5, DB)
    assert made.mean > SETTINGS.sure_mean
    assert evidence(made, Meaning.WORD).yield_ms == 640


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (evidence(burst(0.95, 32), Meaning.INTERRUPTION), None),
        (evidence(burst(0.95, 64), Meaning.INTERRUPTION), "words"),
        (evidence(burst(0.95, 64), Meaning.WORDS), "words"),
        (evidence(burst(0.95, 64), Meaning.WORDS, guarded=True), "words"),
        (evidence(burst(0.95, 64), Meaning.INTERRUPTION, echo=True), "words"),
        (evidence(burst(0.95, 6_400), Meaning.WORDS, echo=True), None),
        (evidence(burst(0.95, 608)), None),
        (evidence(burst(0.95, 640)), "duration"),
        (evidence(burst(0.95, 1_152), Meaning.BACKCHANNEL), None),
        (evidence(burst(0.95, 1_216), Meaning.BACKCHANNEL), "duration"),
    ],
)
def test_words_interrupt_at_once_and_voice_when_it_lasts(item: Evidence, reason: str | None) -> None:
    assert item.reason_to_yield == reason


@pytest.mark.parametrize(
    ("item", "elapsed_ms", "expected"),
    [
        (evidence(burst(0.95, 416)), 800, True),
        (evidence(burst(0.95, 384)), 800, False),
        (evidence(burst(0.7, 416)), 800, False),
        (evidence(burst(0.95, 416), echo=True), 800, False),
    ],
)
def test_the_benefit_of_the_doubt_is_for_a_steady_voice(item: Evidence, elapsed_ms: int, expected: bool) -> None:
    assert item.leans_to_yield(elapsed_ms) is expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"yield_ms": 100},
        {"yield_ms": 1_300},
        {"yield_ms_sure": 31},
        {"sure_mean": 0.7},
        {"sure_mean": 1.1},
        {"doubtful_mean": -0.1},
        {"sure_spread": 0.3},
        {"sure_spread": -0.1},
        {"words_ms_min": -1},
        {"words_ms_min": 641},
        {"words_over_echo_ms_min": -1},
        {"words_over_echo_ms_min": 641},
        {"echo_share": 0.0},
        {"echo_share": 1.1},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InterruptionSettingsError):
        InterruptionSettings(**wrong)  # type: ignore[arg-type]


# ---- our echo, by its sound ------------------------------------------------------------------------


def test_an_echo_is_no_voice_and_takes_back_what_was_taken_for_one() -> None:
    made = burst(0.95, 320)
    made.add_ours(all_of_it=True)
    assert (made.voiced_ms, made.sounded_ms, made.mean, made.level_db) == (0, 11 * WINDOW_MS, 0.0, 0.0)
    assert made.is_ours
    assert evidence(made).reason_to_yield is None


def test_each_window_of_an_echo_takes_one_of_voice_away_and_leaves_its_means() -> None:
    made = burst(0.95, 320)
    made.add_ours(all_of_it=False)
    assert (made.voiced_ms, made.is_ours) == (288, False)
    assert made.mean == pytest.approx(0.95)
    assert made.level_db == pytest.approx(DB)
    for _ in range(20):
        made.add_ours(all_of_it=False)
    assert (made.voiced_ms, made.is_ours) == (0, True)


def test_a_voice_over_an_echo_is_told_once_it_has_lasted() -> None:
    made = Burst()
    for _ in range(100):
        made.add_ours(all_of_it=True)
    told = [made.is_over_echo]
    for _ in range(8):
        made.add(0.95, 0.5, DB)
        told.append(made.is_over_echo)
    assert told == [False] * 7 + [True] * 2
    made.forget_echo()
    assert (made.voiced_ms, made.is_over_echo, made.is_ours) == (256, False, False)


def echo_with(*, voice_ms: int) -> Burst:
    """A second of our echo, so much of it a voice at first, as far as its sound tells."""
    made = Burst()
    made.add_ours(all_of_it=True)
    for _ in range(0, voice_ms, WINDOW_MS):
        made.add(0.95, 0.5, DB)
    for _ in range(30):
        made.add_ours(all_of_it=False)
    return made


@pytest.mark.parametrize(
    ("fresh", "reason"), [(Meaning.WORDS, None), (Meaning.WORD, None), (Meaning.INTERRUPTION, "words")]
)
def test_under_an_echo_only_clear_words_interrupt(fresh: Meaning, reason: str | None) -> None:
    made = echo_with(voice_ms=128)
    assert made.is_ours
    assert Evidence(made, Heard(Meaning.WORDS, False, fresh), False, False, SETTINGS).reason_to_yield == reason


def test_words_in_what_sounded_as_ours_all_along_are_ours_misheard() -> None:
    interrupting = Heard(Meaning.INTERRUPTION, False, Meaning.INTERRUPTION)
    for voice_ms, reason in ((0, None), (96, None), (128, "words")):
        made = echo_with(voice_ms=voice_ms)
        assert Evidence(made, interrupting, False, False, SETTINGS).reason_to_yield == reason


def test_the_most_voice_of_a_burst_is_forgotten_only_where_it_was_echo_all_along() -> None:
    made = echo_with(voice_ms=128)
    assert (made.voiced_ms, made.most_voiced_ms) == (0, 128)
    joined = burst(0.95, 64)
    joined.join(made)
    assert joined.most_voiced_ms == 128
    joined.join(burst(0.95, 96))
    assert (joined.voiced_ms, joined.most_voiced_ms) == (160, 160)
    made.add_ours(all_of_it=True)
    assert made.most_voiced_ms == 0


@given(st.lists(st.tuples(st.sampled_from(["voice", "echo", "echo since it began"]), st.floats(0, 1))))
def test_whatever_comes_the_evidence_of_a_burst_stays_within_bounds(windows: list[tuple[str, float]]) -> None:
    made = Burst()
    for what, probability in windows:
        if what == "voice":
            made.add(probability, 0.5, DB)
        else:
            made.add_ours(all_of_it=what != "echo")
    assert 0 <= made.voiced_ms <= made.sounded_ms
    assert made.voiced_ms <= made.most_voiced_ms
    assert -1e-9 <= made.mean <= 1 + 1e-9
    assert made.level_db == pytest.approx(DB if made.voiced_ms else 0.0)
