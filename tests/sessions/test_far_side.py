"""What is answered at the far end of a line, and what is done about a machine there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.beep import Beep
from sessions.far_side import (
    BEEP_NS_MAX,
    GREETING_MS_MIN,
    GREETING_SAMPLES_MAX,
    REPEATS_MAX,
    REPEATS_WITHIN_NS,
    WORDLESS_MAX,
    FarSide,
    FarState,
    Judgement,
    MachinePolicy,
    OnMachine,
)

SECOND = 1_000_000_000
GREETING = "Hi, this is Bob. Please leave a message after the tone."
QUEUE = "Your call is important to us."
MENU = "For sales, press one."
QUESTION = "what is the weather like in Paris today"
POLICIES: dict[OnMachine, MachinePolicy] = {
    "go_on": MachinePolicy(),
    "hang_up": MachinePolicy("hang_up"),
    "leave_message": MachinePolicy("leave_message", "Please call us back."),
}
SHORT = Beep(32_000, 40_000, 1_000.0, 2_400)
LONG = Beep(32_000, 40_000, 1_000.0, GREETING_MS_MIN)
LATE = Beep(GREETING_SAMPLES_MAX, GREETING_SAMPLES_MAX + 1, 1_000.0, GREETING_MS_MIN)


@dataclass
class Call:
    side: FarSide
    now_ns: int = 5 * SECOND

    def say(self, text: str) -> Judgement:
        self.now_ns += SECOND
        return self.side.understood(text, self.now_ns)

    def beep(self, beep: Beep = SHORT) -> Judgement:
        self.now_ns += SECOND
        return self.side.beeped(beep, self.now_ns)

    def wait(self, ns: int) -> Judgement:
        self.now_ns += ns
        return self.side.tick(self.now_ns)


def calling(policy: OnMachine = "leave_message") -> Call:
    return Call(FarSide(POLICIES[policy]))


# ---- machines --------------------------------------------------------------------------------------


def test_a_message_is_left_after_the_beep_and_not_before() -> None:
    call = calling()
    assert call.say(GREETING) == Judgement("answering_machine", answers=False)
    assert call.beep() == Judgement("beep", act="leave_message")
    assert call.side.due_ns is None


def test_words_that_are_known_after_the_beep_have_it_left_at_once() -> None:
    call = calling()
    assert call.beep() == Judgement("beep")
    assert call.say(GREETING) == Judgement("answering_machine", answers=False, act="leave_message")


def test_a_beep_behind_as_much_as_a_greeting_needs_no_words() -> None:
    assert calling().beep(LONG) == Judgement("beep", act="leave_message")
    assert calling("hang_up").beep(LONG) == Judgement("beep", act="hang_up")


def test_a_greeting_without_a_beep_is_not_waited_for_for_ever() -> None:
    call = calling()
    call.say(GREETING)
    assert call.side.due_ns == call.now_ns + 6 * SECOND
    assert call.wait(6 * SECOND - 1) == Judgement()
    assert call.wait(1) == Judgement(act="leave_message")


def test_a_greeting_that_goes_on_is_not_answered_and_waited_out() -> None:
    call = calling()
    call.say(GREETING)
    assert call.say("Have a nice day.") == Judgement(answers=False)
    assert call.wait(BEEP_NS_MAX - 1) == Judgement()


def test_a_beep_without_a_machine_is_forgotten() -> None:
    call = calling()
    call.beep()
    assert call.say("Oh, that was the microwave oven.") == Judgement(answers=False)
    assert call.wait(BEEP_NS_MAX) == Judgement()
    assert call.side.state is FarState.PERSON
    assert call.say("Hello?") == Judgement()


def test_a_beep_later_in_a_call_is_none_of_a_machine() -> None:
    call = calling()
    assert call.beep(LATE) == Judgement()
    assert call.side.state is FarState.PERSON


def test_it_is_hung_up_on_as_soon_as_it_is_known() -> None:
    assert calling("hang_up").say(GREETING) == Judgement("answering_machine", answers=False, act="hang_up")


@pytest.mark.parametrize("policy", ["hang_up", "leave_message"])
def test_what_is_done_about_it_is_done_once(policy: OnMachine) -> None:
    call = calling(policy)
    call.say(GREETING)
    call.beep()
    assert call.beep() == Judgement("beep")
    assert call.say(GREETING) == Judgement("answering_machine", answers=False)
    assert call.wait(BEEP_NS_MAX) == Judgement()


def test_where_the_call_is_to_go_on_a_machine_is_answered_as_anybody_is() -> None:
    call = calling("go_on")
    assert call.say(GREETING) == Judgement("answering_machine")
    assert call.beep(LONG) == Judgement("beep")
    assert call.say(QUESTION) == Judgement()
    assert call.wait(BEEP_NS_MAX) == Judgement()


@pytest.mark.parametrize(("policy", "answers"), [("go_on", True), ("hang_up", False), ("leave_message", False)])
def test_a_menu_is_answered_where_calls_go_on(policy: OnMachine, answers: bool) -> None:
    assert calling(policy).say(MENU) == Judgement("menu", answers)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_is_answered_by_nobody_and_ends_nothing(policy: OnMachine) -> None:
    call = calling(policy)
    assert call.say(QUEUE) == Judgement("queue", answers=False)
    assert call.say("Hello, this is Carla speaking.") == Judgement()


# ---- loops -----------------------------------------------------------------------------------------


ANSWERED = REPEATS_MAX + 1


def test_the_same_words_are_answered_so_often_and_no_more_until_new_ones_come() -> None:
    call = calling("go_on")
    assert [call.say(QUESTION).answers for _ in range(ANSWERED)] == [True] * ANSWERED
    assert call.say(QUESTION) == Judgement("repetition", answers=False)
    assert call.say(QUESTION.upper() + "!").what == "repetition"
    assert call.say("and what about the weather in London") == Judgement()
    assert call.say(QUESTION) == Judgement()


def test_a_loop_of_several_steps_is_one() -> None:
    call = calling("go_on")
    steps = ["I did not get that, sorry", "could you say that again please", "please hold the cat for me"]
    assert [call.say(text).answers for text in steps * 2] == [True] * 6
    assert not any(call.say(text).answers for text in steps)


def test_questions_that_come_round_seldom_are_no_loop() -> None:
    call = calling("go_on")
    things = ["apples", "pears", "plums", "grapes", "figs", "nuts", "limes"]
    lots = [f"please tell me about {thing}" for thing in things]
    assert all(call.say(text).answers for text in lots * 5)


def test_one_word_that_differs_makes_a_short_question_another_and_a_long_announcement_none() -> None:
    call = calling("go_on")
    assert all(call.say(QUESTION.replace("Paris", city)).answers for city in ("Rome", "Oslo", "Bonn", "Bern", "Kiev"))
    long = "all the offices of this company are closed until nine o'clock on Monday morning"
    assert [call.say(long + end).answers for end in ("", "s", "", "s", "")] == [True] * ANSWERED + [False]


def test_a_long_text_is_compared_by_its_end() -> None:
    call = calling("go_on")
    end = " ".join(f"word{number}" for number in range(64))
    starts = [" ".join(f"{start}{number}" for number in range(20)) for start in "abcde"]
    assert [call.say(f"{start} {end}").answers for start in starts] == [True] * ANSWERED + [False]


def test_what_comes_again_after_minutes_is_a_loop() -> None:
    call = calling("go_on")
    for _ in range(ANSWERED):
        assert call.say(QUESTION).answers
        call.now_ns += 240 * SECOND
    assert not call.say(QUESTION).answers


def test_what_was_said_long_ago_is_no_loop() -> None:
    call = calling("go_on")
    for _ in range(ANSWERED):
        call.say(QUESTION)
    call.now_ns += REPEATS_WITHIN_NS
    assert call.say(QUESTION) == Judgement()


def test_short_words_may_be_said_again_and_again_and_end_no_loop() -> None:
    call = calling("go_on")
    assert all(call.say("the next one, please").answers for _ in range(50))
    for _ in range(ANSWERED):
        assert call.say(QUESTION).answers
        assert call.say("yes").answers
    assert not call.say(QUESTION).answers


def test_a_machine_that_repeats_itself_is_a_loop_too_and_still_a_machine() -> None:
    call = calling("go_on")
    for _ in range(ANSWERED):
        assert call.say(GREETING).answers
    assert call.say(GREETING) == Judgement("repetition", answers=False)
    assert call.side.state is FarState.GREETING


def test_where_what_is_heard_is_made_up_all_repetitions_are_answered() -> None:
    call = Call(FarSide(MachinePolicy(repeats_max=None)))
    assert all(call.say(QUESTION).answers for _ in range(50))


@pytest.mark.parametrize("nothing", ["", "[Music]", "Thank you."])
def test_sound_without_words_is_answered_so_often_and_no_more_until_words_come(nothing: str) -> None:
    call = calling("go_on")
    assert [call.say(nothing) for _ in range(WORDLESS_MAX)] == [Judgement()] * WORDLESS_MAX
    assert call.say(nothing) == Judgement("no_words", answers=False)
    assert call.say("hello there") == Judgement()
    assert call.say(nothing) == Judgement()


SAID = st.sampled_from([GREETING, QUEUE, MENU, QUESTION, "", "yes", "Thank you."])
STEPS = st.lists(st.tuples(st.sampled_from(["say", "beep", "wait"]), SAID, st.integers(0, 20)), max_size=60)


@given(st.sampled_from(list(POLICIES)), STEPS)
def test_whatever_comes_acts_at_most_once_and_answers_no_loop(
    policy: OnMachine, steps: list[tuple[str, str, int]]
) -> None:
    call, acts, repeats = calling(policy), [], 0
    said: set[str] = set()
    for kind, text, seconds in steps:  # all of it within five minutes
        match kind:
            case "say":
                judged = call.say(text)
                is_long = text in (GREETING, QUESTION, QUEUE)
                said, repeats = said | {text}, repeats + 1 if is_long and text in said else 0 if is_long else repeats
                assert not (is_long and judged.answers) or repeats <= REPEATS_MAX
            case "beep":
                judged = call.beep(LONG if seconds % 2 else SHORT)
            case _:
                judged = call.wait(seconds * SECOND // 10)
        acts += [judged.act] if judged.act else []
        assert call.side.due_ns is None or call.side.due_ns <= call.now_ns + BEEP_NS_MAX
    assert acts in ([], [policy])
    assert policy != "go_on" or not acts
