"""What a conversation stores of a reply while it is said, and what the next owner makes of it where it breaks off."""

from __future__ import annotations

import pytest

from duplex.checkpoints import Recorder, Restored, encode_settings, restored
from media.heard_estimate import Path
from sessions.effects import Effect, Save, SaveDeletion, SaveHeard, SaveItem, SaveLate, SaveSpeaking
from sessions.events import ItemRefined, ReplyAudio
from sessions.items import Item
from sessions.prompt import CUT_OFF, LINE_BROKE, PromptWindow, broke_off
from sessions.records import SessionRecord, encode_entry, token_digest
from sessions.reply import SpokenWord, Unsure
from sessions.saving import HEARD_NS, SAVE_NS_MAX, Part
from sessions.settings import ResponseSpec, SessionSettings
from sessions.store import Snapshot
from stages.contracts import Message
from tests.sessions.talk import EPOCH, MS, WORD_SAMPLES, Talk, kinds, of, told, user

REPLY = "one two three four"


def spoken(first: int, text: str) -> tuple[SpokenWord, ...]:
    return tuple(
        SpokenWord(word, at * WORD_SAMPLES, (at + 1) * WORD_SAMPLES) for at, word in enumerate(text.split(), first)
    )


def asked(*, is_stored: bool = True) -> Talk:
    """A caller has said something, and the answer is being made."""
    talk = Talk(recalls=True, lead_ms=200)
    talk.is_stored = is_stored
    talk.say("hello")
    talk.open("resp_1")
    return talk


def sent(effects: list[Effect]) -> int:
    return sum(event.frame.samples for event in told(effects, ReplyAudio))


def play(talk: Talk) -> int:
    """All that may go goes, as fast as the lead lets it: a second of sound, if there is as much. How much went."""
    total = sent(talk.send())
    for _ in range(50):
        talk.later(20)
        total += sent(talk.send())
    return total


def broken(talk: Talk, *, recalls: bool = True) -> Talk:
    """The owner has died: another one goes on with what was stored."""
    first = SessionRecord("sess", "", 0, encode_settings(SessionSettings()), token_digest("x"))
    recorder = Recorder((), SessionSettings(), EPOCH)
    saves = [effect for effect in talk.effects if isinstance(effect, Save)]
    found = restored(Snapshot(first, tuple(encode_entry(recorder.saved(effect)) for effect in saves)))
    return taken_over(found, recalls=recalls)


def taken_over(found: Restored, *, recalls: bool = True) -> Talk:
    talk = Talk(items=found.items, recalls=recalls, ids_from=10)
    talk.do(talk.core.warm_up())
    return talk


def amid_its_words(heard_ms: int = 0) -> Talk:
    """A reply of four words, of which so much was heard when its owner died, and all was stored."""
    talk = asked()
    talk.text("resp_1", REPLY)
    talk.words("resp_1", REPLY)
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    play(talk)
    if heard_ms:
        talk.later(HEARD_NS / MS)
        talk.do(talk.core.heard("resp_1", heard_ms * 24, talk.now_ns))
        talk.do(talk.core.tick(talk.now_ns, 0))
    return talk


# ---- while it is said ---------------------------------------------------------------------------------


def test_a_clause_is_stored_while_its_sound_is_made() -> None:
    talk = asked()
    talk.text("resp_1", REPLY)
    effects = talk.words("resp_1", "one two")
    assert of(effects, SaveSpeaking) == [
        SaveSpeaking("item_2", "resp_1", EPOCH, "item_1", 24_000, Part(1, 0, spoken(0, "one two"), ""))
    ]
    effects = talk.words("resp_1", "three four", first=2)
    assert [save.part for save in of(effects, SaveSpeaking)] == [Part(2, 2, spoken(2, "three four"), "")]


def test_no_sound_of_a_clause_goes_before_it_is_stored() -> None:
    talk = asked(is_stored=False)
    talk.text("resp_1", REPLY)
    talk.words("resp_1", "one two")
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    assert sent(talk.send()) == 0
    talk.core.speaking.saved("item_1", 1)
    assert sent(talk.send()) == 0, "that is another item"
    talk.core.speaking.saved("item_2", 1)
    assert play(talk) == 2 * WORD_SAMPLES, "of the sound behind these words only the text is known"
    talk.core.speaking.saved("item_2", 2)
    assert play(talk) == 2 * WORD_SAMPLES


def test_what_is_stored_goes_though_what_follows_is_not() -> None:
    talk = asked(is_stored=False)
    talk.words("resp_1", "one two")
    talk.core.speaking.saved("item_2", 1)
    talk.words("resp_1", "three four", first=2)
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    assert play(talk) == 2 * WORD_SAMPLES


