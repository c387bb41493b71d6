"""What engines declare is what they do."""

from __future__ import annotations

import msgspec
import pytest

from stages.engines import registry, scripted
from stages.engines.local.options import SLOTS_MAX
from stages.engines.local.voice import ITEM_FRAMES_MAX
from stages.engines.profiles import CLAUSE_CHARACTERS_MAX, LATENT_ITEM_FRAMES_MAX, PROFILES, profile_of

# Where an engine needs to be told something, that.
NEEDED: dict[tuple[str, str], dict[str, object]] = {
    ("local", "thinker"): {"slots": 4},
    ("local", "talker"): {"cache_dir": "cache"},
    ("local", "vocoder"): {"cache_dir": "cache"},
    ("openai", "thinker"): {"base_url": "http://llm/v1", "model": "m"},
}


def test_every_engine_that_there_is_says_what_it_takes() -> None:
    assert PROFILES.keys() == registry._BUILDERS.keys()
    for key, profile in PROFILES.items():
        needed = NEEDED.get(key, {})
        profile.check(needed)
        assert profile.options is not None
        assert profile.options >= needed.keys()
        for name in needed:
            with pytest.raises(msgspec.ValidationError, match=name):
                profile.check({other: value for other, value in needed.items() if other != name})


def test_only_a_scripted_talker_makes_chunks_of_a_size_that_is_told() -> None:
    told = {
        kind: profile_of("scripted", kind).options for kind in ("encoder", "thinker", "talker", "vocoder", "observer")
    }
    usual = frozenset(("heard", "replies", "frames_per_word", "sessions_max"))
    assert told.pop("talker") == usual.union(("chunk_first", "chunk_then"))
    assert set(told.values()) == {usual}


@pytest.mark.parametrize(
    ("engine", "kind", "option", "value"),
    [
        ("local", "thinker", "slots", SLOTS_MAX + 1),
        ("local", "talker", "voices", 3),
        ("openai", "thinker", "sessions_max", 0),
        ("openai", "thinker", "context_tokens", 10**30),
        ("scripted", "talker", "frames_per_word", 10**9),
        ("synthetic", "encoder", "seed", -1),
        ("synthetic", "thinker", "sessions_max", 10**9),
        ("synthetic", "talker", "word_ms", {"kind": "uniform", "low": 2, "high": 1}),
        ("torch", "encoder", "device", "banana:3"),
        ("torch", "encoder", "seed", 10**30),
        ("torch", "thinker", "sessions", 257),
        ("torch", "thinker", "output_tokens_max", 4_096),
        ("torch", "talker", "temperature", float("nan")),
        ("torch", "vocoder", "decode_frames_max", 0),
    ],
)
def test_a_value_that_an_engine_does_not_take_is_told_without_its_model(
    engine: str, kind: str, option: str, value: object
) -> None:
    with pytest.raises(msgspec.ValidationError):
        profile_of(engine, kind).check(NEEDED.get((engine, kind), {}) | {option: value})


def test_an_engine_that_is_not_listed_is_like_others_of_its_kind() -> None:
    profile, usual = profile_of("new", "talker"), profile_of("local", "talker")
    assert (profile.makes, profile.takes, profile.options) == (usual.makes, usual.takes, None)


def test_hand_overs_are_as_large_as_the_local_engine_makes_them() -> None:
    assert LATENT_ITEM_FRAMES_MAX == ITEM_FRAMES_MAX == scripted.FRAMES_PER_ITEM_MAX
    made = profile_of("local", "thinker").made("clauses")
    assert made is not None
    assert made.units_max == CLAUSE_CHARACTERS_MAX
