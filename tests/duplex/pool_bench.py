"""A pool whose workers are played frame by frame over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from duplex.stage_pool import (
    PoolCallbacks,
    StagePool,
)
from duplex.tasks import stop_task
from stages.contracts import Clause, Tag, TalkerOptions
from stages.messages import (
    LINK_VERSION,
    Feed,
    Frame,
    Hello,
    Open,
    Opened,
    OpenSession,
    Welcome,
)
from stages.pool import PoolLimits
from tests.duplex.test_stage_client import Told
from tests.stages.link_bench import WAIT_S_MAX, End, Listener

S1, S2 = "sess_1", "sess_2"
TAG = Tag(S1, 1 << 20, 1, "resp_1")
# Told of everything, and interested in nothing.
NOBODY = PoolCallbacks(
    frame=lambda _stage, _frame: None,
    lost=lambda _stage, _tag: None,
    untouched=lambda _tag: True,
    changed=lambda: None,
    reachable=lambda _stage, _replica, _up: None,
)
ROOMY = PoolLimits(works_max=16, wait_ns_max=60_000_000_000)


def tag(number: int, session: str = S1) -> Tag:
    return Tag(session, 1 << 20, 1, f"resp_{number}")


def asked(of: Tag = TAG, *edges: str) -> Open:
    return Open(of, TalkerOptions(), edges)


def feed(number: int, of: Tag = TAG) -> Feed:
    return Feed(of, Clause(number, "word"), 4)


class Worker:
    """Both ends of one connection, at the worker."""

    def __init__(self, media: End, control: End) -> None:
        self.media = media
        self.control = control

    def welcome(self, name: str, incarnation: int, onward: tuple[str, ...], inward: tuple[str, ...]) -> None:
        for end in (self.media, self.control):
            end.link.send(Welcome(LINK_VERSION, name, incarnation, "rev", onward, inward))

    async def orders(self, count: int = 1) -> list[Frame]:
        return [await self.control.frame() for _ in range(count)]

    def says(self, *frames: Frame) -> None:
        for frame in frames:
            self.control.link.send(frame)

    async def die(self) -> None:
        for end in (self.control, self.media):
            if not end.lost.is_set():
                await end.abort()


class Bench:
    """The pool of a stage, `talker`, whose streams may hand over to the stage `behind`; nobody plays that one."""

    def __init__(
        self, listeners: dict[str, Listener], limits: PoolLimits, behind: dict[str, StagePool] | None = None
    ) -> None:
        self.listeners = listeners
        self.told = Told()
        self.touched: set[Tag] = set()  # something of these was seen at other stages
        callbacks = PoolCallbacks(
            self.told.tell,
            lambda stage, of: self.told.tell(f"{stage} lost", of),
            lambda of: of not in self.touched,
            self._changed,
            lambda stage, replica, up: self.told.tell(f"{stage} {replica}", up),
        )
        addresses = {name: listener.address for name, listener in listeners.items()}
        self.pool = StagePool("talker", addresses, "gw_1", callbacks, limits=limits, onward=behind)

    def _changed(self) -> None:
        self.pool.open_waiting()

    async def worker(
        self, name: str = "a", incarnation: int = 1, onward: tuple[str, ...] = (), inward: tuple[str, ...] = ()
    ) -> Worker:
        """The next connection to the replica `name`, which introduces itself."""
        media = await self.listeners[name].accepted()
        assert await media.frame() == Hello(LINK_VERSION, "media", "gw_1")
        control = await self.listeners[name].accepted()
        assert await control.frame() == Hello(LINK_VERSION, "control", "gw_1")
        worker = Worker(media, control)
        self.told.log = [one for one in self.told.log if one != (f"talker {name}", True)]
        worker.welcome(name, incarnation, onward, inward)
        await self.told.until(f"talker {name}", True)
        return worker

    async def begun(self) -> Worker:
        """A worker that has answered for `TAG`."""
        worker = await self.worker()
        self.pool.order(OpenSession(S1, 5))
        self.pool.order(asked())
        worker.says(Opened(TAG))
        await self.told.until("talker", Opened(TAG))
        return worker

    async def dies(self, worker: Worker, name: str = "a") -> None:
        await worker.die()
        await self.told.until(f"talker {name}", False)

    @property
    def heard(self) -> list[Frame]:
        """The frames that went on to the calls."""
        return [frame for what, frame in self.told.log if what == "talker" and isinstance(frame, Frame)]

    @property
    def lost(self) -> list[object]:
        return [of for what, of in self.told.log if what == "talker lost"]


@asynccontextmanager
async def bench(
    folder: Path, *names: str, limits: PoolLimits = ROOMY, behind: dict[str, StagePool] | None = None
) -> AsyncIterator[Bench]:
    names = names or ("a",)
    listeners = {name: Listener(f"unix:{folder}/{name}") for name in names}
    async with asyncio.timeout(WAIT_S_MAX):
        for listener in listeners.values():
            await listener.__aenter__()
        one = Bench(listeners, limits, behind)
        running = [asyncio.create_task(client.run()) for client in one.pool.clients]
        try:
            yield one
        finally:
            for task in running:
                await stop_task(task)
            for listener in listeners.values():
                await listener.__aexit__()


class Behind(StagePool):
    """The next stage, of whose replicas those in `up` are there; sessions live at `home`."""

    def __init__(self) -> None:
        super().__init__("vocoder", {}, "gw_1", NOBODY, limits=ROOMY)
        self.home: str | None = "v1"
        self.up = frozenset({"v1"})
        self.heard = True  # each has the links of all stages before

    def replica_of(self, session: str) -> str | None:
        return self.home

    def hears(self, replica: str, source: str) -> bool:
        return self.heard

    @property
    def replicas_up(self) -> frozenset[str]:
        return self.up
