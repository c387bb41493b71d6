"""Who is told what: all hear what happens, and answers are for who has asked."""

from __future__ import annotations

import pytest

from duplex.audience import OBSERVERS_MAX, Audience, TooManyObserversError
from sessions.events import CommandRefused, Event, InputCleared


class Ear:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def tell(self, event: Event) -> None:
        self.heard.append(event)


HAPPENED, REFUSED = InputCleared(), CommandRefused("no", "not that")


def test_all_hear_what_happens_while_they_are_there() -> None:
    audience, client, observer = Audience(), Ear(), Ear()
    audience.tell(HAPPENED, client)
    audience.join(observer)
    audience.tell(HAPPENED, client)
    audience.tell(HAPPENED, None)
    audience.leave(observer)
    audience.tell(HAPPENED, client)
    assert (len(client.heard), len(observer.heard)) == (3, 2)


def test_an_answer_is_for_who_has_asked() -> None:
    audience, client, one, other = Audience(), Ear(), Ear(), Ear()
    audience.join(one)
    audience.join(other)
    with audience.asked_by(one):
        audience.tell(REFUSED, client)
        audience.tell(HAPPENED, client)
    audience.tell(REFUSED, client)
    audience.tell(REFUSED, None)
    assert client.heard == [HAPPENED, REFUSED]
    assert one.heard == [REFUSED, HAPPENED]
    assert other.heard == [HAPPENED]


def test_only_a_few_look_on() -> None:
    audience = Audience()
    ears = [Ear() for _ in range(OBSERVERS_MAX)]
    for ear in ears:
        audience.join(ear)
    assert audience.is_full
    with pytest.raises(TooManyObserversError):
        audience.join(Ear())
    audience.leave(ears[0])
    assert not audience.is_full
