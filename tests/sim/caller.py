"""A caller of a simulated world: connects, speaks, commands, leaves, and comes back.

Theory of operation
    A caller connects to one of the gateways, and comes back with the token of their session whenever the connection is
    gone. What they do goes to the call that they are in at the time, as soon as its gateway runs; while there is none,
    it comes to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from sessions.items import Item
from sessions.settings import SessionSettings
from tests.sim import commands
from tests.sim.call import Call
from tests.sim.clock import MS, Clock
from tests.sim.gateway import Gateway
from tests.sim.plan import PLAIN, RESUME_TWICE, Headset
from tests.sim.rival import Rival
from tests.sim.visit import Visit

RETRY_MS_MIN, RETRY_MS_MAX = 50, 400
PATIENCE_MS = 3_000
NOTICE_MS = (5, 100, 1_500)
READING_PAUSES_MS = (200, 1_000, 3_000)
FOR_GOOD_MS = 30_000
SPEECH_MS = (150, 600, 2_000)
SILENCE_MS = 400
DECIDE_MS = (60, 300, 800)
TOOL_MS = (20, 500, 2_000)
ONSET_SAMPLES, PAUSE_SAMPLES, END_SAMPLES = 1_024, 1_536, 8_000  # how far the gate looks back


class Scene(Protocol):
    """The world, as far as callers need it."""

    @property
    def clock(self) -> Clock: ...
    @property
    def trouble(self) -> bool: ...
    @property
    def log(self) -> Callable[[str], None] | None: ...
    def count(self, what: str, /) -> None: ...
    def note(self, what: str, /) -> None: ...
    def new_id(self, prefix: str, /) -> str: ...
    def a_gateway(self, random: Random, but: Gateway | None, /) -> Gateway | None: ...


class Caller:
    """`random` is their own, as is that of what they hear with."""

    def __init__(self, scene: Scene, random: Random, headset: Headset, ways: Random, tenant: str = "") -> None:
        self.session = ""
        self.tenant = tenant
        self._epoch = 0  # the greatest that they have seen
        self._scene = scene
        self._random = random
        self._headset = headset
        self._ways = ways
        self._reports_until_ns = scene.clock.now_ns + headset.reports_ms * MS
        self._visit: Visit | None = None
        self._has_session = False
        self._returns = 0
        self._is_speaking = False
        self._speech = 0
        self._answering = 0
        self._has_left = False
        self._deeds: dict[str, Callable[[float], None]] = {
            "speak": lambda pick: self.speak(),
            "stop reading": lambda pick: self._stop_reading(READING_PAUSES_MS[int(pick * 3)]),
            "stop reading for good": lambda pick: self._stop_reading(FOR_GOOD_MS),
            "move to another gateway": lambda pick: self._lose("caller moved", pick, elsewhere=True),
            "lose the connection": lambda pick: self._lose("connection lost", pick),
            RESUME_TWICE: lambda pick: self._resume_twice(),
        }
        self._connect(None)

    def do(self, kind: str, pick: float) -> None:
        """Carry out a deed of the plan."""
        command = commands.COMMANDS.get(kind)
        if command is None:
            self._deeds[kind](pick)
        else:
            self._act(lambda call: command(call, self.clock.now_ns, pick))

    # ---- the connection ----------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._scene.clock

    @property
    def is_traced(self) -> bool:
        return self._scene.log is not None

    def count(self, what: str, /) -> None:
        self._scene.count(what)

    def note(self, what: str, /) -> None:
        self._scene.note(f"{self.session} {what}")

    @property
    def call(self) -> Call | None:
        """The call that they are in."""
        return self._visit.call if self._visit is not None else None

    def _connect(self, but: Gateway | None) -> None:
        if self._visit is not None or self._has_left:
            return
        gateway = self._scene.a_gateway(self._random, but)
        if gateway is None:
            self._connect_later()
            return
        visit = self._visit = Visit(self, gateway, self._headset, self._ways, self._reports_until_ns)
        if not self._has_session:
            self.session, self._epoch = self._scene.new_id("sess"), 0
        token = f"token of {self.session}"
        if self._has_session:
            self._returns += 1
            # Some clients do not say to which session they return before they are in.
            named = self.session if self._returns % 3 else f"{self.session}_{self._returns}"
            gateway.do(gateway.resume_call, self.session, token, visit, self._epoch, named)
        else:
            gateway.do(gateway.open, self.session, token, visit)
        self.clock.after(PATIENCE_MS, self._lose_patience, visit)

    def _connect_later(self, but: Gateway | None = None) -> None:
        self.clock.after(self._random.uniform(RETRY_MS_MIN, RETRY_MS_MAX), self._connect, but)

    def _lose_patience(self, visit: Visit) -> None:
        if visit is self._visit and visit.call is None:
            self._scene.count("attempts given up")
            self._drop(self._random.choice(NOTICE_MS))

    def connected(self, visit: Visit, /) -> None:
        assert visit is self._visit, "only their present attempt succeeds"
        self._scene.count("calls resumed" if self._has_session else "calls begun")
        self._has_session = True
        assert visit.call is not None, "who is connected is in a call"
        self._epoch = max(self._epoch, visit.call.core.epoch)
        self._is_speaking = False
        if not self._scene.trouble:
            self.come_to_their_senses()

    def disconnected(self, visit: Visit, code: str, /) -> None:
        """The connection was refused, or has ended."""
        if visit is self._visit:
            self._visit = None
            if code == "SessionUnknown":
                self._scene.count("sessions begun anew")
                self._has_session = False
            self._connect_later()

    def _drop(self, notice_ms: float, *, elsewhere: bool = False) -> None:
        """The connection is gone; they come back, to another gateway if they can."""
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.leave(notice_ms)
            self._connect_later(visit.gateway if elsewhere else None)

    def _lose(self, how: str, pick: float, *, elsewhere: bool = False) -> None:
        if self.call is not None:
            self._scene.count(how)
            self._drop(NOTICE_MS[int(pick * len(NOTICE_MS))], elsewhere=elsewhere)

    def _resume_twice(self) -> None:
        """They come back, and at the same gateway and moment so does another client that has their token."""
        if self.call is None:
            return
        self._drop(self._random.choice(NOTICE_MS))
        self._connect(None)
        if self._visit is not None:
            self._scene.count("resumed twice")
            gateway = self._visit.gateway
            rival = Visit(Rival(self, self._ways), gateway, PLAIN, self._ways, self._reports_until_ns)
            token = f"token of {self.session}"
            gateway.do(gateway.resume_call, self.session, token, rival, self._epoch, self.session)

    def gateway_died(self, gateway: Gateway) -> None:
        if self._visit is not None and self._visit.gateway is gateway:
            self._drop(0)

    def hang_up(self) -> None:
        """They leave for good."""
        self._has_left = True
        if self.call is not None:
            self.call.end("connection_closed")

    def _stop_reading(self, pause_ms: float) -> None:
        visit = self._visit
        if visit is not None:
            self._scene.count("slow client")
            visit.stop_reading()
            self.clock.after(pause_ms, visit.gateway.do, visit.read_again)

    # ---- in a call ---------------------------------------------------------------------------------

    def _act(self, deed: Callable[[Call], None]) -> None:
        """Do something in the call that they are in, as soon as its gateway runs."""
        visit = self._visit
        if visit is not None:
            visit.gateway.do(self._act_now, visit, deed)

    def _act_now(self, visit: Visit, deed: Callable[[Call], None]) -> None:
        if visit is self._visit and visit.call is not None:
            deed(visit.call)

    def speak(self) -> None:
        """They begin to speak, unless they do so already or nobody listens for it."""
        self._act(self._start_speech)

    def _start_speech(self, call: Call) -> None:
        if self._is_speaking or call.core.settings.turn_detection is None:
            return
        self._is_speaking = True
        self._speech += 1
        self._scene.count("speech")
        onset = max(0, call.newest - ONSET_SAMPLES)
        if call.core.saying(self.clock.now_ns).may_be_held:
            self._scene.count("holds")
            call.hold(onset)
            self._speech_later(self._random.choice(DECIDE_MS), self._be_judged)
        else:
            call.carry_out(call.core.speech_started(onset, self.clock.now_ns))
            self._speech_later(self._speech_ms, self._fall_silent)

    @property
    def _speech_ms(self) -> int:
        """How long they speak; once mishaps have ended, how long they do is nothing that a promise depends on."""
        return self._random.choice(SPEECH_MS) if self._scene.trouble else SPEECH_MS[0]

    def _be_judged(self, call: Call) -> None:
        """Speech over a reply is an interruption, or it is none, or it turns out to be one later."""
        onset = max(0, call.newest - ONSET_SAMPLES)
        if not call.core.saying(self.clock.now_ns).may_be_held:
            call.resume("floor_free")
            call.carry_out(call.core.speech_started(onset, self.clock.now_ns))
            self._speech_later(self._speech_ms, self._fall_silent)
        elif self._random.random() < 0.6 or not self._scene.trouble:
            self._scene.count("barge-ins")
            call.interrupt(onset)
            self._speech_later(self._speech_ms, self._fall_silent)
        else:
            call.resume("short")
            self._speech_later(self._random.choice(DECIDE_MS), self._be_judged_again)

    def _be_judged_again(self, call: Call) -> None:
        if self._random.random() < 0.3:
            self._scene.count("late barge-ins")
            call.interrupt(max(0, call.newest - ONSET_SAMPLES))
            self._speech_later(self._speech_ms, self._fall_silent)
        else:
            self._scene.count("backchannels")
            self._is_speaking = False
            call.consume()
            call.carry_out(call.core.dropped(self.clock.now_ns))
            self._clear_what_is_left(call)

    def _speech_later(self, delay_ms: float, then: Callable[[Call], None]) -> None:
        self.clock.after(delay_ms, self._go_on_with, self._speech, then)

    def _go_on_with(self, speech: int, then: Callable[[Call], None]) -> None:
        self._act(lambda call: then(call) if speech == self._speech and self._is_speaking else None)

    def _fall_silent(self, call: Call) -> None:
        call.carry_out(call.core.speech_paused(max(0, call.newest - PAUSE_SAMPLES)))
        if self._scene.trouble and self._random.random() < 0.3:
            self._speech_later(self._random.uniform(10, SILENCE_MS), self._go_on)
        else:
            self._speech_later(SILENCE_MS, self._end_speech)

    def _go_on(self, call: Call) -> None:
        self._scene.count("speech resumed")
        call.carry_out(call.core.speech_resumed(self.clock.now_ns))
        self._speech_later(self._random.uniform(100, 800), self._fall_silent)

    def _end_speech(self, call: Call) -> None:
        self._is_speaking = False
        turn = call.core.hearing.current
        if turn is not None:
            call.watch.speech_ended(turn.item, call.core.settings)
        call.consume()
        sample, end_ns = max(0, call.newest - END_SAMPLES), self.clock.now_ns - 500 * MS
        call.carry_out(call.core.speech_ended(sample, end_ns, self.clock.now_ns))

    def forget_speech(self, visit: Visit, /) -> None:
        """Their speech so far is nothing to the call any more."""
        if visit is self._visit:
            self._is_speaking = False

    def called(self, item: Item, /) -> None:
        """The service has called a tool of theirs: they answer, whenever they have come to it."""
        self._scene.count("tools asked show")
        self._answering += 1
        self.clock.after(self._random.choice(TOOL_MS), self._answer, item.call_id)

    def _answer(self, call_id: str) -> None:
        self._answering -= 1
        self._act(lambda call: commands.answer_call(call, call_id, self.clock.now_ns))

    # ---- the end -----------------------------------------------------------------------------------

    def come_to_their_senses(self) -> None:
        """They read, take the service's manners, and end speech that the gate was made to forget."""
        if self._visit is not None:
            self._visit.gateway.do(self._visit.read_again)
        self._act(self._behave)

    def _behave(self, call: Call) -> None:
        call.update(SessionSettings())
        if not self._is_speaking:
            self._clear_what_is_left(call)

    def _clear_what_is_left(self, call: Call) -> None:
        """A turn that was left open while nobody listened for its end is theirs to end."""
        if call.core.hearing.current is not None and not self._scene.trouble:
            commands.clear(call, self.clock.now_ns, 0)

    @property
    def is_at_rest(self) -> bool:
        call = self.call
        if self._visit is None or call is None or self._is_speaking or call.end_reason:
            return False
        core = call.core
        is_called = self._answering or core.begun_calls
        busy = core.hearing.current or core.hearing.is_awaited or core.speaking.undrained or is_called
        if busy or core.next_deadline_ns() is not None:  # something is to be said by itself
            return False
        return not call.journal.queue.waiting and not call.feed.turns and self._visit.player.is_quiet
