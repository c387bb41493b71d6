"""Responses whose sound has a telephone's rate: offsets, cuts, and formats that change while something is said."""

from __future__ import annotations

import pytest

from sessions.effects import GrantCredit, Measured, OpenStream
from sessions.events import ItemTruncated, ReplyAudio, ReplyWords, ResponseFinished, ResponseStarted
from sessions.heard import Cut
from sessions.reply import SpokenWord
from sessions.settings import SessionSettings
from stages.contracts import AudioOut, Tag, VocoderOptions, Word, WordTimes
from tests.sessions.talk import Talk, of, told

RATE = 8_000
WORD = RATE // 5  # 200 ms, as the words of `Talk`
TELEPHONE = SessionSettings(output_format="audio/pcmu")
WIDE = SessionSettings()


def reply(talk: Talk, response: str, text: str) -> None:
    """`response` is made as a whole, as its options ask for it."""
    talk.open(response)
    talk.text(response, text)
    talk.text_done(response)
    talk.words(response, text)
    talk.publish(response, AudioOut(0, RATE, 0, bytes(2 * WORD * len(text.split())), True))


def telephoned(**more: bool | int) -> Talk:
    """A reply of three words is due."""
    talk = Talk(TELEPHONE, **more)  # type: ignore[arg-type]
    talk.say("hello")
    reply(talk, "resp_1", "one two three")
    return talk


def test_all_offsets_are_of_the_rate_that_was_asked_for() -> None:
    talk = telephoned()
    assert talk.options("resp_1")["vocoder"] == VocoderOptions(RATE)
    effects = talk.send()
    frames = told(effects, ReplyAudio)
    assert [event.frame.start_sample for event in frames] == list(range(0, 3 * WORD, 160))
    assert [event.watermark for event in frames] == [event.frame.end_sample for event in frames]
    assert {event.format for event in frames} == {"audio/pcmu"}
    assert sum(grant.samples for grant in of(effects, GrantCredit)) == 3 * WORD
    (words,) = of(talk.events, ReplyWords)
    assert (words.sample_rate, words.words[1]) == (RATE, SpokenWord("two", WORD, 2 * WORD))


def test_an_interruption_cuts_history_at_the_ear_and_counts_what_was_thrown_away_in_time() -> None:
    talk = telephoned(recalls=True, lead_ms=300)
    talk.send()
    talk.later(250)
    effects = talk.start()
    (finished,) = told(effects, ResponseFinished)
    assert finished.response.cut == Cut(250 * 8, "one", "two", error_samples=0, sample_rate=RATE)
    (wasted,) = (effect for effect in of(effects, Measured) if effect.name == "wasted_audio_seconds")
    assert wasted.value == pytest.approx(0.3)
    assert (talk.core.items[-1].heard_samples, talk.core.items[-1].sample_rate) == (250 * 8, RATE)


def test_a_client_truncates_in_its_own_milliseconds_while_it_plays_and_afterwards() -> None:
    talk = telephoned(recalls=True)
    talk.send(10)
    assert talk.core.items[-1].role == "user"
    assert told(talk.truncate("item_2", 190), ItemTruncated) == [ItemTruncated("item_2", 190)]
    talk.send()
    assert talk.core.items[-1].heard_samples == 190 * 8
    cut = Cut(450 * 8, "one two", "three", "acked", sample_rate=RATE)
    assert told(talk.truncate("item_2", 450), ItemTruncated) == [ItemTruncated("item_2", 450, cut)]


def test_a_format_that_changes_is_the_next_responses() -> None:
    talk = telephoned()
    talk.send(10)
    talk.update(WIDE)
    assert {event.format for event in told(talk.send(), ReplyAudio)} == {"audio/pcmu"}
    talk.let_go("resp_1")
    talk.say("and now")
    assert talk.options("resp_2")["vocoder"] == VocoderOptions(24_000)
    talk.reply("resp_2", "four")
    frames = told(talk.send(), ReplyAudio)
    assert ({event.format for event in frames}, frames[-1].watermark) == ({"audio/pcm"}, 4_800)
    assert [item.sample_rate for item in talk.core.items if item.role == "assistant"] == [RATE, 24_000]


@pytest.mark.parametrize("later", [WIDE, SessionSettings(output_format="audio/pcma")])
def test_what_was_prepared_in_another_format_is_made_again(later: SessionSettings) -> None:
    talk = Talk(TELEPHONE, prepare=True)
    talk.start(48_000)
    talk.do(talk.core.speech_paused(56_000))
    talk.heard("hello", final=False)
    reply(talk, "resp_1", "one")
    talk.update(later)
    talk.end()
    effects = talk.heard("hello")
    assert [event.response.id for event in told(effects, ResponseStarted)] == ["resp_2"]
    (asked,) = (opened for opened in of(effects, OpenStream) if opened.stage == "vocoder")
    assert asked.options == VocoderOptions(later.output_rate)


def test_the_words_of_a_second_attempt_have_the_same_rate() -> None:
    talk = Talk(TELEPHONE)
    talk.say("hello")
    first = talk.tag("resp_1")
    talk.open("resp_1")
    talk.do(talk.core.lost(first, "vocoder", talk.now_ns))
    again = Tag(first.session, first.epoch, first.turn, first.response, attempt=1)
    for stage in ("vocoder", "talker", "thinker"):
        talk.do(talk.core.opened(again, stage, talk.now_ns))
    talk.do(talk.core.published(again, WordTimes(0, 24_000, (Word("one", 0, 4_800),)), talk.now_ns))
    talk.do(talk.core.published(again, AudioOut(0, RATE, 0, bytes(2 * WORD)), talk.now_ns))
    talk.send(1)
    (words,) = of(talk.events, ReplyWords)
    assert words.words == (SpokenWord("one", 0, WORD),)


def test_how_far_ahead_of_the_ear_it_is_is_a_time() -> None:
    talk = telephoned(recalls=True, lead_ms=300)
    assert talk.core.speaking.lead_ns(talk.now_ns) == 0
    talk.send()
    assert talk.core.speaking.lead_ns(talk.now_ns) == 300_000_000
    assert talk.core.speaking.rate_of("resp_1") == RATE
