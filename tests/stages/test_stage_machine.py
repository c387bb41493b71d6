"""A stage of each scripted kind under any order of frames, step results and lost links.

Gateways open sessions whose names begin alike, also each other's, cancel, end epochs, lose links; the previous stage
feeds and is lost, the next one and the gateways grant. What the stage sends is checked as it comes:

* a stream that was opened gets exactly one `Closed`, and nothing is sent for it before or after its life;
* what was cancelled, or belongs to an ended epoch, sends nothing more, and is closed when its step has come back;
* pieces come in order and without a gap, and a finished stream has given all of them;
* what is in flight never exceeds the window, and input credit goes back once;
* no step begins once its stream's time is over, and only then does one leave for that;
* in the end nothing is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import (
    DEADLINE_EXCEEDED,
    OUT_OF_BAND,
    AudioIn,
    AudioOut,
    Clause,
    EncoderOptions,
    EndOfTurn,
    Item,
    Latents,
    Options,
    Pause,
    Payload,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Transcript,
    VocoderOptions,
    WordTimes,
)
from stages.edges import InEdge
from stages.effects import Send, StartStep
from stages.engines.scripted import FRAMES_PER_ITEM_MAX, ScriptedModel, ScriptedOptions, ScriptedVocoder
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    InwardChanged,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
)
from stages.stream import StageFailure
from tests.stages.event_promises import WorkerPromises
from tests.stages.stage_bench import CONTROL, MEDIA, NEXT, ONWARD, OTHER_CONTROL, OTHER_MEDIA, SOURCE, StageBench

SESSIONS = ("task", "task_1_2")
CONTROLS = (CONTROL, OTHER_CONTROL)
NAMES = {CONTROL: "gw_1", OTHER_CONTROL: "gw_2"}
MEDIAS = {CONTROL: MEDIA, OTHER_CONTROL: OTHER_MEDIA}
REPLY = "One two three, four five six seven. Eight nine!"
SAMPLE_RATE = 8_000
FRAME_SAMPLES = SAMPLE_RATE // 100
WINDOWS = {"encoder": (0, 0), "thinker": (40, 0), "talker": (24, 0), "vocoder": (0, 24 * FRAME_SAMPLES)}
INPUTS = {"talker": (InEdge("clauses", 40),), "vocoder": (InEdge("latents", 24),)}
OPTIONS: dict[str, Options] = {
    "encoder": EncoderOptions(),
    "thinker": ThinkerOptions((), 100),
    "talker": TalkerOptions(),
    "vocoder": VocoderOptions(SAMPLE_RATE),
}

LASTS_NS = (math.inf, math.inf, 10**8, 3 * 10**9)
CLAUSES = ("", "a", "a b,", "a b c d.")


@dataclass(slots=True)
class Life:
    """What is known of an open stream. `ends_ns`: when its time is over."""

    control: int
    onward: bool
    ends_ns: float
    leaving: bool = False
    in_flight: int = 0
    fed: list[Item] = field(default_factory=list)
    fed_units: int = 0
    given_back: int = 0
    out: list[object] = field(default_factory=list)

    @property
    def input_ended(self) -> bool:
        last = self.fed[-1] if self.fed else None
        return isinstance(last, EndOfTurn) or (isinstance(last, Clause | Latents) and last.final)


class RecordedModel(ScriptedModel):
    """Shows which sessions it keeps something for."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, ScriptedOptions(("heard",), (REPLY,), frames_per_word=7, sessions_max=2))
        self.kept: set[str] = set()

    def open_session(self, session: str) -> None:
        super().open_session(session)
        self.kept.add(session)

    def close_session(self, session: str) -> None:
        super().close_session(session)
        self.kept.remove(session)


class RecordedVocoder(RecordedModel, ScriptedVocoder):
    """Takes chunks of several streams at once."""


