"""A carrier that speaks Media Streams: the core, on the carrier's own clock.

Theory of operation
    `begin` opens the stream, then the shell calls `frame` each `FRAME_MS` with what the caller says, and `receive`
    with what the service sends. Sound of the service waits in a queue that plays without a break from when its first
    sample came; a mark comes back when all that was queued before it has left, or at once where nothing is queued;
    `clear` empties the queue, and all marks in it come back.

        NEW -> OPEN -> ENDED

Rules
* Nothing of the service is taken before the stream has started, or after its end.
* What the service may not send changes nothing; it is counted, and told of as the dialect has it.
* With `BACKLOG_MAX` messages unread the caller's sound is dropped, and the numbers of messages and the time stamps
  show the gap.

Limits
* Nothing is known of the way from the carrier to the ear: what has left the queue is heard.
* Marks come back with the next frame, as a carrier with a clock of 20 ms would send them.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections import Counter, deque
from enum import StrEnum

import msgspec

from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect, HungUp, Send
from loadtest.carriers.stream_dialects import TWILIO, Dialect, Fields, Mistake, StreamCall, to_text
from loadtest.carriers.unruly_line import OVERSIZED_BYTES, Fault
from loadtest.playout_model import QUEUE_S_MAX, AudioFrame, PlayoutModel
from media.audio_format import AudioFormat
from media.chunk import BYTES_PER_SAMPLE, ms_to_samples, samples_to_ms

FRAME_MS = 20
# No carrier documents its own: 5 s of frames, beyond which a conversation is lost anyway.
BACKLOG_MAX = 250
# No carrier documents a limit; one mark for each frame of the two minutes that can be queued.
MARKS_MAX = 6_000


class Phase(StrEnum):
    """Where the stream stands."""

    NEW = "new"
    OPEN = "open"
    ENDED = "ended"


class Step(StrEnum):
    """What moves it."""

    BEGIN = "begin"
    END = "end"


TRANSITIONS = {
    (Phase.NEW, Step.BEGIN): Phase.OPEN,
    (Phase.OPEN, Step.END): Phase.ENDED,
    (Phase.NEW, Step.END): Phase.ENDED,
}


class _Media(msgspec.Struct, frozen=True):
    payload: str


class _Mark(msgspec.Struct, frozen=True):
    name: str


class _Command(msgspec.Struct, frozen=True, rename={"stream": "streamSid"}):
    """What a service sends."""

    event: str
    stream: str | None = None
    media: _Media | None = None
    mark: _Mark | None = None


class _Broken(Exception):
    """A message that cannot be obeyed."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake)
        self.mistake = mistake


