"""Profiles: defaults, the sample file, and errors that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from media.word_code import WORDS
from stages.engines.synthetic.distributions import Exponential
from stages.engines.synthetic.profile import Profile, ProfileError, TalkerProfile, load_profile, words_within

SAMPLE = Path(__file__).parents[4] / "examples" / "synthetic.toml"


def test_the_sample_lists_every_option_with_its_default() -> None:
    assert load_profile(SAMPLE) == Profile()
    text = SAMPLE.read_text(encoding="utf-8")
    sections = {section.partition("]")[0]: section for section in text.split("\n[")[1:]}
    for name in Profile.__struct_fields__:
        for option in getattr(Profile(), name).__struct_fields__:
            assert f"\n{option} = " in sections[name], f"{name}.{option}"


def test_what_is_not_named_keeps_its_default(tmp_path: Path) -> None:
    file = tmp_path / "profile.toml"
    file.write_text('[talker]\nword_ms = {kind = "exponential", mean = 3}\nspoken_word_ms = 325\n')
    profile = load_profile(file)
    assert profile.talker == TalkerProfile(word_ms=Exponential(3), spoken_word_ms=325)
    assert profile.talker.frames_per_word == 26
    assert (profile.encoder, profile.thinker, profile.vocoder) == (
        Profile().encoder,
        Profile().thinker,
        Profile().vocoder,
    )


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[talkr]\n", "talkr"),
        ("[talker]\nspeed = 2\n", "speed"),
        ("[talker]\nspoken_word_ms = 210\n", r"talker\.spoken_word_ms"),
        ("[talker]\nspoken_word_ms = 175\n", r"talker\.spoken_word_ms"),
        ("[talker]\nchunk_then = 16\n", r"talker\.chunk_then"),
        ("[thinker]\nwords_per_clause = 21\n", r"thinker\.words_per_clause"),
        (
            "[thinker]\nword_ms = {kind = 'uniform', low = 2, high = 1}\n",
            r"low 2.0 is above high 1.0.*thinker\.word_ms",
        ),
        ("[vocoder]\ncpu_share = 1.5\n", r"vocoder\.cpu_share"),
        ("[encoder]\nconcurrency = 0\n", r"encoder\.concurrency"),
        ("[encoder\n", "profile.toml"),
    ],
)
def test_an_error_names_the_option(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "profile.toml"
    file.write_text(content)
    with pytest.raises(ProfileError, match=f"{file}: .*{named}" if named != file.name else named):
        load_profile(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=f"{tmp_path}/none.toml: No such file"):
        load_profile(tmp_path / "none.toml")


@pytest.mark.parametrize(("drawn", "words"), [(0, 1), (0.2, 1), (7.6, 8), (60_000, WORDS)])
def test_a_reply_has_words_that_can_be_counted(drawn: float, words: int) -> None:
    assert words_within(drawn) == words