class Walk:
    """One stage, and what must be true of it after the actions so far."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.random = Random(seed)
        self.model = RecordedVocoder(kind) if kind == "vocoder" else RecordedModel(kind)
        onward_window, publish_window = WINDOWS[kind]
        self.window = onward_window or publish_window
        payload: Payload = "clauses" if kind == "thinker" else "latents"
        self.inputs = INPUTS.get(kind, ())
        self.bench = StageBench(
            self.model,
            onward_window=onward_window,
            publish_window=publish_window,
            payload=payload,
            inputs=self.inputs,
        )
        self.onward = ONWARD if onward_window else None
        self.controls = {number: number for number in CONTROLS}
        self.media = dict(MEDIAS)
        self.bench.another_gateway()
        self.next_link = 100
        self.source, self.before_incarnation = SOURCE, 1
        self.lives: dict[Tag, Life] = {}
        self.names: set[str] = set()
        self.epochs: dict[str, int] = {}
        self.owners: dict[str, int] = {}
        self.told: set[str] = set()  # those that know it
        self.lasts_ns: float = math.inf  # of the stream that is being opened
        self.running: dict[str, StartStep] = {}  # before the last action
        for session, which in zip(SESSIONS, CONTROLS, strict=True):
            self._open_session(session, 1, self.controls[which])
        self.check()

    def go(self, actions: int) -> None:
        """Act so often, then end everything."""
        chosen = self.random.choices(list(ACTIONS), list(ACTIONS.values()), k=actions)
        for action in chosen:
            action(self)
            self.check()
            self.check_counts()
        self.end()

    def end(self) -> None:
        for which in CONTROLS:
            self._lose_gateway(which)
        while self.bench.running:
            self.bench.finish(next(iter(self.bench.running)))
        self.check()
        statistics = self.bench.stage.statistics()
        assert (statistics.streams, statistics.sessions, statistics.scheduler.waiting) == (0, 0, 0)
        assert not self.lives
        assert not self.model.kept
        assert not self.bench.faults
        promises = WorkerPromises()
        promises.check(self.bench.events)
        promises.nothing_is_left()
        assert promises.lives.keys() == self.names, "every stream that was open is in the log, and no other"

    # ---- what the stage says ------------------------------------------------------------------------

    def check(self) -> None:
        for effect in self.bench.take_sent():
            self._check(effect)

    def _check(self, sent: Send) -> None:
        match sent.frame:
            case Opened(tag):
                life = self.lives.setdefault(tag, Life(sent.link, self._is_onward, self.bench.now_ns + self.lasts_ns))
                self.names.add(tag.key)
                assert not life.leaving
                life.control = sent.link
            case Closed(tag):
                self._check_closed(tag, sent.frame, sent.link)
            case Published(tag, event):
                units = len(event.pcm) // 2 if isinstance(event, AudioOut) else 0
                self._check_output(tag, event, units)
            case Feed(tag, item, units):
                assert sent.link == self.onward
                self._check_output(tag, item, units)
            case Grant(tag, units):
                life = self.lives[tag]
                life.given_back += units
                assert life.given_back <= life.fed_units
            case StepDone(tag):
                assert not self.lives[tag].leaving
            case SessionOpened(session):
                assert sent.link == self.owners[session]
                assert session not in self.told
                self.told.add(session)
            case _:
                assert isinstance(sent.frame, Refused | SessionRefused | OnwardChanged | InwardChanged)

    @property
    def _is_onward(self) -> bool:
        return bool(WINDOWS[self.kind][0])

    def _check_output(self, tag: Tag, piece: object, units: int) -> None:
        life = self.lives[tag]
        assert not life.leaving
        assert not tag.response or tag.epoch == OUT_OF_BAND or tag.epoch >= self.epochs[tag.session]
        life.in_flight += units
        assert life.in_flight <= self.window
        life.out.append(piece)
        in_order(life.out, piece)

    def _check_closed(self, tag: Tag, closed: Closed, link: int) -> None:
        life = self.lives.pop(tag)
        way = self._media_of(life.control) if closed.outcome == "finished" else life.control
        assert link == way
        assert tag.key not in self.bench.running
        assert closed.code != DEADLINE_EXCEEDED or self.bench.now_ns >= life.ends_ns
        if closed.outcome == "finished":
            assert not life.leaving
            assert life.given_back == life.fed_units
            COMPLETE[self.kind](life)

    def check_counts(self) -> None:
        """What leaves only waits for its step."""
        statistics = self.bench.stage.statistics()
        assert statistics.streams == len(self.lives)
        assert statistics.sessions == len(self.owners)
        assert statistics.scheduler.running == len(self.bench.batches) <= self.model.concurrency
        for tag, life in self.lives.items():
            assert not life.leaving or tag.key in self.bench.running
            has_begun = self.bench.running.get(tag.key) not in (None, self.running.get(tag.key))
            assert not has_begun or self.bench.now_ns < life.ends_ns
        self.running = dict(self.bench.running)
        # Its owner is told of a session as soon as nothing is left there of who had it before.
        unread = {tag.session for tag, life in self.lives.items() if life.control != self.owners.get(tag.session)}
        assert self.told == self.owners.keys() - unread

    # ---- gateways -----------------------------------------------------------------------------------

    def open_session(self) -> None:
        session = self.random.choice(SESSIONS)
        self._open_session(session, self._epoch_near(session), self._control())

    def _open_session(self, session: str, epoch: int, link: int) -> None:
        stale = session in self.owners and epoch < self.epochs[session]
        if not stale:
            self.owners[session] = link
            self.epochs[session] = epoch
            self.told.discard(session)
            self._leave(lambda tag: is_output(tag, session, epoch))
            self._leave(lambda tag: tag.session == session and self.lives[tag].control != link)
        answers = self.bench.frame(OpenSession(session, epoch), link)
        assert stale == isinstance(answers[-1] if answers else None, SessionRefused)

    def close_session(self) -> None:
        session, link = self.random.choice(SESSIONS), self._control()
        owned = self.owners.get(session) == link
        if owned:
            del self.owners[session], self.epochs[session]
            self.told.discard(session)
            self._leave_session(session)
        self._expect_stale(not owned, CloseSession(session), link)

    def open(self) -> None:
        tag, link = self._any_tag(), self._control()
        known = {other.key: other for other in self.lives}.get(tag.key)
        is_open = known == tag and not self.lives[tag].leaving and self.lives[tag].control == link
        stale = tag.response and OUT_OF_BAND < tag.epoch < self.epochs.get(tag.session, 0)
        allowed = self.owners.get(tag.session) == link and not stale and not known
        allowed = allowed and (self.onward is not None or not self._is_onward)
        self.lasts_ns = self.random.choice(LASTS_NS)
        lasts_ns_max = None if self.lasts_ns == math.inf else int(self.lasts_ns)
        edges = (NEXT,) if self._is_onward else ()
        (answer, *_) = self.bench.frame(Open(tag, OPTIONS[self.kind], edges, lasts_ns_max=lasts_ns_max), link)
        assert isinstance(answer, Opened if is_open or allowed else Refused)

    def cancel(self) -> None:
        tag, link = self._any_tag(), self._control()
        self._leave(lambda other: other == tag and self.lives[tag].control == link)
        self.bench.frame(Cancel(tag), link)

    def end_epoch(self) -> None:
        session, link = self.random.choice(SESSIONS), self._control()
        epoch, owned = self._epoch_near(session), self.owners.get(session) == link
        if owned:
            self.epochs[session] = max(self.epochs[session], epoch)
            self._leave(lambda tag: is_output(tag, session, epoch))
        self._expect_stale(not owned, EndEpoch(session, epoch), link)

    def lose_gateway(self) -> None:
        self._lose_gateway(self.random.choice(CONTROLS))

    def _lose_gateway(self, which: int) -> None:
        """It is back at once, on another link and knowing nothing; perhaps the loss is noticed only then."""
        lost = self.controls[which]
        for session in [name for name, owner in self.owners.items() if owner == lost]:
            del self.owners[session], self.epochs[session]
            self.told.discard(session)
            self._leave_session(session)
        self._leave(lambda tag: self.lives[tag].control == lost)
        noticed = self.random.random() < 0.5
        if noticed:
            self.bench.lose(lost)
        self.next_link += 1
        self.controls[which] = self.next_link
        self.bench.carry_out(self.bench.stage.link_up(self.next_link, Hello(1, "control", NAMES[which])))
        if not noticed:
            self.bench.lose(lost)

    def lose_media(self) -> None:
        """Its gateway has it back at once; perhaps the loss is noticed only then."""
        which = self.random.choice(CONTROLS)
        self._leave(lambda tag: self.lives[tag].control == self.controls[which])
        lost, self.next_link = self.media[which], self.next_link + 1
        self.media[which] = self.next_link
        noticed = self.random.random() < 0.5
        if noticed:
            self.bench.lose(lost)
        self.bench.carry_out(self.bench.stage.link_up(self.next_link, Hello(1, "media", NAMES[which])))
        if not noticed:
            self.bench.lose(lost)

    def _media_of(self, control: int) -> int:
        return next(self.media[which] for which in CONTROLS if self.controls[which] == control)

    def _control(self) -> int:
        return self.controls[self.random.choice(CONTROLS)]

    def _epoch_near(self, session: str) -> int:
        return max(0, self.epochs.get(session, 0) + self.random.choice((-1, 0, 1)))

    def _any_tag(self) -> Tag:
        session = self.random.choice(SESSIONS)
        name = self.random.choice(("", "r", "r_1"))
        epoch = self.random.choice((self._epoch_near(session), self.epochs.get(session, 0), OUT_OF_BAND))
        return Tag(session, epoch, self.random.choice((1, 12)), f"{session}_{name}" if name else "")

    # ---- neighbours ---------------------------------------------------------------------------------

    def lose_next_stage(self) -> None:
        if self.onward is not None:
            lost, self.onward = self.onward, None
            self._leave(lambda tag: self.lives[tag].onward)
            self.bench.lose(lost)

    def lose_stage_before(self) -> None:
        """Its next process, or the same one, is there at once."""
        self._leave(lambda tag: bool(tag.response and self.inputs) and not self.lives[tag].input_ended)
        self.before_incarnation += self.random.randint(0, 1)
        lost, self.source = self.source, self.next_link + 1
        self.next_link += 1
        hello = Hello(1, "data", f"before/{self.before_incarnation}")
        noticed = self.random.random() < 0.5
        if noticed:
            self.bench.lose(lost)
        self.bench.carry_out(self.bench.stage.link_up(self.source, hello))
        if not noticed:
            self.bench.lose(lost)

    def find_next_stage(self) -> None:
        if self._is_onward and self.onward is None:
            self.next_link += 1
            self.onward = self.next_link
            self.bench.carry_out(self.bench.stage.onward_up(NEXT, self.next_link))

    def feed(self) -> None:
        """A few items for one stream, open or leaving."""
        if self.kind == "thinker" or not self.lives:
            return
        tag = self.random.choice(list(self.lives))
        for _ in range(self.random.randint(1, 3)):
            life = self.lives.get(tag)
            if life is None or life.input_ended:
                return
            item, units = self._next_item(life)
            if not life.leaving:
                life.fed.append(item)
                life.fed_units += units
            self._expect_stale(life.leaving, Feed(tag, item, units), self.source)

    def _next_item(self, life: Life) -> tuple[Item, int]:
        frames, ends = self.random.randint(0, FRAMES_PER_ITEM_MAX), self.random.random() < 0.2
        match self.kind:
            case "encoder":
                sample = sum(len(item.pcm) // 2 for item in life.fed if isinstance(item, AudioIn))
                if ends:
                    return EndOfTurn(sample), 0
                return (AudioIn(sample, bytes(2 * frames)), frames) if frames else (Pause(sample), 0)
            case "talker":
                text = self.random.choice(CLAUSES)
                return Clause(len(life.fed), text, ends), max(1, len(text))
            case _:
                start = sum(item.frames for item in life.fed if isinstance(item, Latents))
                return Latents(start, frames, bytes(4 * frames), ends, ends), frames

    def feed_what_is_not_open(self) -> None:
        tag = self._any_tag()
        if tag not in self.lives:
            self._expect_stale(True, Feed(tag, EndOfTurn(0)), self.source)
            self._expect_stale(True, Grant(tag, 1), self._control())

    def grant(self) -> None:
        """Part or all of what one stream has in flight."""
        waiting = [tag for tag, life in self.lives.items() if life.in_flight]
        if waiting:
            tag = self.random.choice(waiting)
            life = self.lives[tag]
            link = self.onward if self._is_onward else life.control
            if link is None:
                return
            units = self.random.choice((life.in_flight, self.random.randint(1, life.in_flight)))
            life.in_flight -= units
            self._expect_stale(life.leaving, Grant(tag, units), link)

    # ---- engine threads -----------------------------------------------------------------------------

    def finish_a_step(self) -> None:
        self._finish(None)

    def fail_a_step(self) -> None:
        self._finish(StageFailure("engine", "it broke"))

    def _finish(self, failure: StageFailure | None) -> None:
        if self.bench.running:
            self.bench.now_ns += self.random.randint(0, 10**9)
            self.bench.finish(next(iter(self.bench.running)), failure)

    # ---- what is expected ---------------------------------------------------------------------------

    def _leave(self, wanted: Callable[[Tag], bool]) -> None:
        for tag, life in self.lives.items():
            if wanted(tag):
                life.leaving = True

    def _leave_session(self, session: str) -> None:
        self._leave(lambda tag: tag.session == session)

    def _expect_stale(self, stale: bool, frame: Frame, link: int) -> None:
        """Hand `frame` in; a stale one is counted, and answered with nothing."""
        before = self.bench.stage.statistics()
        running = dict(self.bench.running)
        self.bench.frame(frame, link)
        after = self.bench.stage.statistics()
        assert after.stale_dropped == before.stale_dropped + stale
        if stale:
            assert (after.streams, after.sessions, self.bench.running) == (before.streams, before.sessions, running)
            assert not self.bench.sent
        self.check()


# How often each action is taken, in parts of the whole.
ACTIONS: dict[Callable[[Walk], None], int] = {
    Walk.open: 20,
    Walk.feed: 30,
    Walk.finish_a_step: 60,
    Walk.grant: 30,
    Walk.feed_what_is_not_open: 3,
    Walk.cancel: 4,
    Walk.fail_a_step: 2,
    Walk.end_epoch: 3,
    Walk.open_session: 3,
    Walk.close_session: 1,
    Walk.lose_gateway: 1,
    Walk.lose_media: 1,
    Walk.lose_next_stage: 1,
    Walk.lose_stage_before: 1,
    Walk.find_next_stage: 4,
}


def is_output(tag: Tag, session: str, ended: int) -> bool:
    return tag.session == session and bool(tag.response) and OUT_OF_BAND < tag.epoch < ended


def in_order(out: list[object], piece: object) -> None:
    """`piece`, the latest of `out`, follows on those of its kind before."""
    before = [other for other in out[:-1] if type(other) is type(piece)]
    match piece:
        case AudioOut():
            samples = sum(len(one.pcm) // 2 for one in before if isinstance(one, AudioOut))
            assert (piece.seq, piece.start_sample) == (len(before), samples)
        case Latents():
            assert piece.start_frame == sum(one.frames for one in before if isinstance(one, Latents))
        case Clause():
            assert piece.index == len(before)
        case WordTimes():
            assert all(one.clause < piece.clause for one in before if isinstance(one, WordTimes))


def encoder_is_complete(life: Life) -> None:
    samples = sum(len(item.pcm) // 2 for item in life.fed if isinstance(item, AudioIn))
    *settled, last = life.out
    assert last == Transcript("heard" if samples else "", samples, settled=True, final=True)
    assert all(isinstance(one, Transcript) and one.settled and not one.final for one in settled)


def thinker_is_complete(life: Life) -> None:
    assert "".join(one.text for one in life.out if isinstance(one, TextDelta)) == REPLY
    assert "".join(one.text for one in life.out if isinstance(one, Clause)) == REPLY
    assert [one.final for one in life.out if isinstance(one, Clause)].count(True) == 1
    assert isinstance(life.out[-1], TextDone)


def talker_is_complete(life: Life) -> None:
    words = [word for item in life.fed if isinstance(item, Clause) for word in item.text.split()]
    assert [word.text for one in life.out if isinstance(one, WordTimes) for word in one.words] == words
    made = [one for one in life.out if isinstance(one, Latents)]
    assert sum(one.frames for one in made) == 7 * len(words)
    assert [one.final for one in made] == [False] * (len(made) - 1) + [True]


def vocoder_is_complete(life: Life) -> None:
    frames = sum(item.frames for item in life.fed if isinstance(item, Latents))
    made = [one for one in life.out if isinstance(one, AudioOut)]
    assert sum(len(one.pcm) // 2 for one in made) == frames * FRAME_SAMPLES
    assert [one.final for one in made] == [False] * (len(made) - 1) + [True]


COMPLETE = {
    "encoder": encoder_is_complete,
    "thinker": thinker_is_complete,
    "talker": talker_is_complete,
    "vocoder": vocoder_is_complete,
}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 150))
@pytest.mark.parametrize("kind", WINDOWS)
def test_in_any_order_the_stage_keeps_its_rules(kind: str, seed: int, actions: int) -> None:
    Walk(kind, seed).go(actions)