def test_a_store_that_takes_too_long_mutes_nobody() -> None:
    talk = asked(is_stored=False)
    talk.words("resp_1", REPLY)
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    asked_ns = talk.now_ns
    assert talk.core.next_deadline_ns() == asked_ns + SAVE_NS_MAX
    talk.later(SAVE_NS_MAX / MS - 1)
    assert kinds(talk.do(talk.core.tick(talk.now_ns, 0))) == []
    assert sent(talk.send()) == 0
    talk.later(1)
    assert kinds(talk.do(talk.core.tick(talk.now_ns, 0))) == ["SaveLate"]
    assert play(talk) == 4 * WORD_SAMPLES
    talk.words("resp_1", "five", first=4)
    talk.audio("resp_1", WORD_SAMPLES, seq=1, start=4 * WORD_SAMPLES)
    assert play(talk) == WORD_SAMPLES, "nothing waits while it is away"
    assert of(talk.effects, SaveLate) == [SaveLate()]


def test_a_store_that_fails_is_not_waited_for_until_it_has_everything() -> None:
    talk = asked(is_stored=False)
    talk.words("resp_1", "one two")
    talk.audio("resp_1", 2 * WORD_SAMPLES)
    talk.core.speaking.store_is_away(True)
    assert sent(talk.send()) == WORD_SAMPLES
    talk.core.speaking.store_is_away(False)
    talk.later(1_000)
    assert sent(talk.send()) == WORD_SAMPLES
    talk.words("resp_1", "three four", first=2)
    talk.audio("resp_1", 2 * WORD_SAMPLES, seq=1, start=2 * WORD_SAMPLES)
    talk.later(1_000)
    assert sent(talk.send()) == 0, "from then on it is waited for again"


def test_what_was_heard_is_stored_each_second_while_the_store_takes_anything() -> None:
    talk = amid_its_words(heard_ms=300)
    assert of(talk.effects, SaveHeard) == [SaveHeard("item_2", 7_200, "acked", 0)]
    assert talk.core.speaking.next_deadline_ns() == talk.now_ns + HEARD_NS
    talk.core.speaking.store_is_away(True)
    talk.later(HEARD_NS / MS)
    talk.do(talk.core.heard("resp_1", 9_000, talk.now_ns))
    assert kinds(talk.do(talk.core.tick(talk.now_ns, 0))) == []


def test_of_what_is_prepared_nothing_is_stored_before_it_is_confirmed() -> None:
    talk = Talk(recalls=True, lead_ms=200, prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(20_000))
    talk.heard("hello", final=False)
    talk.open("resp_1")
    talk.text("resp_1", REPLY)
    assert of(talk.words("resp_1", "one two"), SaveSpeaking) == []
    talk.audio("resp_1", 2 * WORD_SAMPLES)
    talk.is_stored = False
    talk.end()
    effects = talk.heard("hello")
    assert [save.part.words for save in of(effects, SaveSpeaking)] == [spoken(0, "one two")]
    assert sent(talk.send()) == 0
    talk.core.speaking.saved("item_2", 1)
    assert sent(talk.send()) == WORD_SAMPLES


def test_what_history_does_not_hold_is_not_stored() -> None:
    talk = Talk()
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.open("resp_1")
    assert of(talk.words("resp_1", "one two"), SaveSpeaking) == []
    talk.do(talk.core.create_response(ResponseSpec(modalities=("text",)), talk.now_ns))
    talk.open("resp_2")
    assert of(talk.text("resp_2", "one two"), SaveSpeaking) == []


def test_a_reply_of_which_nothing_was_said_is_forgotten_by_the_store_too() -> None:
    talk = asked()
    talk.words("resp_1", "one two")
    effects = talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert of(effects, SaveDeletion) == [SaveDeletion("item_2")]
    assert [item.id for item in broken(talk).core.items] == ["item_1"]


def test_of_a_reply_that_is_over_only_its_item_is_left() -> None:
    talk = amid_its_words()
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert broken(talk).core.items == talk.core.items


# ---- its owner has died -------------------------------------------------------------------------------


def test_words_that_may_have_been_heard_are_kept_and_marked() -> None:
    (_, item) = broken(amid_its_words(heard_ms=500)).core.items
    assert (item.text, item.possibly_heard, item.words) == ("one two", "three four", REPLY)
    assert (item.status, item.cut, item.cut_word) == ("incomplete", True, "")
    assert (item.heard_samples, item.heard_basis, item.audio_samples) == (12_000, "acked", 4 * WORD_SAMPLES)
    assert item.heard_error_samples == 4 * WORD_SAMPLES - 12_000
    assert item.unsure == Unsure("resp_1", spoken(0, REPLY))


def test_the_next_owner_enters_it_so() -> None:
    talk = broken(amid_its_words())
    (saved,) = of(talk.effects, SaveItem)
    assert (saved.item, saved.previous) == (talk.core.items[1], "item_1")
    recorder = Recorder(talk.core.items, SessionSettings(), EPOCH)
    assert taken_over(Restored(talk.core.items, SessionSettings(), EPOCH)).core.items == talk.core.items
    assert recorder.compacted().items[1].unsure is not None


