"""A stream's time goes on while it waits for a worker: who is asked is told what is left of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from duplex.stage_client import ClientCallbacks
from duplex.stage_pool import StagePool
from stages.messages import Feed, Frame, Open, Opened, OpenSession, Refused
from stages.pool import PoolLimits
from tests.duplex.pool_bench import NOBODY, S1, TAG, Behind, asked

LASTS_NS = 1_000
ROOMY = PoolLimits(works_max=16, wait_ns_max=10**9)


class Worker:
    """Links to a replica that hands on to `v1`, and what was ordered there."""

    def __init__(self) -> None:
        self.is_up = False
        self.onward = frozenset({"v1"})
        self.inward: frozenset[str] = frozenset()
        self.orders: list[Frame] = []

    def order(self, frame: Frame, /) -> None:
        self.orders.append(frame)

    def feed(self, feed: Feed, /) -> None:
        raise AssertionError("nothing is fed here")


class World:
    """A clock that stands still until it is set, and one replica, `a`."""

    def __init__(self, behind: Behind | None = None) -> None:
        self.time_ns = 5_000
        self.worker = Worker()
        onward: dict[str, StagePool] = {"vocoder": behind} if behind else {}
        self.pool = StagePool("talker", {"a": ""}, "gw_1", NOBODY, limits=ROOMY, onward=onward, surroundings=self)
        self.pool.order(OpenSession(S1, 5))

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Worker:
        self.callbacks = callbacks
        return self.worker

    def now_ns(self) -> int:
        return self.time_ns

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        pass

    def note(self, what: str, /, **about: str) -> None:
        pass

    def up(self, incarnation: int = 1) -> None:
        self.worker.is_up = True
        self.callbacks.up("a", incarnation)
        self.pool.open_waiting()

    def down(self) -> None:
        self.worker.is_up = False
        self.callbacks.down("a", 1)

    @property
    def times(self) -> list[int | None]:
        """What is left to each stream that the worker was asked for."""
        return [order.lasts_ns_max for order in self.worker.orders if isinstance(order, Open)]


def lasting(lasts_ns_max: int | None, *edges: str) -> Open:
    return structs.replace(asked(TAG, *edges), lasts_ns_max=lasts_ns_max)


@pytest.mark.parametrize(
    ("lasts_ns_max", "waits_ns", "left_ns"),
    [(LASTS_NS, 0, LASTS_NS), (LASTS_NS, 300, 700), (LASTS_NS, 1_001, 0), (None, 300, None)],
)
def test_a_stream_that_waits_for_a_worker_keeps_what_is_left_of_its_time(
    lasts_ns_max: int | None, waits_ns: int, left_ns: int | None
) -> None:
    world = World()
    world.pool.order(lasting(lasts_ns_max))
    world.time_ns += waits_ns
    world.up()
    assert world.times == [left_ns]


def test_so_does_one_that_waits_for_the_stage_behind() -> None:
    behind = Behind()
    behind.home = None
    world = World(behind)
    world.up()
    world.pool.order(lasting(LASTS_NS, "vocoder"))
    world.time_ns += 400
    behind.home = "v1"
    world.pool.open_waiting()
    assert world.times == [600]


def test_who_is_asked_again_gets_no_more_time() -> None:
    world = World()
    world.up()
    world.pool.order(lasting(LASTS_NS))
    world.pool.open_waiting()
    world.time_ns += 100
    world.callbacks.frame("a", Refused(TAG, "downstream_lost", "gone"))
    world.pool.open_waiting()
    world.time_ns += 200
    world.down()
    world.time_ns += 300
    world.up(2)
    assert world.times == [1_000, 900, 400]


def test_what_was_answered_is_not_asked_again() -> None:
    world = World()
    world.up()
    world.pool.order(lasting(LASTS_NS))
    world.pool.open_waiting()
    world.callbacks.frame("a", Opened(TAG))
    world.pool.open_waiting()
    assert world.times == [LASTS_NS]
