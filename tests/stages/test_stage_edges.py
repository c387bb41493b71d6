"""A stage with several ways out and in: fan-out, joins, and observers who look on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stages.contracts import AudioOut, Clause, ObserverOptions, Tag, VocoderOptions, WordTimes
from stages.edges import GATEWAY, InEdge, OutEdge
from stages.effects import Effect, Send, StartBatch
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
)
from stages.stage import Stage
from stages.stream import Consumed, StageFailure
from tests.stages.puppet import PuppetModel, PuppetStep, PuppetStream
from tests.stages.stage_bench import SESSION, TAG, Flags, closings, latents, sound

CONTROL, MEDIA, TALKER, THINKER, NEXT, OTHER, WATCH = range(1, 8)
RATE = 24_000


class Bench:
    """One gateway with both links; links to next stages as they are told to come up."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.running: dict[str, StartBatch] = {}
        for link, role, name in ((CONTROL, "control", "gw"), (MEDIA, "media", "gw"), (TALKER, "data", "talker/1")):
            stage.link_up(link, Hello(1, role, name))  # type: ignore[arg-type]
        stage.link_up(THINKER, Hello(1, "data", "thinker/1"))
        self.do(stage.handle(CONTROL, OpenSession(SESSION, 5), 0))

    def do(self, effects: Sequence[Effect]) -> list[tuple[int, Frame]]:
        self.running |= {effect.steps[0].key: effect for effect in effects if isinstance(effect, StartBatch)}
        return [(effect.link, effect.frame) for effect in effects if isinstance(effect, Send)]

    def frame(self, frame: Frame, link: int = CONTROL) -> list[tuple[int, Frame]]:
        return self.do(self.stage.handle(link, frame, 0))

    def finish(self, key: str = TAG.key) -> list[tuple[int, Frame]]:
        batch = self.running.pop(key)
        return self.do(self.stage.batch_done(batch.number, batch.run([Flags(batch.steps[0].flags)]), 0))


# ---- ways out ---------------------------------------------------------------------------------------

EAR = OutEdge(GATEWAY, "audio", 8)
WATCHED = OutEdge("align", "audio", 12, need="complete", observed=True)
TO_NEXT = OutEdge("next", "latents", 8)
TO_OTHER = OutEdge("other", "latents", 4)
LINKS = {"next": NEXT, "other": OTHER, "align": WATCH}


class Puppets(Bench):
    def __init__(self, *edges: OutEdge) -> None:
        self.model = PuppetModel()
        super().__init__(Stage(self.model, edges))
        for edge in edges:
            if edge.target != GATEWAY:
                self.do(self.stage.onward_up(edge.target, LINKS[edge.target]))

    def open(self, *targets: str, steps: Sequence[PuppetStep] = ()) -> PuppetStream:
        assert self.frame(Open(TAG, ObserverOptions(), targets)) == [(CONTROL, Opened(TAG))]
        stream = self.model.streams[TAG.key]
        stream.steps.extend(steps)
        self.do(self.stage.run_steps(0))
        return stream


def fed(frames: Sequence[tuple[int, Frame]], link: int) -> list[int]:
    """The units handed over on `link`."""
    return [frame.units for to, frame in frames if to == link and isinstance(frame, Feed)]


def test_what_is_made_goes_by_every_edge_of_its_payload_and_waits_for_the_slowest() -> None:
    bench = Puppets(TO_NEXT, TO_OTHER)
    bench.open("next", "other", steps=[PuppetStep((latents(4), latents(4, 4))), PuppetStep()])
    frames = bench.finish()
    assert (fed(frames, NEXT), fed(frames, OTHER)) == ([4, 4], [4])
    bench.frame(Grant(TAG, 8), NEXT)
    assert bench.running == {}
    frames = bench.frame(Grant(TAG, 4), OTHER)
    assert (fed(frames, NEXT), fed(frames, OTHER)) == ([], [4])
    assert list(bench.running) == [TAG.key]


def test_a_response_uses_the_edges_that_it_was_opened_with() -> None:
    bench = Puppets(TO_NEXT, TO_OTHER)
    bench.open("other", steps=[PuppetStep((latents(4),))])
    assert (fed(frames := bench.finish(), NEXT), fed(frames, OTHER)) == ([], [4])


def test_an_edge_that_there_is_not_cannot_be_used() -> None:
    bench = Puppets(TO_NEXT)
    refused = Refused(TAG, "unknown_edge", "no edge leads to mouth, nose")
    assert bench.frame(Open(TAG, ObserverOptions(), ("nose", "next", "mouth"))) == [(CONTROL, refused)]


