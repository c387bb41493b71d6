"""Playout: the sample ledger of one call's output, and what of it is due on the wire.

Theory of operation
    Each response has a ledger on a sample clock, whose rate it is opened with: *generated* samples have come from the
    vocoder, *sent* ones were handed to the kernel, *heard* is what the caller's ear has had at the least. `generated -
    sent` is bounded by the credit that the vocoder holds; `due` bounds `sent - heard` by the transport's lead: it keeps
    `play_end_ns`, the moment at which a caller who plays everything on arrival would run dry, and lets a frame go while
    that moment is less than the lead away. A late chunk moves the moment; no wall clock drifts against the samples.

Rules
* Chunks are contiguous, in order, once each; exactly one is final. Anything else is a bug upstream and raises.
* A frame is `frame_samples` long, but for the last of a response. `sent` never passes `generated`.
* Responses play one after the other; a cut ends one at what was sent and drops the rest. What a client throws away of
  that takes no time at its ear.
* A hold stops everything at once and destroys nothing: what sounds fades out over `FADE_MS`, the faded samples count as
  sent, and it goes on from there, faded in. Where nothing sounds, a hold is only a stop.
* `generated >= sent >= heard`, and none of them ever falls, as long as `now_ns` does not; but for a report that puts an
  estimate right, and for what was estimated to have reached a peer that had fallen silent by then.
* A client that reports what its caller heard is believed, within what was sent (`acked`), and of its reports the
  furthest counts; any other is `estimated`, by the path to its ear (`media.heard_estimate`). What a client keeps in
  store is known to it alone, so what is reported below the estimate was not heard yet. A path that has become longer
  takes nothing back.
* A player that stands still holds up what is behind it (`media.play_order`): while reports show it to be at a response,
  nothing of those after that was heard, unless it is reported itself. Where that has been played to its end since the
  last report, or was thrown away, the estimate of the next begins there, and no sooner at the pace of sending.
* A client that stops reporting is estimated from its last report on: no more was heard than time has passed since.
* A telephone's marks (`mark`) are waited for: nothing is estimated before `REPORT_NS_MAX` have gone by without one.
* Nothing here waits for reports: pacing goes by the moments at which samples are due, and a client whose player is
  empty need not say so. Once it has had the time to play all, and by its last report too, it has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from media.chunk import BYTES_PER_SAMPLE, AudioChunk, ChunkError, ms_to_samples, rescale
from media.fade import FADE_MS, faded_in, faded_out
from media.heard_estimate import DELAY_NS_MAX, NS_PER_S, Pacing, Path
from media.play_order import NEVER_NS, Between, Reported

# How it is known what was heard: by the client's reports, by a telephone's marks, or by the pace of sending.
Reports = Literal["acked", "mark"]
Basis = Literal[Reports, "estimated"]
REPORT_NS_MAX = 2_000_000_000  # reports come ten times a second; a client that has stopped reporting is estimated


@dataclass(frozen=True, slots=True)
class Frame:
    """PCM16 of one response, due now. `final` closes the response's audio and may carry no samples. `sounds_ns`: when
    an ear without any delay has its first sample."""

    response: str
    start_sample: int
    pcm: bytes
    final: bool
    sounds_ns: int = 0

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE

    @property
    def end_sample(self) -> int:
        return self.start_sample + self.samples


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Where a response stands, in samples at its rate. `basis`: how `heard` is known; up to `error_samples` more
    may have been."""

    generated: int
    sent: int
    heard: int
    complete: bool
    basis: Basis = "estimated"
    error_samples: int = 0

    @property
    def unsent(self) -> int:
        return self.generated - self.sent


@dataclass(slots=True)
class _Ledger:
    """`frame_samples`, `fade_samples`: of a whole frame, and of a fade."""

    response: str
    rate: int
    frame_samples: int
    fade_samples: int
    chunks: deque[AudioChunk]
    pacing: Pacing
    reported: Reported
    next_seq: int = 0
    generated: int = 0
    sent: int = 0
    head_offset: int = 0
    final_in: bool = False
    final_out: bool = False
    kept_back: int | None = None  # from there on it may not go yet
    fades_in: bool = False  # it was faded out amid its sound
    heard_min: int = 0
    lag_ns: int = 0  # the longest between a sample's moment and the report that it was heard

    def lets_go(self, samples: int) -> bool:
        """Whether so many may follow what was sent."""
        return self.kept_back is None or self.sent + samples <= self.kept_back

    @property
    def reported_ns(self) -> int | None:
        """When the last report came that told anything new."""
        return None if self.reported.at is None else self.reported.at.last_ns

    def goes_by_reports(self, now_ns: int, estimated: int) -> bool:
        """Whether the last report tells what was heard. It does not any more where it is old, or where all was sent and
        is `estimated` to be heard by now."""
        if self.reported_ns is None:
            return False
        if self.final_out and estimated >= self.sent:
            return self.reported.heard >= self.sent
        return now_ns - self.reported_ns <= REPORT_NS_MAX

    def goes_by_marks(self, now_ns: int) -> bool:
        """Whether the last mark tells what was heard: the next one is not overdue."""
        due_ns = self.pacing.due_ns(self.reported.heard + 1)
        if due_ns is None:
            return self.reported_ns is not None
        return now_ns - max(due_ns, self.reported_ns or due_ns) <= REPORT_NS_MAX


