"""One call of the plan: the replies are cut where it says, and the sound that was played is kept.

Theory of operation
    `Line` is what a call needs of a caller, whichever the transport: `tests.live.coded_caller.CodedCaller` is one, and
    `tests.live.coded_rtc_caller.RtcLine`. A call runs in a thread of its own and waits for nothing but its line.

Rules
* A reply that is cut by voice is followed by the answer to that; any other by one that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.heard_error.plan import CallPlan, Cut
from tests.live.caller import Message

WORDS = 8  # of each reply
REPLY_MS = WORDS * 200
BEFORE_MS = 300  # from the response's beginning; its first sound comes after about 200
END_MS = 300
FINISH_MS = 1_000  # who does not hang up amid a reply waits for what is under way
ANSWER_MS_MAX = 20_000


class Line(Protocol):
    """A caller. `rate`: samples per second of its sound, PCM16."""

    rate: int
    events: list[Message]

    def send(self, kind: str, **fields: Any) -> None: ...

    def type_text(self, text: str, **fields: Any) -> None: ...

    def listen_for(self, ms: int) -> None: ...

    def hear_until(self, wanted: Callable[[], bool], ms_max: int) -> bool: ...

    @property
    def unplayed_ms(self) -> int: ...

    def flush(self) -> None: ...

    def speak(self, until: Callable[[], bool]) -> None: ...

    def hang_up(self) -> bytes: ...

    def stale_samples(self, response: str) -> int: ...


class NoAnswerError(Exception):
    """The service has not said in time what the call waits for."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A reply that was cut, or was to be: it may have been over before.

    `stop_ms`: from the deed to its last sample; `cleared_sample`: from where on in the recording, at the ear's rate,
    nothing of it may be heard. None: not known. `late`: the machine did not keep up then, of which the service need not
    be the cause.
    """

    response: str
    item: str
    cut: Cut
    stale_samples: int
    stop_ms: float | None = None
    cleared_sample: int | None = None
    late: bool = False


@dataclass(slots=True)
class CallHeard:
    """`pcm` at `rate` is what was played in the call. `resume_token`: the session's id alone where there is none."""

    plan: CallPlan
    resume_token: str
    rate: int
    pcm: bytes = b""
    replies: list[Spoken] = field(default_factory=list)


class Conversing:
    """One call over `line`."""

    def __init__(self, line: Line, plan: CallPlan) -> None:
        self._line = line
        self._plan = plan
        self._asks = True

    def run(self) -> CallHeard:
        """Carry the plan out. Raises `NoAnswerError`."""
        line = self._line
        session = line.events[0]["session"]
        heard = CallHeard(self._plan, session.get("resume_token", session["id"]), line.rate)
        begun = []
        for cut in self._plan.cuts:
            begun.append((self._begin(), cut))
            self._wait_for(begun[-1][0], cut)
            if cut.deed != "hang_up":
                self._cut(begun[-1][0], cut)
        if self._plan.cuts[-1].deed != "hang_up":
            line.listen_for(line.unplayed_ms + FINISH_MS)
        heard.pcm = line.hang_up()
        heard.replies = [self._spoken(number, one, cut) for number, (one, cut) in enumerate(begun)]
        return heard

    def _spoken(self, _number: int, response: str, cut: Cut) -> Spoken:
        return Spoken(response, self._item(response), cut, self._line.stale_samples(response))

    # ---- replies -------------------------------------------------------------------------------------

    def _begin(self) -> str:
        """The next reply, which may have begun: what was said in pieces may be answered twice."""
        begun, refused = self._number_of("response.created"), self._number_of("error")
        if self._asks:
            self._line.type_text("Tell me everything.")
            self._line.send("response.create")
            self._until(lambda: self._number_of("response.created") > begun or self._number_of("error") > refused)
        self._until(lambda: self._number_of("response.output_item.added") == self._number_of("response.created"))
        created = [event for event in self._line.events if event["type"] == "response.created"]
        name: str = created[-1]["response"]["id"]
        return name

    def _wait_for(self, response: str, cut: Cut) -> None:
        line = self._line
        if cut.moment == "before":
            line.listen_for(round(cut.share * BEFORE_MS))
        elif cut.moment == "after_done":
            self._until(lambda: self._is_done(response))
            line.listen_for(round(cut.share * line.unplayed_ms))
        else:
            self._until(lambda: self._has_begun(response))
            at_ms = cut.share * REPLY_MS if cut.moment == "inside" else REPLY_MS + (cut.share - 1) * END_MS
            line.listen_for(round(at_ms))

    def _cut(self, response: str, cut: Cut) -> None:
        line, begun = self._line, self._number_of("response.created")
        self._asks = cut.deed != "speak"
        if cut.deed == "speak":
            onsets = self._number_of("input_audio_buffer.speech_started")
            line.speak(lambda: self._number_of("input_audio_buffer.speech_started") > onsets)
            self._until(lambda: self._number_of("response.created") > begun)
        elif cut.deed == "clear":
            line.flush()
            line.send("output_audio_buffer.clear")
        elif cut.deed == "key":
            self._press()
        else:
            if cut.deed == "stop":
                line.flush()
            line.send("response.cancel", response_id=response)
        self._until(lambda: self._is_done(response))
        # What was sent before has arrived, and been answered, when this is.
        updated = self._number_of("session.updated")
        line.send("session.update", session={"type": "realtime"})
        self._until(lambda: self._number_of("session.updated") > updated)

    def _press(self) -> None:
        raise NotImplementedError("only telephones have keys")

    # ---- what was told -------------------------------------------------------------------------------

    def _until(self, wanted: Callable[[], bool]) -> None:
        if not self._line.hear_until(wanted, ANSWER_MS_MAX):
            told = [event["type"] for event in self._line.events[-10:]]
            raise NoAnswerError(f"{self._plan} waited in vain; the last that was told: {told}")

    def _number_of(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self._line.events)

    def _is_done(self, response: str) -> bool:
        return any(e["type"] == "response.done" and e["response"]["id"] == response for e in self._line.events)

    def _has_begun(self, response: str) -> bool:
        kinds = ("response.output_audio.delta", "output_audio_buffer.started")
        sounds = any(e["type"] in kinds and e["response_id"] == response for e in self._line.events)
        return sounds or self._is_done(response)

    def _item(self, response: str) -> str:
        added = (e for e in self._line.events if e["type"] == "response.output_item.added")
        item: str = next(event["item"]["id"] for event in added if event["response_id"] == response)
        return item
