"""One simulated call: a caller, a client and four stages, all of whose moods and mishaps follow from one seed.

Theory of operation
    For a while the caller speaks, coughs, pauses and interrupts, the client types, cancels, commits and stops reading,
    and processes die, lose their links, fail and dawdle. Then mishaps end. The world must come to rest with nothing
    held, and when the caller says one more thing, a whole reply must come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from media.chunk import ms_to_samples
from sessions.conversation import Conversation, Identity, ReplyDefaults
from sessions.items import Item
from sessions.response import Deadlines
from sessions.settings import OUTPUT_RATE, ResponseSpec, SessionSettings, TurnDetection
from stages.edges import GATEWAY, OutEdge
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.messages import LINK_VERSION, CloseSession, Hello
from stages.stream import StageModel
from tests.sim.clock import MS, Clock, Wire
from tests.sim.ears import Ears
from tests.sim.gateway import Call
from tests.sim.host import CONTROL, DATA, MEDIA, ONWARD, Host, HostSpec
from tests.sim.watch import Watch

STAGES = ("encoder", "thinker", "talker", "vocoder")
NEXT = {"thinker": "talker", "talker": "vocoder"}
EDGES = {
    "thinker": (OutEdge("talker", "clauses", 320),),
    "talker": (OutEdge("vocoder", "latents", 48),),
    "vocoder": (OutEdge(GATEWAY, "audio", ms_to_samples(400, OUTPUT_RATE)),),
}
DEADLINES = Deadlines(first_output_ns_max=4_000 * MS, whole_ns_max=60_000 * MS, drain_ns_max=2_000 * MS)
TROUBLE_MS_MAX = 12_000
REST_MS_MAX = 90_000
ANSWER_MS_MAX = 15_000
STEP_MS_MAX = 9_000  # longer than anybody waits for a transcript
PACE_MS, IDLE_PACE_MS = 20, 100

REPLIES = (
    "Yes.",
    "Hello. How can I help you today?",
    "",
    "One moment, please, and I will tell you all that I know of it, which is, to be honest, not much.",
    "Certainly, it is ten past four.",
)
SETTINGS = (
    SessionSettings(),
    SessionSettings(),
    SessionSettings(turn_detection=TurnDetection(interrupt_response=False)),
    SessionSettings(turn_detection=TurnDetection(create_response=False)),
    SessionSettings(turn_detection=None),
    SessionSettings(modalities=("text",)),
    SessionSettings(max_output_tokens=3),
)
OUTSIDE = (
    ResponseSpec(in_conversation=False),
    ResponseSpec(in_conversation=False, modalities=("text",)),
    ResponseSpec(in_conversation=False, messages=(("user", "classify this"),)),
)


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock(self.random)
        self.watch = Watch()
        self.counts: Counter[str] = self.watch.counts
        self._words = count(1)
        self._ids: Counter[str] = Counter()
        self._trouble = True
        self._speech = 0
        self._is_speaking = False
        self._hosts = {name: Host(self.clock, self._spec(name)) for name in STAGES}
        core = Conversation(
            Identity("sess", 1 << 20, self._new_id),
            SessionSettings(),
            ReplyDefaults("Be kind.", max_output_tokens=40, prepare=self.random.random() < 0.7),
            transport_lead_ms=self.random.choice((40, 120, 300)),
            deadlines=DEADLINES,
        )
        self.watch.attach(core)
        self.core = core
        self.call = Call(core, self.clock, STAGES, self.watch, self._forget_speech)

    def _new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids[prefix]}"

    def _chance(self, share: float) -> bool:
        return self._trouble and self.random.random() < share

    # ---- stages ------------------------------------------------------------------------------------

    def _spec(self, name: str) -> HostSpec:
        return HostSpec(
            name,
            lambda: self._model(name),
            EDGES.get(name, ()),
            lambda: self._step_ms(name),
            lambda: self._happens("steps failed", 0.003),
        )

    def _model(self, name: str) -> StageModel:
        if name == "encoder":
            return Ears(self.random, lambda: f"turn {next(self._words)}", lambda: self._trouble)
        replies = tuple(self.random.sample(REPLIES, len(REPLIES)))
        return ScriptedModel(name, ScriptedOptions(replies=(*replies, "And that is all."), frames_per_word=20))

    def _step_ms(self, name: str) -> float:
        if name == "encoder" and self._happens("late transcripts", 0.05):
            return self.random.choice((3_000, STEP_MS_MAX))
        if self._happens("slow steps", 0.02):
            return 400.0
        return self.random.uniform(1, 60)

    def _happens(self, what: str, share: float) -> bool:
        happens = self._chance(share)
        self.counts[what] += happens
        return happens

    def _boot(self, name: str) -> None:
        host = self._hosts[name]
        host.boot()
        self._connect_gateway(name)
        for before, after in NEXT.items():
            if name in (before, after):
                self._connect_data(before, after)

    def _connect_gateway(self, name: str) -> None:
        host, port = self._hosts[name], self.call.ports[name]
        if host.stage is None or port.is_connected:
            return
        host.link(CONTROL, Wire(self.clock, port.frame), Hello(LINK_VERSION, "control", "gw"))
        host.link(MEDIA, Wire(self.clock, port.frame), Hello(LINK_VERSION, "media", "gw"))
        control = Wire(self.clock, lambda frame: host.frame(CONTROL, frame))
        media = Wire(self.clock, lambda frame: host.frame(MEDIA, frame))
        port.connected(control, media, host.welcome())

    def _connect_data(self, before: str, after: str) -> None:
        source, target = self._hosts[before], self._hosts[after]
        if source.stage is None or target.stage is None:
            return
        back = Wire(self.clock, lambda frame: source.frame(ONWARD, frame))
        target.link(DATA, back, Hello(LINK_VERSION, "data", f"{before}/{source.incarnation}"))
        source.connect_onward(after, Wire(self.clock, lambda frame: target.frame(DATA, frame)))

    def _kill(self, name: str) -> None:
        """The process dies at once; its neighbours notice when their links break."""
        if self._hosts[name].stage is None:
            return
        self.counts["processes died"] += 1
        self._hosts[name].die()
        self.clock.after(self.random.uniform(0, 3), partial(self._lose_port, name))
        for before, after in NEXT.items():
            if name == after:
                self.clock.after(self.random.uniform(0, 3), partial(self._hosts[before].unlink, ONWARD))
            if name == before:
                self.clock.after(self.random.uniform(0, 3), partial(self._hosts[after].unlink, DATA))
        self.clock.after(self.random.choice((50, 500, 3_000, 10_000)), lambda: self._boot(name))

    def _lose_port(self, name: str) -> None:
        if self.call.ports[name].is_connected:
            self.call.ports[name].lost()

    def _flap(self, name: str) -> None:
        """The links to the gateway break, and nobody dies."""
        host, port = self._hosts[name], self.call.ports[name]
        if host.stage is None or not port.is_connected:
            return
        self.counts["links broke"] += 1
        port.lost()
        host.unlink(MEDIA, CONTROL)
        self.clock.after(self.random.uniform(1, 200), lambda: self._connect_gateway(name))

    # ---- the caller --------------------------------------------------------------------------------

    def _speak(self) -> None:
        """The caller begins to speak, unless they do so already or nobody listens for it."""
        if self._is_speaking or self.core.settings.turn_detection is None:
            return
        self._is_speaking = True
        self._speech += 1
        self.counts["speech"] += 1
        self.counts["barge-ins"] += self.core.speaking.active is not None
        self.call.carry_out(self.core.speech_started(self.call.feeder.newest - 1_024, self.clock.now_ns))
        self._speech_later(self.random.choice((150, 600, 2_000)), self._fall_silent)

    def _speech_later(self, delay_ms: float, then: Callable[[], None]) -> None:
        speech = self._speech
        self.clock.after(delay_ms, lambda: then() if speech == self._speech and self._is_speaking else None)

    def _fall_silent(self) -> None:
        self.call.carry_out(self.core.speech_paused(self.call.feeder.newest - 1_536))
        if self._chance(0.3):
            self._speech_later(self.random.uniform(10, 400), self._go_on)
        else:
            self._speech_later(400, self._end_speech)

    def _go_on(self) -> None:
        self.counts["speech resumed"] += 1
        self.call.carry_out(self.core.speech_resumed(self.clock.now_ns))
        self._speech_later(self.random.uniform(100, 800), self._fall_silent)

    def _end_speech(self) -> None:
        self._is_speaking = False
        turn = self.core.hearing.current
        if turn is not None:
            self.watch.speech_ended(turn.item, self.core.settings)
        sample, end_ns = self.call.feeder.newest - 8_000, self.clock.now_ns - 500 * MS
        self.call.feeder.uncommitted_from = self.call.feeder.newest
        self.call.carry_out(self.core.speech_ended(sample, end_ns, self.clock.now_ns))

    def _forget_speech(self) -> None:
        self._is_speaking = False

    # ---- the client --------------------------------------------------------------------------------

    def _draw_mood(self) -> tuple[list[Callable[[], None]], list[int]]:
        """What may happen in this call, and how often: some things often, others never, so that each has its day."""
        deeds = [
            self._cancel,
            self._create_response,
            self._create_outside,
            self._commit_and_ask,
            self._clear,
            self._type,
            self._delete,
            self._truncate,
            self._update,
            self._stop_reading,
            self._let_one_die,
            self._break_a_link,
        ]
        weights = [self.random.choice((0, 0, 1, 1, 4)) for _ in deeds]
        return [self._speak, *deeds], [max(6, sum(weights) // 2), *weights]

    def _let_one_die(self) -> None:
        self._kill(self.random.choice(STAGES))

    def _break_a_link(self) -> None:
        self._flap(self.random.choice(STAGES))

    def _cancel(self) -> None:
        running = [view.id for view in self.core.speaking.running]
        wanted = self.random.choice((None, "resp_nowhere", *running))
        active = self.core.speaking.active
        if active is not None and wanted in (None, active.id):
            self.watch.nothing_owed()
        self.call.carry_out(self.core.cancel_response(wanted, self.clock.now_ns))

    def _create_response(self) -> None:
        self.call.carry_out(self.core.create_response(ResponseSpec(), self.clock.now_ns))

    def _create_outside(self) -> None:
        spec = self.random.choice(OUTSIDE)
        self.call.carry_out(self.core.create_response(spec, self.clock.now_ns))

    def _commit_and_ask(self) -> None:
        start, end = self.call.feeder.uncommitted_from, self.call.feeder.newest
        self.watch.nothing_owed()
        self.call.carry_out(self.core.commit_input(max(start, end - 32_000), end, self.clock.now_ns))
        self._create_response()

    def _clear(self) -> None:
        self.watch.nothing_owed()
        self.call.carry_out(self.core.clear_input(self.clock.now_ns))

    def _type(self) -> None:
        item = Item(self._new_id("typed"), "user", f"typed {next(self._words)}", spoken=False)
        previous = self.random.choice((None, "root", "nowhere", *[known.id for known in self.core.items]))
        self.call.carry_out(self.core.create_item(item, previous))

    def _delete(self) -> None:
        name = self.random.choice(("nowhere", *[known.id for known in self.core.items]))
        self.call.carry_out(self.core.delete_item(name))

    def _truncate(self) -> None:
        name = self.random.choice(("nowhere", *[known.id for known in self.core.items]))
        self.call.carry_out(self.core.truncate_item(name, self.random.choice((0, 300, 100_000))))

    def _update(self) -> None:
        settings = self.random.choice(SETTINGS)
        if settings.turn_detection is None:
            self._forget_speech()  # the gate is reset
        self.core.update(settings)

    def _stop_reading(self) -> None:
        self.counts["slow client"] += 1
        self.call.has_room = False
        self.clock.after(self.random.choice((200, 1_000, 3_000)), self._read_again)

    def _read_again(self) -> None:
        self.call.has_room = True
        self.call.send_due()

    # ---- the course of a call ----------------------------------------------------------------------

    def run(self) -> None:
        """The whole call; raises `AssertionError` where a promise is broken."""
        for name in STAGES:
            self._boot(name)
        self.call.carry_out(self.core.warm_up())
        self._pace()
        end_ns = self.clock.now_ns + int(self.random.uniform(0.3, 1) * TROUBLE_MS_MAX * MS)
        deeds, weights = self._draw_mood()
        calm_ms = self.random.choice((100, 300, 800))
        while self.clock.now_ns < end_ns:
            self.random.choices(deeds, weights)[0]()
            self.clock.run_until(self.clock.now_ns + int(self.random.expovariate(1 / calm_ms) * MS))
        self._trouble = False
        self.core.update(SessionSettings())
        self._come_to_rest()
        self._say_one_more_thing()
        self._hang_up()

    def _pace(self) -> None:
        self.call.pace()
        self.clock.after(PACE_MS if self.core.speaking.undrained else IDLE_PACE_MS, self._pace)

    @property
    def _is_at_rest(self) -> bool:
        core = self.core
        busy = self._is_speaking or core.hearing.current or core.hearing.is_awaited or core.speaking.undrained
        return not busy and all(
            port.reaches(*(after for before, after in NEXT.items() if before == name))
            for name, port in self.call.ports.items()
        )

    def _come_to_rest(self) -> None:
        """Let all that is under way end. Speech that the client made the gate forget ends by the client too."""
        if self.core.hearing.current is not None and not self._is_speaking:
            self._clear()
        self.clock.run_until(self.clock.now_ns + REST_MS_MAX * MS, lambda: self._is_at_rest)
        assert self._is_at_rest, "the call comes to rest"
        # What was cancelled leaves when its step, which may be a slow one, has come back.
        self.clock.run_until(self.clock.now_ns + STEP_MS_MAX * MS, lambda: not any(self._held().values()))
        self.watch.at_rest(self._held)

    def _held(self) -> dict[str, int]:
        """Streams at the stages, but for the prefill that may wait for the caller to speak."""
        streams = {name: host.stage.statistics().streams for name, host in self._hosts.items() if host.stage}
        streams["thinker"] -= self.core._prefill is not None
        streams["fed to the encoder"] = self.call.feeder.waiting
        return streams

    def _say_one_more_thing(self) -> None:
        before = set(self.watch.responses)
        self._speak()
        end_ns = self.clock.now_ns + ANSWER_MS_MAX * MS
        self.clock.run_until(end_ns, lambda: self._is_at_rest and set(self.watch.responses) > before)
        answers = set(self.watch.responses) - before
        assert answers, "no stuck silence: what the caller says is answered"
        (answer,) = answers
        assert self.watch.responses[answer].status == "completed", "the answer is heard to its end"
        assert self.core.items[-2].text in self.watch.prompts[answer], "it answers what was said"
        self._come_to_rest()

    def _hang_up(self) -> None:
        self.call.carry_out(self.core.close(self.clock.now_ns))
        for port in self.call.ports.values():
            port.order(CloseSession("sess"))
        self.clock.run_until(self.clock.now_ns + 1_000 * MS)
        held = {name: host.stage.statistics() for name, host in self._hosts.items() if host.stage}
        assert all(not (each.streams or each.sessions) for each in held.values()), f"nothing is left: {held}"
