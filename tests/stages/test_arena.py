"""The memory of an arena, written and read in one process: what lies there, what does not, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest

from stages.arena import Arena, ArenaView
from stages.block_table import ArenaError, BlockTable, Owner, TableSize
from stages.contracts import DataRef
from stages.messages import FrameError

OWNER, OTHER = Owner("task", "resp_1"), Owner("other", "resp_2")
MINE, ANOTHERS = b"mine" * 100, b"anothers" * 50


@pytest.fixture
def arena() -> Iterator[Arena]:
    one = Arena(BlockTable("talker", 3, TableSize(blocks=2, block_bytes=512)))
    yield one
    one.close()


@pytest.fixture
def view(arena: Arena) -> Iterator[ArenaView]:
    one = ArenaView(arena.offer, os.getpid())
    yield one
    one.close()


def placed(arena: Arena, payload: bytes, owner: Owner = OWNER) -> DataRef:
    ref = arena.table.acquire(owner, len(payload))
    assert ref is not None
    arena.write(ref, payload)
    assert arena.table.written(ref)
    arena.table.lease(ref, 1, 0)
    return ref


def test_what_was_written_is_read(arena: Arena, view: ArenaView) -> None:
    refs = [placed(arena, payload) for payload in (MINE, ANOTHERS)]
    assert [view.read(ref) for ref in refs] == [MINE, ANOTHERS]


@pytest.mark.parametrize("size", [0, 1, 512])
def test_a_block_holds_from_nothing_to_all_of_it(arena: Arena, view: ArenaView, size: int) -> None:
    full = placed(arena, b"\xff" * 512)
    payload = os.urandom(size)
    assert view.read(placed(arena, payload)) == payload
    assert view.read(full) == b"\xff" * 512


def test_a_block_that_is_used_again_is_stale_by_its_old_name(arena: Arena, view: ArenaView) -> None:
    ref = placed(arena, MINE)
    assert arena.table.release(ref, 1)
    again = placed(arena, ANOTHERS, OTHER)
    assert again.block == ref.block
    assert view.read(ref) is None
    assert view.read(again) == ANOTHERS


def test_a_block_that_is_used_again_amid_the_copy_is_stale(arena: Arena) -> None:
    ref = placed(arena, MINE)

    class Slow(ArenaView):
        def _copy(self, start: int, end: int) -> bytes:
            assert arena.table.release(ref, 1)
            placed(arena, ANOTHERS, OTHER)
            return super()._copy(start, end)

    view = Slow(arena.offer, os.getpid())
    assert view.read(ref) is None
    view.close()


def test_a_block_that_is_being_written_is_stale_by_its_old_name_from_the_first_byte_on(
    arena: Arena, view: ArenaView
) -> None:
    """The word is set first: who copies amid the write would else take half of it for the payload before."""
    ref = placed(arena, MINE)
    assert arena.table.release(ref, 1)
    again = arena.table.acquire(OTHER, len(ANOTHERS))
    assert again is not None
    with pytest.raises(ValueError, match="different structures"):
        arena.write(again, ANOTHERS[1:])  # breaks off between the word and the bytes
    assert view.read(ref) is None


@pytest.mark.parametrize("changed", [{"worker": "vocoder"}, {"incarnation": 2}, {"generation": 9}])
def test_the_name_of_another_arena_or_use_is_stale(arena: Arena, view: ArenaView, changed: dict[str, object]) -> None:
    assert view.read(msgspec.structs.replace(placed(arena, MINE), **changed)) is None


@pytest.mark.parametrize("changed", [{"block": 2}, {"block": -1}, {"length": 513}, {"length": -1}])
def test_what_is_outside_the_arena_is_refused(arena: Arena, view: ArenaView, changed: dict[str, object]) -> None:
    ref = msgspec.structs.replace(placed(arena, MINE), **changed)
    with pytest.raises(FrameError, match="outside the arena of talker"):
        view.read(ref)


def test_what_is_no_arena_is_refused(arena: Arena) -> None:
    for offer in (
        msgspec.structs.replace(arena.offer, nonce=bytes(16)),
        msgspec.structs.replace(arena.offer, fd=9_999),
        msgspec.structs.replace(arena.offer, blocks=1_000),
    ):
        with pytest.raises(ArenaError, match="talker"):
            ArenaView(offer, os.getpid())


def test_nobody_can_change_its_size(arena: Arena) -> None:
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.offer.fd, size)


def test_a_reader_cannot_write(view: ArenaView) -> None:
    with pytest.raises(TypeError):
        view._bytes[0] = 1


def test_a_reader_keeps_what_it_has_mapped(arena: Arena) -> None:
    gone = Arena(BlockTable("gone", 1, TableSize(blocks=1, block_bytes=512)))
    ref = placed(gone, MINE)
    view = ArenaView(gone.offer, os.getpid())
    gone.close()
    assert view.read(ref) == MINE
    view.close()
