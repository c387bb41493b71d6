"""The synthetic Thinker: reads prompts at a price for each token that it has not read, and answers in numbered words.

Theory of operation
    A session's KV is the prompt that was read last and how much of it; it lies in a place of `stages.kv_cache`, as long
    as that is not given to another session. A prefill, and a reply that begins, read what is missing, piece by piece;
    once the first has been read, a reply says how long the others will take. It says "w0 w1 w2 …", a word with each
    step, and hands them on in clauses.

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
    Filler,
    Item,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Reading,
    Tag,
    TextDelta,
    TextDone,
    ThinkerOptions,
)
from stages.engines.synthetic.distributions import drawing
from stages.engines.synthetic.profile import ThinkerProfile, words_within
from stages.engines.synthetic.work import (
    Cost,
    TimedModel,
    TimedStep,
    TimedStream,
    Want,
    Work,
    wrong_item,
    wrong_options,
)
from stages.kv_cache import Claim, KvCache, KvLimits
from stages.prefill_speed import PrefillSpeed
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
    """`read` tokens of `messages` have been read."""

    messages: Messages = ()
    read: int = 0

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
        limits = KvLimits(profile.kv_places, profile.sessions_max, profile.kv_idle_s * 1_000_000_000)
        self._kv = KvCache(limits, lambda _: Kv(), model=self.revision)
        self._replies: dict[str, int] = {}
        self._speed = PrefillSpeed()

    @property
    def kv(self) -> KvCache[Kv]:
        return self._kv

    def open_session(self, session: str) -> None:
        """Raises `StageFailure("capacity")`."""
        self._kv.open(session)

    def close_session(self, session: str) -> None:
        self._kv.close(session)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its KV; see `StageModel`."""
        return {"kv": self._kv.kept_for(session)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Raises `StageFailure`: "wrong_options", "unknown_session", or "capacity"."""
        if not self._kv.knows(tag.session):
            raise StageFailure("unknown_session", "the session was not opened here")
        match options:
            case PrefillOptions():
                return _Prefill(self._work, _KvUse(self._kv, tag.session, self._replies, ahead=True))
            case ThinkerOptions(max_output_tokens=limit) if limit >= 1:
                words = words_within(self._reply_words())
                use = _SpareUse() if options.spare else _KvUse(self._kv, tag.session, self._replies, ahead=False)
                per_clause = self._profile.words_per_clause
                return _Reply(self._work, use, options, words=words, words_per_clause=per_clause, speed=self._speed)
        raise wrong_options("Thinker", options)


class _KvUse:
    """One stream's use of its session's KV. `replies` counts those that are being made, by session. `ahead`: a prefill,
    which waits for them."""

    def __init__(self, kv: KvCache[Kv], session: str, replies: dict[str, int], *, ahead: bool) -> None:
        self._kv = kv
        self._session = session
        self._replies = replies
        self._ahead = ahead
        self._claim: Claim[Kv] = kv.claim(session, ahead=ahead)
        if not ahead:
            replies[session] = replies.get(session, 0) + 1

    def take(self) -> Kv | None:
        """What is kept, for a step; None while there is no place for it."""
        if self._ahead and self._replies.get(self._session):
            self.rest()
            return None
        return self._kv.take(self._claim)

    def step_over(self, kv: Kv, read: int) -> None:
        self._kv.step_over(self._claim, kv.read, read)

    def rest(self) -> None:
        """Nothing is wanted for now."""
        self._kv.release(self._claim)

    def leave(self) -> None:
        """The stream is over."""
        self.rest()
        if not self._ahead:
            left = self._replies.pop(self._session) - 1
            self._replies |= {self._session: left} if left else {}


class _SpareUse:
    """Of a response out of band: an empty KV of its own."""

    def __init__(self) -> None:
        self._own = Kv()

    def take(self) -> Kv | None:
        return self._own

    def step_over(self, kv: Kv, read: int) -> None:
        """Nobody counts it."""

    def leave(self) -> None:
        """It goes with its stream."""


class _Prefill(TimedStream):
    """Reads the newest prompt. It ends when it is cancelled or closed."""

    def __init__(self, work: Work, use: _KvUse) -> None:
        super().__init__(work)
        self._use = use
        self._newest: Messages = ()
        self._reading: Messages = ()
        self._kv = Kv()

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Prompt):
            raise wrong_item("prefill", item)
        self._newest = item.messages
        return ()

    def want(self) -> Want | None:
        """What has been read is not read again should it be lost: that is for who needs it."""
        kv = self._use.take() if self._newest else None
        if kv is None:
            return None
        left = tokens_of(self._newest) - kv.cached(self._newest)
        if not left:
            self._newest = ()
            self._use.rest()
            return None
        self._reading, self._kv = self._newest, kv
        return Want("prefill", count=min(left, PREFILL_TOKENS_MAX), urgency=2)

    def came(self, want: Want) -> Sequence[Output]:
        self._kv.extend(self._reading, want.count)
        self._use.step_over(self._kv, want.count)
        return ()

    def held(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        super().close()
        self._use.leave()


class _Reply(TimedStream):
    def __init__(
        self,
        work: Work,
        use: _KvUse | _SpareUse,
        options: ThinkerOptions,
        *,
        words: int,
        words_per_clause: int,
        speed: PrefillSpeed,
    ) -> None:
        super().__init__(work)
        self._use = use
        self._kv: Kv | None = None
        self._options = options
        self._words = min(words, options.max_output_tokens)
        self._reason = "stop" if words <= options.max_output_tokens else "max_output_tokens"
        self._words_per_clause = words_per_clause
        self._speed = speed
        self._prompt_tokens = tokens_of(options.messages)
        self._cached_tokens = 0
        self._to_read = 0
        self._is_announced = options.spare  # nobody waits for what is out of band
        self._said: list[str] = []
        self._said_in_clauses = 0
        self._clauses = 0

    def feed(self, item: Item) -> Sequence[Output]:
        """Words that bridge the reading of the prompt."""
        if not isinstance(item, Filler):
            raise wrong_item("reply", item)
        if self._said:
            return ()
        return [Publish(TextDelta(f"{item.text} ", filler=True)), self._clause(item.text)]

    def want(self) -> Want | None:
        if self._kv is None and not self._begin():
            return None
        urgency = 1 if self._said else 0
        if self._to_read:
            return Want("prefill", count=min(self._to_read, PREFILL_TOKENS_MAX), urgency=urgency)
        return Want("word", about=len(self._said), urgency=urgency)

    def _begin(self) -> bool:
        """Whether there is a place for the reply's KV."""
        self._kv = self._use.take()
        if self._kv is not None:
            self._cached_tokens = self._kv.cached(self._options.messages)
            self._to_read = self._prompt_tokens - self._cached_tokens
        return self._kv is not None

    def finish_step(self, result: object) -> Sequence[Output]:
        if isinstance(result, TimedStep) and result.kind == "prefill":
            self._speed.observe(result.want.count, result.service_ns)
        return super().finish_step(result)

    def came(self, want: Want) -> Sequence[Output]:
        if want.kind == "word":
            return self._say(want.about)
        assert self._kv is not None, "a step had a place"
        self._kv.extend(self._options.messages, want.count)
        self._use.step_over(self._kv, want.count)
        self._to_read -= want.count
        if self._is_announced or not self._to_read:
            return ()
        self._is_announced = True
        return [Publish(Reading(self._to_read, self._speed.predicted_ns(self._to_read)))]

    def _say(self, number: int) -> Sequence[Output]:
        is_last = number + 1 == self._words
        ends_clause = is_last or (number + 1) % self._words_per_clause == 0
        mark = "." if is_last else "," if ends_clause else ""
        delta = f"{' ' if number else ''}w{number}{mark}"
        self._said.append(delta)
        outputs: list[Output] = [Publish(TextDelta(delta))]
        if ends_clause:
            text = "".join(self._said[self._said_in_clauses :])
            if self._clauses and not self._said_in_clauses:
                text = f" {text}"  # behind what bridged the reading
            self._said_in_clauses = len(self._said)
            outputs.append(self._clause(text, final=is_last))
        if is_last:
            self.finished = True
            outputs.append(Publish(self._done()))
        return outputs

    def _clause(self, text: str, *, final: bool = False) -> Emit:
        self._clauses += 1
        return Emit(Clause(self._clauses - 1, text, final), len(text))

    def _done(self) -> TextDone:
        return TextDone("".join(self._said), self._reason, self._prompt_tokens, self._cached_tokens, len(self._said))

    def held(self) -> dict[str, int]:
        return {"words": self._words - len(self._said)}

    def close(self) -> None:
        """What was said has been read by its maker."""
        super().close()
        if self._said and self._kv is not None:
            said = Message("assistant", "".join(self._said))
            self._kv.extend((*self._options.messages, said), tokens_of((said,)))
            self._use.step_over(self._kv, 0)
        self._use.leave()
