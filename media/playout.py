"""Playout: the sample ledger of one call's output, and what of it is due on the wire.

Theory of operation
    Each response has a ledger on the sample clock of the session's output rate: *generated* samples have come from the
    vocoder, *sent* ones were handed to the kernel, *heard* is what the caller's ear has had at the least. `generated -
    sent` is bounded by the credit that the vocoder holds; `due` bounds `sent - heard` by the transport's lead: it keeps
    `play_end_ns`, the moment at which a caller who plays everything on arrival would run dry, and lets a frame go while
    that moment is less than the lead away. A late chunk moves the moment; no wall clock drifts against the samples.

Rules
* Chunks are contiguous, in order, once each; exactly one is final. Anything else is a bug upstream and raises.
* A frame is `frame_samples` long, but for the last of a response. `sent` never passes `generated`.
* Responses play one after the other; a cut ends one at what was sent and drops the rest.
* A hold stops everything at once and destroys nothing: what sounds fades out over `FADE_MS`, the faded samples count as
  sent, and it goes on from there, faded in. Where nothing sounds, a hold is only a stop.
* `generated >= sent >= heard`, and none of them ever falls, as long as `now_ns` does not; but for a report that puts an
  estimate right.
* A client that reports what its caller heard is believed, within what was sent (`acked`); any other is `estimated`. The
  estimate knows nothing of the network and of what a client keeps in store, so what is reported below it was not heard
  yet. Of reports the furthest counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from media.chunk import BYTES_PER_SAMPLE, AudioChunk, ChunkError, ms_to_samples
from media.fade import FADE_MS, faded_in, faded_out

NS_PER_S = 1_000_000_000

# How it is known what was heard: by the client's reports, by a telephone's marks, or by the pace of sending.
Basis = Literal["acked", "mark", "estimated"]
REPORT_NS_MAX = 2_000_000_000  # reports come ten times a second; a client that has stopped reporting is estimated


@dataclass(frozen=True, slots=True)
class Frame:
    """PCM16 of one response, due now. `final` closes the response's audio and may carry no samples."""

    response: str
    start_sample: int
    pcm: bytes
    final: bool

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE

    @property
    def end_sample(self) -> int:
        return self.start_sample + self.samples


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Where a response stands, in samples at the output rate. `basis`: how `heard` is known."""

    generated: int
    sent: int
    heard: int
    complete: bool
    basis: Basis = "estimated"

    @property
    def unsent(self) -> int:
        return self.generated - self.sent


@dataclass(slots=True)
class _Ledger:
    response: str
    chunks: deque[AudioChunk]
    next_seq: int = 0
    generated: int = 0
    sent: int = 0
    head_offset: int = 0
    play_end_ns: int = 0
    final_in: bool = False
    final_out: bool = False
    fades_in: bool = False  # it was faded out amid its sound
    acked: int = 0
    acked_ns: int | None = None


class Playout:
    """`lead_ns`: how far ahead of the ear frames may be sent."""

    def __init__(self, sample_rate: int, frame_samples: int, lead_ns: int) -> None:
        self._rate = sample_rate
        self._frame_samples = frame_samples
        self._lead_ns = lead_ns
        self._queue: deque[_Ledger] = deque()
        self._known: dict[str, _Ledger] = {}
        self._fade_samples = ms_to_samples(FADE_MS, sample_rate)
        self._withheld: str | None = None
        self._is_held = False
        self._fades_out: str | None = None
        self._play_end_ns = 0
        self._underruns = 0

    @property
    def underruns(self) -> int:
        """How often a response that had begun ran dry at the ear."""
        return self._underruns

    def open(self, response: str) -> None:
        """Expect audio of `response`, after what is already queued."""
        if response in self._known:
            raise ChunkError(f"{response} is already open")
        ledger = _Ledger(response, deque())
        self._known[response] = ledger
        self._queue.append(ledger)

    def withhold(self, response: str) -> None:
        """Let nothing of `response` go yet."""
        self._withheld = response

    def release(self) -> None:
        """Let go what is withheld."""
        self._withheld = None

    def hold(self) -> None:
        """Fall silent: what is sounding fades out, and nothing follows until `resume`. Idempotent."""
        if self._is_held:
            return
        self._is_held = True
        head = self._head()
        if head is not None and 0 < head.sent < head.generated and not head.fades_in:
            self._fades_out = head.response

    def resume(self) -> None:
        """Go on at what was sent. Idempotent."""
        self._is_held, self._fades_out = False, None

    def _head(self) -> _Ledger | None:
        """Whose turn it is to sound."""
        while self._queue and self._queue[0].final_out:
            self._queue.popleft()
        return self._queue[0] if self._queue else None

    def push(self, response: str, chunk: AudioChunk) -> None:
        """Take the next chunk; raises `ChunkError` where it breaks the contract, `KeyError` where nothing is open."""
        ledger = self._known[response]
        if ledger.final_in:
            raise ChunkError(f"{response}: chunk {chunk.seq} after the final one")
        if chunk.seq != ledger.next_seq or chunk.start_sample != ledger.generated:
            raise ChunkError(
                f"{response}: chunk {chunk.seq} at {chunk.start_sample}, wanted {ledger.next_seq} at {ledger.generated}"
            )
        if chunk.sample_rate != self._rate:
            raise ChunkError(f"{response}: {chunk.sample_rate} Hz on a {self._rate} Hz output")
        ledger.next_seq += 1
        ledger.generated = chunk.end_sample
        ledger.final_in = chunk.final
        if chunk.pcm:
            ledger.chunks.append(chunk)

    def due(self, now_ns: int) -> Frame | None:
        """The next frame if it may go now; it then counts as sent. Call until None."""
        ledger = self._head()
        if ledger is None or ledger.response == self._withheld:
            return None
        if self._is_held:
            return self._fade_out(ledger, now_ns) if ledger.response == self._fades_out else None
        if self._play_end_ns - now_ns >= self._lead_ns:
            return None
        size = min(self._frame_samples, ledger.generated - ledger.sent)
        if size < self._frame_samples and not ledger.final_in:
            return None
        if self._play_end_ns < now_ns:
            self._underruns += ledger.sent > 0 and size > 0 and not ledger.fades_in
            self._play_end_ns = now_ns
        frame = self._send(ledger, size)
        if ledger.fades_in and frame.samples:
            ledger.fades_in = False
            return replace(frame, pcm=faded_in(frame.pcm, self._fade_samples))
        return frame

    def _fade_out(self, ledger: _Ledger, now_ns: int) -> Frame | None:
        """The last of what is sounding, if anything is. It goes at once: it must be there before the sound before it
        ends. That is asked at the frame's own moment, which a driver that is late has not come to yet at the hold's."""
        self._fades_out = None
        if self._play_end_ns < now_ns:
            return None
        ledger.fades_in = True
        frame = self._send(ledger, min(self._fade_samples, ledger.generated - ledger.sent))
        return replace(frame, pcm=faded_out(frame.pcm))

    def _send(self, ledger: _Ledger, samples: int) -> Frame:
        self._play_end_ns += samples * NS_PER_S // self._rate
        ledger.play_end_ns = self._play_end_ns
        return self._take(ledger, samples)

    def _take(self, ledger: _Ledger, samples: int) -> Frame:
        start, parts, wanted = ledger.sent, [], samples * BYTES_PER_SAMPLE
        while wanted:
            head = ledger.chunks[0].pcm
            part = head[ledger.head_offset : ledger.head_offset + wanted]
            parts.append(part)
            wanted -= len(part)
            ledger.head_offset += len(part)
            if ledger.head_offset == len(head):
                ledger.chunks.popleft()
                ledger.head_offset = 0
        ledger.sent += samples
        ledger.final_out = ledger.final_in and ledger.sent == ledger.generated
        return Frame(ledger.response, start, b"".join(parts), ledger.final_out)

    def view(self, response: str, now_ns: int) -> LedgerView:
        """Where `response` stands. Heard is an estimate that errs low: what was sent, less what is still to play."""
        ledger = self._known[response]
        if ledger.acked_ns is not None and now_ns - ledger.acked_ns <= REPORT_NS_MAX:
            return LedgerView(ledger.generated, ledger.sent, ledger.acked, ledger.final_out, "acked")
        unplayed_ns = max(0, ledger.play_end_ns - now_ns)
        unplayed = -(-unplayed_ns * self._rate // NS_PER_S)
        heard = max(ledger.acked, ledger.sent - unplayed)
        return LedgerView(ledger.generated, ledger.sent, heard, ledger.final_out)

    def acknowledge(self, response: str, samples: int, now_ns: int) -> None:
        """The client reports that `samples` of `response` were heard. Never lowers what was reported before."""
        ledger = self._known[response]
        ledger.acked = max(ledger.acked, min(samples, ledger.sent))
        ledger.acked_ns = now_ns

    def played_out_ns(self) -> int:
        """When the ear has had all that was sent so far."""
        return self._play_end_ns

    def cut(self, response: str, now_ns: int) -> LedgerView:
        """End `response` at what was sent; what was not is dropped. Idempotent."""
        view = self.view(response, now_ns)
        ledger = self._known[response]
        ledger.chunks.clear()
        ledger.final_in = ledger.final_out = True
        if ledger in self._queue:
            self._queue.remove(ledger)
        return view

    def forget(self, response: str) -> None:
        """The response has drained: drop its ledger."""
        ledger = self._known.pop(response)
        if ledger in self._queue:
            self._queue.remove(ledger)

    def open_responses(self) -> tuple[str, ...]:
        return tuple(self._known)
