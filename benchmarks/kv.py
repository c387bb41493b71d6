"""What KV that was kept saves: time to the first token at the first turn, at a later one, and at one whose KV was lost,
with the local engine's model.

The Thinker is driven by itself, without service or link: what is measured is what the caller waits for it. Nothing is
read ahead, as nothing can be for what is typed, so a first turn reads its whole prompt.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages import weights
from stages.contracts import Message, Tag, TextDelta, TextDone, ThinkerOptions
from stages.engines.local import persona
from stages.engines.local.kv_slot import ThinkerSettings
from stages.engines.local.thinker import ThinkerModel, load_thinker
from stages.stream import Output, Publish

Say = Callable[[str], None]
Messages = tuple[Message, ...]

# The model has a context of 2,048 tokens, of which a reply takes its part.
HISTORIES = (200, 1_900)
TIMES = {200: 5, 1_900: 3}  # the longer takes ten seconds and more, each time
REPLY_TOKENS = 24
SETTINGS = ThinkerSettings(slots=1, output_tokens_max=REPLY_TOKENS, sentences_max=1)
# Of short words, of which the estimate that prompts are fitted by is nearly right.
EXCHANGE = (
    Message("user", "Could you say a bit more about that and how it works?"),
    Message("assistant", "It is not hard at all and most of us find it good fun once we know it well."),
)
EXCHANGE_TOKENS = 44  # with the marks around its messages
QUESTION = Message("user", "What is the capital of France?")
SESSION = "s"


class _Watch:
    """A `StepContext` that notes when the first word came."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.first_ns = 0

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:  # noqa: ARG002 - nothing waits
        raise AssertionError("a Thinker computes and does not wait")

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs
        words = [one for one in outputs if isinstance(one, Publish) and isinstance(one.event, TextDelta)]
        if words and not self.first_ns:
            self.first_ns = time.perf_counter_ns()


@dataclass(frozen=True, slots=True)
class _Answer:
    first_ms: float
    done: TextDone


def _ask(model: ThinkerModel, messages: Messages) -> _Answer:
    stream = model.open(Tag(SESSION, 1, 1, "r"), ThinkerOptions(messages, REPLY_TOKENS))
    watch, began_ns = _Watch(), time.perf_counter_ns()
    while step := stream.next_step():
        watch.outputs += stream.finish_step(step.run(watch))
    stream.close()
    (done,) = (one.event for one in watch.outputs if isinstance(one, Publish) and isinstance(one.event, TextDone))
    return _Answer((watch.first_ns - began_ns) / 1e6, done)


def _lose(model: ThinkerModel) -> None:
    model.close_session(SESSION)
    model.open_session(SESSION)


def _history(tokens: int) -> Messages:
    """About so many tokens of exchanges, behind what every prompt begins with."""
    return persona.MESSAGES + EXCHANGE * (tokens // EXCHANGE_TOKENS)


def _fitting(model: ThinkerModel, tokens: int) -> Messages:
    """A history of `tokens` in all, or as near as whole exchanges come, by the model's own count."""
    _lose(model)
    opening = _ask(model, (*persona.MESSAGES, QUESTION)).done.prompt_tokens
    return _history(max(EXCHANGE_TOKENS, tokens - opening))


def _measure(model: ThinkerModel, tokens: int) -> tuple[int, dict[str, list[float]], bool]:
    """The prompt's tokens, the times to the first one in ms, and whether the replies were alike."""
    asked = (*_fitting(model, tokens), QUESTION)
    taken: dict[str, list[float]] = {"kept": [], "lost": []}
    replies = set()
    for _ in range(TIMES[tokens]):
        _lose(model)
        lost = _ask(model, asked)
        kept = _ask(model, (*asked, Message("assistant", lost.done.text), QUESTION))
        assert lost.done.cached_tokens == 0, "it was lost"
        assert kept.done.cached_tokens >= lost.done.prompt_tokens, "it was kept"
        taken["lost"].append(lost.first_ms)
        taken["kept"].append(kept.first_ms)
        replies.add((lost.done.text, kept.done.text))
    return lost.done.prompt_tokens, taken, len(replies) == 1


def _first_turn(model: ThinkerModel) -> tuple[int, list[float]]:
    taken = []
    for _ in range(TIMES[HISTORIES[0]]):
        _lose(model)
        answer = _ask(model, (*persona.MESSAGES, QUESTION))
        taken.append(answer.first_ms)
    return answer.done.prompt_tokens, taken


async def kv(say: Say) -> bool:
    """Print the table; False where a lost KV changed a reply."""
    model = load_thinker(weights.locate("smollm2-135m-instruct"), SETTINGS)
    _lose(model)
    _first_turn(model)  # the first time costs more
    tokens, first = _first_turn(model)
    floor_ms, alike = statistics.median(first), True
    say("| time to the first token | tokens of the prompt | median ms | least | most | by first turn | by KV kept |")
    say("|---|---|---|---|---|---|---|")
    say(_row("first turn", tokens, first, floor_ms, None))
    for history in HISTORIES:
        tokens, taken, is_alike = _measure(model, history)
        kept_ms, alike = statistics.median(taken["kept"]), alike and is_alike
        say(_row(f"later turn, about {history:,} tokens of history, KV kept", tokens, taken["kept"], floor_ms, kept_ms))
        say(_row("the same, KV lost", tokens, taken["lost"], floor_ms, kept_ms))
    say(f"replies with KV kept and lost, time after time: {'the same' if alike else 'NOT the same'}")
    model.close()
    return alike


def _row(name: str, tokens: int, taken: Sequence[float], floor_ms: float, kept_ms: float | None) -> str:
    median = statistics.median(taken)
    by_kept = "–" if kept_ms is None else f"{median / kept_ms:.1f}"
    figures = f"{median:.0f} | {min(taken):.0f} | {max(taken):.0f} | {median / floor_ms:.2f} | {by_kept}"
    return f"| {name} ({len(taken)}) | {tokens} | {figures} |"
