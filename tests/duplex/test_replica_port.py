"""Whether a worker is there: when both of its links say so, and it is not of the past."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.replica_port import Greeting, ReplicaPort
from stages.messages import LINK_VERSION, InwardChanged, OnwardChanged, Welcome


def welcome(incarnation: int = 1, *onward: str) -> Welcome:
    return Welcome(LINK_VERSION, "talker", incarnation, "rev", onward)


def up_port(incarnation: int = 1) -> ReplicaPort:
    port = ReplicaPort()
    port.welcomed(welcome(incarnation), on_control=False)
    port.welcomed(welcome(incarnation), on_control=True)
    return port


def test_it_is_there_once_both_links_were_welcomed() -> None:
    port = ReplicaPort()
    assert port.welcomed(welcome(3), on_control=True) is Greeting.WAITS
    assert not port.is_up
    assert port.welcomed(welcome(3), on_control=False) is Greeting.UP
    assert (port.is_up, port.incarnation) == (True, 3)


def test_a_loss_is_told_where_it_was_there() -> None:
    port = ReplicaPort()
    port.welcomed(welcome(), on_control=True)
    assert not port.lost()
    port = up_port()
    assert port.lost()
    assert not port.lost()
    assert (port.is_up, port.incarnation) == (False, 1)


def test_what_it_reaches_is_told_on_the_control_link() -> None:
    port = ReplicaPort()
    port.welcomed(welcome(1, "vocoder"), on_control=True)
    port.changed(OnwardChanged("align", up=True))
    port.welcomed(welcome(1), on_control=False)
    assert port.onward == {"vocoder", "align"}
    port.changed(OnwardChanged("vocoder", up=False))
    port.changed(OnwardChanged("vocoder", up=False))
    assert port.onward == {"align"}
    port.lost()
    assert port.onward == frozenset()


def test_whose_links_it_has_is_told_likewise() -> None:
    port = ReplicaPort()
    port.welcomed(Welcome(LINK_VERSION, "talker-1", 1, "rev", (), ("thinker-1",)), on_control=True)
    port.changed(InwardChanged("thinker-2", up=True))
    assert (port.inward, port.onward) == (frozenset({"thinker-1", "thinker-2"}), frozenset())
    port.changed(InwardChanged("thinker-1", up=False))
    assert port.inward == {"thinker-2"}
    port.lost()
    assert port.inward == frozenset()


def test_a_process_of_the_past_is_left_alone() -> None:
    port = up_port(2)
    port.lost()
    assert port.welcomed(welcome(1, "vocoder"), on_control=True) is Greeting.PAST
    assert (port.is_up, port.incarnation, port.onward) == (False, 2, frozenset())
    port.lost()
    assert port.welcomed(welcome(2), on_control=True) is Greeting.WAITS
    assert port.welcomed(welcome(3), on_control=False) is Greeting.UP
    assert port.incarnation == 3


STEPS = st.one_of(
    st.tuples(st.just("welcome"), st.integers(1, 4)),
    st.tuples(st.just("reaches"), st.integers(0, 1)),
    st.just(("lost", 0)),
)


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=40))
def test_it_is_there_with_both_links_and_never_again_as_what_it_was(steps: list[tuple[str, int]]) -> None:
    port, welcomed, newest = ReplicaPort(), 0, 0
    for step, number in steps:
        match step:
            case "welcome" if welcomed < 2:
                greeting = port.welcomed(welcome(number), on_control=not welcomed)
                assert (greeting is Greeting.PAST) == (number < newest)
                welcomed += number >= newest
                newest = max(newest, number)
            case "reaches" if welcomed:
                port.changed(OnwardChanged("vocoder", up=bool(number)))
                assert port.onward == ({"vocoder"} if number else set())
            case "lost":
                assert port.lost() == (welcomed == 2)
                welcomed = 0
                assert port.onward == frozenset()
        assert (port.is_up, port.incarnation) == (welcomed == 2, newest)
