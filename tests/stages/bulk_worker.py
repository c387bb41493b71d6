"""`python -m stages.worker` with one more engine, `bulk`: a talker of large pieces, a vocoder that tells their digests.

A clause asks the talker for as many pieces as its index says.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence

from stages import worker
from stages.contracts import Clause, Item, Latents, Options, Tag, TextDelta
from stages.engines import registry
from stages.stream import Consumed, Emit, Output, Publish, StageStream
from tests.stages.puppet import PuppetModel, PuppetStep, PuppetStream

PIECE_BYTES = 200_000


def piece(tag: Tag, number: int) -> bytes:
    """Like no other piece of any stream."""
    seed = hashlib.sha256(f"{tag.key}/{number}".encode()).digest()
    return (seed * (PIECE_BYTES // len(seed) + 1))[:PIECE_BYTES]


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


class BulkStream(PuppetStream):
    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case Clause(index=count):
                emits = [Emit(Latents(n, 1, piece(self.tag, n)), 1) for n in range(count)]
                self.steps.extend(PuppetStep((emit,)) for emit in emits)
                return ()
            case Latents(data=data):
                return Consumed(1), Publish(TextDelta(digest(data)))
        raise AssertionError("only clauses and latents are fed")


class BulkModel(PuppetModel):
    def open(self, tag: Tag, options: Options) -> StageStream:
        self.streams[tag.key] = BulkStream(tag, options)
        return self.streams[tag.key]


def build(_: Mapping[str, object]) -> BulkModel:
    return BulkModel()


if __name__ == "__main__":
    for kind in ("talker", "vocoder"):
        registry._BUILDERS["bulk", kind] = "tests.stages.bulk_worker:build"
    sys.exit(worker.main())
