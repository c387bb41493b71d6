"""The way of a response: what it uses with audio, and without."""

from __future__ import annotations

from sessions.route import Leg, Route, line

BRANCHED = Route(
    "ears",
    (
        Leg("mind", "thinker", ("tongue", "critic", "aligner"), ("text",)),
        Leg("tongue", "talker", ("throat",), spoken=True),
        Leg("throat", "vocoder", ("aligner",), ("audio",), spoken=True),
        Leg("critic", "observer"),
        Leg("aligner", "observer", spoken=True),
    ),
)


def test_a_line_goes_from_stage_to_stage() -> None:
    legs = line("ears", "mind", "tongue", "throat").legs
    assert [(leg.stage, leg.edges, leg.finals) for leg in legs] == [
        ("mind", ("tongue",), ("text",)),
        ("tongue", ("throat",), ()),
        ("throat", (), ("audio",)),
    ]
    assert not any(leg.observes for leg in legs)


def test_speech_uses_every_leg() -> None:
    assert BRANCHED.legs_of(with_audio=True) == BRANCHED.legs
    assert [leg.stage for leg in BRANCHED.legs if leg.observes] == ["critic", "aligner"]


def test_a_text_uses_no_edge_of_speech() -> None:
    assert line().legs_of(with_audio=False) == (Leg("thinker", "thinker", (), ("text",)),)
    mind, critic = BRANCHED.legs_of(with_audio=False)
    assert (mind.stage, mind.edges, critic.stage) == ("mind", ("critic",), "critic")


def test_the_head_is_asked_last_and_named_first() -> None:
    assert (BRANCHED.head, BRANCHED.encoder) == ("mind", "ears")


def test_words_that_nobody_thinks_of_use_the_voice_alone() -> None:
    tongue, throat = BRANCHED.voice()
    assert [(leg.stage, leg.edges) for leg in (tongue, throat)] == [("tongue", ("throat",)), ("throat", ())]
