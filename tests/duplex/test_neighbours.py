"""The gateways of one host find each other by files in the service's own folder."""

from __future__ import annotations

from pathlib import Path

from duplex.neighbours import PASSED_ON_HEADER, Neighbour, Neighbours, is_passed_on, passed_on


def test_each_finds_the_others_that_have_begun(tmp_path: Path) -> None:
    first, second, third = (Neighbours(tmp_path, number, 3) for number in range(3))
    assert first.all() == ()
    second.announce("gateway-2", "gw_b")
    third.announce("gateway-3", "gw_c")
    two = Neighbour("gateway-2", "gw_b", second.own_socket)
    three = Neighbour("gateway-3", "gw_c", third.own_socket)
    assert first.all() == (two, three)
    assert second.all() == (three,)
    assert (first.owner("gw_c"), first.owner("gw_x"), third.owner("gw_c")) == (three, None, None)


def test_a_next_life_has_another_name_and_the_same_place(tmp_path: Path) -> None:
    first, second = (Neighbours(tmp_path, number, 2) for number in range(2))
    second.announce("gateway-2", "gw_b")
    second.own_socket.touch()  # as one that was killed leaves it
    second.announce("gateway-2", "gw_c")
    assert not second.own_socket.exists(), "or it could not listen there"
    assert [one.owner for one in first.all()] == ["gw_c"]


def test_what_cannot_be_read_is_nobody(tmp_path: Path) -> None:
    first, second = (Neighbours(tmp_path, number, 2) for number in range(2))
    second.announce("gateway-2", "gw_b")
    next(tmp_path.glob("near-1.json")).write_bytes(b"{")
    assert first.all() == ()


def test_a_lone_gateway_has_none(tmp_path: Path) -> None:
    assert not Neighbours(tmp_path, 0, 1).are_there
    assert Neighbours(tmp_path, 0, 2).are_there


def test_a_request_is_passed_on_with_its_key_and_once() -> None:
    headers = {"authorization": "Bearer x", "cookie": "y", "origin": "z"}
    assert passed_on(headers) == {"authorization": "Bearer x", PASSED_ON_HEADER: "1"}
    assert not is_passed_on(headers)
    assert is_passed_on(passed_on(headers))
