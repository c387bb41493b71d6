"""A cut that moves before anything of the next reply has come: that is made of what the history says then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from media.heard_estimate import Path
from sessions.effects import CancelStream, Measured, OpenStream
from sessions.events import ItemTruncated, ResponseDrained, ResponseStarted
from sessions.heard import Cut
from sessions.items import Item
from sessions.prompt import INTERRUPTED
from sessions.response import ASKED_AGAIN_MAX
from sessions.settings import ResponseSpec
from stages.contracts import Message, Tag, TextDelta, ThinkerOptions
from tests.sessions.talk import (
    LINE,
    MS,
    SYSTEM,
    WORD_SAMPLES,
    Talk,
    assistant,
    kinds,
    of,
    told,
    user,
    without_interruption,
)

SAID = (SYSTEM, user("hello"))
NEXT = (INTERRUPTED, user("go on"))


def interrupted(*, recalls: bool = False) -> Talk:
    """Two of three words were sent, and the caller has said something else: `resp_2` shall answer it."""
    talk = Talk(recalls=recalls)
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(25)
    talk.say("go on")
    assert talk.active == "resp_2"
    return talk


def prompts(talk: Talk) -> list[tuple[int, tuple[Message, ...]]]:
    """What the Thinker was asked for `resp_2`, by attempt."""
    asked = [(effect.tag, effect.options) for effect in talk.opened_at("thinker") if effect.tag.response == "resp_2"]
    return [(tag.attempt, options.messages) for tag, options in asked if isinstance(options, ThinkerOptions)]


@pytest.mark.parametrize(("ms", "text"), [(250, "one —"), (0, ""), (90_000, "one two —")])
def test_a_truncation_before_the_stages_are_open_is_in_the_only_prompt(ms: int, text: str) -> None:
    talk = interrupted()
    effects = talk.truncate("item_2", ms)
    assert kinds(effects) == ["SaveItem", "ItemTruncated"]
    talk.open("resp_2")
    said = (assistant(text), *NEXT) if text else NEXT[1:]
    assert prompts(talk) == [(0, (*SAID, *said))]


def test_a_truncation_before_the_first_token_has_the_reply_made_again() -> None:
    talk = interrupted()
    talk.open("resp_2")
    first = talk.tag("resp_2")
    effects = talk.truncate("item_2", 250)
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", 250, Cut(6_000, "one", "two", "acked"))]
    assert [effect.stage for effect in of(effects, CancelStream)] == list(LINE)
    assert [(effect.stage, effect.tag.attempt) for effect in of(effects, OpenStream)] == [("talker", 1), ("vocoder", 1)]
    assert of(effects, Measured) == [], "nothing was lost"
    talk.open("resp_2")
    assert prompts(talk) == [(0, (*SAID, assistant("one two —"), *NEXT)), (1, (*SAID, assistant("one —"), *NEXT))]
    assert told(talk.effects, ResponseStarted)[-1].response.id == "resp_2", "its client sees nothing of it"
    talk.do(talk.core.published(first, TextDelta("of the first"), talk.now_ns))
    talk.reply("resp_2", "as you wish")
    talk.send()
    assert talk.finished("resp_2").text == "as you wish"
    for stage in LINE:
        talk.do(talk.core.closed(first, stage, {}, None, talk.now_ns))
    talk.let_go("resp_2")
    assert told(talk.effects, ResponseDrained)[-1].status == "complete"


def test_a_cut_that_moves_forward_has_the_reply_made_again_too() -> None:
    talk = interrupted(recalls=True)
    talk.open("resp_2")
    talk.do(talk.core.heard("resp_1", WORD_SAMPLES, talk.now_ns))
    talk.open("resp_2")
    assert prompts(talk)[-1] == (1, (*SAID, assistant("one —"), *NEXT))
    talk.do(talk.core.heard("resp_1", 2 * WORD_SAMPLES, talk.now_ns))
    talk.open("resp_2")
    assert prompts(talk)[-1] == (2, (*SAID, assistant("one two —"), *NEXT))


def test_what_has_arrived_after_all_has_the_reply_made_again() -> None:
    """The peer has fallen silent amid the first word; then its report says that both words had come."""
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.do(talk.core.path_seen(Path(silent_ns=talk.now_ns + 100 * MS), talk.now_ns))
    began_ns = talk.now_ns
    talk.send(25)
    talk.say("go on")
    talk.open("resp_2")
    effects = talk.do(talk.core.path_seen(Path(arrived_ns=began_ns + 400 * MS), talk.now_ns))
    assert kinds(effects)[:2] == ["SaveItem", "ItemRefined"]
    talk.open("resp_2")
    assert prompts(talk) == [(0, (*SAID, user("go on"))), (1, (*SAID, assistant("one two —"), *NEXT))]


def test_what_was_never_written_has_the_reply_made_again() -> None:
    talk = interrupted()
    talk.open("resp_2")
    talk.do(talk.core.written("resp_1", 2 * WORD_SAMPLES - 480, talk.now_ns))
    talk.open("resp_2")
    assert prompts(talk)[-1] == (1, (*SAID, assistant("one —"), *NEXT))


def test_words_of_the_cut_that_become_known_late_are_in_the_prompt() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "one two")
    talk.audio("resp_1", 2 * WORD_SAMPLES)
    talk.send()
    talk.say("go on")
    talk.open("resp_2")
    talk.words("resp_1", "one two")
    talk.open("resp_2")
    assert prompts(talk) == [(0, (*SAID, user("go on"))), (1, (*SAID, assistant("one two —"), *NEXT))]


@pytest.mark.parametrize("came", ["text", "audio"])
def test_after_the_first_token_only_the_record_changes(came: str) -> None:
    talk = interrupted()
    talk.open("resp_2")
    if came == "text":
        talk.text("resp_2", "as")
    else:
        talk.audio("resp_2", 480)
    effects = talk.truncate("item_2", 250)
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", 250, Cut(6_000, "one", "two", "acked"))]
    assert kinds(effects) == ["SaveItem", "ItemTruncated"]
    assert talk.texts[1] == ("assistant", "one")
    assert len(prompts(talk)) == 1
    talk.say("and then")
    assert talk.prompt("resp_3")[2] == assistant("one —")


def test_a_truncation_that_changes_no_word_asks_nothing_again() -> None:
    talk = interrupted()
    talk.open("resp_2")
    talk.truncate("item_2", 450)
    assert [attempt for attempt, _ in prompts(talk)] == [0]


def test_who_goes_on_truncating_does_not_keep_the_reply_from_beginning() -> None:
    talk = interrupted()
    for number in range(2 * ASKED_AGAIN_MAX):
        talk.open("resp_2")
        talk.truncate("item_2", 250 * (1 - number % 2) + 200 * (number % 2) * 2)
    assert [attempt for attempt, _ in prompts(talk)] == list(range(ASKED_AGAIN_MAX + 1))
    talk.reply("resp_2", "as you wish")
    talk.send()
    assert talk.finished("resp_2").status == "completed"


def test_what_has_come_behind_the_turn_is_for_the_next_reply() -> None:
    talk = interrupted()
    talk.open("resp_2")
    talk.do(talk.core.create_item(Item("typed", "user", "by the way", spoken=False), None))
    talk.truncate("item_2", 250)
    talk.open("resp_2")
    assert prompts(talk)[-1] == (1, (*SAID, assistant("one —"), *NEXT))


def test_the_place_of_a_prompt_outlives_the_item_before_it() -> None:
    talk = interrupted()
    talk.do(talk.core.delete_item("item_3"))
    talk.open("resp_2")
    talk.truncate("item_2", 250)
    talk.open("resp_2")
    assert prompts(talk)[-1] == (1, (*SAID, assistant("one —"), INTERRUPTED))


def beside(talk: Talk) -> None:
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))


def of_other_words(talk: Talk) -> None:
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.do(talk.core.create_response(ResponseSpec(messages=(("user", "classify this"),)), talk.now_ns))


@pytest.mark.parametrize("deed", [beside, of_other_words])
def test_a_reply_that_is_not_made_of_the_conversation_is_not_made_again(deed: Callable[[Talk], None]) -> None:
    talk = interrupted()
    deed(talk)
    talk.open("resp_3")
    assert of(talk.truncate("item_2", 250), OpenStream) == []


def test_a_loss_after_that_is_still_made_up_for() -> None:
    talk = interrupted()
    talk.open("resp_2")
    talk.truncate("item_2", 250)
    talk.open("resp_2")
    lost: Tag = talk.tag("resp_2")
    effects = talk.do(talk.core.lost(lost, "vocoder", talk.now_ns))
    assert of(effects, Measured) == [Measured("responses_retried", 1)]
    talk.open("resp_2")
    assert prompts(talk)[-1] == (2, (*SAID, assistant("one —"), *NEXT))


def test_two_turns_are_not_answered_by_one_reply() -> None:
    """A response that waits for words answers what was said when it was asked for; what comes behind it is next."""
    talk = Talk(without_interruption())
    talk.commit()
    question = talk.turn_tag()
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.start(48_000)
    talk.end(64_000)
    talk.heard("hello", question)
    talk.heard("and you")
    talk.reply("resp_1", "hi")
    assert talk.prompt("resp_1") == SAID
    talk.send()
    assert talk.prompt("resp_2") == (*SAID, assistant("hi"), user("and you"))
