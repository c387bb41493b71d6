"""A conversation whose replies an aligner looks at: done without it, drained with it, and history that it refines."""

from __future__ import annotations

import pytest

from sessions.effects import CancelStream, CutStream, Effect, EndEpoch, OpenStream, SaveItem, Tell
from sessions.events import ItemRefined, ResponseDrained, ResponseFinished
from sessions.heard import Cut
from sessions.route import Leg, Route, line
from sessions.settings import OUTPUT_RATE, ResponseSpec
from stages.contracts import ObserverOptions, TextDelta, Word, WordTimes
from tests.sessions.talk import LINE, WORD_SAMPLES, Talk, of, told

THINKER, TALKER, VOCODER = line().legs
ROUTE = Route(
    "encoder",
    (
        Leg("thinker", "thinker", ("talker", "aligner"), THINKER.finals),
        TALKER,
        Leg("vocoder", "vocoder", ("aligner",), VOCODER.finals, spoken=True),
        Leg("aligner", "observer", spoken=True),
    ),
)
TEXT = "one two three four"


def observed() -> Talk:
    """A reply of four words is made and open at all stages; of it, two words and a half go out."""
    talk = Talk(route=ROUTE)
    talk.say("hello")
    talk.do(talk.core.opened(talk.tag("resp_1"), "aligner", talk.now_ns))
    talk.open("resp_1")
    talk.text("resp_1", TEXT)
    talk.text_done("resp_1")
    talk.audio("resp_1", 4 * WORD_SAMPLES, final=True)
    talk.send(25)
    return talk


def aligned(talk: Talk, words: str, samples: int = WORD_SAMPLES) -> list[Effect]:
    """The aligner finds `words`, of `samples` each."""
    times = tuple(Word(word, at * samples, (at + 1) * samples) for at, word in enumerate(words.split()))
    return talk.publish("resp_1", WordTimes(0, OUTPUT_RATE, times, "aligned"))


def test_each_stage_is_opened_with_the_edges_that_the_response_uses() -> None:
    talk = Talk(route=ROUTE)
    talk.say("hello")
    tag = talk.tag("resp_1")
    talk.do(talk.core.opened(tag, "aligner", talk.now_ns))
    talk.open("resp_1")
    opens = [effect for effect in of(talk.effects, OpenStream) if effect.tag == tag]
    assert [(effect.stage, effect.edges) for effect in opens] == [
        ("talker", ("vocoder",)),
        ("vocoder", ("aligner",)),
        ("aligner", ()),
        ("thinker", ("talker", "aligner")),
    ]
    assert talk.options("resp_1")["aligner"] == ObserverOptions()


def test_a_text_uses_none_of_the_edges_of_speech() -> None:
    talk = Talk(route=ROUTE)
    talk.do(talk.core.create_response(ResponseSpec(modalities=("text",)), talk.now_ns))
    opens = [effect for effect in of(talk.effects, OpenStream) if effect.tag.response]
    assert [(effect.stage, effect.edges) for effect in opens] == [("thinker", ())]


def test_an_aligner_delays_drained_and_not_done() -> None:
    talk = observed()
    done = talk.send()
    assert told(done, ResponseFinished)[0].response.status == "completed"
    assert told(talk.let_go("resp_1"), ResponseDrained) == []
    assert aligned(talk, TEXT) == []
    talk.later(700)
    drained = told(talk.let_go("resp_1", ["aligner"]), ResponseDrained)
    assert [(event.response, event.status, event.lag_ms) for event in drained] == [("resp_1", "complete", 700)]


def test_a_stop_lets_the_aligner_look_at_what_was_sent() -> None:
    talk = observed()
    effects = talk.start(48_000)
    assert talk.cancelled("resp_1") == set(LINE)
    assert of(effects, CutStream) == [CutStream("aligner", talk.tag("resp_1"), 25 * 480)]
    kinds = [type(effect) for effect in effects]
    assert kinds.index(EndEpoch) < kinds.index(CutStream)


def test_a_stop_before_the_first_sample_leaves_nothing_to_look_at() -> None:
    talk = Talk(route=ROUTE)
    talk.say("hello")
    talk.do(talk.core.opened(talk.tag("resp_1"), "aligner", talk.now_ns))
    talk.open("resp_1")
    effects = talk.start(48_000)
    assert {effect.stage for effect in of(effects, CancelStream)} >= {*LINE, "aligner"}
    assert of(effects, CutStream) == []


def test_what_was_said_of_a_reply_that_was_cut_is_known_better_once_it_is_aligned() -> None:
    talk = observed()
    talk.start(48_000)
    assert talk.texts == [("user", "hello"), ("assistant", "")]  # nobody has told where the words are
    saved, refined = aligned(talk, "one two")
    assert isinstance(saved, SaveItem)
    assert refined == Tell(
        ItemRefined(saved.item.id, Cut(saved.item.heard_samples, "one two", error_samples=saved.item.heard_samples))
    )
    assert (saved.item.text, saved.previous) == ("one two", talk.core.items[0].id)
    assert talk.texts == [("user", "hello"), ("assistant", "one two")]
    assert aligned(talk, "one two") == []


def test_word_times_of_the_talker_do_not_replace_aligned_ones() -> None:
    talk = observed()
    aligned(talk, TEXT, WORD_SAMPLES // 2)
    talk.words("resp_1", TEXT)
    talk.start(48_000)
    assert talk.texts[-1] == ("assistant", "one two three four")


def test_a_reply_that_is_no_item_any_more_is_not_refined() -> None:
    talk = observed()
    talk.start(48_000)
    talk.do(talk.core.delete_item(talk.core.items[-1].id))
    assert aligned(talk, "one two") == []


def test_a_whole_reply_keeps_its_text_whatever_the_aligner_finds() -> None:
    talk = observed()
    talk.send()
    assert aligned(talk, "one two") == []
    assert talk.texts[-1] == ("assistant", TEXT)


def test_what_is_aligned_after_the_drain_is_stale() -> None:
    talk = observed()
    talk.start(48_000)
    talk.let_go("resp_1", [*LINE, "aligner"])
    stale = talk.core.speaking.stale_dropped
    assert aligned(talk, "one two") == []
    assert talk.core.speaking.stale_dropped == stale + 1


@pytest.mark.parametrize("failure", [None, ("engine", "it broke")])
def test_an_aligner_that_ends_early_is_no_matter(failure: tuple[str, str] | None) -> None:
    talk = observed()
    talk.do(talk.core.closed(talk.tag("resp_1"), "aligner", {}, failure, talk.now_ns))
    assert told(talk.send(), ResponseFinished)[0].response.status == "completed"


def test_nothing_else_is_taken_after_the_end() -> None:
    talk = observed()
    talk.start(48_000)
    stale = talk.core.speaking.stale_dropped
    talk.publish("resp_1", TextDelta("more"))
    assert talk.core.speaking.stale_dropped == stale + 1