class Playout:
    """`sample_rate`, `frame_samples`: of responses, and of a frame of theirs, unless they are opened with another rate.
    `lead_ns`: how far ahead of the ear frames may be sent. `reports`: what says what was heard, where anything does."""

    def __init__(self, sample_rate: int, frame_samples: int, lead_ns: int, reports: Reports = "acked") -> None:
        self._rate = sample_rate
        self._frame_samples = frame_samples
        self._lead_ns = lead_ns
        self.reports: Reports = reports
        self._queue: deque[_Ledger] = deque()
        self._known: dict[str, _Ledger] = {}
        self._withheld: str | None = None
        self._is_held = False
        self._fades_out: str | None = None
        self._play_end_ns = 0
        self._underruns = 0
        self._path = Path()

    @property
    def underruns(self) -> int:
        """How often a response that had begun ran dry at the ear."""
        return self._underruns

    def open(self, response: str, sample_rate: int | None = None) -> None:
        """Expect audio of `response`, after what is already queued. Its positions are samples at its rate."""
        if response in self._known:
            raise ChunkError(f"{response} is already open")
        rate = sample_rate or self._rate
        frame_samples = rescale(self._frame_samples, self._rate, rate)
        fade_samples = ms_to_samples(FADE_MS, rate)
        ledger = _Ledger(response, rate, frame_samples, fade_samples, deque(), Pacing(rate), Reported(rate))
        self._known[response] = ledger
        self._queue.append(ledger)

    def remember(self, response: str, sample_rate: int, *, sent: int, heard: int) -> None:
        """`response` was sent by another process, as far as `sent`. Whether its client has thrown away what it had not
        played, nobody knows."""
        self.open(response, sample_rate)
        ledger = self._known[response]
        ledger.generated = ledger.sent = sent
        ledger.heard_min = heard
        ledger.final_in = ledger.final_out = True
        ledger.reported.thrown = Between(0, NEVER_NS)

    def keep_back(self, response: str, sample: int | None) -> None:
        """Let nothing of `response` go from `sample` on; None: all of it may."""
        self._known[response].kept_back = sample

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
        if chunk.sample_rate != ledger.rate:
            raise ChunkError(f"{response}: {chunk.sample_rate} Hz on a {ledger.rate} Hz output")
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
        size = min(ledger.frame_samples, ledger.generated - ledger.sent)
        if (size < ledger.frame_samples and not ledger.final_in) or not ledger.lets_go(size):
            return None
        if self._play_end_ns < now_ns:
            self._underruns += ledger.sent > 0 and size > 0 and not ledger.fades_in
            self._play_end_ns = now_ns
        frame = self._send(ledger, size)
        if ledger.fades_in and frame.samples:
            ledger.fades_in = False
            return replace(frame, pcm=faded_in(frame.pcm, ledger.fade_samples))
        return frame

    def _fade_out(self, ledger: _Ledger, now_ns: int) -> Frame | None:
        """The last of what is sounding, if anything is. It goes at once: it must be there before the sound before it
        ends. That is asked at the frame's own moment, which a driver that is late has not come to yet at the hold's."""
        self._fades_out = None
        if self._play_end_ns < now_ns:
            return None
        ledger.fades_in = True
        size = min(ledger.fade_samples, ledger.generated - ledger.sent)
        if not ledger.lets_go(size):
            return None
        frame = self._send(ledger, size)
        return replace(frame, pcm=faded_out(frame.pcm))

    def _send(self, ledger: _Ledger, samples: int) -> Frame:
        sounds_ns = self._play_end_ns
        ledger.pacing.record(sounds_ns, samples)
        self._play_end_ns += samples * NS_PER_S // ledger.rate
        return self._take(ledger, samples, sounds_ns)

    def _take(self, ledger: _Ledger, samples: int, sounds_ns: int) -> Frame:
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
        return Frame(ledger.response, start, b"".join(parts), ledger.final_out, sounds_ns)

    # ---- the ear -----------------------------------------------------------------------------------

    def view(self, response: str, now_ns: int) -> LedgerView:
        """Where `response` stands. Heard errs low; with the error that is told beside it, it errs high."""
        ledger = self._known[response]
        estimated = self._estimated(ledger, now_ns)
        goes_by_reports = (
            ledger.goes_by_marks(now_ns) if self.reports == "mark" else ledger.goes_by_reports(now_ns, estimated)
        )
        basis: Basis = self.reports if goes_by_reports else "estimated"
        heard = ledger.heard_min if goes_by_reports else max(ledger.heard_min, estimated)
        error = max(0, self._heard_max(ledger, now_ns) - heard)
        return LedgerView(ledger.generated, ledger.sent, heard, ledger.final_out, basis, error)

    def _estimated(self, ledger: _Ledger, now_ns: int) -> int:
        """What was heard at the least, if the player has gone on since the last report."""
        least, begun = ledger.pacing.due_by(self._path.heard_by(now_ns)), self._begun(ledger)
        if begun is None:
            return least
        return min(least, ledger.reported.heard + max(0, now_ns - begun.last_ns) * ledger.rate // NS_PER_S)

    def _heard_max(self, ledger: _Ledger, now_ns: int) -> int:
        most, begun = ledger.pacing.due_by(now_ns - self._path.delay_ns_min), self._begun(ledger)
        if begun is None:
            return most
        return min(most, ledger.reported.heard - (-max(0, now_ns - begun.first_ns) * ledger.rate // NS_PER_S))

    def _begun(self, ledger: _Ledger) -> Between | None:
        """When the ear was at what is reported of `ledger`, or gets to it; None where no report tells."""
        free = None
        for one in takewhile(lambda one: one is not ledger, self._known.values()):
            free = one.reported.over(free, one.sent)
        return ledger.reported.begun(free)

    def acknowledge(self, response: str, samples: int, now_ns: int) -> None:
        """The client reports that `samples` of `response` were heard. Never lowers what was reported before."""
        ledger = self._known[response]
        due_ns = ledger.pacing.due_ns(samples) if ledger.reported.heard <= samples < ledger.sent else None
        if due_ns is not None:  # what has been played to its end says nothing of when that was
            ledger.lag_ns = max(ledger.lag_ns, now_ns - due_ns)
            self.go_by(self._path, now_ns)
        end = ledger.sent if ledger.final_out else None
        made = Between(now_ns - self._path.report_ns_max, now_ns)
        ledger.reported.report(min(samples, ledger.sent), made, end=end)
        self._put_right(ledger)

    def _put_right(self, ledger: _Ledger) -> None:
        """Of `ledger`, and of what is behind it, no more was heard than is reported."""
        ledgers = list(self._known.values())
        for one in ledgers[ledgers.index(ledger) :]:
            one.heard_min = one.reported.heard

    def reported(self, response: str) -> int:
        """How much of `response` was heard by the reports that came so far; 0 where none did, or it is not known."""
        ledger = self._known.get(response)
        return ledger.reported.heard if ledger else 0

    def go_by(self, path: Path, now_ns: int) -> None:
        """The path to the ear is now this. Where reports have shown how long it is, that is known better."""
        for response, ledger in self._known.items():
            ledger.heard_min = self.view(response, now_ns).heard
            if path.silent_ns is not None and path.silent_ns < ledger.pacing.end_ns:
                has_come = max(ledger.reported.heard, ledger.pacing.due_by(path.silent_ns))
                ledger.heard_min = min(ledger.heard_min, has_come)
        lag_ns = max((ledger.lag_ns for ledger in self._known.values()), default=0)
        if lag_ns:  # the longest of the last replies: within one, a buffer that ran low makes it shorter
            path = replace(path, delay_ns_max=min(max(lag_ns, path.delay_ns_min), DELAY_NS_MAX))
        self._path = path

    def arrived(self, response: str, now_ns: int) -> tuple[int, int]:
        """How much of `response` has reached its client for certain, and how much of what was sent will."""
        ledger, path = self._known[response], self._path
        heard = self.view(response, now_ns).heard
        certain = max(heard, ledger.pacing.due_by(path.arrived_ns))
        if path.silent_ns is None:
            return certain, ledger.sent
        return certain, max(certain, ledger.pacing.due_by(path.silent_ns))

    def rate_of(self, response: str) -> int:
        """Samples per second of `response`."""
        return self._known[response].rate

    def lead_ns(self, response: str, now_ns: int) -> int:
        """How far ahead of the ear `response` has been sent."""
        view = self.view(response, now_ns)
        return (view.sent - view.heard) * NS_PER_S // self._known[response].rate

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

    def recall(self, response: str, now_ns: int) -> None:
        """The client throws away what it has not played of `response`, which was cut: what follows sounds at once."""
        ledger, path = self._known[response], self._path
        thrown = Between(now_ns - path.report_ns_max, now_ns + path.delay_ns_max)
        ledger.reported.thrown = thrown.or_sooner(ledger.reported.thrown)
        ledger.pacing.take_back(ledger.pacing.due_by(now_ns))
        ends_ns = (ledger.pacing.end_ns for ledger in self._known.values())
        self._play_end_ns = min(self._play_end_ns, max(now_ns, *ends_ns))

    def take_back(self, response: str, samples: int) -> None:
        """Of `response`, which was cut, no more than `samples` were sent after all: the rest was not written yet."""
        ledger = self._known[response]
        ledger.sent, ledger.reported.heard, ledger.heard_min = (
            min(counted, samples) for counted in (ledger.sent, ledger.reported.heard, ledger.heard_min)
        )
        ledger.pacing.take_back(samples)

    def forget(self, response: str) -> None:
        """The response has drained: drop its ledger."""
        ledger = self._known.pop(response)
        if ledger in self._queue:
            self._queue.remove(ledger)

    def open_responses(self) -> tuple[str, ...]:
        return tuple(self._known)
