"""What a gateway has asked of one stage worker: what waits, what is sent where, and what becomes of it with the worker.

Theory of operation
    Orders go out on the control link, feeds on the media link. As two links keep no common order, feeds for a stream
    wait here until the worker has said `Opened`. A stream that is asked for while the worker, or the one behind it, is
    away is opened when that is back; whoever asked has a deadline. All else that is ordered meanwhile is void with what
    it was about: the session is opened anew at the worker's return.

    The worker is there once it has welcomed both links: what a stream publishes needs the media link.
    `Up` is carried out first, since it opens sessions; `released` then gives the streams that have waited.

Rules
* A worker with a higher incarnation is a new process: all that was open at the old one is gone for certain. One with a
  lower incarnation than was seen is the past, and is not listened to.
* What waits for `Opened` is bounded by `UNOPENED_FEEDS_MAX` per stream; it stands there for about a millisecond,
  or for as long as a worker takes to be restarted.
* A held stream that is cancelled is answered with `Closed`, as the worker would have done.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.contracts import Item, Tag
from stages.messages import Cancel, Closed, Feed, Frame, OnwardChanged, Open, Opened, Refused, Welcome

LINKS = 2  # control and media
UNOPENED_FEEDS_MAX = 256  # the encoder's credit of 2 s in 20 ms pieces, twice over
HELD_OPENS_MAX = 256  # more than one response and one turn of every call
DOWNSTREAM_LOST = "downstream_lost"
# The loss of a stage is seen by us and by its neighbours: whoever tells first, it is the same fault.
SAME_LOSS = {DOWNSTREAM_LOST: "stage_lost", "upstream_lost": "stage_lost"}


class StageUnresponsiveError(RuntimeError):
    """A worker did not answer `Open` while far more than a moment's input came in for it."""


@dataclass(frozen=True, slots=True)
class SendControl:
    frame: Frame


@dataclass(frozen=True, slots=True)
class SendMedia:
    frame: Frame


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the call that `frame` is about."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class TellLater:
    """As `Tell`, once the effects are carried out of which this order is one."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Up:
    """The worker can be used again; `reborn`: as a new process."""

    reborn: bool


@dataclass(frozen=True, slots=True)
class Down:
    """The worker cannot be used."""


@dataclass(frozen=True, slots=True)
class DropLinks:
    """Give these links up, and look for the worker again."""


Effect = SendControl | SendMedia | Tell | TellLater | Up | Down | DropLinks


class StagePort:
    """`stage` names it in errors."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._is_up = False
        self._welcomes = 0
        self._onward_up = False
        self._incarnation = -1
        self._unopened: dict[str, list[Feed]] = {}
        self._held: dict[str, Open] = {}
        self._asked: dict[str, Open] = {}

    @property
    def ready(self) -> bool:
        """Streams can be opened, through to the last stage behind this one."""
        return self._is_up and self._onward_up

    @property
    def incarnation(self) -> int:
        """That of the last worker that was there; -1: none was yet."""
        return self._incarnation

    @property
    def held(self) -> int:
        """How many streams wait to be opened."""
        return len(self._held)

    # ---- from the worker -------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome) -> list[Effect]:
        """The worker has answered on one of its links."""
        if welcome.incarnation < self._incarnation:
            return [DropLinks()]
        self._welcomes += 1
        if self._welcomes < LINKS:
            return []
        reborn = 0 <= self._incarnation < welcome.incarnation
        self._incarnation = welcome.incarnation
        self._is_up, self._onward_up = True, welcome.onward_up
        return [Up(reborn)]

    def lost(self) -> list[Effect]:
        """One of the links is gone, and the other is dropped with it."""
        was_up, self._is_up, self._welcomes = self._is_up, False, 0
        self._asked.clear()
        self._unopened = {key: feeds for key, feeds in self._unopened.items() if key in self._held}
        return [Down()] if was_up else []

    def frame(self, frame: Frame) -> list[Effect]:
        """The worker has sent `frame`."""
        match frame:
            case OnwardChanged(up):
                self._onward_up = up
                return self.released()
            case Opened(tag):
                self._asked.pop(tag.key, None)
                waiting = self._unopened.pop(tag.key, [])
                return [*(SendMedia(feed) for feed in waiting), Tell(frame)]
            case Refused(tag, code):
                asked = self._asked.pop(tag.key, None)
                if code == DOWNSTREAM_LOST and asked is not None and len(self._held) < HELD_OPENS_MAX:
                    # It was asked for before we had heard of the loss.
                    self._held[tag.key] = asked
                    return self.released()
                self._unopened.pop(tag.key, None)
        return [Tell(frame)]

    def released(self) -> list[Effect]:
        """Open what has waited for the worker, if it is ready."""
        if not self.ready:
            return []
        held, self._held = self._held, {}
        self._asked |= held
        return [SendControl(frame) for frame in held.values()]

    # ---- to the worker ---------------------------------------------------------------------------

    def order(self, frame: Frame) -> list[Effect]:
        """Send on the control link. Raises `StageUnresponsiveError` where too many streams wait for the worker."""
        match frame:
            case Open(tag):
                self._unopened[tag.key] = []
                if not self.ready:
                    return self._hold(frame)
                self._held.pop(tag.key, None)
                self._asked[tag.key] = frame
            case Cancel(tag):
                self._unopened.pop(tag.key, None)
                self._asked.pop(tag.key, None)
                if self._held.pop(tag.key, None) is not None:
                    return [TellLater(Closed(tag, "cancelled", {}))]
        return [SendControl(frame)] if self._is_up else []

    def _hold(self, frame: Open) -> list[Effect]:
        if len(self._held) >= HELD_OPENS_MAX:
            raise StageUnresponsiveError(f"the {self._stage} is away, and {HELD_OPENS_MAX} streams wait for it")
        self._held[frame.tag.key] = frame
        return []

    def feed(self, tag: Tag, item: Item, units: int = 0) -> list[Effect]:
        """Send on the media link, after the stream was opened. Raises `StageUnresponsiveError`."""
        waiting = self._unopened.get(tag.key)
        feed = Feed(tag, item, units)
        if waiting is None:
            return [SendMedia(feed)] if self._is_up else []
        if len(waiting) >= UNOPENED_FEEDS_MAX:
            raise StageUnresponsiveError(f"the {self._stage} does not answer")
        waiting.append(feed)
        return []
