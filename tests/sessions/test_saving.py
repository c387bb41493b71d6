"""What is stored of a reply before it is heard, and how long its sound waits for that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from media.playout import LedgerView
from sessions.reply import Reply, SpokenWord
from sessions.saving import HEARD_NS, SAVE_NS_MAX, Part, Saving
from sessions.settings import OUTPUT_RATE
from stages.contracts import Word, WordTimes

WORD = 1_000


def clause(number: int, first: int, *texts: str, basis: str = "durations") -> WordTimes:
    words = tuple(Word(text, at * WORD, (at + 1) * WORD) for at, text in enumerate(texts, first))
    return WordTimes(number, OUTPUT_RATE, words, "aligned" if basis == "aligned" else "durations")


def spoken(first: int, *texts: str) -> tuple[SpokenWord, ...]:
    return tuple(SpokenWord(text, at * WORD, (at + 1) * WORD) for at, text in enumerate(texts, first))


def reply(text: str = "", *clauses: WordTimes) -> Reply:
    made = Reply()
    made.add_text(text)
    for each in clauses:
        made.add_words(each)
    return made


def heard(samples: int) -> LedgerView:
    return LedgerView(9 * WORD, 9 * WORD, samples, complete=False)


def test_of_a_reply_without_words_there_is_nothing_to_store() -> None:
    saving = Saving()
    assert saving.part(reply("Well"), 0, 0) is None
    assert (saving.is_begun, saving.kept_back, saving.next_deadline_ns()) == (False, None, None)
    assert not saving.is_late(SAVE_NS_MAX)
    assert not saving.heard(heard(WORD), HEARD_NS)


def test_a_clause_is_stored_once_and_its_sound_waits_for_that() -> None:
    saving, said = Saving(), reply("Well, yes.", clause(0, 0, "Well,"))
    assert saving.part(said, 0, 0) == Part(1, 0, spoken(0, "Well,"), "")
    assert saving.part(said, 0, 0) is None
    assert (saving.is_begun, saving.kept_back) == (True, 0)
    said.add_words(clause(1, 1, "yes."))
    assert saving.part(said, 0, 0) == Part(2, 1, spoken(1, "yes."), "")
    saving.saved(1)
    assert saving.kept_back == WORD, "the clause's pause belongs to the words behind it"
    saving.saved(2)
    assert saving.kept_back is None


def test_who_has_stored_a_part_has_those_before_it() -> None:
    saving, said = Saving(), reply("", clause(0, 0, "one"))
    saving.part(said, 0, 0)
    said.add_words(clause(1, 1, "two"))
    saving.part(said, 0, 0)
    saving.saved(2)
    assert saving.kept_back is None


def test_sound_whose_words_have_not_come_waits_for_the_text() -> None:
    saving, said = Saving(), reply("one two three", clause(0, 0, "one"))
    saving.part(said, WORD, 0)
    saving.saved(1)
    assert saving.part(said, WORD + 1, 0) == Part(2, 1, (), "two three")
    assert saving.kept_back == WORD
    assert saving.part(said, 2 * WORD, 0) is None, "that text is known"
    said.add_text(" four")
    assert saving.part(said, 2 * WORD, 0) == Part(3, 1, (), "two three four")
    said.add_words(clause(1, 1, "two", "three"))
    assert saving.part(said, 2 * WORD, 0) == Part(4, 1, spoken(1, "two", "three"), "")


def test_sound_of_which_nothing_is_known_waits_for_nothing() -> None:
    saving = Saving()
    assert saving.part(reply(), WORD, 0) is None
    assert saving.kept_back is None


def test_another_attempt_begins_at_the_first_word() -> None:
    saving = Saving()
    saving.part(reply("", clause(0, 0, "old", "words")), 0, 0)
    saving.saved(1)
    saving.anew()
    assert saving.part(reply("", clause(0, 0, "new")), 0, 0) == Part(2, 0, spoken(0, "new"), "")
    assert saving.kept_back == 0


def test_aligned_words_take_the_place_of_all_and_keep_no_sound_back_that_was_stored() -> None:
    saving, said = Saving(), reply("one two", clause(0, 0, "one", "two"))
    saving.part(said, 0, 0)
    saving.saved(1)
    said.add_words(clause(0, 0, "one", "two", basis="aligned"))
    assert saving.part(said, 9 * WORD, 0) == Part(2, 0, spoken(0, "one", "two"), "")
    assert saving.kept_back == 2 * WORD
    assert saving.part(said, 9 * WORD, 0) is None


def test_what_the_store_takes_too_long_over_is_late() -> None:
    saving, said = Saving(), reply("", clause(0, 0, "one"))
    saving.part(said, 0, 5)
    assert saving.next_deadline_ns() == 5 + SAVE_NS_MAX
    assert not saving.is_late(5 + SAVE_NS_MAX - 1)
    assert saving.is_late(5 + SAVE_NS_MAX)
    saving.all_saved()
    assert not saving.is_late(5 + SAVE_NS_MAX)
    assert saving.kept_back is None
    assert saving.next_deadline_ns() == 5 + HEARD_NS


def test_what_was_heard_is_stored_each_second_where_it_is_more() -> None:
    saving = Saving()
    saving.part(reply("", clause(0, 0, "one")), 0, 0)
    assert not saving.heard(heard(WORD), HEARD_NS - 1)
    assert saving.heard(heard(WORD), HEARD_NS)
    assert not saving.heard(heard(2 * WORD), HEARD_NS + 1), "it has just been"
    assert not saving.heard(heard(WORD), 2 * HEARD_NS), "and is the same"
    assert saving.heard(heard(2 * WORD), 3 * HEARD_NS)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30), st.data())
def test_what_may_go_is_always_stored(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever comes in whichever order: of each word that may be heard the store has the text."""
    saving, said, words, generated, told = Saving(), Reply(), 0, 0, 0
    parts: list[Part] = []
    stored: list[str] = []
    for step, count in steps:
        if step == 0:
            said.add_text("".join(f" w{told + at}" for at in range(count)))
            told += count
        elif step == 1 and words < told:
            said.add_words(clause(words, words, *(f"w{at}" for at in range(words, min(told, words + count)))))
            words = min(told, words + count)
        elif step == 2:
            generated = min(told * WORD, generated + count * WORD)
        elif parts:
            saved = data.draw(st.integers(0, len(parts) - 1))
            saving.saved(parts[saved].number)
            for part in parts[: saved + 1]:
                stored = [*stored[: part.first], *(word.text for word in part.words), *part.rest.split()]
            del parts[: saved + 1]
        asked = saving.part(said, generated, 0)
        parts += [asked] if asked else []
        may_go = generated if saving.kept_back is None else min(generated, saving.kept_back)
        assert stored[: -(-may_go // WORD)] == [f"w{at}" for at in range(-(-may_go // WORD))]
