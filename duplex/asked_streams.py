"""The streams that were asked for at a stage and are not over: what each waits for, and what waits for it.

Theory of operation
    A stream is *held* until its worker can be asked for it. Then the worker is to answer; control and media links have
    no common order, so what is fed to the stream waits here until it has. If the worker is lost before, or could not
    take it yet, the stream is held again, with its feeds.

Rules
* A stream is found by its whole tag: one of the same name that an earlier owner of the session had is another.
* What waits is bounded by `UNOPENED_FEEDS_MAX` for each stream.
* The time of a stream goes on while it is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from stages.contracts import Tag
from stages.messages import Feed, Open

UNOPENED_FEEDS_MAX = 256  # the encoder's credit of 2 s in 20 ms pieces, twice over


@dataclass(slots=True, eq=False)
class AskedStream:
    """`ordered_ns`: when it was asked for, with all the time that `open` says. `replica`: where it is to be, once that
    is decided. `begun`: its worker has answered. `unopened`: what is fed to it until then; None once it was cancelled
    or opened."""

    open: Open
    ordered_ns: int
    replica: str | None = None
    begun: bool = False
    unopened: list[Feed] | None = field(default_factory=list)

    @property
    def tag(self) -> Tag:
        return self.open.tag

    @property
    def is_pending(self) -> bool:
        """Its worker has not answered, and may still: it can be asked for elsewhere."""
        return self.unopened is not None

    def keep(self, feed: Feed) -> bool:
        """Let `feed` wait for the worker's answer; of a stream that was cancelled it is dropped. False where too much
        waits."""
        if self.unopened is None:
            return True
        if len(self.unopened) >= UNOPENED_FEEDS_MAX:
            return False
        self.unopened.append(feed)
        return True

    def cancel(self) -> None:
        """What waits for its worker's answer is not wanted any more."""
        self.unopened = None

    def begin(self) -> list[Feed]:
        """Its worker has answered. Gives what waited for that."""
        self.begun = True
        feeds, self.unopened = self.unopened or [], None
        return feeds

    def asked_at(self, now_ns: int, edges: tuple[str, ...]) -> Open:
        """What its worker is told: it hands over to the replicas `edges`, and has what is left of its time."""
        lasts_ns_max = self.open.lasts_ns_max
        if lasts_ns_max is not None:
            lasts_ns_max = max(0, lasts_ns_max - (now_ns - self.ordered_ns))
        return structs.replace(self.open, edges=edges, lasts_ns_max=lasts_ns_max)


class AskedStreams:
    """Those of one stage, by their names."""

    def __init__(self) -> None:
        self._streams: dict[str, AskedStream] = {}
        self._held: dict[str, AskedStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def count(self, session: str, key: str) -> int:
        """How many of `session` there are by the name of `key`; by any, where that is empty."""
        return sum(key in ("", stream.tag.key) for stream in self.of_session(session))

    @property
    def held(self) -> list[AskedStream]:
        """Those that no worker was asked for yet, in the order in which they came to be held."""
        return list(self._held.values())

    def ask(self, order: Open, now_ns: int) -> None:
        """`order` is new, and held."""
        self._streams[order.tag.key] = self._held[order.tag.key] = AskedStream(order, now_ns)

    def named(self, key: str) -> AskedStream:
        """Raises `KeyError` where there is none."""
        return self._streams[key]

    def of(self, tag: Tag) -> AskedStream | None:
        stream = self._streams.get(tag.key)
        return stream if stream is not None and stream.tag == tag else None

    def of_session(self, session: str) -> list[AskedStream]:
        return [stream for stream in self._streams.values() if stream.tag.session == session]

    def at(self, replica: str) -> list[AskedStream]:
        """Those that are at `replica`, or are to be."""
        return [stream for stream in self._streams.values() if stream.replica == replica]

    def is_held(self, stream: AskedStream) -> bool:
        return stream.tag.key in self._held

    def hold(self, stream: AskedStream) -> None:
        self._held[stream.tag.key] = stream

    def release(self, stream: AskedStream) -> None:
        """Its worker is asked for it."""
        del self._held[stream.tag.key]

    def forget(self, stream: AskedStream) -> None:
        """It is over."""
        self._held.pop(stream.tag.key, None)
        del self._streams[stream.tag.key]
