"""A simulated world: callers, gateways, workers and a store, all of whose moods and mishaps follow from one plan.

Theory of operation
    For a while the callers speak, interrupt, type, leave and come back, and processes stop and die, links break and
    hold, the store fails. Then mishaps end. The world must come to rest with nothing held and all of it written, and
    when each caller says one more thing, a whole reply must come. What must hold at every step is in `watch`,
    `stage_watch` and `store`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from duplex.checkpoints import item_of, item_record
from sessions.records import ItemRecord
from stages.replica import QUARANTINE_NS
from tests.sim.call import Call
from tests.sim.caller import Caller
from tests.sim.clock import MS
from tests.sim.gateway import Gateway
from tests.sim.house import GATEWAYS, LATE_TRANSCRIPT_MS, House
from tests.sim.mishaps import Mishaps
from tests.sim.network import DELAY_MS_MAX
from tests.sim.plan import Deed, Plan

BOOT_MS = 100
REST_MS_MAX = 30_000
ANSWER_MS_MAX = 15_000
GOODBYE_MS = 20_000  # an observer may look back for ten, and its drain takes five
NOTICE_MS = 500  # by then a link that was broken last is known to be, however slow it was
POLL_MS = 50


class World:
    """`log` is given what happens, line by line."""

    def __init__(self, plan: Plan, log: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.house = House(plan, log)
        self.clock = self.house.clock
        self._callers: list[Caller] = []
        self._mishaps = Mishaps(self.house, lambda: [caller.session for caller in self._callers])
        self.house.gateway_died = self._gateway_died

    @property
    def counts(self) -> Counter[str]:
        """What has happened, and how often."""
        return self.house.counts

    def run(self) -> None:
        """All of it; raises `AssertionError` where a promise is broken."""
        self._begin()
        self.clock.run_until(self.clock.now_ns + self.plan.trouble_ms * MS)
        self._calm_down()
        self._come_to_rest()
        self._say_one_more_thing()
        self._hang_up()

    def _begin(self) -> None:
        for name in self.house.replicas:
            self.house.boot_worker(name)
        for slot in range(GATEWAYS):
            self.house.boot_gateway(slot)
        self.clock.run_until(self.clock.now_ns + BOOT_MS * MS)
        self._callers = [
            Caller(
                self.house,
                self.house.random_of(f"caller {number}"),
                headset,
                self.house.random_of(f"way {number}"),
                self.house.tenant_of(number),
            )
            for number, headset in enumerate(self.plan.headsets)
        ]
        for deed in self.plan.deeds:
            self.clock.after(deed.at_ms, self._do, deed)

    def _do(self, deed: Deed) -> None:
        if deed.who < 0:
            self._mishaps.do(deed.kind, deed.pick)
        else:
            self.house.note(f"caller {deed.who}: {deed.kind}")
            self._callers[deed.who].do(deed.kind, deed.pick)

    def _gateway_died(self, gateway: Gateway) -> None:
        for caller in self._callers:
            self.clock.after(self.house.mood.uniform(0, 20), caller.gateway_died, gateway)

    # ---- rest --------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Mishaps end; processes that are stopped or dead come back in their time."""
        self.house.note("mishaps end")
        self.house.trouble = False
        self.clock.put_wall_right()
        self.house.tenants.is_tight = self.house.dies_at_call = False
        for route in self.house.routes():
            route.release()
            route.delay_ms_max = DELAY_MS_MAX
        for line in self.house.lines:
            line.clear_up()
        self._until(self._is_over, QUARANTINE_NS / MS)
        self.clock.run_until(self.clock.now_ns + NOTICE_MS * MS)
        for caller in self._callers:
            caller.come_to_their_senses()

    def _is_over(self) -> bool:
        busy = self._mishaps.under_way or self.house.booting
        return not busy and not any(line.under_way for line in self.house.lines)

    def _until(self, is_over: Callable[[], bool], limit_ms: float = REST_MS_MAX) -> None:
        end_ns = self.clock.now_ns + int(limit_ms * MS)
        while not is_over() and self.clock.now_ns < end_ns:
            self.clock.run_until(self.clock.now_ns + POLL_MS * MS)

    @property
    def _is_at_rest(self) -> bool:
        return self.house.is_ready and all(caller.is_at_rest for caller in self._callers)

    def _come_to_rest(self) -> None:
        """Let all that is under way end."""
        self._until(lambda: self._is_at_rest)
        assert self._is_at_rest, f"the world comes to rest; callers: {[caller.is_at_rest for caller in self._callers]}"
        # What was cancelled leaves when its step, which may be a slow one, has come back.
        self._until(lambda: not self._held(), max(LATE_TRANSCRIPT_MS))
        assert not self._held(), f"stages hold nothing: {self._held()}"
        for call in self._calls():
            call.watch.at_rest()
            self._check_history(call)

    def _calls(self) -> list[Call]:
        calls = [caller.call for caller in self._callers]
        assert all(call is not None for call in calls), "every caller is in a call"
        return [call for call in calls if call is not None]

    def _held(self) -> list[str]:
        """Streams at the stages, but for the prefills that may wait for their callers to speak."""
        prefills = {caller.call.core.reading for caller in self._callers if caller.call is not None}
        return [
            f"{host.replica}: {tag}" for host in self.house.living for tag in host.watch.streams if tag not in prefills
        ]

    def _check_history(self, call: Call) -> None:
        """What a new owner would begin with is what the call knows; but for what was sent behind the last cut, of which
        the call has heard by now that it was not heard."""
        stored = self.house.store.watch.conversation(call.session)
        known = [item_record(item, None) for item in call.core.items]
        assert len(stored.items) == len(known), "what was said is written, and nothing else"
        written = [item_of(_without_doubt(record, wanted)) for record, wanted in zip(stored.items, known, strict=True)]
        assert written == list(map(item_of, known)), "what was said is written"

    # ---- the end -----------------------------------------------------------------------------------

    def _say_one_more_thing(self) -> None:
        self.house.note("each says one more thing")
        calls = self._calls()
        before = [set(call.watch.responses) for call in calls]
        for caller in self._callers:
            caller.speak()
        asked = list(zip(self._callers, calls, before, strict=True))
        self._until(lambda: all(self._is_answered(*each) for each in asked), ANSWER_MS_MAX)
        for call, known in zip(calls, before, strict=True):
            self._check_answer(call, known)
        self._come_to_rest()

    @staticmethod
    def _is_answered(caller: Caller, call: Call, before: set[str]) -> bool:
        return caller.is_at_rest and set(call.watch.responses) > before

    @staticmethod
    def _check_answer(call: Call, before: set[str]) -> None:
        core, watch = call.core, call.watch
        answers = set(watch.responses) - before
        assert answers, "no stuck silence: what the caller says is answered"
        assert {watch.responses[answer].status for answer in answers} == {"completed"}, "the answer is heard to its end"
        asked = next(item.text for item in reversed(core.items) if item.role == "user")
        assert any(asked in watch.prompts.get(answer, ()) for answer in answers), "it answers what was said"

    def _hang_up(self) -> None:
        for caller in self._callers:
            caller.hang_up()
        gateways = [gateway for gateway in self.house.gateways if gateway is not None]

        def left() -> list[str]:
            held = {host.replica: host.stage.statistics() for host in self.house.living}
            stages = [name for name, one in held.items() if one.streams or one.sessions]
            return stages + [gateway.name for gateway in gateways if gateway.calls or gateway.former]

        self._until(lambda: not left(), GOODBYE_MS)
        assert not left(), f"nothing is left: {left()}"
        self.house.check_events()
        self.house.check_accounts()


def _without_doubt(stored: ItemRecord, known: ItemRecord) -> ItemRecord:
    """`stored`, without a doubt of what was heard that `known` has not."""
    return stored if known.unsure or not stored.unsure else replace(stored, unsure=None, cut_word=known.cut_word)
