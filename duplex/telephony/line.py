"""The telephone line as the client of a call: replies become a carrier's messages, its marks become what was heard.

Theory of operation
    A frame of a reply becomes frames of the line. A mark is sent behind each `MARK_FRAMES` of them and behind the last
    of a reply; and sooner where the carrier may have had nothing to play, so that it is known when that goes on. What
    came back of them, and the clock, say what was heard (`CarrierQueue`), which is reported each slot. A carrier that
    counts its queue is asked wherever it matters, and the clock is left alone.
    Frames are asked for by the carrier's clock, which may be faster than ours.
    The end of an epoch takes back what has not left and flushes the rest. So does a turn of the caller's where we
    believe that all was heard: the carrier may play on for seconds.

Rules
* Nothing of what was flushed is ever sent, or counted as heard by a mark that comes back later. What had been heard of
  it is told again: until then it may have been believed to be heard whole.
* In a hold the carrier is paused where it can be; whatever ends the hold lets it go on.
* A carrier whose queue is full is sent nothing, until it says that it has room, is flushed, or has had the time to play
  all that it can hold: then it is asked.
* Half a frame waits for what follows for `REST_NS_MAX`, and is then filled with silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from duplex.telephony.carrier import Carrier, Event, Flushed, Message, Played, Xoff, Xon
from duplex.telephony.carrier_queue import CarrierQueue
from duplex.telephony.line_sound import LineSound
from duplex.telephony.outbound import Outbound
from media.audio_format import AudioFormat
from media.heard_estimate import TELEPHONE_LATENCY, Path, Probe, path_of
from media.playout import Frame
from media.rtp_map import Position
from sessions.events import Event as ConversationEvent
from sessions.events import ItemTruncated, ReplyAudio, SettingsChanged, SpeechStarted, TurnHeld, TurnResumed

MARK_FRAMES = 6  # 120 ms
MARK_FRAMES_SOON = 2  # one is too few: a carrier that reads slowly must have the next before it has played the first
STOPS_MAX = 64  # a carrier that counts answers each within a round trip
REST_NS_MAX = 60_000_000  # less than any carrier's lead: the frame comes in time
FULL_NS_MAX = 20_000_000_000  # Asterisk's 1,000 frames; of other carriers none says that it is full


@dataclass(frozen=True, slots=True)
class LinePorts:
    """`heard(response, samples)` takes reports. `interrupts`: speech of the caller's ends what is being said. `probe`:
    what is seen of the way to the carrier. `moved()` is called whenever that or the conversation has had something to
    tell."""

    heard: Callable[[str, int], None]
    interrupts: Callable[[], bool]
    probe: Callable[[], Probe] = Probe
    moved: Callable[[], None] = lambda: None


_Place = tuple[str, int]  # a response, and so many samples of it


@dataclass(frozen=True, slots=True)
class _Said:
    """What sounds: the `last` response, and the one `before` that it follows without a flush, each as far as it was
    sent. `begins`: where on the line the first did that no flush parts from these."""

    begins: int
    last: _Place
    before: _Place | None = None


class PhoneLine:
    """`Client` of the call. `line`: of its sound; `reply_rate`: of the replies."""

    def __init__(
        self, carrier: Carrier, line: AudioFormat, reply_rate: int, outbound: Outbound, ports: LinePorts
    ) -> None:
        self._carrier = carrier
        self._can_do = carrier.capabilities
        self._sound = LineSound(line, self._can_do.frame_bytes, reply_rate)
        self._queue = CarrierQueue(line.sample_rate, is_counted=self._can_do.exact_queue)
        self._outbound = outbound
        self._ports = ports
        self._epoch = 0
        self._unmarked = 0
        self._may_break = False  # within what has no mark behind it
        self._full_since_ns: int | None = None
        self._now_ns = 0
        self._rest_ns = 0
        self._said: _Said | None = None
        self._stopped: deque[_Said | None] = deque(maxlen=STOPS_MAX)  # by flushes of which the carrier has yet to tell
        self._reported: _Place | None = None
        self._flushed: _Place | None = None  # what had been heard of what was flushed

    @property
    def is_playing(self) -> bool:
        """The carrier has yet to play something, by its marks."""
        return self._queue.is_playing

    # ---- the slots ---------------------------------------------------------------------------------

    def pace(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._outbound.pace(now_ns)
        if self._sound.is_waiting and now_ns - self._rest_ns >= REST_NS_MAX:
            self._send(self._sound.pad(), ends=True)
        self._doubt_full()
        flushed, self._flushed = self._flushed, None
        if flushed is not None:
            self._ports.heard(*flushed)
        self._report()

    def next_frame_ns(self, now_ns: int) -> int | None:
        self._now_ns = now_ns
        lead_ns = self._can_do.lead_ms * 1_000_000
        may_send = self._full_since_ns is None and self._outbound.has_room and self._queue.lead_ns(now_ns) < lead_ns
        return now_ns + self._queue.gained_ns if may_send else None

    def path(self, now_ns: int) -> Path:
        return path_of(TELEPHONE_LATENCY, self._ports.probe(), now_ns)

    def pad(self) -> bool:
        return False

    # ---- the conversation ----------------------------------------------------------------------------

    def tell(self, event: ConversationEvent) -> None:
        self._ports.moved()
        match event:
            case ReplyAudio():
                self._speak(event)
            case TurnHeld() if self._can_do.can_pause:
                self._put_all(self._carrier.pause(self._epoch, self._sound.position))
                self._queue.pause(self._now_ns)
            case TurnResumed() | SettingsChanged():
                self._go_on()
            case SpeechStarted() if self._ports.interrupts():
                self._flush_rest()
            case ItemTruncated():
                self._flush_rest()
            case _:
                pass  # a telephone shows nothing

    def _speak(self, event: ReplyAudio) -> None:
        self._epoch = event.epoch
        self._rest_ns = self._now_ns
        self._note(event.frame)
        self._send(self._sound.add(event.frame), ends=event.frame.final)

    def _note(self, frame: Frame) -> None:
        said, last = self._said, (frame.response, frame.end_sample)
        if said is None:
            self._said = _Said(self._queue.end, last)
        elif said.last[0] == frame.response:
            self._said = replace(said, last=last)
        else:
            self._said = replace(said, last=last, before=said.last)

    def _send(self, frames: list[bytes], *, ends: bool) -> None:
        at = self._sound.position - len(frames) * self._sound.frame_samples
        for frame in frames:
            self._outbound.put(self._carrier.audio(self._epoch, at, frame), at, is_sound=True)
            at += self._sound.frame_samples
            self._may_break |= not self._queue.sent(at, self._now_ns)
            self._unmarked += 1
            is_wanted = self._may_break and not self._can_do.exact_queue
            if self._unmarked >= (MARK_FRAMES_SOON if is_wanted else MARK_FRAMES):
                self._mark()
        if ends and self._unmarked:
            self._mark()

    def _mark(self) -> None:
        at, self._unmarked, self._may_break = self._queue.end, 0, False
        self._queue.marked()
        for message in self._carrier.mark(self._epoch, at):
            self._outbound.put(message, at)

    def _put_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._outbound.put(message)

    def _doubt_full(self) -> None:
        """Word that the carrier has room again may be lost. A pause has it tell where it stands."""
        if self._full_since_ns is None:
            return
        if self._queue.is_paused:
            self._full_since_ns = self._now_ns
        elif self._now_ns - self._full_since_ns >= FULL_NS_MAX:
            self._full_since_ns = self._now_ns
            self._put_all([*self._carrier.pause(self._epoch, self._sound.position), *self._carrier.resume()])

    # ---- stops -----------------------------------------------------------------------------------------

    def drop_audio(self) -> Position | None:
        """Also where nothing of it is known to sound: the carrier may know more than its marks have told."""
        self._ports.moved()
        self._report()
        self._flushed, self._reported = self._reported, None
        unsent = self._outbound.drop_sound()
        left = self._sound.position if unsent is None else unsent
        dropped = self._sound.take_back(left)
        self._put_all(self._carrier.flush(self._epoch, left))
        self._queue.flush(left, self._now_ns)
        self._unmarked = 0
        self._full_since_ns = None
        self._stopped.append(self._said)
        self._said = None
        return dropped

    def _flush_rest(self) -> None:
        """What was told to be over, or not to be heard, shall not be heard."""
        if self._queue.is_playing:
            self.drop_audio()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Whatever it was that the carrier was paused for is decided."""
        self._put_all(self._carrier.resume())
        self._queue.resume(self._now_ns)

    # ---- the carrier -----------------------------------------------------------------------------------

    def told(self, event: Event, now_ns: int) -> None:
        """The carrier has said something of what it plays."""
        self._ports.moved()
        match event:
            case Played(_, offset):
                self._queue.played(offset, now_ns, self._ports.probe().round_trip_ns)
                self._report()
            case Flushed(_, offset, unplayed):
                said = self._stopped.popleft() if self._stopped else None
                if said is not None and unplayed is not None and offset - unplayed > said.begins:
                    self._report_at(offset - unplayed, said)
            case Xoff():
                self._full_since_ns = now_ns
            case Xon():
                self._full_since_ns = None
            case _:
                pass  # a mark that was returned, which tells nothing

    def _report(self) -> None:
        heard = self._queue.heard(self._now_ns)
        if heard is not None and self._said is not None and self._report_at(heard, self._said):
            self._said = replace(self._said, before=None)

    def _report_at(self, position: int, said: _Said) -> bool:
        """The carrier has played up to there, of what was `said`. True where the last is what is heard."""
        located = self._sound.locate(position)
        if located is None:
            return False
        heard = located.response, located.samples
        if heard == self._reported and not self._queue.is_paused:  # else it is known to be still so
            return False
        self._reported = heard
        is_last = said.last[0] == heard[0]
        if said.before is not None and is_last:
            self._ports.heard(*said.before)
        self._ports.heard(*heard)
        return is_last
