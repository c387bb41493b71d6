from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engines.local.piper_split import UnsupportedVoiceError
from stages.engines.local.voice import PhonemeWord, Phrase, Span, VoiceConfig, load_voice
from tests.stages.engines.local.tiny_voice import SYMBOLS, ids, tiny_config


def _voice(folder: Path, **changes: object) -> VoiceConfig:
    path = folder / "voice.onnx.json"
    path.write_text(json.dumps(tiny_config() | changes))
    return load_voice(path)


@pytest.fixture(name="voice")
def _tiny(tmp_path: Path) -> VoiceConfig:
    return _voice(tmp_path)


def word(*ipa: str, mark: str = "") -> PhonemeWord:
    return PhonemeWord(ipa, mark)


def test_the_configuration_is_read(voice: VoiceConfig) -> None:
    assert voice.audio.sample_rate == 16_000
    assert (voice.inference.noise_scale, voice.inference.length_scale, voice.inference.noise_w) == (0.5, 1, 0.0)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num_speakers": 3}, "3 speakers"),
        ({"espeak": {"voice": "de"}}, "espeak/de"),
        ({"phoneme_type": "text"}, "text/en-us"),
        ({"phoneme_id_map": {"_": [0], "^": [1], " ": [3]}}, r"no id for the symbol '\$'"),
        ({"audio": {}}, "sample_rate"),
    ],
)
def test_a_voice_that_cannot_be_spoken_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], what: str
) -> None:
    with pytest.raises(UnsupportedVoiceError, match=rf"voice\.onnx\.json: .*{what}"):
        _voice(tmp_path, **changes)


def test_a_phrase_is_framed_and_padded(voice: VoiceConfig) -> None:
    (phrase,), unknown = voice.phrases([word("ab"), word("c", mark=".")], 100)
    assert phrase.ids == ids("^_a_b_ _c_._$")
    assert phrase.spans == (Span(0, 2, 6, True), Span(1, 8, 10, True))
    assert (phrase.lead, phrase.tail, phrase.mark, unknown) == (2, 9, ".", 0)


def test_silent_words_have_a_place_and_no_ids(voice: VoiceConfig) -> None:
    (phrase,), _ = voice.phrases([word(), word("a"), word(), word("b"), word()], 100)
    assert phrase.ids == ids("^_a_ _b_$")
    places = [(span.word, span.first, span.end) for span in phrase.spans]
    assert places == [(0, 2, 2), (1, 2, 4), (2, 4, 4), (3, 6, 8), (4, 8, 8)]


@pytest.mark.parametrize("words", [[], [word()], [word(), word()]])
def test_nothing_to_be_heard_is_one_phrase_without_ids(voice: VoiceConfig, words: list[PhonemeWord]) -> None:
    spans = tuple(Span(number, 0, 0, True) for number in range(len(words)))
    assert voice.phrases(words, 100) == ((Phrase((), spans, 0, 0, ""),), 0)


def test_unknown_symbols_are_dropped_and_counted(voice: VoiceConfig) -> None:
    (phrase,), unknown = voice.phrases([word("aʘb", "ʘ")], 100)
    assert (phrase.ids, unknown) == (ids("^_a_b_$"), 2)


def test_a_long_text_is_cut_evenly_between_display_words(voice: VoiceConfig) -> None:
    phrases, _ = voice.phrases([word("abc") for _ in range(8)], 40)
    assert [len(phrase.spans) for phrase in phrases] == [4, 4]
    assert {phrase.ids for phrase in phrases} == {ids("^_a_b_c_ _a_b_c_ _a_b_c_ _a_b_c_$")}


def test_a_display_word_that_has_room_in_a_phrase_is_not_cut(voice: VoiceConfig) -> None:
    phrases, _ = voice.phrases([word("ab"), word("cd", "ef"), word("g")], 20)
    assert [phrase.ids for phrase in phrases] == [ids("^_a_b_$"), ids("^_c_d_ _e_f_ _g_$")]


def test_a_display_word_is_cut_only_where_it_is_too_long(voice: VoiceConfig) -> None:
    phrases, _ = voice.phrases([word("a"), word("bc", "de", "fg", "hi", mark=",")], 20)
    assert [phrase.ids for phrase in phrases] == [ids("^_a_ _b_c_ _d_e_$"), ids("^_f_g_ _h_i_,_$")]
    assert [[span.whole for span in phrase.spans] for phrase in phrases] == [[True, False], [True]]
    assert [phrase.mark for phrase in phrases] == ["", ","]


def test_a_spoken_word_is_cut_only_where_it_is_too_long(voice: VoiceConfig) -> None:
    phrases, _ = voice.phrases([word("abcdefghij", mark=".")], 17)
    assert [phrase.ids for phrase in phrases] == [ids("^_a_b_c_d_e_f_$"), ids("^_g_h_i_j_._$")]
    assert [phrase.spans for phrase in phrases] == [(Span(0, 2, 14, False),), (Span(0, 2, 10, True),)]


_SPOKEN = st.text(alphabet=SYMBOLS[10:], min_size=1, max_size=12)
_WORDS = st.lists(st.builds(PhonemeWord, st.lists(_SPOKEN, max_size=4).map(tuple), st.sampled_from(["", ".", ","])))


@settings(max_examples=50, deadline=None)
@given(words=_WORDS, ids_max=st.integers(16, 80))
def test_phrases_say_every_symbol_once_in_bounded_runs(words: list[PhonemeWord], ids_max: int) -> None:
    voice = msgspec.convert(tiny_config(), VoiceConfig)
    phrases, _ = voice.phrases(words, ids_max)

    said = "".join(SYMBOLS[id_] for phrase in phrases for id_ in phrase.ids)
    wanted = "".join("".join(w.ipa) + (w.mark if w.ipa else "") for w in words)
    assert "".join(symbol for symbol in said if symbol not in "^_$ ") == wanted
    assert all(len(phrase.ids) <= ids_max for phrase in phrases)

    assert [span.word for phrase in phrases for span in phrase.spans if span.whole] == list(range(len(words)))
    for phrase in phrases:
        places = [place for span in phrase.spans for place in (span.first, span.end)]
        assert places == sorted(places)
        assert all(phrase.lead <= place <= max(phrase.tail + 1, len(phrase.ids) - 1) for place in places)
