"""What the caller hears: a FIFO player, fed by what arrives.

Theory of operation
    A received frame starts at max(arrival, end of what is queued) and plays at the nominal rate. With a jitter buffer,
    a frame that finds nothing queued waits for as long as that holds. `advance` moves
    played frames out of the queue and returns them as `Heard`, placed in time. `cut` is the caller's own flush when
    the server says that a reply is over: what has not been played is dropped, the frame being played is split.
    For each response a `ReplyAudio` says what was received, heard and wrong.

Rules
* Times are integer nanoseconds of one clock, given by the caller of each method, and never go back.
* Frames are played in the order of arrival, stale ones too: that is what an unmodified client does.
* *Stale* is what arrives after the response's terminal, after a cut, or with an epoch below one already seen.
* Whatever was received has been heard, discarded, or lies in the queue; the queue is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from loadtest.continuity import Continuity
from loadtest.loudness import audible_span
from media.chunk import BYTES_PER_SAMPLE

NS_PER_S = 1_000_000_000

# A server without pacing sends a whole reply at once (LiveKit Agents into a telephone's buffer: 60 s and more);
# two minutes of 24 kHz PCM16 are 5.8 MB a call.
QUEUE_S_MAX = 120


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """One piece of a reply as received. `pcm` is PCM16 mono; the rest is None where the server does not say."""

    response_id: str
    pcm: bytes
    epoch: int | None = None
    start_sample: int | None = None
    samples: int | None = None
    sample_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """`pcm` was played from `start_ns` on; it is of that response."""

    start_ns: int
    pcm: bytes
    response_id: str = ""


@dataclass(frozen=True, slots=True)
class Faults:
    """What was wrong with the audio of a response; all 0 from a server that keeps its promises."""

    missing_samples: int = 0
    doubled_samples: int = 0
    reordered_frames: int = 0
    wrong_epoch_frames: int = 0
    stale_samples: int = 0
    mislabelled_frames: int = 0
    overflow_samples: int = 0

    @property
    def total(self) -> int:
        """0 where there is none; a sum of unlike things otherwise."""
        return sum(self.counts().values())

    def counts(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class ReplyAudio:
    """The sound of one response, as it stands. Heard and audible times are final once played, or cut.

    `gap_ns_max` is the longest time between two arrivals; `dry_ns` how long playout stood still between frames.
    """

    first_received_ns: int | None = None
    last_received_ns: int | None = None
    received_samples: int = 0
    heard_samples: int = 0
    discarded_samples: int = 0
    first_heard_ns: int | None = None
    last_heard_ns: int | None = None
    first_audible_ns: int | None = None
    last_audible_ns: int | None = None
    gap_ns_max: int = 0
    dry_ns: int = 0
    heard_to_sample: int = 0
    ended: bool = False
    cut: bool = False
    epoch: int | None = None
    wrong_epoch_frames: int = 0
    stale_samples: int = 0
    mislabelled_frames: int = 0
    overflow_samples: int = 0
    continuity: Continuity = field(default_factory=Continuity)

    @property
    def faults(self) -> Faults:
        return Faults(
            self.continuity.missing_samples,
            self.continuity.doubled_samples,
            self.continuity.reordered_frames,
            self.wrong_epoch_frames,
            self.stale_samples,
            self.mislabelled_frames,
            self.overflow_samples,
        )

    def play(self, start_ns: int, pcm: bytes, sample_rate: int) -> None:
        """`pcm` is heard from `start_ns` on."""
        samples = len(pcm) // BYTES_PER_SAMPLE
        if self.first_heard_ns is None:
            self.first_heard_ns = start_ns
        self.heard_samples += samples
        self.last_heard_ns = start_ns + _ns(samples, sample_rate)
        span = audible_span(pcm, sample_rate)
        if span is not None:
            if self.first_audible_ns is None:
                self.first_audible_ns = start_ns + _ns(span[0], sample_rate)
            self.last_audible_ns = start_ns + _ns(span[1], sample_rate)


def _ns(samples: int, sample_rate: int) -> int:
    return samples * NS_PER_S // sample_rate


@dataclass(frozen=True, slots=True)
class _Queued:
    """A frame with its place in time; `start_sample` is its offset in the response, told or counted."""

    response_id: str
    reply: ReplyAudio
    start_ns: int
    start_sample: int
    pcm: bytes

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE


class PlayoutModel:
    """The caller's loudspeaker for PCM16 mono at `sample_rate`, with a jitter buffer of `buffer_ns`."""

    def __init__(self, sample_rate: int, buffer_ns: int = 0) -> None:
        self._rate = sample_rate
        self._buffer_ns = buffer_ns
        self._replies: dict[str, ReplyAudio] = {}
        self._queue: deque[_Queued] = deque()
        self._queued_samples = 0
        # A run of frames without a pause: its start, and its samples so far, keep placing exact to the nanosecond.
        self._run_start_ns = 0
        self._run_samples = 0
        self._newest: ReplyAudio | None = None
        self._epoch_max = 0

    @property
    def replies(self) -> Mapping[str, ReplyAudio]:
        """By response id, in order of their first frame."""
        return self._replies

    @property
    def queue_end_ns(self) -> int:
        """When the last queued frame will have been played; in the past where nothing is queued."""
        return self._run_start_ns + _ns(self._run_samples, self._rate)

    def reply(self, response_id: str) -> ReplyAudio:
        """The record of that response, made where it is new."""
        return self._replies.setdefault(response_id, ReplyAudio())

    def receive(self, frame: AudioFrame, now_ns: int) -> None:
        """A frame has arrived."""
        reply = self.reply(frame.response_id)
        samples = len(frame.pcm) // BYTES_PER_SAMPLE
        self._judge(reply, frame, samples)
        if not samples:
            return
        start_sample = reply.received_samples if frame.start_sample is None else frame.start_sample
        reply.continuity.add(start_sample, samples)
        if reply.first_received_ns is None:
            reply.first_received_ns = now_ns
        if reply.last_received_ns is not None:
            reply.gap_ns_max = max(reply.gap_ns_max, now_ns - reply.last_received_ns)
        reply.last_received_ns = now_ns
        reply.received_samples += samples
        if self._queued_samples + samples > QUEUE_S_MAX * self._rate:
            reply.overflow_samples += samples
            reply.discarded_samples += samples
            return
        self._enqueue(_Queued(frame.response_id, reply, now_ns, start_sample, frame.pcm), now_ns)

    def _judge(self, reply: ReplyAudio, frame: AudioFrame, samples: int) -> None:
        told_samples = samples if frame.samples is None else frame.samples
        told_rate = self._rate if frame.sample_rate is None else frame.sample_rate
        reply.mislabelled_frames += (told_samples, told_rate) != (samples, self._rate)
        outdated = False
        if frame.epoch is not None:
            outdated = frame.epoch < self._epoch_max
            self._epoch_max = max(self._epoch_max, frame.epoch)
            if reply.epoch is None:
                reply.epoch = frame.epoch
            reply.wrong_epoch_frames += outdated or frame.epoch != reply.epoch
        if reply.ended or outdated:
            reply.stale_samples += samples

    def _enqueue(self, queued: _Queued, now_ns: int) -> None:
        dry_ns = now_ns - self.queue_end_ns
        if dry_ns > 0:
            if self._newest is queued.reply:
                queued.reply.dry_ns += dry_ns + self._buffer_ns
            self._run_start_ns, self._run_samples = now_ns + self._buffer_ns, 0
        self._newest = queued.reply
        self._place(queued)

    def _place(self, queued: _Queued) -> None:
        """Put the frame behind all that is queued."""
        placed = replace(queued, start_ns=self.queue_end_ns)
        if placed.reply.first_heard_ns is None:
            placed.reply.first_heard_ns = placed.start_ns
        self._queue.append(placed)
        self._run_samples += placed.samples
        self._queued_samples += placed.samples

    def end(self, response_id: str) -> None:
        """The server has given the response's terminal: later audio of it is stale; what is queued plays on."""
        self.reply(response_id).ended = True

    def advance(self, now_ns: int) -> list[Heard]:
        """What has been played to its end by `now_ns`, in order."""
        heard: list[Heard] = []
        while self._queue and self._end_ns(self._queue[0]) <= now_ns:
            queued = self._queue.popleft()
            self._queued_samples -= queued.samples
            heard.append(self._play(queued))
        return heard

    def cut(self, now_ns: int, response_id: str | None = None) -> list[Heard]:
        """Flush all responses, or that one; later audio of them is stale. Returns what was still heard."""
        heard = self.advance(now_ns)
        condemned = set(self._replies) if response_id is None else {response_id}
        for doomed in condemned:
            self.reply(doomed).ended = True
        left = list(self._queue)
        self._queue.clear()
        self._queued_samples = self._run_samples = 0
        # The first frame left is in play: where it is spared it keeps its place, otherwise silence begins now.
        spared_in_play = bool(left) and left[0].response_id not in condemned
        self._run_start_ns = left[0].start_ns if spared_in_play else now_ns
        for queued in left:
            if not queued.reply.heard_samples:
                queued.reply.first_heard_ns = None
        for queued in left:
            if queued.response_id in condemned:
                heard += self._split(queued, now_ns)
            else:
                self._place(queued)
        return heard

    def heard_to_sample(self, response_id: str, now_ns: int) -> int:
        """The offset in the response up to which it has been heard by `now_ns`, the frame in play included."""
        reply = self.reply(response_id)
        if self._queue and self._queue[0].reply is reply:
            return self._queue[0].start_sample + self._played_samples(self._queue[0], now_ns)
        return reply.heard_to_sample

    def _split(self, queued: _Queued, now_ns: int) -> list[Heard]:
        """Discard a frame from `now_ns` on; what was heard of it, if anything."""
        played = self._played_samples(queued, now_ns)
        queued.reply.cut = True
        queued.reply.discarded_samples += queued.samples - played
        if not played:
            return []
        return [self._play(replace(queued, pcm=queued.pcm[: played * BYTES_PER_SAMPLE]))]

    def _play(self, queued: _Queued) -> Heard:
        queued.reply.play(queued.start_ns, queued.pcm, self._rate)
        queued.reply.heard_to_sample = queued.start_sample + queued.samples
        return Heard(queued.start_ns, queued.pcm, queued.response_id)

    def _played_samples(self, queued: _Queued, now_ns: int) -> int:
        return min(queued.samples, max(0, (now_ns - queued.start_ns) * self._rate // NS_PER_S))

    def _end_ns(self, queued: _Queued) -> int:
        return queued.start_ns + _ns(queued.samples, self._rate)
