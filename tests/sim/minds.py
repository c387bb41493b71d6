"""The Thinker of a simulated world that keeps KV, in fewer places than there are calls.

Theory of operation
    A reply takes a place, reads what of its prompt is not there yet, a message or two at a step, and then says what its
    script says. Where reading takes long it says so, and takes words that bridge it. A prefill reads what it is given,
    as long as no reply of its session is being made.

Rules
* What is found in a place was read for the same session.
* Nothing of a reply is said before all of its prompt was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stages.contracts import (
    Clause,
    Filler,
    Item,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Reading,
    Tag,
    TextDelta,
    ThinkerOptions,
)
from stages.kv_cache import Claim, KvCache, KvLimits
from stages.stream import Emit, Output, Publish, StageFailure, StageModel, StageStream, Step, StepContext
from tests.sim.clock import MS, Clock

MESSAGES_PER_STEP = 2
MESSAGE_NS = 150 * MS  # what it is believed to take, which is more than it does
IDLE_NS_MAX = 2_000 * MS

Messages = tuple[Message, ...]


@dataclass(slots=True)
class _Kv:
    """What of whose prompt was read."""

    session: str = ""
    messages: Messages = ()

    def cached(self, messages: Messages) -> int:
        pairs = enumerate(zip(self.messages, messages, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(self.messages), len(messages)))


@dataclass(frozen=True, slots=True)
class _Read:
    messages: Messages
    count: int
    kind: str = "prefill"
    urgency: int = 0
    units: int = 0

    def run(self, context: StepContext) -> object:
        return self


class Mind:
    """The model; `talk` has the scripts of its replies."""

    concurrency = 1
    revision = "mind"

    def __init__(self, talk: StageModel, places: int, clock: Clock, counts: Counter[str]) -> None:
        self._talk = talk
        self._clock = clock
        self.counts = counts
        self.kv = KvCache(KvLimits(places, idle_ns_max=IDLE_NS_MAX), lambda _: _Kv(), model=self.revision)
        self.replies = Counter[str]()  # that are being made, by session

    def open_session(self, session: str) -> None:
        self.kv.open(session)

    def close_session(self, session: str) -> None:
        self.kv.close(session)

    def kept_for(self, session: str) -> dict[str, int]:
        return {"kv": self.kv.kept_for(session)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        if not self.kv.knows(tag.session):
            raise StageFailure("unknown_session", "the session was not opened here")
        if isinstance(options, PrefillOptions):
            return _Ahead(_Place(self, tag.session, self.kv.claim(tag.session, ahead=True)))
        assert isinstance(options, ThinkerOptions), "a Thinker reads ahead, or replies"
        said = self._talk.open(tag, options)
        if options.spare:
            return said
        place = _Place(self, tag.session, self.kv.claim(tag.session))
        self.replies[tag.session] += 1
        return _Reply(place, options.messages, said)

    def now(self) -> None:
        self.kv.at(self._clock.now_ns)

    def close(self) -> None:
        self._talk.close()


@dataclass(slots=True)
class _Place:
    """A stream's use of the cache."""

    mind: Mind
    session: str
    claim: Claim[_Kv]

    def take(self) -> _Kv | None:
        self.mind.now()
        kv = self.mind.kv.take(self.claim)
        if kv is not None:
            assert kv.session in ("", self.session), f"{self.session} is given the KV of {kv.session}"
            kv.session = self.session
        return kv

    def read(self, kv: _Kv, step: _Read) -> None:
        kv.messages = step.messages[: kv.cached(step.messages) + step.count]
        self.mind.kv.step_over(self.claim, len(kv.messages), step.count)

    def rest(self) -> None:
        self.mind.now()
        self.mind.kv.release(self.claim)


@dataclass(slots=True)
class _Ahead:
    place: _Place
    newest: Messages = ()
    kv: _Kv = field(default_factory=_Kv)
    planned: _Read | None = None
    finished: bool = False

    def feed(self, item: Item) -> Sequence[Output]:
        assert isinstance(item, Prompt), "who reads ahead is fed prompts"
        self.newest = item.messages
        return ()

    def next_step(self) -> Step | None:
        if self.planned is None and self.newest:
            self.planned = self._plan()
        return self.planned

    def _plan(self) -> _Read | None:
        if self.place.mind.replies[self.place.session]:
            self.place.rest()
            return None
        kv = self.place.take()
        if kv is None:
            return None
        left = len(self.newest) - kv.cached(self.newest)
        if not left:
            self.newest = ()
            self.place.rest()
            return None
        self.kv = kv
        return _Read(self.newest, min(left, MESSAGES_PER_STEP), urgency=2)

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, _Read)
        self.planned = None
        self.place.read(self.kv, result)
        return ()

    def held(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.place.rest()


@dataclass(slots=True)
class _Reply:
    """`left`: messages to be read, once there is a place. `ahead`: clauses that bridged the reading."""

    place: _Place
    messages: Messages
    said: StageStream
    kv: _Kv | None = None
    left: int = 0
    ahead: int = 0
    has_told: bool = False
    has_begun: bool = False

    @property
    def finished(self) -> bool:
        return self.said.finished

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Filler):
            return self.said.feed(item)
        if self.has_begun:
            return ()
        self.place.mind.counts["words that bridge reading"] += 1
        self.ahead += 1
        clause = Clause(self.ahead - 1, item.text, final=False)
        return [Publish(TextDelta(f"{item.text} ", filler=True)), Emit(clause, max(1, len(item.text)))]

    def next_step(self) -> Step | None:
        if self.kv is None:
            self.kv = self.place.take()
            if self.kv is None:
                return None
            cached = self.kv.cached(self.messages)
            self.kv.messages = self.messages[:cached]  # what is there beyond it was read in vain
            self.left = len(self.messages) - cached
            self.place.mind.counts["prompts read on" if cached else "prompts read anew"] += 1
        return _Read(self.messages, min(self.left, MESSAGES_PER_STEP)) if self.left else self.said.next_step()

    def finish_step(self, result: object) -> Sequence[Output]:
        if not isinstance(result, _Read):
            self.has_begun = True
            assert self.kv is not None and self.kv.messages == self.messages, "all of the prompt was read"  # noqa: PT018
            return [self._behind(output) for output in self.said.finish_step(result)]
        assert self.kv is not None, "a step had a place"
        self.place.read(self.kv, result)
        self.left -= result.count
        if self.has_told or not self.left:
            return ()
        self.has_told = True
        return [Publish(Reading(self.left, self.left * MESSAGE_NS))]

    def _behind(self, output: Output) -> Output:
        if not (self.ahead and isinstance(output, Emit) and isinstance(output.item, Clause)):
            return output
        clause = output.item
        text = f" {clause.text}" if clause.text and not clause.index else clause.text
        return Emit(Clause(clause.index + self.ahead, text, clause.final), max(1, len(text)))

    def held(self) -> dict[str, int]:
        return self.said.held()

    def close(self) -> None:
        self.said.close()
        self.place.rest()
        self.place.mind.replies[self.place.session] -= 1
