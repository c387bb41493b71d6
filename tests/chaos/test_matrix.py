"""Every part of the service is killed, and stopped, at every moment of a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.checks import SUCCESS, check_ends, check_order, check_sound, terminal_of
from tests.chaos.house import SPEECH, WORDS, House, house
from tests.chaos.phases import Phase, is_sound, reached
from tests.chaos.strike import PARTS, Blow, Strike
from tests.chaos.table import Row, Table
from tests.live.caller import BROKEN, Caller, Message, calling, interruption, silence, tone
from tests.live.service import Service
from tests.live.stored import wait_until_written

pytestmark = pytest.mark.slow


# Among all tests are those that say most and take least.
CORE = [*((Blow.KILL, part) for part in PARTS), (Blow.STOP, "gateway"), (Blow.STOP, "store")]


@pytest.fixture(scope="module", params=list(Phase), ids=lambda phase: phase.value)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Phase, House]]:
    """A service for each phase: no process is killed so often there that it is then left alone for a while."""
    with house(tmp_path_factory.mktemp("chaos")) as running:
        yield request.param, running


@pytest.mark.chaos
@pytest.mark.parametrize("blow", list(Blow), ids=lambda blow: blow.value)
@pytest.mark.parametrize("part", PARTS)
def test_a_call_goes_on_whoever_is_hit_and_when(
    scene: tuple[Phase, House], part: str, blow: Blow, chaos_table: Table
) -> None:
    phase, running = scene
    play(running, phase, part, blow, chaos_table)


@pytest.fixture(scope="module")
def core_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.mark.live
@pytest.mark.parametrize(("blow", "part"), CORE, ids=lambda what: what.value if isinstance(what, Blow) else what)
def test_a_call_goes_on_whoever_is_hit_amid_a_sentence(
    core_house: House, blow: Blow, part: str, chaos_table: Table
) -> None:
    play(core_house, Phase.SOUNDING, part, blow, chaos_table)


def play(running: House, phase: Phase, part: str, blow: Blow, table: Table) -> None:
    row = table.begin(f"{blow.value} {part}, {phase.value}")
    _Case(running.service, phase, part, blow, row).play()
    row.passed("sound")
    running.check_given_back()
    row.passed("given back")


class _Case:
    def __init__(self, service: Service, phase: Phase, part: str, blow: Blow, row: Row) -> None:
        self.service = service
        self.phase = phase
        self.part = part
        self.blow = blow
        self.row = row
        self.callers: list[Caller] = []

    @property
    def events(self) -> list[Message]:
        return [event for caller in self.callers for event in caller.events]

    def play(self) -> None:
        with calling(self.service) as caller:
            self.callers.append(caller)
            with reached(self.phase, self.service, caller, self.part) as response:
                self.strike = Strike(self.service, self.part, self.blow)
            if self.part == "gateway":
                assert caller.until_closed() == BROKEN
            else:
                self._go_on(caller, response)
                check_ends(self.events)
        if self.part == "gateway":
            self.row.successor_ms = self.strike.wait_for_successor()
            with calling(self.service) as caller:
                self.callers.append(caller)
                self._resume(caller, response)
        for caller in self.callers:
            check_order(caller)

    # ---- the gateway is another one ----------------------------------------------------------------

    def _resume(self, caller: Caller, response: str) -> None:
        first = self.callers[0]
        ended = [done["response"]["status"] for done in first.of_type("response.done")]
        held_open = [response] if response and not ended else []
        caller.send("session.resume", token=first.events[0]["session"]["resume_token"], responses=held_open)
        resumed = caller.until("session.resumed")
        told = {event["item"]["id"] for event in first.of_type("conversation.item.done")}
        said = {event["item"]["id"] for event in first.of_type("response.output_item.added")} if held_open else set()
        assert {item["id"] for item in resumed["items"]} <= told | said, "also what was being said"
        if held_open:
            caller.until("response.drained")
            self.row.terminal = terminal_of(self.events, response)
            assert self.row.terminal == "failed"
        elif response:
            (self.row.terminal,) = ended
        self._answer(caller)
        if response:
            check_sound(self.events, response, words=None)
        check_ends(self.events if held_open else caller.events)
        assert len(caller.of_type("response.done")) == len(held_open) + 1, "its own, and the answer's"

    # ---- the call lives ----------------------------------------------------------------------------

    def _go_on(self, caller: Caller, response: str) -> None:
        if self.phase is Phase.SPEAKING:
            caller.hear(tone(300) + silence(800))
            self._expect_answer(caller)
        else:
            if response:
                self._see_end(caller, response)
            self._answer(caller)
        self.row.successor_ms = self.strike.wait_for_successor()
        if self.part == "store":
            wait_until_written(self.service, caller)

    def _see_end(self, caller: Caller, response: str) -> None:
        if self.phase is Phase.ACCEPTED:
            caller.until(lambda event: is_sound(event, response) or event["type"] == "response.done")
            self.row.sound_ms = self.strike.ms_ago()
        caller.find(lambda event: event["type"] == "response.drained" and event["response_id"] == response)
        status = terminal_of(caller.events, response)
        self.row.terminal = status
        assert status in self._expected, (status, caller.of_type("response.done")[-1])
        words = {Phase.ACCEPTED: 4, Phase.DONE: 4, Phase.SOUNDING: WORDS}.get(self.phase) if status in SUCCESS else None
        check_sound(caller.events, response, words=words)

    @property
    def _expected(self) -> tuple[str, ...]:
        match self.phase:
            case Phase.SOUNDING if self.part in SPEECH:
                return ("failed",)
            case Phase.ACCEPTED if self.blow is Blow.STOP and self.part in SPEECH[1:]:
                return ("failed",)  # before that is found out, the Thinker has written something
            case Phase.CANCELLED:
                return ("cancelled",)
        return SUCCESS

    def _answer(self, caller: Caller) -> None:
        """One more reply; to a voice where who hears it was hit."""
        caller.settle(max_output_tokens=2)
        if self.part in ("encoder", "gateway"):
            caller.hear(interruption())
            self._expect_answer(caller)
        else:
            caller.type_text("Go on.")
            caller.send("response.create")
            self._expect_answer(caller)

    def _expect_answer(self, caller: Caller) -> None:
        name: str = caller.until("response.created")["response"]["id"]
        caller.until(lambda event: is_sound(event, name) or event["type"] == "response.done")
        if self.row.sound_ms is None and not self._is_unhurt:
            self.row.sound_ms = self.strike.ms_ago()
        caller.until("response.drained")
        status = terminal_of(caller.events, name)
        assert status in SUCCESS
        self.row.terminal = self.row.terminal or status
        check_sound(caller.events, name, words=2)

    @property
    def _is_unhurt(self) -> bool:
        """The reply went on: when another one was asked for says nothing."""
        return self.phase is Phase.SOUNDING and self.part in ("encoder", "store")
