"""Words that bridge a wait: when they are due, and what becomes of them in the history.

Theory of operation
    Where something will keep the caller waiting for longer than `FILLER_AFTER_NS` before the first word of a reply,
    a few words are said in its stead. They are words of that reply: its Thinker hands them on before its own, so its
    Talker speaks them, the client is told of them, and what was heard of them is known, as of any other word; whatever
    ends the reply ends them too. The reply's item has them at its beginning, and names them (`Item.filler`). Prompts
    leave them out: a model that read them would learn to say them, and the KV of the reply does not hold them.

Rules
* At once where the wait is expected to be so long; where nothing is known of it, or it was expected to be shorter, when
  it has lasted so long.
* Once for each response, and not once a word of it has come.
"""

from __future__ import annotations

FILLER = "One moment, please."
FILLER_CHARACTERS_MAX = 140  # a clause, which fits one hand-over
# Pauses between turns that are longer than this are heard as a fault (the "one-second rule" of conversation analysis;
# Jefferson 1989).
FILLER_AFTER_NS = 1_000_000_000


class FillerCue:
    """Of one response. Without `words`, none are ever due."""

    def __init__(self, words: str = "") -> None:
        self._words = " ".join(words.split())
        self._left = self._words
        self._due_ns: int | None = None

    def anew(self) -> None:
        """The response is made once more; nothing of it was put out."""
        self._left, self._due_ns = self._words, None

    @property
    def due_ns(self) -> int | None:
        """When to call `tick`; None: nothing is waited for."""
        return self._due_ns

    def wait(self, expected_ns: int, now_ns: int) -> str:
        """Something keeps the caller waiting from now on, for `expected_ns` (0: unknown). Gives the words to be said
        now, or none."""
        if not self._left:
            return ""
        self._due_ns = now_ns if expected_ns > FILLER_AFTER_NS else now_ns + FILLER_AFTER_NS
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> str:
        """The words to be said now, or none."""
        if self._due_ns is None or now_ns < self._due_ns:
            return ""
        words = self._left
        self.stop()
        return words

    def stop(self) -> None:
        """A word of the response has come, or it is over."""
        self._left, self._due_ns = "", None


def without_filler(text: str, filler: str) -> str:
    """What a reply's `text` says beside `filler`, which it may have been cut in."""
    if not filler:
        return text
    return "" if filler.startswith(text) else text.removeprefix(filler).lstrip()
