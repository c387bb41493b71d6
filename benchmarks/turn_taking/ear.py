"""The ear of the caller who examines: what sounds when, and what the service says of it.

Theory of operation
    Server events come in as they arrive; the playout model says when each sample is heard. On `speech_started`, and on
    a response that ends cancelled, the loudspeaker is flushed, as stock clients do. `turn.held` flushes nothing: what
    has been sent before it is heard.

Rules
* What is remembered is bounded, and forgotten with each `forget`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from benchmarks.turn_taking.observation import Mark, Note, Sound
from loadtest import realtime_wire as wire
from loadtest.hearing import TEXT_CHARS_MAX
from loadtest.line import Line
from loadtest.playout_model import Heard, PlayoutModel
from media.chunk import BYTES_PER_SAMPLE

NS_PER_S = 1_000_000_000

# An event lasts half a minute at most; were no two frames of 20 ms to touch, it would hold 1,500 sounds.
SOUNDS_MAX = 2_000
NOTES_MAX = 1_000
ERRORS_MAX = 50
ITEMS_MAX = 200
# The answer where an item is taken out that has gone already, as that of a reply of which nothing was heard.
ITEM_GONE = "item_not_found"
# Pieces that follow each other begin where the last one ended, but for the rounding of samples to nanoseconds.
ROUNDING_NS = 1_000


class Ear:
    """Hears one call over `line`."""

    def __init__(self, line: Line | None = None) -> None:
        self._line = line or Line()
        self._playout = PlayoutModel(self._line.sample_rate)
        self._open: dict[str, None] = {}
        self._newest = ""
        self._items: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._understood = ""
        self._named: deque[str] = deque(maxlen=ITEMS_MAX)
        self._sounds: deque[Sound] = deque(maxlen=SOUNDS_MAX)
        self._notes: deque[Note] = deque(maxlen=NOTES_MAX)
        self._acked: tuple[str, int] | None = None
        self.errors: deque[str] = deque(maxlen=ERRORS_MAX)

    # ---- what has been heard ---------------------------------------------------------------------

    @property
    def newest(self) -> str:
        """The response created last since `forget`; empty where there is none."""
        return self._newest

    @property
    def open_responses(self) -> tuple[str, ...]:
        """Those that the service is still making."""
        return tuple(self._open)

    @property
    def sounds(self) -> tuple[Sound, ...]:
        return tuple(self._sounds)

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(self._notes)

    @property
    def words(self) -> dict[str, int]:
        """How many words each response said."""
        return {response: len(text.split()) for response, text in self._texts.items()}

    @property
    def heard_as(self) -> str:
        """What the service told that it understood."""
        return self._understood

    def busy(self, now_ns: int) -> bool:
        """A response is being made, or heard."""
        return bool(self._open) or self._playout.queue_end_ns > now_ns

    def first_heard_ns(self, response: str) -> int | None:
        """When its first sample was, or will be, heard."""
        return self._playout.reply(response).first_heard_ns

    def last_heard_ns(self, response: str) -> int | None:
        return self._playout.reply(response).last_heard_ns

    def is_over(self, response: str) -> bool:
        """Made, and all of it heard or thrown away."""
        audio = self._playout.reply(response)
        return response not in self._open and audio.received_samples == audio.heard_samples + audio.discarded_samples

    def gave_up(self, response: str) -> bool:
        return any(note.mark is Mark.YIELDED and note.response == response for note in self._notes)

    def take_items(self) -> Iterator[str]:
        """What has come into the conversation, the newest first, each once."""
        while self._named:
            yield self._named.pop()

    def remember_item(self, item_id: str) -> None:
        """The caller itself has put it into the conversation."""
        self._named.append(item_id)

    def forget(self) -> None:
        """The next event begins."""
        self._sounds.clear()
        self._notes.clear()
        self._texts.clear()
        self._items.clear()
        self._newest = self._understood = ""

    # ---- what comes ------------------------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """Let the loudspeaker play up to now."""
        self._record(self._playout.advance(now_ns))

    def acknowledge(self, now_ns: int) -> list[wire.ClientMessage]:
        """Report the position heard of the newest response, where it has moved."""
        response = self._sounds[-1].response if self._sounds else ""
        if response not in self._items:
            return []
        position = (response, self._playout.heard_to_sample(response, now_ns))
        if position == self._acked:
            return []
        self._acked = position
        return [wire.PlaybackAck(response, self._items[response], position[1], self._line.sample_rate)]

    def on_event(self, event: wire.ServerEvent, now_ns: int) -> None:
        """Take in one event."""
        match event:
            case wire.AudioDelta():
                self._on_audio(event, now_ns)
            case wire.TranscriptDelta():
                text = self._texts.get(event.response_id, "") + event.delta
                self._texts[event.response_id] = text[:TEXT_CHARS_MAX]
            case wire.TranscriptDone():
                self._texts[event.response_id] = event.transcript[:TEXT_CHARS_MAX]
            case wire.SpeechStarted():
                self._flush(now_ns)
            case wire.InputCommitted():
                self._named.append(event.item_id)
                self._note(Mark.COMMITTED, now_ns)
            case wire.InputTranscribed():
                self._understood = f"{self._understood} {event.transcript}".strip()[:TEXT_CHARS_MAX]
            case wire.TurnHeld():
                self._note(Mark.HELD, now_ns)
            case wire.TurnResumed():
                self._note(Mark.RESUMED, now_ns)
            case wire.ResponseCreated():
                self._newest = event.response.id
                self._open[self._newest] = None
            case wire.ResponseDone():
                self._on_done(event.response, now_ns)
            case wire.ErrorEvent() if event.error.code != ITEM_GONE:
                self.errors.append(f"{event.error.code or event.error.type}: {event.error.message}")
            case _:
                pass

    def _on_audio(self, event: wire.AudioDelta, now_ns: int) -> None:
        if event.response_id not in self._items:
            self._items[event.response_id] = event.item_id
            self._named.append(event.item_id)
        self.advance(now_ns)
        self._playout.receive(self._line.heard(event), now_ns)

    def _on_done(self, response: wire.FinishedResponse, now_ns: int) -> None:
        self._open.pop(response.id, None)
        reason = None if response.status_details is None else response.status_details.reason
        if response.status == "cancelled":
            self._record(self._playout.cut(now_ns, response.id))
        self._playout.end(response.id)
        self._note(Mark.YIELDED if reason == "turn_detected" else Mark.MADE, now_ns, response.id)

    def _flush(self, now_ns: int) -> None:
        """The service wants silence. A response that it has made already gets no other word than this."""
        self.advance(now_ns)
        unheard = [response for response in self._items if not self.is_over(response)]
        self._record(self._playout.cut(now_ns))
        for response in unheard:
            if response not in self._open:
                self._note(Mark.YIELDED, now_ns, response)

    def _note(self, mark: Mark, now_ns: int, response: str = "") -> None:
        self._notes.append(Note(mark, now_ns, response))

    def _record(self, pieces: list[Heard]) -> None:
        for piece in pieces:
            samples = len(piece.pcm) // BYTES_PER_SAMPLE
            end_ns = piece.start_ns + samples * NS_PER_S // self._line.sample_rate
            sound = Sound(piece.response_id, piece.start_ns, end_ns)
            last = self._sounds[-1] if self._sounds else None
            if last and last.response == sound.response and sound.start_ns - last.end_ns <= ROUNDING_NS:
                self._sounds[-1] = Sound(last.response, last.start_ns, sound.end_ns)
            else:
                self._sounds.append(sound)