class MediaStream:
    """One stream of `call`. `sound`: both ways; None: that of the dialect."""

    def __init__(self, call: StreamCall, dialect: Dialect = TWILIO, sound: AudioFormat | None = None) -> None:
        self.sound = sound or dialect.sound
        self.mistakes: Counter[Mistake] = Counter()
        self._call = call
        self._dialect = dialect
        self._phase = Phase.NEW
        self._sequence = 0
        self._chunk = 0
        self._said_samples = 0
        self._playout = PlayoutModel(self.sound.sample_rate)
        self._marks: deque[tuple[int, str]] = deque()
        self._told: set[str] = set()

    @property
    def call_id(self) -> str:
        """By which the carrier knows the call."""
        return self._call.call_id

    @property
    def frame_samples(self) -> int:
        """Of the caller's sound in a message."""
        return ms_to_samples(FRAME_MS, self.sound.sample_rate)

    @property
    def is_over(self) -> bool:
        return self._phase is Phase.ENDED

    @property
    def queued_samples(self) -> int:
        """What the service has sent and nobody has heard yet."""
        audio = self._playout.reply("")
        return audio.received_samples - audio.heard_samples - audio.discarded_samples

    # ---- the call --------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """The service has answered; the stream starts."""
        self._step(Step.BEGIN)
        start: Fields = {"event": "start", "start": self._dialect.start(self._call, self.sound)}
        return [Send(to_text(self._dialect.connected)), self._numbered(start)]

    def frame(self, coded: bytes, now_ns: int, backlog: int = 0) -> list[Effect]:
        """What the caller says in the frame that ends now. `backlog`: messages that the service has not read yet."""
        effects = self._advance(now_ns)
        if self._phase is not Phase.OPEN:
            return effects
        self._chunk += 1
        self._said_samples += len(self.sound.decode(coded)) // BYTES_PER_SAMPLE
        media = self._media(coded)
        if backlog >= BACKLOG_MAX:
            return [*effects, *self._complain(Mistake.CONGESTED)]
        return [*effects, media]

    def press(self, digit: str) -> list[Effect]:
        """The caller presses a key."""
        if self._phase is not Phase.OPEN:
            return []
        return [self._numbered({"event": "dtmf", "dtmf": self._dialect.digit(digit)})]

    def hang_up(self, now_ns: int) -> list[Effect]:
        """The caller ends the call; what is queued will not be heard."""
        effects = self._advance(now_ns)
        if self._phase is Phase.OPEN:
            effects += self._thrown_away(now_ns)
            effects.append(self._numbered({"event": "stop", "stop": self._dialect.stop(self._call)}))
        if self._phase is not Phase.ENDED:
            self._step(Step.END)
            effects.append(HungUp("the caller hung up"))
        return effects

    def _advance(self, now_ns: int) -> list[Effect]:
        """Let the queue play up to now."""
        effects: list[Effect] = [*self._playout.advance(now_ns)]
        while self._marks and self._marks[0][0] <= now_ns:
            effects.append(self._echo(self._marks.popleft()[1]))
        return effects

    # ---- the service -----------------------------------------------------------------------------

    def receive(self, message: str | bytes, now_ns: int) -> list[Effect]:
        """Take in what the service has sent."""
        effects = self._advance(now_ns)
        if self._phase is Phase.ENDED:
            return effects
        try:
            return effects + self._obey(self._command(message), now_ns)
        except _Broken as broken:
            return effects + self._complain(broken.mistake)

    def _command(self, message: str | bytes) -> _Command:
        if isinstance(message, bytes):
            raise _Broken(Mistake.NOT_TEXT)
        if self._phase is Phase.NEW:
            raise _Broken(Mistake.TOO_EARLY)
        try:
            command = msgspec.json.decode(message, type=_Command)
        except msgspec.ValidationError:
            raise _Broken(Mistake.SCHEMA) from None
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise _Broken(Mistake.NOT_JSON) from None
        if command.event not in ("media", "mark", "clear"):
            raise _Broken(Mistake.EVENT)
        if self._dialect.stream_in_commands and command.stream != self._call.stream_id:
            raise _Broken(Mistake.STREAM)
        return command

    def _obey(self, command: _Command, now_ns: int) -> list[Effect]:
        if command.event == "clear":
            return self._clear(now_ns)
        if command.event == "media" and command.media is not None:
            return self._queue(self._decoded(command.media.payload), now_ns)
        if command.event == "mark" and command.mark is not None:
            return self._mark(command.mark.name, now_ns)
        raise _Broken(Mistake.SCHEMA)

    def _decoded(self, payload: str) -> bytes:
        try:
            pcm = self.sound.decode(b64decode(payload, validate=True))
        except (binascii.Error, ValueError):
            raise _Broken(Mistake.PAYLOAD) from None
        lengths = self._dialect.payload_ms
        ms = samples_to_ms(len(pcm) // BYTES_PER_SAMPLE, self.sound.sample_rate)
        if len(pcm) % BYTES_PER_SAMPLE or (lengths is not None and not lengths[0] <= ms <= lengths[1]):
            raise _Broken(Mistake.PAYLOAD)
        return pcm

    def _queue(self, pcm: bytes, now_ns: int) -> list[Effect]:
        """In frames: what is heard of a long message is told as it is heard."""
        if self.queued_samples + len(pcm) // BYTES_PER_SAMPLE > QUEUE_S_MAX * self.sound.sample_rate:
            raise _Broken(Mistake.TOO_MUCH)
        size = self.frame_samples * BYTES_PER_SAMPLE
        for place in range(0, len(pcm), size):
            self._playout.receive(AudioFrame("", pcm[place : place + size]), now_ns)
        return [Accepted(pcm)] if pcm else []

    def _mark(self, name: str, now_ns: int) -> list[Effect]:
        if self._playout.queue_end_ns <= now_ns:
            return [self._echo(name)]
        if len(self._marks) >= MARKS_MAX:
            raise _Broken(Mistake.TOO_MUCH)
        self._marks.append((self._playout.queue_end_ns, name))
        return []

    def _clear(self, now_ns: int) -> list[Effect]:
        names = [name for _due_ns, name in self._marks]
        return [*self._thrown_away(now_ns), *(self._echo(name) for name in names)]

    def _thrown_away(self, now_ns: int) -> list[Effect]:
        audio = self._playout.reply("")
        before = audio.discarded_samples
        heard = self._playout.cut(now_ns)
        names = tuple(name for _due_ns, name in self._marks)
        self._marks.clear()
        return [*heard, Cleared(audio.discarded_samples - before, names)]

    # ---- messages --------------------------------------------------------------------------------

    @property
    def forgeries(self) -> dict[Fault, str | bytes]:
        """Messages that a carrier should not send; they have no numbers of the stream."""
        media: Fields = {"track": "inbound", "chunk": "1", "timestamp": str(FRAME_MS), "payload": _b64(b"\xff")}
        message: Fields = {
            "event": "media",
            self._dialect.sequence: "1",
            self._dialect.stream: "another",
            "media": media,
        }
        oversized = message | {"media": media | {"payload": _b64(bytes(OVERSIZED_BYTES))}}
        return {
            Fault.OTHER_STREAM: to_text(message),
            Fault.MALFORMED: '{"event":"media",',
            Fault.OVERSIZED: to_text(oversized | {self._dialect.stream: self._call.stream_id}),
            Fault.BINARY: b"\xff" * self.frame_samples,
        }

    def _media(self, coded: bytes) -> Send:
        time_ms = samples_to_ms(self._said_samples, self.sound.sample_rate)
        media = {"track": "inbound", "chunk": str(self._chunk), "timestamp": str(time_ms), "payload": _b64(coded)}
        return Send(self._numbered({"event": "media", "media": media}).message, is_sound=True)

    def _echo(self, name: str) -> Send:
        return self._numbered({"event": "mark", "mark": {"name": name}})

    def _numbered(self, message: Fields) -> Send:
        self._sequence += 1
        names: Fields = {self._dialect.sequence: str(self._sequence), self._dialect.stream: self._call.stream_id}
        return Send(to_text(message | names))

    def _complain(self, mistake: Mistake) -> list[Effect]:
        self.mistakes[mistake] += 1
        code = self._dialect.codes.get(mistake, "")
        effects: list[Effect] = []
        if self._dialect.sends_errors and code:
            payload = {"code": int(code), "title": mistake.name, "detail": mistake.value}
            effects.append(Send(to_text({"event": "error", "payload": payload})))
        if (code or mistake) not in self._told:
            self._told.add(code or mistake)
            effects.append(Complaint(code, mistake.value))
        return effects

    def _step(self, step: Step) -> None:
        assert (self._phase, step) in TRANSITIONS, f"{step} in {self._phase}"
        self._phase = TRANSITIONS[self._phase, step]


def _b64(coded: bytes) -> str:
    return b64encode(coded).decode()
