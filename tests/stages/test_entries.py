"""What a stage knows of a stream: who fed it, what it may lack, and what it held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stages.contracts import AudioIn, Clause, Latents, ObserverOptions, Payload, Tag
from stages.edges import GATEWAY, InEdge, OutEdge
from stages.effects import ReportFault
from stages.entries import Entry
from stages.event_log import EventLog
from stages.gathering import Gathering
from stages.outbox import Outbox
from tests.stages.puppet import PuppetStream

FIRST, SECOND = 3, 4
LAST = Latents(4, 0, b"", final=True)


def throwing(what: str) -> Callable[[object], None]:
    def throw(_: object) -> None:
        raise RuntimeError(what)

    return throw


def entry(response: str = "r", *gathered: InEdge) -> Entry:
    tag = Tag("s", 1, 1, response)
    trail = EventLog().of("s", tag.key)
    gatherings = {edge.payload: Gathering(edge) for edge in gathered}
    outbox = Outbox((OutEdge(GATEWAY, "audio", 8),), trail=trail)
    return Entry(tag, trail, PuppetStream(tag, ObserverOptions()), 1, "", outbox, {}, gatherings)


def test_it_remembers_who_fed_what_last() -> None:
    one = entry()
    for link, item in ((FIRST, Latents(0, 4, bytes(16))), (SECOND, Clause(0, "Hi.")), (FIRST, AudioIn(0, b""))):
        assert one.fed_by(link, item) is None
    assert one.sources == {"latents": FIRST, "clauses": SECOND, None: FIRST}


def test_what_is_gathered_is_given_to_its_gathering() -> None:
    one = entry("r", InEdge("clauses", 99, "complete"))
    assert one.fed_by(FIRST, Clause(0, "Hi.")) is one.gatherings["clauses"]
    assert one.fed_by(FIRST, LAST) is None


@pytest.mark.parametrize(("lost", "lacks"), [(FIRST, False), (SECOND, True), (9, False)])
def test_it_may_lack_what_has_not_ended_of_who_is_lost(lost: int, lacks: bool) -> None:
    one = entry()
    one.fed_by(FIRST, LAST)
    one.fed_by(SECOND, Clause(0, "Hi."))
    inputs: tuple[Payload, ...] = ("latents", "clauses")
    assert one.may_lack_input(lost, inputs) is lacks
    assert one.may_lack_input(lost, (*inputs, "audio")), "of audio nobody knows who it was to come from"


def test_input_work_of_a_turn_lacks_nothing() -> None:
    assert not entry("").may_lack_input(FIRST, ("latents",))


def test_what_it_held_is_given_back_once() -> None:
    one = entry("r", InEdge("clauses", 99, "complete"), InEdge("audio", 99, "complete"))
    assert isinstance(one.model, PuppetStream)
    one.model.holds = {"frames": 3, "slots": 0}
    one.gatherings["clauses"].add(Clause(0, "Hi."), 3)
    assert one.close() == ({"frames": 3, "gathered_clauses": 3}, [])
    assert one.model.closed == 1


def test_what_its_engine_throws_as_it_lets_go_is_reported_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one = entry("r", InEdge("clauses", 99, "complete"))
    one.gatherings["clauses"].add(Clause(0, "Hi."), 3)
    for what in ("held", "close"):
        monkeypatch.setattr(PuppetStream, what, throwing(what))
    released, reports = one.close()
    assert released == {"gathered_clauses": 3}
    assert [(each.key, str(each.error)) for each in reports if isinstance(each, ReportFault)] == [
        ("r", "held"),
        ("r", "close"),
    ]
