"""The local Thinker for tests: over the fake engine, and what is asked of it over a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from stages.contracts import Message, PrefillOptions, Prompt, Tag, ThinkerOptions, Tool, ToolChoice
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.gguf import GgufHeader
from stages.engines.local.kv_slot import ThinkerSettings
from stages.engines.local.llama import LlamaSettings
from stages.engines.local.llama_fake import FakeLlama
from stages.engines.local.persona import MESSAGES
from stages.engines.local.thinker import ThinkerModel
from stages.stream import Output, StageFailure, StageModel, StageStream
from tests.stages.reply_bench import clauses_of, run_all

TEMPLATE = ChatTemplate(GgufHeader("fake", "<|im_start|>", ()))
REPLY = "Yes, I can hear you. How can I help you today? I am here."
ASK = (Message("system", "Be kind."), Message("user", "Hello, can you hear me?"))
WEATHER = Tool(
    "get_weather",
    "Get the weather of a city.",
    '{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]}},"required":["city"]}',
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>'
LONG = (Message("system", "Be kind and brief. " * 20), *ASK[1:])


class Bench:
    """A Thinker over the fake engine, with session "s" open."""

    def __init__(self, reply: str = REPLY, *, slots: int = 1, sentences_max: int = 2) -> None:
        settings = ThinkerSettings(
            slots=slots, context_tokens=1_024, output_tokens_max=256, sentences_max=sentences_max
        )
        self.llama = FakeLlama(LlamaSettings(slots + 1, 1_024), lambda _: reply)
        thinker = ThinkerModel(self.llama, TEMPLATE, settings, "fake")
        self.model: StageModel = thinker
        self.kv = thinker.kv
        self.model.open_session("s")

    def respond(
        self,
        messages: tuple[Message, ...] = ASK,
        *,
        tokens: int = 100,
        spare: bool = False,
        name: str = "r",
        temperature: float = 0.0,
        choice: ToolChoice | None = None,
    ) -> StageStream:
        """`choice`: of the one tool that there is then."""
        tools = () if choice is None else (WEATHER,)
        options = ThinkerOptions(messages, tokens, temperature, spare, tools, choice or ToolChoice())
        return self.model.open(Tag("s", 1, 1, name), options)

    def prefill(self, messages: tuple[Message, ...] = (), *, complete: bool = False) -> StageStream:
        stream = self.model.open(Tag("s", 1, 1), PrefillOptions())
        if messages:
            stream.feed(Prompt(messages, complete))
        return stream


def failure_code(act: Callable[[], object]) -> str:
    with pytest.raises(StageFailure) as failure:
        act()
    return failure.value.code


def stall_once_after(clauses: int) -> Callable[[Sequence[Output]], bool]:
    return lambda outputs: len(clauses_of(outputs)) == clauses


def talk(question: str, *before: Message) -> tuple[Message, ...]:
    return (*MESSAGES, *before, Message("user", question))


def open_response(model: StageModel, session: str, messages: tuple[Message, ...], tokens: int = 40) -> StageStream:
    return model.open(Tag(session, 1, 1, f"r{session}"), ThinkerOptions(messages, tokens))


def answer(model: StageModel, session: str, messages: tuple[Message, ...], tokens: int = 40) -> list[Output]:
    stream = open_response(model, session, messages, tokens)
    outputs = run_all(stream)
    stream.close()
    return outputs
