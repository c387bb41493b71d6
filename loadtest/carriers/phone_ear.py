"""The ear at a telephone: sound without names becomes replies, by when it comes and when it stops.

Theory of operation
    The carrier tells what it has queued, what has left for the ear, and what was thrown away. A reply begins with the
    first sound that can be heard, and goes on until the service throws it away, or until nothing was heard for
    `REPLY_PAUSE_MS`. It belongs to the turn that was begun last.

Rules
* A pause within a reply is no end of it, unless the caller has said something else in the meantime.
* Silence between replies belongs to none; it is in the recording.

Limits
* A service that holds its reply while the caller says "mhm", and goes on, seems to have answered that.
"""

from __future__ import annotations

from collections import deque

from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect
from loadtest.ear import Ear
from loadtest.errors import ServerViolation
from loadtest.line import Line
from loadtest.loudness import audible_span
from loadtest.playout_model import NS_PER_S, Heard, ReplyAudio
from loadtest.turns import NS_PER_MS, Reply, Turn, elapsed_ms
from media.chunk import BYTES_PER_SAMPLE

# Longer than the pauses between sentences of a service that is not quite fast enough; shorter than a caller's patience.
REPLY_PAUSE_MS = 1_500
# Less is the carrier's own clock that ticked late.
DRY_NS_MIN = 5 * NS_PER_MS
COMPLAINTS_MAX = 20
REPLIES_MAX = 1_000  # of a call of at most half an hour


class PhoneEar(Ear):
    """What has reached the caller in one telephone call."""

    def __init__(self, turns: list[Turn], line: Line) -> None:
        super().__init__(turns, line.sample_rate)
        self._rate = line.sample_rate
        self._current: Reply | None = None
        # What is queued at the carrier: whose it is, how many samples, and whether they can be heard.
        self._queued: deque[tuple[Reply | None, int, bool]] = deque()
        self._heard_ns = 0
        self._hung_up = False

    def take(self, effect: Effect, now_ns: int) -> None:
        """Take in what the carrier tells."""
        match effect:
            case Accepted():
                self._arrived(effect.pcm, now_ns)
            case Heard():
                self._heard(effect)
            case Cleared():
                self._cleared(effect.samples, now_ns)
            case Complaint():
                self._complained(effect)
            case _:
                pass

    def advance(self, now_ns: int) -> None:
        reply = self._current
        if reply is None or reply.audio.last_audible_ns is None or any(audible for _, _, audible in self._queued):
            return
        if now_ns >= reply.audio.last_audible_ns + REPLY_PAUSE_MS * NS_PER_MS:
            self._end(reply, "completed", now_ns)

    def hang_up(self, now_ns: int) -> None:
        self.advance(now_ns)
        self._hung_up = True

    def _sound_end_ns(self) -> int:
        return self._heard_ns

    # ---- the carrier -----------------------------------------------------------------------------

    def _arrived(self, pcm: bytes, now_ns: int) -> None:
        audible = audible_span(pcm, self._rate) is not None
        reply = self._whose(audible, now_ns)
        samples = len(pcm) // BYTES_PER_SAMPLE
        self._queue(reply, samples, audible)
        if reply is None:
            return
        audio = reply.audio
        if audio.first_received_ns is None:
            audio.first_received_ns = now_ns
            self._note_beginning(reply, now_ns)
        audio.gap_ns_max = max(audio.gap_ns_max, now_ns - (audio.last_received_ns or now_ns))
        audio.last_received_ns = now_ns
        audio.received_samples += samples
        if len(self._replies) > REPLIES_MAX:
            raise ServerViolation(f"more than {REPLIES_MAX} replies in one call")

    def _queue(self, reply: Reply | None, samples: int, audible: bool) -> None:
        if self._queued and self._queued[-1][::2] == (reply, audible):
            samples += self._queued.pop()[1]
        self._queued.append((reply, samples, audible))

    def _heard(self, heard: Heard) -> None:
        self.recording.add(heard)
        self._heard_ns = heard.start_ns + _ns(heard.pcm, self._rate)
        at = 0
        while at < len(heard.pcm):
            reply, samples, audible = self._queued.popleft()
            piece = heard.pcm[at : at + samples * BYTES_PER_SAMPLE]
            if reply is not None:
                self._play(reply.audio, heard.start_ns + _ns(heard.pcm[:at], self._rate), piece)
            at += len(piece)
            left = samples - len(piece) // BYTES_PER_SAMPLE
            if left:
                self._queued.appendleft((reply, left, audible))

    def _play(self, audio: ReplyAudio, start_ns: int, pcm: bytes) -> None:
        dry_ns = 0 if audio.last_heard_ns is None else start_ns - audio.last_heard_ns
        audio.dry_ns += dry_ns if dry_ns >= DRY_NS_MIN else 0
        audio.play(start_ns, pcm, self._rate)

    def _cleared(self, samples: int, now_ns: int) -> None:
        for reply, left, _audible in self._queued:
            if reply is not None:
                reply.audio.discarded_samples += left
        self._queued.clear()
        if self._current is not None and not self._hung_up:
            self._current.cut_ns = now_ns
            self._current.audio.cut = True
            self._end(self._current, "cancelled" if samples else "completed", now_ns)

    def _complained(self, complaint: Complaint) -> None:
        line = f"{complaint.code} {complaint.text}".strip()
        self.note(f"the carrier complains: {line}")
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(line)

    # ---- replies ---------------------------------------------------------------------------------

    def _whose(self, audible: bool, now_ns: int) -> Reply | None:
        reply = self._current
        if reply is not None and self._is_left_behind(reply, now_ns):
            self._end(reply, "completed", now_ns)
        if self._current is None and audible:
            name = f"reply_{len(self._replies) + 1}"
            self._current = self._replies[name] = Reply(name, self._begun, ReplyAudio())
        return self._current

    def _is_left_behind(self, reply: Reply, now_ns: int) -> bool:
        """It had stopped, and the caller has said something else since it began."""
        if self._begun is None or reply.turn == self._begun or self._queued:
            return False
        said_end_ns = self._turns[self._begun].said_end_ns
        return said_end_ns is not None and said_end_ns <= now_ns

    def _end(self, reply: Reply, status: str, now_ns: int) -> None:
        reply.status, reply.done_ns, reply.audio.ended = status, now_ns, True
        self._current = None
        self.note(f"reply {status}")

    def _note_beginning(self, reply: Reply, now_ns: int) -> None:
        if reply.turn is not None:
            waited_ms = elapsed_ms(self._turns[reply.turn].said_end_ns, now_ns)
            self.note(f"turn {reply.turn + 1}: reply begins, {waited_ms} ms after the end of speech")


def _ns(pcm: bytes, sample_rate: int) -> int:
    return len(pcm) // BYTES_PER_SAMPLE * NS_PER_S // sample_rate
