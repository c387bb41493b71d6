"""The ear on the Realtime API: events become replies, transcripts and sound; what the server must know of it goes back.

Theory of operation
    Each `Reply` belongs to the turn whose speech was committed last before it was created, else to the turn that
    was begun last. Its sound goes through the `PlayoutModel`. On `speech_started`, and on a response that ends
    cancelled, the loudspeaker is flushed, as stock clients do, and the position reached is reported: with
    `playback.ack` where the server speaks our extensions and knows it, with `conversation.item.truncate` elsewhere.

Rules
* A late or unknown id changes nothing of other turns and is never an error of the call.
* Everything that a server can make the caller remember is bounded; beyond the bound it is a `ServerViolation`.
"""

from __future__ import annotations

from loadtest import realtime_wire as wire
from loadtest.ear import Ear
from loadtest.errors import ServerViolation
from loadtest.line import Line
from loadtest.playout_model import PlayoutModel
from loadtest.turns import Drain, Reply, Turn, elapsed_ms
from media.chunk import samples_to_ms

# Bounds on what a server can make the caller remember in a call of at most half an hour.
REPLIES_MAX = 1_000
ITEMS_MAX = 1_000
TEXT_CHARS_MAX = 20_000
ERRORS_PER_TURN_MAX = 20
# What a server answers to an event that it does not know.
UNKNOWN_EVENT = "unknown_event"


