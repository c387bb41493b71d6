"""From the ring of a call's input to the encoder: which samples of which turn go next, under that edge's credit.

Theory of operation
    Each turn that is heard has a place in the ring. It moves on as input is judged and as the encoder gives credit
    back; what is to be told behind the audio (a pause, the end) waits until all of that audio has gone.

Rules
* The encoder hears what has been judged: whole windows, so that what it gets depends on no message's size.
* Every call returns what to feed now, in order; nothing is fed twice, and only what the ring has lost is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from media.input_ring import InputRing
from sessions.settings import INPUT_RATE
from stages.contracts import AudioIn, Item, Tag
from stages.credit import Credit
from stages.messages import Feed

FEED_SAMPLES_MAX = INPUT_RATE // 10
ENCODER_CREDIT_SAMPLES = 2 * INPUT_RATE


@dataclass(slots=True)
class _Feeding:
    """A turn that the encoder is hearing; `until` None: it goes on."""

    tag: Tag
    next_sample: int
    until: int | None
    credit: Credit = field(default_factory=lambda: Credit(ENCODER_CREDIT_SAMPLES))
    after: list[Item] = field(default_factory=list)


class EncoderFeed:
    """Reads from `ring`, to which its owner appends. Offsets are absolute 16 kHz samples."""

    def __init__(self, ring: InputRing) -> None:
        self._ring = ring
        self._judged = ring.newest
        self._feeding: dict[str, _Feeding] = {}

    @property
    def turns(self) -> int:
        """How many turns are being heard."""
        return len(self._feeding)

    @property
    def credit_out(self) -> int:
        """Samples that the encoder was fed and has not used yet."""
        return sum(feeding.credit.window - feeding.credit.available for feeding in self._feeding.values())

    def judged(self, sample: int) -> list[Feed]:
        """Input was judged up to `sample`."""
        self._judged = sample
        return self._pump()

    def hear_from(self, tag: Tag, sample: int, until: int | None) -> list[Feed]:
        """Feed `tag` from `sample` on, as far as it is still kept."""
        self._feeding[tag.key] = _Feeding(tag, max(sample, self._ring.oldest), until)
        return self._pump()

    def stop_hearing(self, tag: Tag, until: int) -> list[Feed]:
        """Nothing behind `until`, nor behind where it was stopped before, belongs to `tag`; what it has not had of what
        lies before is still fed."""
        feeding = self._feeding.get(tag.key)
        if feeding is None:
            return []
        feeding.until = until if feeding.until is None else min(until, feeding.until)
        return self._pump()

    def tell(self, tag: Tag, item: Item) -> list[Feed]:
        """Feed `item` behind the audio that came in before it."""
        feeding = self._feeding.get(tag.key)
        if feeding is None:
            return [Feed(tag, item)]
        feeding.after.append(item)
        return self._pump()

    def drop(self, tag: Tag) -> None:
        """The encoder's stream is gone."""
        self._feeding.pop(tag.key, None)

    def credit_returned(self, tag: Tag, samples: int) -> list[Feed]:
        feeding = self._feeding.get(tag.key)
        if feeding is None:
            return []
        feeding.credit.give_back(samples)
        return self._pump()

    def would_lose(self, samples: int) -> bool:
        """True where `samples` more would push out of the ring what the encoder has yet to hear."""
        oldest_after = self._ring.newest + samples - self._ring.capacity
        return any(self._unfed_end(feeding, oldest_after) > feeding.next_sample for feeding in self._feeding.values())

    def _unfed_end(self, feeding: _Feeding, oldest_after: int) -> int:
        return min(oldest_after, self._ring.newest if feeding.until is None else feeding.until)

    def _pump(self) -> list[Feed]:
        """What credit allows."""
        return [feed for feeding in self._feeding.values() for feed in self._next_of(feeding)]

    def _next_of(self, feeding: _Feeding) -> Iterator[Feed]:
        end = self._judged if feeding.until is None else min(feeding.until, self._ring.newest)
        while feeding.next_sample < end:
            count = min(FEED_SAMPLES_MAX, end - feeding.next_sample)
            if not feeding.credit.take(count):
                return
            piece = self._ring.read(feeding.next_sample, feeding.next_sample + count)
            feeding.next_sample += count
            yield Feed(feeding.tag, AudioIn(piece.start_sample, piece.pcm), count)
        for item in feeding.after:
            yield Feed(feeding.tag, item)
        feeding.after.clear()
