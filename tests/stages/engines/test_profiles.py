"""What engines declare is what they do."""

from __future__ import annotations

from stages.engines import openai, registry, scripted
from stages.engines.local import build as local
from stages.engines.local.voice import ITEM_FRAMES_MAX
from stages.engines.profiles import CLAUSE_CHARACTERS_MAX, LATENT_ITEM_FRAMES_MAX, PROFILES, profile_of

TAKEN = {
    ("local", "encoder"): local._NoOptions,
    ("local", "thinker"): local._ThinkerOptions,
    ("local", "talker"): local.VoiceOptions,
    ("local", "vocoder"): local.VoiceOptions,
    ("openai", "thinker"): openai._BuildOptions,
    **{
        ("scripted", kind): scripted.ScriptedOptions for kind in ("encoder", "thinker", "talker", "vocoder", "observer")
    },
}


def test_the_options_of_an_engine_are_those_that_its_builder_takes() -> None:
    # Those of `torch` are held to their builders beside them, where torch is.
    assert {key for key in PROFILES if key[0] != "torch"} == TAKEN.keys()
    for (engine, kind), options in TAKEN.items():
        known = PROFILES[engine, kind].options
        assert known is not None
        unused = {"chunk_first", "chunk_then"} if engine == "scripted" and kind != "talker" else set()
        assert known == set(options.__struct_fields__) - unused


def test_every_profile_is_of_an_engine_that_there_is() -> None:
    assert PROFILES.keys() <= registry._BUILDERS.keys()


def test_an_engine_that_is_not_listed_is_like_others_of_its_kind() -> None:
    profile, usual = profile_of("new", "talker"), profile_of("local", "talker")
    assert (profile.makes, profile.takes, profile.options) == (usual.makes, usual.takes, None)


def test_hand_overs_are_as_large_as_the_local_engine_makes_them() -> None:
    assert LATENT_ITEM_FRAMES_MAX == ITEM_FRAMES_MAX == scripted.FRAMES_PER_ITEM_MAX
    made = profile_of("local", "thinker").made("clauses")
    assert made is not None
    assert made.units_max == CLAUSE_CHARACTERS_MAX