def test_streams_are_opened_when_the_stages_that_they_use_are_connected() -> None:
    bench = Bench(Stage(PuppetModel(), (TO_NEXT, TO_OTHER)))
    assert bench.do(bench.stage.onward_up("other", OTHER)) == [(CONTROL, OnwardChanged("other", up=True))]
    refused = Refused(TAG, "downstream_lost", "next is not connected")
    assert bench.frame(Open(TAG, ObserverOptions(), ("next",))) == [(CONTROL, refused)]
    assert bench.frame(Open(TAG, ObserverOptions(), ("other",))) == [(CONTROL, Opened(TAG))]
    assert bench.do(bench.stage.onward_up("next", NEXT)) == [(CONTROL, OnwardChanged("next", up=True))]


def test_the_loss_of_one_next_stage_fails_those_that_use_it() -> None:
    bench = Puppets(TO_NEXT, TO_OTHER)
    bench.open("next")
    frames = [frame for _, frame in bench.do(bench.stage.link_lost(OTHER, 0))]
    assert frames == [OnwardChanged("other", up=False)]
    assert closings([frame for _, frame in bench.do(bench.stage.link_lost(NEXT, 0))]) == [
        (TAG, "failed", "downstream_lost")
    ]


def test_an_observer_gets_all_and_holds_nobody_up() -> None:
    bench = Puppets(EAR, WATCHED)
    bench.open("align", steps=[PuppetStep((sound(4), sound(4, 1))), PuppetStep(units=4)])
    frames = bench.finish()
    assert fed(frames, WATCH) == [4, 4]
    assert [type(frame) for link, frame in frames if link == MEDIA] == [Published, Published]
    assert bench.running == {}
    bench.frame(Grant(TAG, 8), MEDIA)
    assert list(bench.running) == [TAG.key]


def test_an_observer_whose_maximum_is_reached_is_told_and_the_stream_goes_on() -> None:
    bench = Puppets(EAR, WATCHED)
    stream = bench.open("align", steps=[PuppetStep((sound(8),)), PuppetStep((sound(5, 1),))])
    bench.finish()
    bench.frame(Grant(TAG, 8), MEDIA)
    frames = bench.finish()
    assert (WATCH, Cancel(TAG)) in frames
    assert [type(frame) for link, frame in frames if link == MEDIA] == [Published]
    assert stream.closed == 0


def test_an_observer_that_is_lost_is_no_loss() -> None:
    bench = Puppets(EAR, WATCHED)
    stream = bench.open("align", steps=[PuppetStep((sound(4),))])
    assert bench.do(bench.stage.link_lost(WATCH, 0)) == [(CONTROL, OnwardChanged("align", up=False))]
    frames = bench.finish()
    assert [type(frame) for link, frame in frames if link == MEDIA] == [Published]
    assert stream.closed == 0


# ---- ways in ----------------------------------------------------------------------------------------

SEES = (InEdge("clauses", 100, "complete"), InEdge("audio", 10_000, "complete"))


class Observer(Bench):
    """The scripted aligner, of which each word takes 2,400 samples."""

    def __init__(self, streams_max: int = 8) -> None:
        model = ScriptedModel("observer", ScriptedOptions(frames_per_word=10))
        super().__init__(Stage(model, (), SEES, streams_max=streams_max, observes=True))
        self.frame(Open(TAG, ObserverOptions()))

    def hear(self, samples: int, first: int = 0, *, final: bool = False) -> list[tuple[int, Frame]]:
        chunk = AudioOut(0, RATE, first, bytes(2 * samples), final)
        return self.frame(Feed(TAG, chunk, samples), TALKER)

    def read(self, text: str, index: int = 0, *, final: bool = False) -> list[tuple[int, Frame]]:
        return self.frame(Feed(TAG, Clause(index, text, final), len(text)), THINKER)


def times_in(frames: Sequence[tuple[int, Frame]]) -> list[tuple[str, int, int]]:
    (times,) = [frame.event for link, frame in frames if link == MEDIA and isinstance(frame, Published)]
    assert isinstance(times, WordTimes)
    assert (times.basis, times.sample_rate) == ("aligned", RATE)
    return [(word.text, word.start, word.end) for word in times.words]


def test_nothing_is_looked_at_before_text_and_sound_are_complete() -> None:
    bench = Observer()
    bench.read("Well ")
    bench.hear(800)
    bench.hear(1_200, 800)
    bench.hear(400, 2_000, final=True)
    assert bench.running == {}
    bench.read("then.", 1, final=True)
    frames = bench.finish()
    assert times_in(frames) == [("Well", 0, 2_400)]
    # The terminal cannot overtake the words: both go by one link.
    assert frames[-1] == (MEDIA, Closed(TAG, "finished", {"items": 2}))


def test_the_end_of_an_epoch_leaves_an_observer_to_its_cut() -> None:
    bench = Observer()
    bench.read("one two three")
    bench.hear(7_200)
    assert bench.frame(EndEpoch(SESSION, 6)) == []
    bench.frame(Cut(TAG, 4_900))
    assert times_in(bench.finish()) == [("one", 0, 2_400), ("two", 2_400, 4_800)]


