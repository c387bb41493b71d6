"""Gathers what comes in chunks for a consumer that wants more: the growing prefix, or the complete value.

Theory of operation
    A `Gathering` stands between one in-edge of a stream and its engine. What it gives is an item like those that came,
    from the beginning of the response: with each chunk where the prefix is wanted, once where the complete value is.
    A response that ends early is *cut*: its sound at what was sent, which may still be on its way here, its text where
    it stands; the engine then gets that as the last it will get.

Rules
* It gives one item that is final, and nothing after it.
* It holds no more than the edge's window, which is reserved while the stream is open.
"""

from __future__ import annotations

from typing import Protocol

from stages.contracts import AudioOut, Clause, Item, Payload
from stages.edges import InEdge
from stages.stream import StageFailure

BYTES_PER_SAMPLE = 2


class _Parts(Protocol):
    """The parts of one value. `add` raises `StageFailure` for what does not follow; `limit` bounds the value, and
    says whether all of it is there."""

    def add(self, item: Item) -> bool: ...
    def limit(self, samples: int) -> bool: ...
    def whole(self, *, final: bool) -> Item: ...


class _Text:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, item: Item) -> bool:
        assert isinstance(item, Clause), "edges of clauses carry clauses"
        if item.index != len(self._parts):
            raise StageFailure("broken_input", f"clause {item.index} after {len(self._parts)} clauses")
        self._parts.append(item.text)
        return item.final

    def limit(self, samples: int) -> bool:  # noqa: ARG002 - the text of what was sent came before its sound
        return True

    def whole(self, *, final: bool) -> Item:
        return Clause(0, "".join(self._parts), final)


class _Sound:
    def __init__(self) -> None:
        self._pcm = bytearray()
        self._sample_rate = 0
        self._limit: int | None = None

    @property
    def _samples(self) -> int:
        return len(self._pcm) // BYTES_PER_SAMPLE

    def add(self, item: Item) -> bool:
        assert isinstance(item, AudioOut), "edges of audio carry chunks of audio"
        if item.start_sample != self._samples or len(item.pcm) % BYTES_PER_SAMPLE:
            raise StageFailure("broken_input", f"{len(item.pcm)} bytes at {item.start_sample} after {self._samples}")
        self._pcm += item.pcm
        self._sample_rate = item.sample_rate
        return item.final or self._is_all_there

    def limit(self, samples: int) -> bool:
        self._limit = samples
        return self._is_all_there

    @property
    def _is_all_there(self) -> bool:
        return self._limit is not None and self._samples >= self._limit

    def whole(self, *, final: bool) -> Item:
        end = None if self._limit is None else self._limit * BYTES_PER_SAMPLE
        return AudioOut(0, self._sample_rate, 0, bytes(self._pcm[:end]), final)


_PARTS: dict[Payload, type[_Text | _Sound]] = {"clauses": _Text, "audio": _Sound}


class Gathering:
    """One in-edge, which needs the prefix or the complete value, of one stream."""

    def __init__(self, edge: InEdge) -> None:
        self._edge = edge
        self._parts: _Parts = _PARTS[edge.payload]()
        self._units = 0
        self._given = False

    @property
    def units(self) -> int:
        """What is held for the engine, in the edge's unit; 0 once it has been given."""
        return 0 if self._given else self._units

    def add(self, item: Item, units: int) -> Item | None:
        """Take the next chunk; gives what the engine is to have now. Raises `StageFailure`."""
        if self._given:
            return None
        self._units += units
        if self._units > self._edge.window:
            raise StageFailure("maximum_exceeded", f"more {self._edge.payload} than the {self._edge.window} reserved")
        final = self._parts.add(item)
        return self._give(final=final) if final or self._edge.need == "prefix" else None

    def cut(self, samples: int) -> Item | None:
        """The response ended when `samples` of its sound had been sent; gives the value where all of it is there."""
        if self._given or not self._parts.limit(samples):
            return None
        return self._give(final=True)

    def _give(self, *, final: bool) -> Item:
        self._given = final
        return self._parts.whole(final=final)
