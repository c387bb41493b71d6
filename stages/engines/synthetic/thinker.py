"""The synthetic Thinker: reads prompts at a price for each token that it has not read, and answers in numbered words.

Theory of operation
    A session's KV is the prompt that was read last and how much of it. A prefill, and a reply that begins, read what is
    missing, piece by piece. A reply says "w0 w1 w2 …", a word with each step, and hands them on in clauses.

Rules
* Words count as a token each in a reply; in prompts, tokens are estimated from characters.
* While a reply of the session is being made, nothing is prefilled.
* A response out of band reads all of its prompt, and leaves the session's KV alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.contracts import (
    Clause,
    Item,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Tag,
    TextDelta,
    TextDone,
    ThinkerOptions,
)
from stages.engines.synthetic.distributions import drawing
from stages.engines.synthetic.profile import ThinkerProfile, words_within
from stages.engines.synthetic.work import Cost, TimedModel, TimedStream, Want, Work, wrong_item, wrong_options
from stages.stream import Emit, Output, Publish, StageFailure, StageStream

# The local Thinker's piece: about 180 ms, after which a cancel or a newer prompt is noticed.
PREFILL_TOKENS_MAX = 32
# English text has about four characters a token; a chat template adds about four tokens a message.
CHARACTERS_PER_TOKEN = 4
MESSAGE_TOKENS = 4

Messages = tuple[Message, ...]


def tokens_of(messages: Messages) -> int:
    """How many tokens the messages have."""
    return sum(MESSAGE_TOKENS + len(message.content) // CHARACTERS_PER_TOKEN for message in messages)


@dataclass(slots=True)
class Kv:
    """`read` tokens of `messages` have been read; `replies` are being made."""

    messages: Messages = ()
    read: int = 0
    replies: int = 0

    def cached(self, messages: Messages) -> int:
        """How many tokens of `messages` need not be read again."""
        return min(self.read, _tokens_in_common(self.messages, messages))

    def extend(self, messages: Messages, tokens: int) -> None:
        """`tokens` more of `messages` have been read."""
        self.read = self.cached(messages) + tokens
        self.messages = messages


def _tokens_in_common(some: Messages, others: Messages) -> int:
    tokens = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            shorter, longer = sorted((one, other), key=lambda message: len(message.content))
            goes_on = one.role == other.role and longer.content.startswith(shorter.content)
            return tokens + (tokens_of((shorter,)) if goes_on else 0)
        tokens += tokens_of((one,))
    return tokens


class Thinker(TimedModel):
    """`StageModel`."""

    def __init__(self, profile: ThinkerProfile) -> None:
        super().__init__(profile)
        self._profile = profile
        costs = {"prefill": Cost(each_ms=profile.prefill_ms_per_token), "word": Cost(profile.word_ms)}
        self._work = Work("thinker", profile, costs)
        self._reply_words = drawing(profile.reply_words, f"{profile.seed}/thinker/reply_words")
        self._sessions: dict[str, Kv] = {}

    def open_session(self, session: str) -> None:
        """Raises `StageFailure("capacity")`."""
        if session not in self._sessions and len(self._sessions) >= self._profile.sessions_max:
            raise StageFailure("capacity", f"all {self._profile.sessions_max} sessions are taken")
        self._sessions.setdefault(session, Kv())

    def close_session(self, session: str) -> None:
        self._sessions.pop(session, None)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its KV; see `StageModel`."""
        return {"kv": int(session in self._sessions)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Raises `StageFailure`: "wrong_options", or "unknown_session"."""
        kv = self._sessions.get(tag.session)
        if kv is None:
            raise StageFailure("unknown_session", "the session was not opened here")
        match options:
            case PrefillOptions():
                return _Prefill(self._work, kv)
            case ThinkerOptions(max_output_tokens=limit) if limit >= 1:
                words = words_within(self._reply_words())
                kv = Kv() if options.spare else kv
                return _Reply(self._work, kv, options, words, self._profile.words_per_clause)
        raise wrong_options("Thinker", options)


class _Prefill(TimedStream):
    """Reads the newest prompt. It ends when it is cancelled or closed."""

    def __init__(self, work: Work, kv: Kv) -> None:
        super().__init__(work)
        self._kv = kv
        self._newest: Messages = ()
        self._reading: Messages = ()

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Prompt):
            raise wrong_item("prefill", item)
        self._newest = item.messages
        return ()

    def want(self) -> Want | None:
        left = tokens_of(self._newest) - self._kv.cached(self._newest)
        if self._kv.replies or not left:
            return None
        self._reading = self._newest
        return Want("prefill", count=min(left, PREFILL_TOKENS_MAX), urgency=2)

    def came(self, want: Want) -> Sequence[Output]:
        self._kv.extend(self._reading, want.count)
        return ()

    def held(self) -> dict[str, int]:
        return {}


class _Reply(TimedStream):
    def __init__(self, work: Work, kv: Kv, options: ThinkerOptions, words: int, words_per_clause: int) -> None:
        super().__init__(work)
        self._kv = kv
        self._options = options
        self._words = min(words, options.max_output_tokens)
        self._reason = "stop" if words <= options.max_output_tokens else "max_output_tokens"
        self._words_per_clause = words_per_clause
        self._prompt_tokens = tokens_of(options.messages)
        self._cached_tokens: int | None = None
        self._to_read = 0
        self._said: list[str] = []
        self._clauses = 0
        kv.replies += 1

    def feed(self, item: Item) -> Sequence[Output]:
        raise wrong_item("reply", item)

    def want(self) -> Want | None:
        if self._cached_tokens is None:
            self._cached_tokens = self._kv.cached(self._options.messages)
            self._to_read = self._prompt_tokens - self._cached_tokens
        urgency = 1 if self._said else 0
        if self._to_read:
            return Want("prefill", count=min(self._to_read, PREFILL_TOKENS_MAX), urgency=urgency)
        return Want("word", about=len(self._said), urgency=urgency)

    def came(self, want: Want) -> Sequence[Output]:
        if want.kind == "word":
            return self._say(want.about)
        self._kv.extend(self._options.messages, want.count)
        self._to_read -= want.count
        return ()

    def _say(self, number: int) -> Sequence[Output]:
        is_last = number + 1 == self._words
        ends_clause = is_last or (number + 1) % self._words_per_clause == 0
        mark = "." if is_last else "," if ends_clause else ""
        delta = f"{' ' if number else ''}w{number}{mark}"
        self._said.append(delta)
        outputs: list[Output] = [Publish(TextDelta(delta))]
        if ends_clause:
            outputs.append(self._clause(final=is_last))
        if is_last:
            self.finished = True
            outputs.append(Publish(self._done()))
        return outputs

    def _clause(self, *, final: bool) -> Emit:
        text = "".join(self._said[self._clauses * self._words_per_clause :])
        self._clauses += 1
        return Emit(Clause(self._clauses - 1, text, final), len(text))

    def _done(self) -> TextDone:
        assert self._cached_tokens is not None, "the prompt was read before a word was said"
        return TextDone("".join(self._said), self._reason, self._prompt_tokens, self._cached_tokens, len(self._said))

    def held(self) -> dict[str, int]:
        return {"words": self._words - len(self._said)}

    def close(self) -> None:
        """What was said has been read by its maker."""
        self._kv.replies -= 1
        if self._said:
            said = Message("assistant", "".join(self._said))
            self._kv.extend((*self._options.messages, said), tokens_of((said,)))
