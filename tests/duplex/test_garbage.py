"""When the gateway collects cycles."""

from __future__ import annotations

import asyncio
import gc
import weakref

from duplex.garbage import CallGarbage


class Knot:
    """Knows itself, as the parts of a call know each other."""

    def __init__(self) -> None:
        self.me = self


def left_after(*still_on: int) -> list[bool]:
    """Of calls that end while so many others are on: whether the first one's knot is still there after each."""

    async def play() -> list[bool]:
        garbage, found = CallGarbage(), []
        knot = weakref.ref(Knot())
        for others in still_on:
            garbage.call_ended(others)
            await asyncio.sleep(0)
            found.append(knot() is not None)
        return found

    gc.disable()
    try:
        return asyncio.run(play())
    finally:
        gc.enable()


def test_the_end_of_the_only_call_frees_its_memory() -> None:
    assert left_after(0) == [False]


def test_beside_others_as_many_must_have_ended() -> None:
    assert left_after(3, 3, 3) == [True, True, False]


def test_the_count_begins_anew() -> None:
    garbage = CallGarbage()

    async def play() -> list[bool]:
        found = []
        knots = []
        for _ in range(4):
            knots.append(weakref.ref(Knot()))
            garbage.call_ended(2)
            await asyncio.sleep(0)
            found.append(all(knot() is None for knot in knots))
        return found

    gc.disable()
    try:
        assert asyncio.run(play()) == [False, True, False, True]
    finally:
        gc.enable()


def test_what_still_has_a_user_stays_while_it_is_told() -> None:
    async def play() -> tuple[bool, bool]:
        knot = Knot()
        here = weakref.ref(knot)
        CallGarbage().call_ended(0)
        held = here() is not None
        del knot
        await asyncio.sleep(0)
        return held, here() is None

    gc.disable()
    try:
        assert asyncio.run(play()) == (True, True)
    finally:
        gc.enable()
