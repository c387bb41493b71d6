"""Where a reply stands when it is stopped, what stops it, and what a stop is made of: for the tests of barge-in.

The client throws away what it has not played, and 200 ms at most are on their way to its ear.
"""

from __future__ import annotations

from collections.abc import Callable

from sessions.effects import Effect
from sessions.heard import Cut
from sessions.settings import SessionSettings
from tests.sessions.talk import Talk, samples_of, with_tools

WORDS = "one two three"  # 600 ms
SAID = ("user", "hello")
ONSET = 48_000
HEARD = Cut(10_080, "one two", "three", "estimated")  # after 420 ms

State = Callable[[Talk], None]
Stop = Callable[[Talk], list[Effect]]


def asked(settings: SessionSettings | None = None) -> Talk:
    """The caller has said something, and a reply has been begun."""
    talk = Talk(settings, recalls=True, lead_ms=200)
    talk.say("hello")
    return talk


# ---- where the reply stands ------------------------------------------------------------------------


def play(talk: Talk, ms: int) -> None:
    """Sound goes out for so long, as it is due."""
    for _ in range(ms // 20):
        talk.send()
        talk.later(20)


def before_the_first_sample(talk: Talk) -> None:
    talk.open("resp_1")
    talk.text("resp_1", "one two")


def with_its_first_sample(talk: Talk) -> None:
    talk.reply("resp_1", WORDS)
    talk.send(1)


def during_generation(talk: Talk, response: str = "resp_1") -> None:
    talk.open(response)
    talk.text(response, WORDS)
    talk.words(response, WORDS)
    talk.audio(response, samples_of(600))
    play(talk, 220)


def held(talk: Talk) -> None:
    during_generation(talk)
    talk.do(talk.core.held(ONSET, talk.now_ns))


def done_and_unplayed(talk: Talk) -> None:
    talk.reply("resp_1", WORDS)
    play(talk, 420)
    assert talk.finished("resp_1").status == "completed"


def between_done_and_drained(talk: Talk) -> None:
    done_and_unplayed(talk)
    talk.later(200)
    assert talk.core.speaking.undrained == 1


def idle(talk: Talk) -> None:
    between_done_and_drained(talk)
    talk.let_go("resp_1")


def listening(talk: Talk) -> None:
    idle(talk)
    talk.start(ONSET)


# ---- where its call stands -------------------------------------------------------------------------


CALL = "call_0_resp_1"
CALL_ITEM = "item_2_call_0"


def asked_with_tools() -> Talk:
    return asked(with_tools())


def writing_a_call(talk: Talk) -> None:
    talk.open("resp_1")
    talk.calling("resp_1", '{"city":')


def at_work(talk: Talk) -> None:
    """The call is the client's, which carries it out; its response is over and has drained."""
    talk.only_calls("resp_1")
    assert talk.finished("resp_1").status == "completed"
    talk.let_go("resp_1")


def at_work_while_words_are_said(talk: Talk) -> None:
    during_generation(talk)
    talk.called("resp_1")
    talk.text_done("resp_1")


def at_work_while_words_are_heard(talk: Talk) -> None:
    """The response is over; the end of its words is on the way to the ear."""
    talk.open("resp_1")
    talk.text("resp_1", WORDS)
    talk.words("resp_1", WORDS)
    talk.audio("resp_1", samples_of(600), final=True)
    talk.called("resp_1")
    talk.text_done("resp_1")
    play(talk, 420)
    assert talk.finished("resp_1").status == "completed"


# ---- what stops it --------------------------------------------------------------------------------


def cancel(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.cancel_response(None, talk.now_ns))


def clear(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.stop_speaking("client_cancelled", talk.now_ns))


def key(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.stop_speaking("dtmf", talk.now_ns))


# ---- what that is made of ---------------------------------------------------------------------------


STREAMS = ["CancelStream"] * 3
SPEECH = ["OpenStream", "HearFrom", "TurnHeld"]
READING = ["OpenStream", "FeedStream"]
ENDED = ["EndEpoch", "SaveEpoch", "Measured"]
