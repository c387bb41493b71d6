"""A vocoder, the client and an aligner joined: the cores of two stages and of the conversation, without sockets.

vllm-omni#7544: an aligner that needs the complete waveform waited for ever, and then got the last chunk alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessions.effects import CancelStream, CutStream, Effect, EndEpoch, GrantCredit, OpenStream
from sessions.events import ReplyAudio, ResponseDrained, ResponseFinished
from sessions.settings import OUTPUT_RATE
from stages import messages
from stages.contracts import AudioOut, Clause, Tag, WordTimes
from stages.edges import GATEWAY, InEdge, OutEdge
from stages.effects import Effect as StageEffect
from stages.effects import Send, StartBatch
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.messages import Cancel, Closed, Cut, Feed, Frame, Grant, Hello, Open, Opened, OpenSession, Published
from stages.stage import Stage
from stages.stream import Publish, StageModel
from tests.sessions.talk import EPOCH, Talk, silence, told
from tests.sessions.test_conversation_observed import ROUTE
from tests.stages.puppet import PuppetModel, PuppetStep
from tests.stages.stage_bench import Flags

CONTROL, MEDIA, DATA, ONWARD = 1, 2, 3, 4
MAXIMUM = 100_000


class Host:
    """One stage; what it says to the gateway waits in `said`."""

    def __init__(self, name: str, stage: Stage, branch: Branch) -> None:
        self.name, self.stage, self.branch = name, stage, branch
        self.said: list[Frame] = []
        self.running: list[StartBatch] = []
        stage.link_up(CONTROL, Hello(1, "control", "gw"))
        stage.link_up(MEDIA, Hello(1, "media", "gw"))
        stage.link_up(DATA, Hello(1, "data", "before/1"))
        self.do(stage.handle(CONTROL, OpenSession("sess", EPOCH), 0))

    def do(self, effects: Sequence[StageEffect]) -> None:
        for effect in effects:
            match effect:
                case StartBatch():
                    self.running.append(effect)
                case Send(link, frame) if link == ONWARD:
                    self.branch.aligner.frame(frame, DATA)
                case Send(_, frame):
                    self.said.append(frame)

    def frame(self, frame: Frame, link: int = CONTROL) -> None:
        self.do(self.stage.handle(link, frame, 0))

    def run(self) -> None:
        """Finish the steps that run."""
        running, self.running = self.running, []
        for batch in running:
            results = batch.run([Flags(start.flags) for start in batch.steps])
            self.do(self.stage.batch_done(batch.number, results, 0))


class Branch:
    """A reply whose vocoder makes the chunks that the test asks for; Thinker and Talker are the test."""

    def __init__(self) -> None:
        self.talk = Talk(route=ROUTE)
        self.model = PuppetModel()
        watched = OutEdge("aligner", "audio", MAXIMUM, need="complete", observed=True)
        sees = (InEdge("clauses", 400, "complete"), InEdge("audio", MAXIMUM, "complete"))
        aligner: StageModel = ScriptedModel("observer", ScriptedOptions(frames_per_word=10))
        self.aligner = Host("aligner", Stage(aligner, (), sees, observes=True), self)
        self.vocoder = Host("vocoder", Stage(self.model, (OutEdge(GATEWAY, "audio", 9_600), watched)), self)
        self.vocoder.do(self.vocoder.stage.onward_up("aligner", ONWARD))
        self.hosts = {host.name: host for host in (self.vocoder, self.aligner)}
        self.carry_out(self.talk.say("hello"))
        self.settle()
        for stage in ("talker", "thinker"):
            self.carry_out(self.talk.do(self.talk.core.opened(self.tag, stage, 0)))
        self.talk.text("resp_1", "Well then")
        self.talk.text_done("resp_1")
        for index, text in enumerate(("Well ", "then")):
            self.aligner.frame(Feed(self.tag, Clause(index, text, final=bool(index)), len(text)), DATA)

    @property
    def tag(self) -> Tag:
        return self.talk.tag("resp_1")

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case OpenStream(stage, tag, options, edges) if stage in self.hosts:
                    self.hosts[stage].frame(Open(tag, options, edges))
                case CancelStream(stage, tag) if stage in self.hosts:
                    self.hosts[stage].frame(Cancel(tag))
                case CutStream(stage, tag, samples):
                    self.hosts[stage].frame(Cut(tag, samples))
                case GrantCredit(stage, tag, samples):
                    self.hosts[stage].frame(Grant(tag, samples))
                case EndEpoch(epoch):
                    for host in self.hosts.values():
                        host.frame(messages.EndEpoch("sess", epoch))

    def make(self, *sizes: int) -> None:
        """The vocoder makes chunks of these sizes, the last of which is final."""
        stream = self.model.streams["resp_1"]
        for seq, size in enumerate(sizes):
            start, final = sum(sizes[:seq]), seq == len(sizes) - 1
            chunk = AudioOut(seq, OUTPUT_RATE, start, silence(size), final)
            stream.steps.append(PuppetStep((Publish(chunk, size),), units=size))
        stream.ends = True
        self.vocoder.do(self.vocoder.stage.run_steps(0))

    def settle(self) -> None:
        """Carry what the stages have said to the conversation."""
        for host in self.hosts.values():
            said, host.said = host.said, []
            for frame in said:
                self.hear(host.name, frame)

    def hear(self, stage: str, frame: Frame) -> None:
        core, now_ns = self.talk.core, self.talk.now_ns
        match frame:
            case Published(tag, event):
                self.carry_out(self.talk.do(core.published(tag, event, now_ns)))
            case Opened(tag):
                self.carry_out(self.talk.do(core.opened(tag, stage, now_ns)))
            case Closed(tag, _, released):
                self.carry_out(self.talk.do(core.closed(tag, stage, released, None, now_ns)))


def drained(branch: Branch) -> bool:
    return bool(told(branch.talk.effects, ResponseDrained))


def test_chunks_of_800_1200_and_400_are_seen_as_2400_at_once_and_heard_once() -> None:
    branch = Branch()
    branch.make(800, 1_200, 400)
    for _ in range(3):
        assert branch.aligner.running == [], "nothing is looked at before it is complete"
        branch.vocoder.run()
    assert len(branch.aligner.running) == 1
    branch.settle()
    branch.carry_out(branch.talk.send())
    frames = [event.frame for event in told(branch.talk.effects, ReplyAudio)]
    assert [(frame.start_sample, frame.samples) for frame in frames] == [(at, 480) for at in range(0, 2_400, 480)]
    assert told(branch.talk.effects, ResponseFinished)[0].response.status == "completed"

    # Everybody but the aligner has let go.
    branch.talk.let_go("resp_1", ["thinker", "talker"])
    assert not drained(branch)
    branch.aligner.run()
    (times,) = [frame.event for frame in branch.aligner.said if isinstance(frame, Published)]
    assert isinstance(times, WordTimes)
    assert [(word.text, word.start, word.end) for word in times.words] == [("Well", 0, 2_400)]
    branch.settle()
    assert drained(branch)


def test_clean_up_waits_for_the_vocoder_where_the_aligner_is_first() -> None:
    branch = Branch()
    branch.make(2_400)
    branch.vocoder.run()
    branch.aligner.run()
    vocoder, branch.vocoder.said = branch.vocoder.said, []
    closed = vocoder.pop()
    assert isinstance(closed, Closed)
    branch.vocoder.said = vocoder
    branch.settle()
    branch.carry_out(branch.talk.send())
    branch.talk.let_go("resp_1", ["thinker", "talker"])
    assert not drained(branch)
    branch.hear("vocoder", closed)
    assert drained(branch)


def test_at_a_stop_the_aligner_sees_what_was_sent_and_drained_waits_for_it() -> None:
    branch = Branch()
    branch.make(4_800, 4_800, 4_800)
    branch.vocoder.run()
    branch.settle()
    branch.carry_out(branch.talk.send(6))  # 2,880 samples
    branch.carry_out(branch.talk.start(48_000))
    branch.settle()
    branch.talk.let_go("resp_1", ["thinker", "talker"])
    branch.vocoder.run()
    branch.settle()
    assert told(branch.talk.effects, ResponseFinished)[0].response.status == "cancelled"
    assert not drained(branch)
    branch.aligner.run()
    branch.settle()
    assert branch.talk.texts == [("user", "hello"), ("assistant", "Well")]
    assert drained(branch)