class Hearing(Ear):
    """What has reached the caller in one call over `line`. `turns` are shared with the one who says them."""

    def __init__(self, turns: list[Turn], line: Line | None = None) -> None:
        self._line = line or Line()
        super().__init__(turns, self._line.sample_rate)
        self._committed: int | None = None
        self._turn_of_item: dict[str, int | None] = {}
        self._playout = PlayoutModel(self._line.sample_rate)
        self._extended = False
        self._acknowledges = False
        self._acked: tuple[str, int] | None = None
        self._event_seq: int | None = None

    # ---- what the microphone asks ----------------------------------------------------------------

    def begin_call(self, now_ns: int, extended: bool) -> None:
        """The microphone opens. `extended`: the server speaks our extensions."""
        super().begin_call(now_ns, extended)
        self._extended = self._acknowledges = extended

    def advance(self, now_ns: int) -> None:
        """Let the loudspeaker play up to now."""
        self._record(self._playout.advance(now_ns))

    def hang_up(self, now_ns: int) -> None:
        """The call is over: what has not been played will not be."""
        self._record(self._playout.cut(now_ns))

    def undrained(self) -> bool:
        """Whether a response has not yet been reported as drained by a server that does report it."""
        return self._extended and any(reply.drain is None for reply in self._replies.values())

    def acknowledge(self, now_ns: int) -> list[wire.ClientMessage]:
        """Report the position heard, where it has moved and the server wants to know."""
        sounding = [reply for reply in self._replies.values() if (reply.audio.first_heard_ns or now_ns) < now_ns]
        if not sounding or not self._acknowledges:
            return []
        return self._report(sounding[-1], now_ns)

    # ---- what the server says --------------------------------------------------------------------

    def on_event(self, event: wire.ServerEvent, now_ns: int) -> list[wire.ClientMessage]:
        """Take in one event; the messages to send at once. Raises `ServerViolation` where it goes on without bound."""
        self._check_sequence(event)
        match event:
            case wire.AudioDelta():
                self._on_audio(event, now_ns)
            case wire.TranscriptDelta():
                reply = self._reply(event.response_id)
                reply.text = (reply.text + event.delta)[:TEXT_CHARS_MAX]
            case wire.TranscriptDone():
                self._reply(event.response_id).text = event.transcript[:TEXT_CHARS_MAX]
            case wire.SpeechStarted():
                self._place_item(event.item_id)
                return self.flush(now_ns)
            case wire.InputCommitted():
                self._committed = self._place_item(event.item_id)
            case wire.InputTranscribed():
                self._on_transcribed(event)
            case wire.ResponseCreated():
                self._reply(event.response.id)
            case wire.ResponseDone():
                return self._on_done(event, now_ns)
            case wire.ResponseDrained():
                self._on_drained(event, now_ns)
            case wire.ErrorEvent():
                self._on_error(event.error)
            case _:
                pass
        return []

    def flush(self, now_ns: int, only: Reply | None = None) -> list[wire.ClientMessage]:
        """Silence the loudspeaker, for all replies or for one, and report where it stopped."""
        self.advance(now_ns)
        candidates = self._replies.values() if only is None else [only]
        stopped = [reply for reply in candidates if reply.cut_ns is None and not self._is_over(reply)]
        self._record(self._playout.cut(now_ns, None if only is None else only.response_id))
        reports: list[wire.ClientMessage] = []
        for reply in stopped:
            reply.cut_ns = now_ns
            if reply.audio.received_samples:
                reports += self._report(reply, now_ns)
        return reports

    def _on_audio(self, event: wire.AudioDelta, now_ns: int) -> None:
        reply = self._reply(event.response_id)
        reply.item_id = event.item_id
        self.epoch = max(self.epoch, event.epoch or 0)
        first = not reply.audio.received_samples
        self._record(self._playout.advance(now_ns))
        self._playout.receive(self._line.heard(event), now_ns)
        if first and reply.turn is not None:
            waited_ms = elapsed_ms(self._turns[reply.turn].said_end_ns, now_ns)
            self.note(f"turn {reply.turn + 1}: reply begins, {waited_ms} ms after the end of speech")

    def _on_transcribed(self, event: wire.InputTranscribed) -> None:
        index = self._place_item(event.item_id)
        if index is None:
            return
        turn = self._turns[index]
        turn.caller_text = f"{turn.caller_text} {event.transcript.strip()}".strip()[:TEXT_CHARS_MAX]
        self.note(f"turn {index + 1}: understood as: {event.transcript.strip()}")

    def _on_done(self, event: wire.ResponseDone, now_ns: int) -> list[wire.ClientMessage]:
        reply = self._reply(event.response.id)
        if reply.done_ns is not None:
            raise ServerViolation(f"second response.done of {reply.response_id}")
        reply.status, reply.timings = event.response.status, event.timings or {}
        reply.reason = None if event.response.status_details is None else event.response.status_details.reason
        self.note(f"response {reply.status}{f' ({reply.reason})' if reply.reason else ''}: {reply.text}")
        messages = self.flush(now_ns, reply) if reply.status == "cancelled" else []
        reply.done_ns = now_ns
        self._playout.end(reply.response_id)
        return messages

    def _on_drained(self, event: wire.ResponseDrained, now_ns: int) -> None:
        reply = self._reply(event.response_id)
        reply.drain = Drain(event.status, event.lag_ms, elapsed_ms(reply.done_ns, now_ns), event.released)

    def _on_error(self, error: wire.ErrorBody) -> None:
        if error.code == UNKNOWN_EVENT and self._acknowledges:
            self._acknowledges = False
            self.note("the server knows no playback.ack; it is told of cuts only")
            return
        line = f"{error.code or error.type}: {error.message}"
        errors = self._turns[self._begun or 0].errors
        if len(errors) < ERRORS_PER_TURN_MAX:
            errors.append(line)
        self.note(f"error from the server: {line}")

    def _check_sequence(self, event: wire.ServerEvent) -> None:
        """Each event counts one up; a connection begins its own count, and so does a session taken up again."""
        seq = event.server_event_seq
        if seq is None:
            return
        begins = self._event_seq is None or isinstance(event, wire.SessionCreated | wire.SessionResumed)
        expected = seq if self._event_seq is None or begins else self._event_seq + 1
        self.event_seq_faults += seq != expected
        self._event_seq = seq

    # ---- whose is it -----------------------------------------------------------------------------

    def _reply(self, response_id: str) -> Reply:
        """The reply of that id; a new one belongs to the turn committed last."""
        if response_id not in self._replies:
            if len(self._replies) >= REPLIES_MAX:
                raise ServerViolation(f"more than {REPLIES_MAX} responses in one call")
            turn = self._begun if self._committed is None else self._committed
            self._replies[response_id] = Reply(response_id, turn, self._playout.reply(response_id))
        return self._replies[response_id]

    def _place_item(self, item_id: str) -> int | None:
        """The turn of the caller's item, which is the turn begun last when the item was first named."""
        if item_id not in self._turn_of_item:
            if len(self._turn_of_item) >= ITEMS_MAX:
                raise ServerViolation(f"more than {ITEMS_MAX} items of the caller in one call")
            self._turn_of_item[item_id] = self._begun
        return self._turn_of_item[item_id]

    # ---- the loudspeaker -------------------------------------------------------------------------

    def _sound_end_ns(self) -> int:
        return self._playout.queue_end_ns

    def _report(self, reply: Reply, now_ns: int) -> list[wire.ClientMessage]:
        position = self._playout.heard_to_sample(reply.response_id, now_ns)
        if self._acked == (reply.response_id, position):
            return []
        self._acked = (reply.response_id, position)
        rate = self._line.sample_rate
        if self._acknowledges:
            return [wire.PlaybackAck(reply.response_id, reply.item_id, position, rate)]
        return [wire.TruncateItem(reply.item_id, samples_to_ms(position, rate))]
