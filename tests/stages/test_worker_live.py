"""Workers as real processes: a chain of three, credit from ear to Thinker, deaths and signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from stages.contracts import (
    AudioOut,
    Message,
    ObserverOptions,
    Options,
    Tag,
    TalkerOptions,
    TextDone,
    ThinkerOptions,
    VocoderOptions,
    WordTimes,
)
from stages.edges import GATEWAY
from stages.graph import Edge, Graph, StageNode, worker_spec
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    Cut,
    EndEpoch,
    Frame,
    Grant,
    Hello,
    InwardChanged,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Ping,
    Pong,
    Published,
    SessionOpened,
    StepDone,
    Welcome,
)
from stages.worker import WorkerSpec
from tests.stages.link_bench import WAIT_S_MAX, End, play

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FRAMES_MAX = 2_000  # of one worker, for one wait
SAMPLE_RATE = 24_000
AUDIO_WINDOW = 9_600
CHUNK = 16 * SAMPLE_RATE // 100
WORDS = 120  # the reply is far longer than all windows together
REPLY = " ".join(f"word{n}{'.' if n % 6 == 5 else ''}" for n in range(WORDS))
SAMPLES = WORDS * 20 * SAMPLE_RATE // 100
SESSION = "sess_1"
OPTIONS: dict[str, Options] = {
    "think": ThinkerOptions((Message("user", "talk"),), 1_000),
    "speak": TalkerOptions(),
    "sound": VocoderOptions(SAMPLE_RATE),
    "align": ObserverOptions(),
}

F = TypeVar("F", bound=Frame)


ALIGNER = StageNode(name="align", kind="observer", engine="scripted")
SEEN = (
    Edge(source="think", target="align", payload="clauses", need="complete", window=4_000),
    Edge(source="sound", target="align", payload="audio", need="complete", window=2 * SAMPLES),
)


def chain() -> Graph:
    return Graph(
        stages=(
            StageNode(name="think", kind="thinker", engine="scripted", options={"replies": [REPLY]}),
            StageNode(name="speak", kind="talker", engine="scripted"),
            StageNode(name="sound", kind="vocoder", engine="scripted", chunk_ms_max=160),
        ),
        edges=(
            Edge(source="think", target="speak", payload="clauses", window=320),
            Edge(source="speak", target="sound", payload="latents", window=48),
            Edge(source="sound", target=GATEWAY, payload="audio", window=AUDIO_WINDOW),
        ),
    )


class WorkerProcess:
    """One worker, whose standard input we hold, and a gateway's two links to it."""

    def __init__(self, spec: WorkerSpec, module: str = "stages.worker") -> None:
        self.spec = spec
        self._module = module
        self.control = End()
        self.media = End()
        self.events: list[Frame] = []

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", self._module, msgspec.json.encode(self.spec).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )

    async def ready(self, start_s_max: float) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(start_s_max):
            assert await self.process.stdout.readline() == b"ready\n"

    async def link(self) -> Welcome:
        """Make both links; gives the answer on the control link."""
        self.control, self.media = End(), End()
        for end, role in ((self.media, "media"), (self.control, "control")):
            await end.connect(self.spec.address)
            hello = {"type": "Hello", "version": LINK_VERSION, "role": role, "name": "gw"}
            end.link.send(msgspec.convert(hello, Hello))
        assert isinstance(await self.media.frame(), Welcome)
        welcome = await self.control.frame()
        assert isinstance(welcome, Welcome)
        return welcome

    def order(self, *frames: Frame) -> None:
        for frame in frames:
            self.control.link.send(frame)

    async def told(self, kind: type[F]) -> F:
        """The next order's answer of `kind`. Timings are skipped, and which stages before come and go; anything else is
        a fault."""
        while True:
            frame = await self.control.frame()
            if isinstance(frame, kind):
                return frame
            assert isinstance(frame, StepDone | InwardChanged), frame

    async def settle(self) -> None:
        """Come back when the worker has dealt with all that it was sent so far, on either link."""
        self.order(OpenSession(f"{SESSION}_probe", 0))
        await self.told(SessionOpened)
        self.media.link.send(Ping(1))
        while not isinstance(frame := await self.media.frame(), Pong):
            self.events.append(frame)

    async def next_end(self) -> Closed:
        """The next end of a stream, which comes by either link: a success behind what was published."""
        media = asyncio.ensure_future(self.published_until(lambda frame: isinstance(frame, Closed)))
        control = asyncio.ensure_future(self.told(Closed))
        await asyncio.wait((media, control), return_when=asyncio.FIRST_COMPLETED)
        last = control.result() if control.done() else media.result()[-1]
        for waiting in (media, control):
            waiting.cancel()
        assert isinstance(last, Closed)
        return last

    async def published_until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """What is published, up to and with the first that is `wanted`."""
        frames = self.events
        self.events = []
        while not (frames and wanted(frames[-1])):
            assert len(frames) < FRAMES_MAX
            frames.append(await self.media.frame())
        return frames

    async def published_whole(self, tag: Tag) -> list[Frame]:
        """What is published up to the end of `tag`, which is a success."""
        *published, last = await self.published_until(lambda frame: isinstance(frame, Closed))
        assert last == Closed(tag, "finished", {})
        return published

    async def end(self) -> tuple[int, str]:
        """Let go of the standard input; gives status and standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.ended()

    async def ended(self) -> tuple[int, str]:
        async with asyncio.timeout(WAIT_S_MAX):
            _, said = await self.process.communicate()
            status = await self.process.wait()
        for end in (self.control, self.media):
            if end.link.is_up:
                await end.end()
        return status, said.decode()

    async def kill(self) -> None:
        """Only if it still runs."""
        if self.process.returncode is None:
            self.process.kill()
            await self.ended()


@asynccontextmanager
async def workers(
    *specs: WorkerSpec, module: str = "stages.worker", start_s_max: float = WAIT_S_MAX
) -> AsyncIterator[list[WorkerProcess]]:
    """Ready workers with links; all are gone at the end of the block, however it ends."""
    started = [WorkerProcess(spec, module) for spec in specs]
    try:
        for one in started:
            await one.start()
        for one in started:
            await one.ready(start_s_max)
            await one.link()
        yield started
    finally:
        for one in started:
            await one.kill()


def chain_specs(folder: Path) -> list[WorkerSpec]:
    graph = chain()
    return [worker_spec(graph, stage, stage.name, folder, 1) for stage in graph.stages]


def observed_specs(folder: Path) -> list[WorkerSpec]:
    graph = chain()
    graph = Graph(stages=(*graph.stages, ALIGNER), edges=(*graph.edges, *SEEN))
    return [worker_spec(graph, stage, stage.name, folder, 1) for stage in graph.stages]


def aligned_in(frames: list[Frame]) -> list[str]:
    """The words that the aligner has found."""
    (frame,) = frames
    assert isinstance(frame, Published)
    assert isinstance(frame.event, WordTimes)
    assert frame.event.basis == "aligned"
    return [word.text for word in frame.event.words]


async def open_response(tag: Tag, stages: list[WorkerProcess]) -> None:
    """Open `tag` at all stages, the last one first."""
    for one in reversed(stages):
        onward = tuple(name for edge in one.spec.edges for name in edge.replicas)
        one.order(OpenSession(tag.session, tag.epoch), Open(tag, OPTIONS[one.spec.replica], onward))
        await one.told(SessionOpened)
        await one.told(Opened)


def samples_of(frames: list[Frame]) -> int:
    chunks = [frame.event for frame in frames if isinstance(frame, Published) and isinstance(frame.event, AudioOut)]
    return sum(len(chunk.pcm) // 2 for chunk in chunks)


def is_final_audio(frame: Frame) -> bool:
    return isinstance(frame, Published) and isinstance(frame.event, AudioOut) and frame.event.final


def counting_to(samples: int) -> Callable[[Frame], bool]:
    """True for the chunk with which `samples` have come."""
    counted: list[Frame] = []

    def enough(frame: Frame) -> bool:
        counted.append(frame)
        return samples_of(counted) >= samples

    return enough


def test_a_reply_flows_through_three_workers_as_fast_as_the_ear_takes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*chain_specs(tmp_path)) as stages:
            think, speak, sound = stages
            tag = Tag(SESSION, 1, 1, "resp_1")
            await open_response(tag, stages)

            # Without grants the vocoder stops at its window, and everything behind it in turn.
            heard = await sound.published_until(counting_to(2 * CHUNK))
            for one in (think, speak, sound, think, speak, sound):
                await one.settle()
            assert samples_of([*heard, *sound.events]) == 2 * CHUNK <= AUDIO_WINDOW

            # With what was heard granted back it all goes on, until the reply is whole.
            granted = 0
            while not is_final_audio(heard[-1]):
                sound.media.link.send(Grant(tag, samples_of(heard) - granted))
                granted = samples_of(heard)
                heard += await sound.published_until(lambda _: True)
            chunks = [frame.event for frame in heard if isinstance(frame, Published)]
            assert samples_of(heard) == SAMPLES
            starts = [chunk.start_sample for chunk in chunks if isinstance(chunk, AudioOut)]
            assert starts == sorted(starts)
            said, spoken, _ = [await one.published_whole(tag) for one in stages]
            assert isinstance(said[-1], Published)
            assert isinstance(said[-1].event, TextDone)
            assert said[-1].event.text == REPLY
            times = [
                word
                for f in spoken
                if isinstance(f, Published) and isinstance(f.event, WordTimes)
                for word in f.event.words
            ]
            assert [word.text for word in times] == REPLY.split()
            for one in stages:
                assert await one.end() == (0, "")

    play(scenario())
    assert not list(tmp_path.glob("*.sock"))


def test_a_cancel_and_the_end_of_an_epoch_stop_a_reply_midway(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*chain_specs(tmp_path)) as stages:
            for number, stop in enumerate((Cancel, EndEpoch), 1):
                tag = Tag(SESSION, number, number, f"resp_{number}")
                await open_response(tag, stages)
                await stages[-1].published_until(counting_to(CHUNK))
                for one in stages:
                    one.order(Cancel(tag) if stop is Cancel else EndEpoch(SESSION, number + 1))
                closed = [await one.told(Closed) for one in stages]
                assert [(one.tag, one.outcome) for one in closed] == [(tag, "cancelled")] * 3
                for one in stages:
                    await one.settle()
                    one.events.clear()
                # What the ended reply had in flight between workers has come to nothing.
                stages[-1].media.link.send(Grant(tag, CHUNK))
                for one in stages:
                    await one.settle()
                    assert one.events == []

    play(scenario())


def test_an_observer_sees_a_whole_reply_at_once_and_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*observed_specs(tmp_path)) as stages:
            *line, align = stages
            tag = Tag(SESSION, 1, 1, "resp_1")
            await open_response(tag, stages)
            heard, granted = await line[-1].published_until(lambda _: True), 0
            while not is_final_audio(heard[-1]):
                line[-1].media.link.send(Grant(tag, samples_of(heard) - granted))
                granted = samples_of(heard)
                heard += await line[-1].published_until(lambda _: True)
            assert samples_of(heard) == SAMPLES
            words, closed = [await align.media.frame() for _ in range(2)]
            assert aligned_in([words]) == REPLY.split()
            assert isinstance(closed, Closed)
            assert closed.outcome == "finished"
            for one in line:
                await one.published_whole(tag)

    play(scenario())


def test_at_a_stop_an_observer_sees_what_was_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*observed_specs(tmp_path)) as stages:
            *line, align = stages
            tag = Tag(SESSION, 1, 1, "resp_1")
            await open_response(tag, stages)
            await line[-1].published_until(counting_to(2 * CHUNK))
            for one in stages:
                one.order(EndEpoch(SESSION, 2))
            align.order(Cut(tag, CHUNK + 2_400))  # 6,240 samples: a word takes 4,800
            for one in line:
                assert (await one.told(Closed)).outcome == "cancelled"
            words, closed = [await align.media.frame() for _ in range(2)]
            assert aligned_in([words]) == ["word0"]
            assert isinstance(closed, Closed)

    play(scenario())


def test_a_reply_goes_on_without_an_observer_that_died(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*observed_specs(tmp_path)) as stages:
            *line, align = stages
            think, _, sound = line
            tag = Tag(SESSION, 1, 1, "resp_1")
            await open_response(tag, stages)
            heard, granted = await sound.published_until(counting_to(CHUNK)), 0
            align.process.kill()
            await align.ended()
            assert await think.told(OnwardChanged) == OnwardChanged("align", up=False)
            while not is_final_audio(heard[-1]):
                sound.media.link.send(Grant(tag, samples_of(heard) - granted))
                granted = samples_of(heard)
                heard += await sound.published_until(lambda _: True)
            assert samples_of(heard) == SAMPLES

    play(scenario())


def test_a_next_stage_that_dies_fails_the_replies_that_need_it_until_it_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        _, *specs = chain_specs(tmp_path)
        async with workers(*specs) as (speak, sound):
            tag = Tag(SESSION, 1, 1, "resp_1")
            await open_response(tag, [speak, sound])
            sound.process.kill()
            await sound.ended()
            assert await speak.told(OnwardChanged) == OnwardChanged("sound", up=False)
            assert await speak.told(Closed) == Closed(tag, "failed", {}, "downstream_lost", "sound is gone")

            async with workers(msgspec.structs.replace(sound.spec, incarnation=2)) as (reborn,):
                assert await speak.told(OnwardChanged) == OnwardChanged("sound", up=True)
                assert (await reborn.link()).incarnation == 2
                await open_response(Tag(SESSION, 1, 1, "resp_2"), [speak, reborn])

    play(scenario())


def test_only_its_supervisor_ends_a_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        *_, spec = chain_specs(tmp_path)
        async with workers(spec) as (one,):
            one.process.send_signal(signal.SIGINT)
            assert one.process.stdin is not None
            one.process.stdin.write(b"input that is not its end\n")
            await one.settle()
            one.process.terminate()
            assert await one.ended() == (0, "")

    play(scenario())
    assert not list(tmp_path.glob("*.sock"))


def test_a_worker_whose_step_hangs_still_ends_with_its_supervisor(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = WorkerSpec("sound", "vocoder", "hanging", f"unix:{tmp_path}/sound.sock", 1)
        async with workers(spec, module="tests.stages.hanging_worker") as (one,):
            one.order(OpenSession(SESSION, 1), Open(Tag(SESSION, 1, 1, "r"), ObserverOptions()))
            await one.told(SessionOpened)
            await one.told(Opened)
            status, said = await one.end()
            assert status == 1
            assert "step_hangs" in said

    play(scenario())
