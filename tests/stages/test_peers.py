"""Who is behind each link, and who is no more."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stages.edges import GATEWAY, OutEdge
from stages.effects import Effect, Send
from stages.messages import LINK_VERSION, Hello, InwardChanged, LinkRole, Retiring
from stages.peers import Onward, Peers

TOLD = Retiring()


def hello(role: LinkRole, name: str) -> Hello:
    return Hello(LINK_VERSION, role, name)


def links(effects: list[Effect]) -> list[int]:
    return [effect.link for effect in effects if isinstance(effect, Send)]


def test_a_gateway_has_two_links() -> None:
    peers = Peers()
    greetings = (hello("control", "gw_1"), hello("media", "gw_1"), hello("control", "gw_2"), hello("data", "gw_1"))
    for link, greeting in enumerate(greetings, 1):
        assert peers.greet(link, greeting) == []
    assert links(peers.tell_gateways(TOLD)) == [1, 3]
    assert peers.sources == {"gw_1"}
    assert (peers.media_of(1), peers.media_of(3), peers.media_of(9)) == (2, None, None)
    assert [peers.are_one(link, 1) for link in range(1, 6)] == [True, True, False, False, False]
    assert not peers.are_one(2, 9)
    assert [peers.is_stage(link) for link in (1, 4, 9)] == [False, True, False]


def test_who_introduces_itself_anew_has_lost_the_link_before() -> None:
    peers = Peers()
    peers.greet(1, hello("control", "gw_1"))
    peers.greet(2, hello("media", "gw_1"))
    assert peers.greet(3, hello("control", "gw_1")) == [1]
    assert peers.forget(1) == "control"
    assert (peers.tell_gateways(TOLD), peers.media_of(3), peers.media_of(1)) == ([Send(3, TOLD)], 2, None)
    assert peers.forget(1) is None


def test_gateways_are_told_which_stages_before_have_come_and_gone() -> None:
    peers = Peers()
    peers.greet(1, hello("control", "gw_1"))
    peers.greet(2, hello("data", "thinker/1"))
    assert peers.tell_of_sources(frozenset({"thinker"})) == []
    before = peers.sources
    peers.forget(2)
    peers.greet(3, hello("data", "align/1"))
    assert peers.tell_of_sources(before) == [
        Send(1, InwardChanged("align", up=True)),
        Send(1, InwardChanged("thinker", up=False)),
    ]


def test_a_later_process_takes_the_place_of_an_earlier_one() -> None:
    peers = Peers()
    assert peers.greet(1, hello("data", "thinker/1")) == []
    assert peers.greet(2, hello("data", "thinker/2")) == [1]
    assert peers.greet(3, hello("data", "thinker/2")) == [1, 2]
    assert peers.greet(4, hello("data", "talker/1")) == []


def test_an_earlier_process_is_the_past() -> None:
    peers = Peers()
    peers.greet(1, hello("data", "thinker/2"))
    assert peers.greet(2, hello("data", "thinker/1")) == []
    assert peers.greet(3, hello("data", "thinker")) == []
    assert [peers.is_stage(link) for link in (1, 2, 3)] == [True, False, False]
    assert peers.forget(2) is None


def edges() -> list[OutEdge]:
    return [
        OutEdge("talker", "clauses", 8, replicas={"talker-0": "unix:/0", "talker-1": "unix:/1"}),
        OutEdge("align", "clauses", 8),
        OutEdge(GATEWAY, "audio", 8),
    ]


def test_replicas_of_next_stages_come_and_go() -> None:
    onward = Onward(edges())
    assert (onward.names, onward.is_complete) == ((), False)
    onward.up("talker-1", 5)
    onward.up("align", 6)
    assert (onward.names, onward.is_complete) == (("talker-1", "align"), True)
    assert (onward.at(5), onward.at(9), onward.link_to("align")) == ("talker-1", None, 6)
    assert [onward.target_of(replica) for replica in ("talker-0", "align", None)] == ["talker", "align", GATEWAY]
    assert onward.lost(9) is None
    assert onward.lost(5) == "talker-1"
    assert (onward.names, onward.is_complete) == (("align",), False)
    with pytest.raises(KeyError):
        onward.link_to("talker-1")


def test_a_stage_without_next_stages_is_complete() -> None:
    assert Onward([OutEdge(GATEWAY, "audio", 8)]).is_complete


@pytest.mark.parametrize(
    ("replicas", "refusal"),
    [
        ((), None),
        (("align",), None),
        (("talker-0", "align"), ("downstream_lost", "talker-0 is not connected")),
        (("talker", "align"), ("unknown_edge", "no edge leads to talker")),
    ],
)
def test_why_no_stream_can_be_opened(replicas: tuple[str, ...], refusal: tuple[str, str] | None) -> None:
    onward = Onward(edges())
    onward.up("align", 6)
    assert onward.refusal(replicas) == refusal


class PeersMachine(RuleBasedStateMachine):
    """Peers that come, come anew and go: behind each name is one link, that of its latest process."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers()
        self.next_link = 0
        self.links: dict[tuple[LinkRole, str], tuple[int, int]] = {}

    @rule(role=st.sampled_from(("control", "media", "data")), name=st.sampled_from("ab"), incarnation=st.integers(1, 3))
    def greet(self, role: LinkRole, name: str, incarnation: int) -> None:
        self.next_link += 1
        known = self.links.get((role, name))
        before = self.peers.greet(self.next_link, hello(role, f"{name}/{incarnation}" if role == "data" else name))
        incarnation = incarnation if role == "data" else 0
        if known is not None and known[1] > incarnation:
            assert before == []
            assert self.peers.forget(self.next_link) is None
            return
        assert before == ([known[0]] if known is not None else [])
        for link in before:
            assert self.peers.forget(link) == role
        self.links[role, name] = self.next_link, incarnation

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.links)))
        link, _ = self.links.pop(key)
        assert self.peers.forget(link) == key[0]

    @invariant()
    def each_is_found(self) -> None:
        told = sorted(links(self.peers.tell_gateways(TOLD)))
        assert told == sorted(link for (role, _), (link, _) in self.links.items() if role == "control")
        assert self.peers.sources == {name for role, name in self.links if role == "data"}
        for (role, name), (link, _) in self.links.items():
            assert self.peers.is_stage(link) == (role == "data")
            if role == "control":
                assert self.peers.media_of(link) == self.links.get(("media", name), (None, 0))[0]


PeersMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestAnyOrder = PeersMachine.TestCase
