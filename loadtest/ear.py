"""What every caller's ear knows, whatever it hears by: the turns, the replies to them, and the sound as it was heard.

Theory of operation
    Each `Reply` belongs to a turn, or to none. An ear of a protocol decides which, fills in what it hears of it, and
    says what must be sent back; what follows from that for the caller's next move is the same for all.

Rules
* A reply is over when it has been made, and all of it was heard or thrown away.
"""

from __future__ import annotations

from collections import deque

from loadtest import realtime_wire as wire
from loadtest.playout_model import Heard
from loadtest.recording import Recording
from loadtest.turns import Reply, Turn

# Lines for the person at the terminal that wait to be taken; the shell takes them every frame.
NOTES_MAX = 256
# As many as a server asks for that takes the session up again.
OPEN_RESPONSES_MAX = 16
# How much of the replies is kept as sound: 10 minutes are 29 MB.
RECORDING_S_MAX = 600


class Ear:
    """What has reached the caller in one call. `turns` are shared with the one who says them; `sample_rate`: of what is
    heard. The base of the ears of each protocol."""

    def __init__(self, turns: list[Turn], sample_rate: int) -> None:
        self._turns = turns
        self._begun: int | None = None
        self._replies: dict[str, Reply] = {}
        self._notes: deque[str] = deque(maxlen=NOTES_MAX)
        self.recording = Recording(sample_rate, RECORDING_S_MAX)
        self.event_seq_faults = 0
        self.complaints: list[str] = []  # of a carrier, about the service
        self.epoch = 0  # the greatest that was seen

    # ---- what a protocol adds --------------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """Let the sound come up to now."""

    def hang_up(self, now_ns: int) -> None:
        """The call is over: what has not been played will not be."""

    def on_event(self, _event: wire.ServerEvent, _now_ns: int, /) -> list[wire.ClientMessage]:
        """Take in one event; the messages to send at once."""
        return []

    def acknowledge(self, _now_ns: int, /) -> list[wire.ClientMessage]:
        """Report the position heard, where it has moved and the server wants to know."""
        return []

    def flush(self, _now_ns: int, /) -> list[wire.ClientMessage]:
        """Silence the loudspeaker, and report where it stopped."""
        return []

    def undrained(self) -> bool:
        """Whether a response has not yet been reported as drained by a server that does report it."""
        return False

    def _sound_end_ns(self) -> int:
        """When all that has arrived so far will have been played."""
        raise NotImplementedError

    # ---- what the microphone asks ----------------------------------------------------------------

    @property
    def replies(self) -> list[Reply]:
        """All of the call, in the order in which they were created."""
        return list(self._replies.values())

    def begin_call(self, now_ns: int, _extended: bool, /) -> None:
        """The microphone opens. `_extended`: the server speaks our extensions."""
        self.recording.start(now_ns)

    def begin_turn(self, index: int) -> None:
        """The caller starts to say utterance `index`."""
        self._begun = index

    def first_heard_ns(self, turn: Turn) -> int | None:
        """When the first sample of the turn's answer was, or will be, heard."""
        times = [reply.audio.first_heard_ns for reply in self._answers(turn)]
        return min((time for time in times if time is not None), default=None)

    def over_ns(self, turn: Turn) -> int | None:
        """When the turn's answer has been heard to its end; None while there is none or it is being made."""
        return self._over_ns(self._answers(turn))

    def greeting_over_ns(self) -> int | None:
        """The same for what the server said before any turn."""
        return self._over_ns([reply for reply in self._replies.values() if reply.turn is None])

    def progress_ns(self, turn: Turn) -> int:
        """The last sign of life of the turn's answer: a sample received or heard, at least the end of the speech."""
        assert turn.said_end_ns is not None
        audios = [reply.audio for reply in self._answers(turn) if reply.audio.received_samples]
        signs = [audio.last_received_ns or 0 for audio in audios]
        signs += [self._sound_end_ns()] if audios else []
        return max([turn.said_end_ns, *signs])

    def open_response(self, turn: Turn) -> str | None:
        """The id of the turn's response that the server is still making."""
        return next((reply.response_id for reply in self._answers(turn) if reply.done_ns is None), None)

    def open_responses(self) -> tuple[str, ...]:
        """Those that have begun and not ended, the newest."""
        return tuple(name for name, reply in self._replies.items() if reply.done_ns is None)[-OPEN_RESPONSES_MAX:]

    def take_notes(self) -> list[str]:
        """Lines for a person who follows the call, each once."""
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def note(self, line: str) -> None:
        self._notes.append(line)

    def _answers(self, turn: Turn) -> list[Reply]:
        return [reply for reply in self._replies.values() if turn.is_answer(reply)]

    def _over_ns(self, replies: list[Reply]) -> int | None:
        done = [reply.done_ns for reply in replies if reply.done_ns is not None]
        if not done or len(done) < len(replies):
            return None
        unplayed = any(not self._is_over(reply) for reply in replies)
        heard = [reply.audio.last_heard_ns for reply in replies if reply.audio.last_heard_ns is not None]
        return max(done + heard + ([self._sound_end_ns()] if unplayed else []))

    @staticmethod
    def _is_over(reply: Reply) -> bool:
        """Made, and all of it heard or discarded."""
        audio = reply.audio
        return reply.done_ns is not None and audio.received_samples == audio.heard_samples + audio.discarded_samples

    def _record(self, pieces: list[Heard]) -> None:
        for piece in pieces:
            self.recording.add(piece)
