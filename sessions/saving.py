"""What is stored of a reply while it is said, and how much of its sound may go before that is.

Theory of operation
    Words of a clause come with the Talker's times, before the sound of it is made. They are then asked to be stored,
    as one *part*, while the first chunk is being made; sound from the clause's start on waits until the store has
    taken the part. Where sound has come whose words have not, all text that has no times yet is a part. Once a second
    what was heard is stored as well. So if this process dies, whoever comes next knows every word that may have been
    heard.

Rules
* A part is kept back for `SAVE_NS_MAX` at most: then its sound goes, and whoever asks is told that it is `late`.
* Words that are known anew, as those of another attempt, take the place of those that were stored.
* Of sound of which neither words nor text have come, nothing can be stored, and nothing waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from media.playout import LedgerView
from sessions.reply import Reply, SpokenWord

# As long as the pauses of a voice between clauses (140 to 300 ms): a call that waits for its store so long has not
# fallen silent yet. A store answers in less than one, with a slow disk in ten.
SAVE_NS_MAX = 250_000_000
HEARD_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be stored next: `words` from number `first` on, and the text that has no times, `rest`."""

    number: int
    first: int
    words: tuple[SpokenWord, ...]
    rest: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Part `number` was asked for, and is of the sound from `sample` on."""

    number: int
    sample: int
    asked_ns: int


class Saving:
    """Of one reply."""

    def __init__(self) -> None:
        self._parts = 0
        self._words = 0
        self._rest = ""
        self._end = 0
        self._is_aligned = False
        self._waiting: deque[_Waiting] = deque()  # no more than a reply has words
        self._heard = 0
        self._heard_due_ns: int | None = None

    @property
    def is_begun(self) -> bool:
        """Something was asked to be stored."""
        return self._parts > 0

    @property
    def kept_back(self) -> int | None:
        """The sample from which on its sound waits for the store; None: all of it may go."""
        return self._waiting[0].sample if self._waiting else None

    def anew(self) -> None:
        """Another attempt begins, from the first sample. Nothing of the one before was heard."""
        self._words = self._end = 0
        self._rest, self._is_aligned = "", False

    def part(self, reply: Reply, generated: int, now_ns: int) -> Part | None:
        """What is to be stored now of `reply`, of which there is so much sound."""
        if reply.is_aligned and not self._is_aligned:
            self._is_aligned, self._words = True, 0
        words, first = reply.words[self._words :], self._words
        end = words[-1].end if words else self._end
        rest = reply.untimed if generated > end else ""
        if not words and rest in ("", self._rest):
            return None
        self._parts += 1
        self._waiting.append(_Waiting(self._parts, self._end, now_ns))
        self._words, self._rest, self._end = first + len(words), rest, max(self._end, end)
        if self._heard_due_ns is None:
            self._heard_due_ns = now_ns + HEARD_NS
        return Part(self._parts, first, words, rest)

    def saved(self, number: int) -> None:
        """The store has part `number`, and those before it."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()

    def all_saved(self) -> None:
        """Nothing waits any more: the store has it, or is known not to."""
        self._waiting.clear()

    def next_deadline_ns(self) -> int | None:
        late_ns = self._waiting[0].asked_ns + SAVE_NS_MAX if self._waiting else None
        return min((at for at in (late_ns, self._heard_due_ns) if at is not None), default=None)

    def is_late(self, now_ns: int) -> bool:
        """The store has taken too long over a part."""
        return bool(self._waiting) and now_ns - self._waiting[0].asked_ns >= SAVE_NS_MAX

    def heard(self, view: LedgerView, now_ns: int) -> bool:
        """A second has passed, and more was heard since what was stored last: store it."""
        if self._heard_due_ns is None or now_ns < self._heard_due_ns:
            return False
        self._heard_due_ns = now_ns + HEARD_NS
        is_more, self._heard = view.heard != self._heard, view.heard
        return is_more