def test_a_prompt_says_which_words_may_have_been_heard() -> None:
    talk = broken(amid_its_words(heard_ms=500))
    talk.say("again")
    assert talk.prompt(talk.active)[1:] == (
        user("hello"),
        Message("assistant", "one two three four —"),
        Message("system", 'The line broke here. It is not known whether the user heard these last words: "three four"'),
        user("again"),
    )


def test_where_nothing_was_heard_for_certain_the_prompt_has_all_words() -> None:
    talk = broken(amid_its_words())
    assert talk.core.items[1].text == ""
    talk.say("again")
    assert talk.prompt(talk.active)[2:4] == (Message("assistant", REPLY + CUT_OFF), broke_off(REPLY))


@pytest.mark.parametrize(
    ("ms", "text"), [(0, ""), (399, "one"), (400, "one two"), (800, REPLY), (9_000, REPLY)], ids=str
)
@pytest.mark.parametrize("how", ["report", "truncate"])
@pytest.mark.parametrize("recalls", [True, False])
def test_what_the_client_reports_settles_it(ms: int, text: str, how: str, recalls: bool) -> None:
    talk = broken(amid_its_words(), recalls=recalls)
    assert talk.core.speaking.sent_of("resp_1", talk.now_ns) == 4 * WORD_SAMPLES
    if how == "report":
        effects = talk.do(talk.core.heard("resp_1", ms * 24, talk.now_ns))
        (refined,) = told(effects, ItemRefined)
        assert (refined.item, refined.cut.text, refined.cut.possibly_heard) == ("item_2", text, "")
    else:
        effects = talk.truncate("item_2", ms)
    item = talk.core.items[1]
    assert of(effects, SaveItem)[-1].item == item
    assert (item.text, item.possibly_heard, item.unsure, item.cut) == (text, "", None, True)
    assert (item.heard_samples, item.heard_basis) == (min(ms * 24, 4 * WORD_SAMPLES), "acked")
    assert item.heard_error_samples == 0
    talk.say("again")
    said = [Message("assistant", text + CUT_OFF), LINE_BROKE] if text else []
    assert list(talk.prompt(talk.active)[2:-1]) == said


def test_later_reports_move_it_forward_and_not_back() -> None:
    talk = broken(amid_its_words())
    for ms, text in ((400, "one two"), (200, "one two"), (600, "one two three")):
        talk.do(talk.core.heard("resp_1", ms * 24, talk.now_ns))
        assert talk.core.items[1].text == text
    assert talk.core.speaking.reported_of("resp_1") == 600 * 24


def test_a_report_of_less_than_was_reported_before_takes_nothing_back() -> None:
    talk = broken(amid_its_words(heard_ms=500))
    talk.do(talk.core.heard("resp_1", 100 * 24, talk.now_ns))
    assert (talk.core.items[1].text, talk.core.items[1].possibly_heard) == ("one two", "")


def test_an_estimate_is_put_right_either_way() -> None:
    talk = asked()
    talk.do(talk.core.path_seen(Path(delay_ns_max=700 * MS), talk.now_ns))
    talk.words("resp_1", REPLY)
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    play(talk)
    talk.do(talk.core.tick(talk.now_ns, 0))
    after = broken(talk)
    assert (after.core.items[1].heard_basis, after.core.items[1].text) == ("estimated", "one")
    after.do(after.core.heard("resp_1", 100 * 24, after.now_ns))
    assert (after.core.items[1].text, after.core.items[1].cut_word) == ("", "one")


def test_words_without_a_place_stay_marked_where_they_may_have_been_heard() -> None:
    talk = asked()
    talk.text("resp_1", REPLY)
    talk.words("resp_1", "one two")
    talk.audio("resp_1", 3 * WORD_SAMPLES)
    after = broken(talk)
    assert after.core.items[1].possibly_heard == REPLY
    after.do(after.core.heard("resp_1", 400 * 24, after.now_ns))
    assert (after.core.items[1].text, after.core.items[1].possibly_heard) == ("one two", "three four")
    later = broken(talk)
    later.do(later.core.heard("resp_1", 399 * 24, later.now_ns))
    assert (later.core.items[1].text, later.core.items[1].possibly_heard) == ("one", "")


def test_the_caller_is_not_taken_to_wait_for_an_answer_that_they_may_have_heard() -> None:
    talk = broken(amid_its_words())
    assert talk.do(talk.core.tick(talk.now_ns, 0)) == []
    assert talk.started() == []


def test_words_that_may_have_been_heard_count_for_the_prompt() -> None:
    item = Item("i", "assistant", "ab", spoken=True, cut=True, unsure=Unsure("r", (), "cdef"))
    assert item.characters == len("ab cdef")
    assert len(PromptWindow(100).messages((item,))) == 2
