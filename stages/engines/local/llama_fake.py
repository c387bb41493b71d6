"""A `Llama` without a model: replies are scripted, tokens are words, KV is a list of them per slot.

It behaves as the engine does where the Thinker relies on it: common prefixes are reused, the last token of a prompt is
always evaluated, prompts advance in pieces with a call of `watch` after each, a halted request keeps what it evaluated,
a reply continues after the text that the prompt already holds, and a prompt longer than the context is refused with
its true count.

It cannot represent time, sampling, tokens that merge differently when text grows, or batches shared by slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from stages.engines.local.llama import (
    PIECE_TOKENS,
    Completed,
    Completion,
    LlamaContextError,
    LlamaError,
    LlamaSettings,
    Reason,
    Watch,
)

Script = Callable[[str], str]

_TOKEN = re.compile(r"<\|\w+\|>| ?[^\s<]+|\s|<")


def tokens_of(text: str) -> list[str]:
    """The fake's tokens: control tokens, words with the blank before them, other white space."""
    return _TOKEN.findall(text)


@dataclass(slots=True)
class FakeLlama:
    """`script` gives the whole reply to a prompt; `header` is what a prompt ends with before its reply. The requests
    are kept for inspection; a prompt that contains `fails_on` is refused."""

    settings: LlamaSettings
    script: Script
    header: str = "<|im_start|>assistant\n"
    fails_on: str = "\0"
    requests: list[Completion] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    kv: dict[int, list[str]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    refusals: int = 0
    closed: bool = False

    def complete(self, request: Completion, watch: Watch) -> Completed:
        """Run `request`; see `Llama`."""
        assert request.slot < self.settings.slots, "an unknown slot"
        assert request.slot not in self.busy, "one slot serves one request at a time"
        self.busy.add(request.slot)
        try:
            return self._run(request, watch)
        finally:
            self.busy.discard(request.slot)

    def close(self) -> None:
        self.closed = True

    def _run(self, request: Completion, watch: Watch) -> Completed:
        self.requests.append(request)
        if self.fails_on in request.prompt:
            raise LlamaError("scripted failure")
        prompt = tokens_of(request.prompt)
        if len(prompt) >= self.settings.context_tokens:
            self.refusals += 1
            raise LlamaContextError(len(prompt), self.settings.context_tokens)
        cached = self._common(request, prompt)
        if not self._evaluate(request.slot, prompt, cached, watch):
            return Completed("halted", len(prompt), cached, 0)
        reason, count = self._generate(request, watch) if request.tokens_max else ("length", 0)
        return Completed(reason, len(prompt), cached, count)

    def _common(self, request: Completion, prompt: list[str]) -> int:
        if not request.reuse:
            self.kv[request.slot] = []
        pairs = zip(self.kv.get(request.slot, []), prompt, strict=False)
        common = next((at for at, (old, new) in enumerate(pairs) if old != new), None)
        if common is None:
            common = min(len(self.kv.get(request.slot, [])), len(prompt))
        return min(common, max(0, len(prompt) - 1))

    def _evaluate(self, slot: int, prompt: list[str], cached: int, watch: Watch) -> bool:
        self.evaluated.append(len(prompt) - cached)
        self.kv[slot] = prompt[:cached]
        if watch(""):
            return False
        for start in range(cached, len(prompt), PIECE_TOKENS):
            self.kv[slot] += prompt[start : start + PIECE_TOKENS]
            if watch(""):
                return False
        return True

    def _generate(self, request: Completion, watch: Watch) -> tuple[Reason, int]:
        base, header, begun = request.prompt.rpartition(self.header)
        rest = tokens_of(self.script(base + header)[len(begun) :])
        for count, token in enumerate(rest, start=1):
            self.kv[request.slot].append(token)
            if watch(token):
                return "halted", count
            if count == request.tokens_max:
                return "length", count
        return "stop", len(rest)
