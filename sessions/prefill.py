"""The prompt as far as it is known, read into the Thinker's KV before anything is asked: one stream at a time.

Rules
* A prefill stops before anything else of the session is opened at the Thinker.
* What is known of an earlier one changes nothing of the present one.
"""

from __future__ import annotations

from sessions.effects import CancelStream, Effect, FeedStream, OpenStream
from stages.contracts import Message, PrefillOptions, Prompt, Tag, Tool


class Prefill:
    """`head` is the Thinker's name in the graph."""

    def __init__(self, session: str, head: str) -> None:
        self._session = session
        self._head = head
        self._tag: Tag | None = None
        self._tools: tuple[Tool, ...] = ()

    @property
    def tag(self) -> Tag | None:
        """That of what is being read."""
        return self._tag

    def start(self, epoch: int, turn: int, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> list[Effect]:
        """Read `messages`, in place of what is being read, as a model does that is told of `tools`."""
        effects = self.stop()
        self._tools = tools
        self._tag = tag = Tag(self._session, epoch, turn)
        return [*effects, OpenStream(self._head, tag, PrefillOptions()), self._fed(tag, Prompt(messages, tools=tools))]

    def feed(self, messages: tuple[Message, ...], *, complete: bool) -> list[Effect]:
        """More of the prompt is known; `complete`: perhaps all of it."""
        return [self._fed(self._tag, Prompt(messages, complete, self._tools))] if self._tag else []

    def _fed(self, tag: Tag, prompt: Prompt) -> Effect:
        return FeedStream(self._head, tag, prompt)

    def stop(self) -> list[Effect]:
        """Read no further. What was read stays in the KV."""
        tag, self._tag = self._tag, None
        return [CancelStream(self._head, tag)] if tag else []

    def gone(self, tag: Tag) -> None:
        """The stage has let go of the prefill `tag`, or would not take it."""
        if self._tag == tag:
            self._tag = None
