"""What only machines say, and what people say who sound alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.announcements import Announcement, announcement


@pytest.mark.parametrize(
    "text",
    [
        "Hi, you've reached Bob. Please leave a message after the tone.",
        "At the sound of the beep, leave your name and number.",
        "Please record your message. When you have finished, hang up.",
        "You can leave a short voice message and I will call you back.",
        "Leave us a message!",
        "I'm not available right now.",
        "We are currently unavailable.",
        "The person you are calling is not available.",
        "I can’t come to the phone.",
        "Sorry, we are unable to take your call.",
        "You have reached the voicemail of Anna.",
        "The mailbox is full.",
        "Your call has been forwarded to an automated voice messaging system.",
    ],
)
def test_a_mailbox_is_known_by_its_words(text: str) -> None:
    assert announcement(text) is Announcement.MAILBOX


@pytest.mark.parametrize(
    "text",
    [
        "Your call is very important to us.",
        "All of our agents are currently busy.",
        "Please stay on the line.",
        "Thank you for holding.",
        "Please hold while I transfer your call.",
        "You are number five in the queue.",
        "You will be connected with the next available representative.",
        "The estimated waiting time is ten minutes.",
        "Your call will be answered in turn.",
    ],
)
def test_a_queue_is_known_by_its_words(text: str) -> None:
    assert announcement(text) is Announcement.QUEUE


@pytest.mark.parametrize(
    "text",
    [
        "For sales, press 1.",
        "To speak to an operator, please press the star key.",
        "Press two for support.",
        "Please listen carefully, as our menu options have changed.",
        "Choose from the following options.",
    ],
)
def test_a_menu_is_known_by_its_words(text: str) -> None:
    assert announcement(text) is Announcement.MENU


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hold on a second, please.",
        "Can I leave him a message?",
        "I would like to leave a message.",
        "Is the room still available?",
        "The blue one is not available, I was told.",
        "He never listens carefully.",
        "I pressed one and nothing happened.",
        "Are you on the line?",
        "How do I set up my voicemail?",
        "I think the line is bad.",
        "Thank you.",
    ],
)
def test_what_people_say_is_none(text: str) -> None:
    assert announcement(text) is None


def test_a_mailbox_goes_before_the_rest() -> None:
    text = "Your call is important to us. To leave your name, press one, or record your message after the tone."
    assert announcement(text) is Announcement.MAILBOX


@given(st.lists(st.sampled_from(["and", "well", "so", "the"]), max_size=30), st.sampled_from([" ", ", ", "... ", "\n"]))
def test_what_stands_around_a_phrase_changes_nothing(around: list[str], gap: str) -> None:
    said = [*around, "PLEASE", "stay", "on", "the", "Line", *around]
    assert announcement(gap.join(said)) is Announcement.QUEUE
    assert announcement(gap.join(around)) is None
