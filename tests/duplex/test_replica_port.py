"""Whether a worker is there: when both of its links say so, and it is not of the past."""

from __future__ import annotations

from duplex.replica_port import Greeting, ReplicaPort
from stages.messages import LINK_VERSION, OnwardChanged, Welcome


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


def test_a_process_of_the_past_is_left_alone() -> None:
    port = up_port(2)
    port.lost()
    assert port.welcomed(welcome(1, "vocoder"), on_control=True) is Greeting.PAST
    assert (port.is_up, port.incarnation, port.onward) == (False, 2, frozenset())
    port.lost()
    assert port.welcomed(welcome(2), on_control=True) is Greeting.WAITS
    assert port.welcomed(welcome(3), on_control=False) is Greeting.UP
    assert port.incarnation == 3
