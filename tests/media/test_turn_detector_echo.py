"""What a detector makes of our own sound, where it is known by its sound (`media.echo`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from media.echo import Kinship, Likeness
from media.turn_detector import DetectorState
from media.turn_events import (
    SILENT,
    Held,
    Resumed,
    Saying,
    TurnDropped,
    TurnEnded,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
)
from media.turn_settings import TurnDetectorSettings
from tests.media.detected_call import LOUD, SPEAKING, UNCLEAR, UNINTERRUPTIBLE, Call, at, held

SUSPECT, MIXED = Likeness(Kinship.SUSPECT), Likeness(Kinship.MIXED)


# ---- over our speech -------------------------------------------------------------------------------


def test_pipecat_1626_our_echo_holds_nothing_however_long_it_lasts_and_however_late_its_words_are() -> None:
    call = Call()
    assert call.echo(32) == [Held(0), Resumed("echo")]
    assert call.echo(6_400) == []
    assert call.say("something that was misheard of us") == []
    assert call.quiet(128) == [TurnPaused(at(201))]
    assert call.wait(1_500) == [TurnDropped(0)]


def test_an_echo_that_is_known_only_after_it_has_held_us_lets_us_go_on_at_once() -> None:
    call = held(Call())
    assert call.hear(128) == []
    assert call.echo(32) == [Resumed("echo")]
    assert call.echo(3_200) == []


def test_holds_by_echoes_are_not_held_against_a_caller() -> None:
    call = Call()
    for _ in range(4):
        call.echo(320)
        call.quiet(1_600)
    events = call.hear(32)
    assert events == [Held(at(call.windows - 1))]
    assert call.hear(576) == []
    assert call.hear(32) == [Yielded(at(call.windows - 20), "duration")]


def test_what_may_be_an_echo_does_not_hold_us_yet() -> None:
    call = Call()
    assert call.hear(128, echo=SUSPECT) == []
    assert call.hear(32) == [Held(at(4))]


def test_what_may_be_an_echo_is_no_evidence_of_a_voice_that_holds_us() -> None:
    call = held(Call())
    assert call.hear(768, echo=SUSPECT) == []
    assert call.hear(32, echo=SUSPECT) == [Resumed("undecided")]


def test_words_of_a_caller_under_the_echo_interrupt() -> None:
    call = Call()
    call.echo(960)
    call.hear(128, echo=MIXED)
    call.echo(160, since=at(call.windows))
    assert call.say("The weather in Paris stop") == [Yielded(0, "late_words")]


def test_interrupting_words_in_what_sounds_as_ours_are_ours_misheard() -> None:
    call = Call()
    call.echo(960)
    assert call.say("When Sun might hit the...") == []
    call.hear(96, echo=MIXED)
    assert call.say("When Sun might hit the? Stop") == []


@pytest.mark.parametrize("kinship", [Kinship.OTHER, Kinship.MIXED])
def test_a_voice_over_the_echo_is_a_turn_of_its_own_and_interrupts_by_lasting(kinship: Kinship) -> None:
    call = Call()
    call.echo(960)
    voice = Likeness(kinship)
    assert call.hear(192, echo=voice) == []
    onset = at(call.windows - 6)
    assert call.hear(32, echo=voice) == [TurnDropped(0), Held(onset)]
    assert call.hear(384, echo=voice) == []
    assert call.hear(32, echo=voice) == [Yielded(onset, "duration")]


def test_a_voice_that_only_seems_to_be_over_the_echo_holds_us_for_a_moment() -> None:
    call = Call()
    call.echo(960)
    call.hear(224, echo=MIXED)
    assert call.detector.state is DetectorState.HELD
    since = at(call.windows)
    assert call.echo(96, since=since) == []
    assert call.echo(32, since=since) == [Resumed("echo")]


def test_scattered_windows_of_an_echo_that_fit_badly_are_no_voice() -> None:
    call = Call()
    call.echo(960)
    for _ in range(40):
        assert call.hear(96, echo=MIXED) + call.echo(128, since=at(call.windows)) == []


def test_another_burst_after_an_echo_has_nothing_of_it() -> None:
    call = Call()
    call.echo(320)
    assert call.quiet(320) == [TurnPaused(at(10))]
    onset = at(call.windows)
    assert call.hear(32, UNCLEAR) + call.hear(32) == [TurnResumed(onset), TurnDropped(0), Held(onset)]


# ---- when we are silent ----------------------------------------------------------------------------


@pytest.mark.parametrize("saying", [SILENT, UNINTERRUPTIBLE])
def test_quickvoice_154_the_echo_of_our_last_words_is_no_turn(saying: Saying) -> None:
    call = Call()
    assert call.echo(960, saying) == []
    assert call.detector.state is DetectorState.FREE


def test_an_echo_that_outlasts_our_reply_is_dropped() -> None:
    call = Call()
    call.echo(320)
    assert call.echo(320, SILENT) == [TurnPaused(at(10))]
    assert call.wait(1_500) == [TurnDropped(0)]


@pytest.mark.parametrize("echo", [SUSPECT, MIXED])
def test_what_may_be_the_echo_of_our_last_words_starts_nothing_and_ends_nothing(echo: Likeness) -> None:
    call = Call()
    assert call.hear(320, saying=SILENT, echo=echo) == []
    assert call.hear(64, saying=SILENT) == [TurnStarted(at(10), at(12))]
    assert call.hear(960, saying=SILENT, echo=echo) == []


def test_the_callers_turn_ends_though_our_echo_goes_on() -> None:
    call = Call()
    call.hear(640, saying=SILENT)
    assert call.echo(512, SILENT) == [TurnPaused(at(20)), TurnEnded(at(20), at(36))]


def test_our_echo_teaches_nothing_of_how_loud_the_caller_is() -> None:
    call = Call()
    call.hear(1_600, saying=SILENT, db=-40.0)
    call.hear(3_200, LOUD, replace(SPEAKING, is_audible=False), -10.0, Likeness(Kinship.OURS))
    assert call.detector._voice.usual_db == pytest.approx(-40.0)


@pytest.mark.parametrize("threshold", [0.0, 0.005, 0.05, 0.074])
@pytest.mark.parametrize("echo", [SUSPECT, MIXED])
def test_what_may_be_an_echo_is_judged_at_every_threshold(threshold: float, echo: Likeness) -> None:
    call = Call(TurnDetectorSettings(threshold=threshold))
    opens = [] if threshold else [TurnStarted(0, at(2))]  # then everything is speech
    assert call.hear(320, saying=SILENT, echo=echo) == opens


def test_what_may_be_an_echo_ends_no_turn_at_a_low_threshold() -> None:
    call = Call(TurnDetectorSettings(threshold=0.05))
    assert call.hear(64, saying=SILENT) == [TurnStarted(0, at(2))]
    assert call.hear(1_600, saying=SILENT, echo=SUSPECT) == []
