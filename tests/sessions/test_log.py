"""What a log amounts to, also where its owner dies amid a reply."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sessions.log import Log, compact, replay
from sessions.records import (
    CallBegun,
    CallRecord,
    CallSettled,
    Compacted,
    ConfigChanged,
    Conversation,
    CorruptLog,
    EpochAdvanced,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    ReplyHeard,
    ReplySpeaking,
    SessionRecord,
    SpokenRecord,
    TurnRecord,
    UnsureRecord,
    WordRecord,
    decode_entry,
    encode_entry,
    token_digest,
)
from stages.contracts import EPOCHS_PER_FENCE

RECORD = SessionRecord("sess_1", "acme", 1_700_000_000_000, b'{"voice":"joe"}', token_digest("secret"))
FIRST_EPOCH = EPOCHS_PER_FENCE
RATE = 24_000
WORD = 4_800  # 200 ms


def item(name: str, previous: str | None = None, content: str = "") -> ItemRecord:
    return ItemRecord(name, "user", content=content, previous=previous)


A, B, C = item("a"), item("b", "a"), item("c", "b")
ABC = [ItemAppended(A), ItemAppended(B), ItemAppended(C)]


def names(entries: list[TurnRecord]) -> list[str]:
    return [kept.id for kept in replay(RECORD, entries).items]


def words(first: int, text: str) -> tuple[WordRecord, ...]:
    return tuple(WordRecord(word, at * WORD, (at + 1) * WORD) for at, word in enumerate(text.split(), first))


def says(text: str, first: int = 0, *, name: str = "r", previous: str | None = "a", rest: str = "") -> ReplySpeaking:
    return ReplySpeaking(name, f"resp_{name}", FIRST_EPOCH, previous, RATE, 1 + first, first, words(first, text), rest)


def left(entries: list[TurnRecord], name: str = "r") -> ItemRecord:
    """What a new owner finds of the reply."""
    return next(kept for kept in replay(RECORD, entries).items if kept.id == name)


def folded(entries: list[TurnRecord]) -> Conversation:
    """What an owner knows that lives on."""
    log = Log(Conversation((), RECORD.config, RECORD.epoch))
    for entry in entries:
        log.apply(entry)
    return log.conversation()


def test_an_empty_log_is_the_session_as_it_was_made() -> None:
    assert replay(RECORD, []) == Conversation((), RECORD.config, FIRST_EPOCH)


def test_items_stand_where_they_were_put() -> None:
    assert names([*ABC, ItemAppended(item("first")), ItemAppended(item("middle", "a"))]) == [
        "first",
        "a",
        "middle",
        "b",
        "c",
    ]


def test_each_item_names_the_one_that_now_stands_before_it() -> None:
    kept = replay(RECORD, [*ABC, ItemDeleted("b"), ItemAppended(item("z"))]).items
    assert [(each.id, each.previous) for each in kept] == [("z", None), ("a", "z"), ("c", "a")]


def test_a_change_keeps_the_place() -> None:
    changed = ItemRecord("b", "assistant", content="now", status="incomplete", truncated=True)
    kept = replay(RECORD, [*ABC, ItemChanged(changed)]).items
    assert kept[1] == structs.replace(changed, previous="a")
    assert [each.id for each in kept] == ["a", "b", "c"]


def test_the_last_configuration_holds() -> None:
    assert replay(RECORD, [ConfigChanged(b"1"), ConfigChanged(b"2")]).config == b"2"


def test_the_epoch_is_the_last_or_the_first_of_a_new_fence() -> None:
    log: list[TurnRecord] = [EpochAdvanced(FIRST_EPOCH + 7)]
    assert replay(RECORD, log).epoch == FIRST_EPOCH + 7
    assert replay(structs.replace(RECORD, fence=2), log).epoch == 2 * EPOCHS_PER_FENCE


def test_a_compacted_entry_forgets_what_came_before() -> None:
    log: list[TurnRecord] = [*ABC, Compacted((item("x"), item("y", "x")), b"c", FIRST_EPOCH + 3)]
    assert replay(RECORD, log) == Conversation((item("x"), item("y", "x")), b"c", FIRST_EPOCH + 3)


@pytest.mark.parametrize(
    "entries",
    [
        [ItemAppended(A), ItemAppended(A)],
        [ItemAppended(B)],
        [ItemChanged(A)],
        [ItemDeleted("a")],
        [ItemAppended(A), ItemDeleted("a"), ItemDeleted("a")],
        [EpochAdvanced(FIRST_EPOCH)],
        [EpochAdvanced(FIRST_EPOCH + 2), EpochAdvanced(FIRST_EPOCH + 1)],
        [Compacted((A, A), b"", FIRST_EPOCH)],
        [Compacted((A,), b"", FIRST_EPOCH, (SpokenRecord("a", "resp_1", FIRST_EPOCH, None, RATE),))],
        [ItemAppended(A), says("Well", name="a", previous=None)],
        [ItemAppended(A), says("yes", first=1)],
        [ReplyHeard("r", 0, "acked", 0)],
        [ItemAppended(A), says("Well"), ItemAppended(item("r")), ReplyHeard("r", 0, "acked", 0)],
    ],
)
def test_a_log_that_contradicts_itself_is_refused(entries: list[TurnRecord]) -> None:
    with pytest.raises(CorruptLog):
        replay(RECORD, entries)


# ---- calls that the service carries out ---------------------------------------------------------------

CALL = CallRecord("call_1", "b", "book", b"digest", False)
OUTPUT = ItemRecord("out", "system", "function_call_output", "booked", call_id="call_1", previous="b")


def test_a_call_is_pending_until_it_is_settled_with_what_came_of_it() -> None:
    begun: list[TurnRecord] = [*ABC, CallBegun(CALL)]
    assert replay(RECORD, begun).calls == (CALL,)
    settled = replay(RECORD, [*begun, CallSettled("call_1", "succeeded", OUTPUT)])
    assert settled.calls == ()
    assert [kept.id for kept in settled.items] == ["a", "b", "out", "c"]


def test_a_call_may_be_settled_though_nobody_asks() -> None:
    begun: list[TurnRecord] = [*ABC, CallBegun(CALL), ItemDeleted("b"), CallSettled("call_1", "failed")]
    assert (replay(RECORD, begun).calls, names(begun)) == ((), ["a", "c"])


@pytest.mark.parametrize(
    "entries",
    [[CallBegun(CALL), CallBegun(CALL)], [CallSettled("call_1", "failed")], [CallSettled("call_2", "failed")]],
)
def test_a_call_that_contradicts_itself_is_refused(entries: list[TurnRecord]) -> None:
    with pytest.raises(CorruptLog):
        replay(RECORD, [*ABC, *entries])


# ---- an owner dies amid a reply ---------------------------------------------------------------------


def test_what_was_being_said_is_left_with_what_may_have_been_heard_of_it() -> None:
    entries: list[TurnRecord] = [
        ItemAppended(A),
        says("Well, yes,"),
        ReplyHeard("r", WORD + 2_400, "estimated", 1_200),
        says("my friend.", first=2, rest="And so"),
    ]
    assert left(entries) == ItemRecord(
        "r",
        "assistant",
        content="Well,",
        status="incomplete",
        name="spoken",
        audio_ms_total=800,
        audio_ms_cut=300,
        truncated=True,
        heard_basis="estimated",
        heard_error_ms=500,
        broke_off=True,
        previous="a",
        unsure=UnsureRecord("resp_r", RATE, WORD + 2_400, words(0, "Well, yes, my friend."), "And so"),
    )


def test_the_error_is_what_was_told_where_that_is_more() -> None:
    assert left([ItemAppended(A), says("Well"), ReplyHeard("r", 0, "acked", 2 * WORD)]).heard_error_ms == 400


def test_where_all_was_heard_nothing_is_unsure() -> None:
    known = left([ItemAppended(A), says("Well"), ReplyHeard("r", WORD, "acked", 0)])
    assert (known.content, known.unsure, known.status, known.truncated) == ("Well", None, "incomplete", True)


def test_words_without_times_are_unsure() -> None:
    known = left([ItemAppended(A), says("", rest="Well, yes")])
    assert (known.content, known.audio_ms_total) == ("", 0)
    assert known.unsure == UnsureRecord("resp_r", RATE, 0, (), "Well, yes")


def test_another_attempt_takes_the_place_of_the_one_before() -> None:
    known = left([ItemAppended(A), says("Well, yes"), says("No")])
    assert known.unsure is not None
    assert known.unsure.words == words(0, "No")


@pytest.mark.parametrize("ends", [ItemAppended(item("r", "a", "Well")), ItemChanged(item("r", "a", "Well"))])
def test_the_item_takes_the_place_of_what_was_told_of_it(ends: TurnRecord) -> None:
    entries: list[TurnRecord] = [ItemAppended(A), says("Well"), ends]
    assert left(entries) == item("r", "a", "Well")
    assert folded(entries).speaking == ()


def test_a_reply_of_which_nothing_was_heard_leaves_nothing() -> None:
    assert names([ItemAppended(A), says("Well"), ItemDeleted("r")]) == ["a"]


def test_it_stands_behind_what_it_answers_and_before_what_was_said_meanwhile() -> None:
    assert names([ItemAppended(A), says("Well"), ItemAppended(B)]) == ["a", "r", "b"]


def test_where_that_has_left_it_stands_behind_the_one_before() -> None:
    entries: list[TurnRecord] = [*ABC, says("Well", previous="b"), ItemDeleted("b")]
    assert names(entries) == ["a", "r", "c"]
    assert names([*entries, ItemDeleted("a")]) == ["r", "c"]
    assert names([ItemAppended(A), says("Well", previous="gone")]) == ["r", "a"]


def test_other_replies_keep_their_places() -> None:
    entries: list[TurnRecord] = [*ABC, says("Well", name="q", previous="a"), says("Yes", previous="b")]
    assert names([*entries, ItemDeleted("b")]) == ["a", "r", "q", "c"]


def test_for_an_owner_that_lives_it_is_still_being_said() -> None:
    entries: list[TurnRecord] = [ItemAppended(A), says("Well"), ReplyHeard("r", 9, "acked", 1)]
    spoken = SpokenRecord("r", "resp_r", FIRST_EPOCH, "a", RATE, words(0, "Well"), "", 9, "acked", 1)
    assert folded(entries) == Conversation((A,), RECORD.config, FIRST_EPOCH, (spoken,))
    compacted = compact(folded(entries))
    assert names([compacted, says("yes", first=1), ItemAppended(item("r", "a"))]) == ["a", "r"]


# ---- an owner dies after a cut ----------------------------------------------------------------------

CUT = ItemRecord(
    "r",
    "assistant",
    content="Well,",
    status="incomplete",
    name="spoken",
    audio_ms_total=610,
    audio_ms_cut=300,
    truncated=True,
    heard_basis="acked",
    heard_error_ms=100,
    cut_word="yes,",
    previous="a",
)
SAID: list[TurnRecord] = [ItemAppended(A), says("Well, yes, my friend."), ItemAppended(CUT)]


def test_what_was_sent_behind_a_cut_may_have_been_heard_before_its_client_knew() -> None:
    unsure = UnsureRecord("resp_r", RATE, WORD + 2_400, words(0, "Well, yes, my"))
    assert left(SAID) == structs.replace(CUT, unsure=unsure, cut_word="")
    assert folded(SAID).items[-1] == CUT, "an owner that lives on is told"


@pytest.mark.parametrize(
    "then",
    [
        ItemChanged(structs.replace(CUT, content="Well, yes,", audio_ms_cut=400, heard_error_ms=0)),
        ItemChanged(CUT),
        says("What?", name="q"),
        compact(folded(SAID)),
    ],
)
def test_a_cut_is_settled_by_what_comes_later(then: TurnRecord) -> None:
    assert left([*SAID, then]).unsure is None


def test_a_cut_that_is_known_to_the_sample_is_settled() -> None:
    exact = structs.replace(CUT, heard_error_ms=0)
    assert left([*SAID[:2], ItemAppended(exact)]) == exact


@pytest.mark.parametrize("sent_ms", [0, 390])
def test_behind_a_cut_nothing_is_unsure_where_no_whole_word_was_sent(sent_ms: int) -> None:
    cut = structs.replace(CUT, audio_ms_total=sent_ms, audio_ms_cut=min(sent_ms, 300))
    assert left([*SAID[:2], ItemAppended(cut)]) == cut


def test_of_a_whole_reply_nothing_is_unsure() -> None:
    whole = structs.replace(CUT, truncated=False)
    assert left([*SAID[:2], ItemAppended(whole)]) == whole


def test_a_cut_that_was_deleted_leaves_nothing() -> None:
    assert names([*SAID, ItemDeleted("r")]) == ["a"]


# ---- compaction -------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogBuilder:
    """Draws logs that an owner could have written."""

    entries: list[TurnRecord] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    speaking: list[str] = field(default_factory=list)
    made: int = 0
    epoch: int = FIRST_EPOCH

    def add(self, choice: int, pick: int) -> None:
        self.made += 1
        chosen = self.present[pick % len(self.present)] if self.present else None
        if choice == 0 or chosen is None:
            name = f"i{self.made}"
            self.entries.append(ItemAppended(item(name, chosen if pick % 3 else None)))
            self.present.append(name)
        elif choice == 1:
            self.entries.append(ItemChanged(item(chosen, content=str(self.made))))
        elif choice == 2:
            self.entries.append(ItemDeleted(chosen))
            self.present.remove(chosen)
        elif choice == 5:
            name = f"i{self.made}"
            self.entries += [says("one two", name=name, previous=chosen), ReplyHeard(name, pick * 1_000, "acked", 0)]
            self.entries += [says("three", first=2, name=name, previous=chosen)] * (pick % 2)
            self.speaking.append(name)
        elif choice == 6 and self.speaking:
            name = self.speaking.pop(pick % len(self.speaking))
            self.entries.append(ItemAppended(item(name, chosen)) if pick % 2 else ItemDeleted(name))
            self.present += [name] if pick % 2 else []
        elif choice == 7:
            call, output = f"call_{self.made}", f"out{self.made}"
            self.entries.append(CallBegun(CallRecord(call, chosen, "book", b"", False)))
            if pick % 2:
                self.entries.append(CallSettled(call, "succeeded", item(output, chosen)))
                self.present.append(output)
        elif choice == 3:
            self.epoch += 1 + pick
            self.entries.append(EpochAdvanced(self.epoch))
        else:
            self.entries.append(ConfigChanged(b"%d" % self.made))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=30), st.integers(0, 30))
def test_compaction_anywhere_changes_nothing(choices: list[tuple[int, int]], cut: int) -> None:
    log = LogBuilder()
    for choice, pick in choices:
        log.add(choice, pick)
    before, after = log.entries[:cut], log.entries[cut:]
    compacted = decode_entry(encode_entry(compact(folded(before))))
    assert folded([compacted, *after]) == folded(log.entries)
    assert replay(RECORD, [compacted, *after]) == replay(RECORD, log.entries)
