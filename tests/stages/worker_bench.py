"""A worker of puppets in this process, and the links to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.block_table import BLOCKS
from stages.contracts import ObserverOptions, Tag
from stages.edges import GATEWAY, OutEdge
from stages.messages import LINK_VERSION, Frame, Hello, Open, Opened, OpenSession, SessionOpened, Welcome
from stages.stream import StepContext
from stages.worker import Worker, WorkerSpec
from tests.stages.link_bench import WAIT_S_MAX, End, Listener
from tests.stages.puppet import PuppetModel, PuppetStep

NEXT = "next"
ONWARD = {"target": NEXT, "payload": "clauses", "window": 320}
SAMPLES_MAX = 1 << 20
TAG = Tag("s", 1, 1, "r")
WELCOME = Welcome(LINK_VERSION, "next", 1, "rev", ())
HELLO = Hello(LINK_VERSION, "control", "gw_1")


@dataclass(frozen=True, slots=True)
class ThreadStep(PuppetStep):
    """Runs `work` on the engine thread."""

    work: Callable[[StepContext], None] = lambda _: None

    def run(self, context: StepContext) -> object:
        self.work(context)
        return self


class Running:
    """A worker of puppets that serves on `address`."""

    def __init__(
        self,
        folder: Path,
        *,
        onward: str = "",
        onward_window: int = 0,
        edges: tuple[OutEdge, ...] = (),
        model: PuppetModel | None = None,
        arena_blocks: int = BLOCKS,
    ) -> None:
        self.address = f"unix:{folder}/stage.sock"
        self.path = folder / "stage.sock"
        self.model = model or PuppetModel()
        edges = edges or ((OutEdge(NEXT, "clauses", onward_window, {NEXT: onward}),) if onward else ())
        edges = (*edges, OutEdge(GATEWAY, "audio", SAMPLES_MAX))
        spec = WorkerSpec("stage", "talker", "puppet", self.address, 3, edges=edges, arena_blocks=arena_blocks)
        self.worker = Worker(spec, self.model)
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.ends: list[End] = []
        self.media = End()

    async def serve(self) -> None:
        await self.worker.serve(self.ready.set, self.stopped)

    async def link(self, *frames: Frame) -> End:
        """A link on which `frames` are sent at once."""
        end = End()
        await end.connect(self.address)
        self.ends.append(end)
        for frame in frames:
            end.link.send(frame)
        return end

    async def gateway(self, *, onward: bool = False) -> End:
        """A control link with one session and one stream open; its media link is `media`."""
        self.media = await self.link(Hello(LINK_VERSION, "media", "gw_1"))
        assert isinstance(await self.media.frame(), Welcome)
        end = await self.link(HELLO, OpenSession("s", 1), Open(TAG, ObserverOptions(), (NEXT,) if onward else ()))
        assert isinstance(await end.frame(), Welcome)
        assert [await end.frame() for _ in range(2)] == [SessionOpened("s"), Opened(TAG)]
        return end

    def plan(self, *steps: PuppetStep, ends: bool = True) -> None:
        stream = self.model.streams[TAG.key]
        stream.steps.extend(steps)
        stream.ends = ends


def is_stages_hello(frame: Frame) -> bool:
    """It offers an arena as well, of its own process."""
    offered = isinstance(frame, Hello) and frame.arena is not None and (frame.arena.worker, frame.arena.incarnation)
    return isinstance(frame, Hello) and (frame.role, frame.name, offered) == ("data", "stage/3", ("stage", 3))


@asynccontextmanager
async def greeting(listener: Listener) -> AsyncIterator[asyncio.Task[End]]:
    """Play the next stage for the first link to it, which it gives once it was greeted."""

    async def greet() -> End:
        end = await listener.accepted()
        assert is_stages_hello(await end.frame())
        end.link.send(WELCOME)
        return end

    yield asyncio.create_task(greet())


@asynccontextmanager
async def running(
    folder: Path,
    *,
    onward: str = "",
    onward_window: int = 0,
    model: PuppetModel | None = None,
    arena_blocks: int = BLOCKS,
) -> AsyncIterator[Running]:
    """Serve until the block ends; then nothing may be left."""
    one = Running(folder, onward=onward, onward_window=onward_window, model=model, arena_blocks=arena_blocks)
    serving = asyncio.create_task(one.serve())
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            await one.ready.wait()
            yield one
            one.stopped.set()
            await serving
        for end in one.ends:
            await end.end()
        assert not one.path.exists()
    finally:
        serving.cancel()