def test_a_cut_waits_for_sound_that_is_still_on_its_way() -> None:
    bench = Observer()
    bench.read("one two three")
    bench.hear(2_400)
    bench.frame(Cut(TAG, 2_500))
    assert bench.running == {}
    bench.hear(2_400, 2_400)
    assert times_in(bench.finish()) == [("one", 0, 2_400)]


@pytest.mark.parametrize("link", [MEDIA, TALKER, OTHER], ids=["media", "stage before", "another gateway"])
def test_only_who_opened_a_stream_can_cut_it(link: int) -> None:
    bench = Observer()
    bench.stage.link_up(OTHER, Hello(1, "control", "gw_2"))
    bench.read("one two three")
    bench.hear(7_200)
    assert bench.frame(Cut(TAG, 2_400), link) == []
    assert bench.running == {}
    bench.frame(Cut(TAG, 4_900))
    assert times_in(bench.finish()) == [("one", 0, 2_400), ("two", 2_400, 4_800)]


def test_a_cut_of_what_is_unknown_or_leaves_changes_nothing() -> None:
    bench = Observer()
    assert bench.frame(Cut(Tag(SESSION, 5, 1, "resp_0"), 1)) == []
    bench.read("one", final=True)
    bench.hear(2_400, final=True)
    bench.frame(Cancel(TAG))
    assert bench.frame(Cut(TAG, 1)) == []
    assert closings([frame for _, frame in bench.finish()]) == [(TAG, "cancelled", "")]


@pytest.mark.parametrize(
    "ending", [Cancel(TAG), CloseSession(SESSION), OpenSession(SESSION, 6)], ids=["cancel", "close", "new owner"]
)
def test_who_ends_an_observer_at_once_is_told_what_it_had_gathered(ending: Frame) -> None:
    bench = Observer()
    bench.hear(800)
    bench.read("one")
    closed = Closed(TAG, "cancelled", {"gathered_audio": 800, "gathered_clauses": 3})
    assert (MEDIA, closed) in bench.frame(ending)


def test_no_observer_is_opened_for_an_epoch_that_has_ended() -> None:
    bench = Observer()
    bench.frame(EndEpoch(SESSION, 6))
    ((_, refused),) = bench.frame(Open(Tag(SESSION, 5, 1, "resp_2"), ObserverOptions()))
    assert isinstance(refused, Refused)
    assert refused.code == "stale_epoch"


def test_only_as_many_streams_are_opened_as_can_reserve_their_maximum() -> None:
    bench = Observer(streams_max=1)
    ((_, refused),) = bench.frame(Open(Tag(SESSION, 5, 1, "resp_2"), ObserverOptions()))
    assert refused == Refused(Tag(SESSION, 5, 1, "resp_2"), "capacity", "1 streams are open")


def test_what_cannot_be_gathered_fails_its_stream() -> None:
    bench = Observer()
    assert closings([frame for _, frame in bench.hear(800, 1)]) == [(TAG, "failed", "broken_input")]


def test_an_engine_that_fails_at_what_was_gathered_fails_its_stream_once() -> None:
    bench = Bench(Stage(model := PuppetModel(), (), SEES, observes=True))
    bench.frame(Open(TAG, ObserverOptions()))
    model.streams[TAG.key].feed_fails = StageFailure("engine", "it broke")
    bench.frame(Feed(TAG, Clause(0, "one"), 3), THINKER)
    assert closings([frame for _, frame in bench.frame(Cut(TAG, 0))]) == [(TAG, "failed", "engine")]


def test_a_cut_cancels_a_stream_that_gathers_nothing() -> None:
    bench = Bench(Stage(ScriptedModel("vocoder", ScriptedOptions()), (EAR,), (InEdge("latents", 48),)))
    bench.frame(Open(TAG, VocoderOptions()))
    assert bench.frame(Cut(TAG, 100)) == [(CONTROL, Closed(TAG, "cancelled", {}))]


def test_credit_of_a_join_goes_back_to_whose_it_was() -> None:
    bench = Bench(Stage(model := PuppetModel(), (), (InEdge("clauses", 9), InEdge("latents", 9))))
    bench.frame(Open(TAG, ObserverOptions()))
    stream = model.streams[TAG.key]
    bench.frame(Feed(TAG, Clause(0, "one"), 3), THINKER)
    stream.feed_outputs = (Consumed(3, "clauses"), Consumed(2, "latents"), Consumed(1), Consumed(5, "audio"))
    frames = bench.frame(Feed(TAG, latents(4).item, 4), TALKER)
    assert frames == [(THINKER, Grant(TAG, 3)), (TALKER, Grant(TAG, 2)), (TALKER, Grant(TAG, 1))]
