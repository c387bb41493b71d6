"""How long the caller has been silent after a reply, and when they are to be spoken to, or left.

Theory of operation
    After a reply somebody is expected to say something. The silence begins when its sound has ended and nothing else
    goes on: `disturbed` ends it, `silent_since` begins the next. When it has lasted as long as the client has set, the
    conversation prompts the caller, and the reply to that begins to be waited for in turn. Where calls are `left` that
    nobody takes part in, as on a telephone, whose line has silence for ever, what follows the last prompt is a goodbye.

Rules
* Only a reply is waited after: nobody is prompted who was never spoken to, or whom we could not answer.
* At most `IN_A_ROW_MAX` prompts follow each other; a word of the caller's, spoken or typed, lets them begin anew, and
  a cough only the silence.
* Whoever cannot be prompted is told goodbye when the prompts would have been over.
* Behind a goodbye there is time to object: it is the end where nobody does for `OBJECTION_NS`.
"""

from __future__ import annotations

from typing import Literal

from media.chunk import samples_to_ms
from sessions.events import CallerIdle
from sessions.settings import INPUT_RATE, Idle

Step = Idle | Literal["end"]

# Who is silent to three of them is not there; it is the limit of idle minutes that ends their call.
IN_A_ROW_MAX = 3
OBJECTION_NS = 2_000_000_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class IdlePrompts:
    """Of one conversation. `leaves`: a caller who is not there."""

    def __init__(self, *, leaves: bool = False) -> None:
        self._leaves = leaves
        self._follows_reply = False
        self._in_a_row = 0
        self._since_ns: int | None = None

    @property
    def since_ns(self) -> int | None:
        """Since when nobody has said anything; None while somebody does, or something is being made."""
        return self._since_ns

    @property
    def step(self) -> Step | None:
        """What comes next, if the silence lasts."""
        if self._in_a_row > IN_A_ROW_MAX:
            return "end"
        if self._follows_reply and self._in_a_row < IN_A_ROW_MAX:
            return "prompt"
        return "goodbye" if self._leaves else None

    def due_ns(self, timeout_ms: int | None) -> int | None:
        """When `step` is to be taken; None where that is not to be expected, or never (`timeout_ms` None)."""
        if timeout_ms is None or self._since_ns is None or self.step is None:
            return None
        if self.step == "end":
            return self._since_ns + OBJECTION_NS
        prompts = 0 if self._follows_reply else IN_A_ROW_MAX - self._in_a_row
        return self._since_ns + (prompts + 1) * timeout_ms * NS_PER_MS

    def reply_ended(self, *, can_speak: bool) -> None:
        """A reply is over. `can_speak`: it did not end because something is broken, as another would too."""
        self._follows_reply = can_speak

    def disturbed(self) -> None:
        """Something goes on."""
        self._since_ns = None

    def silent_since(self, since_ns: int) -> None:
        """Nothing goes on, from `since_ns` on if not from before."""
        if self._since_ns is None:
            self._since_ns = since_ns

    def put_off(self, now_ns: int) -> None:
        """The caller still hears what was taken to be over."""
        if self._since_ns is not None:
            self._since_ns = max(self._since_ns, now_ns)

    def caller_is_there(self) -> None:
        """They have said something."""
        self._in_a_row = 0

    def silence(self, item: str, input_end: int, now_ns: int) -> CallerIdle:
        """The silence that lasts until now: `item` of the conversation. The input ends at `input_end` (16 kHz)."""
        assert self._since_ns is not None, "nobody is prompted while somebody speaks"
        start = max(0, input_end - (now_ns - self._since_ns) * INPUT_RATE // NS_PER_S)
        return CallerIdle(item, samples_to_ms(start, INPUT_RATE), samples_to_ms(input_end, INPUT_RATE))

    def prompted(self) -> None:
        """They are being spoken to, as `step` says."""
        self._in_a_row = self._in_a_row + 1 if self.step == "prompt" else IN_A_ROW_MAX + 1
        self._since_ns = None
