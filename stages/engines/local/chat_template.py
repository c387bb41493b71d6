"""Chat templates: a conversation as the one text that the model was trained on.

Theory of operation
    The KV must be prefilled with exact prefixes of the prompt that is answered later, which an engine's chat endpoint
    does not offer. So prompts are rendered here, for the three families of templates below, and checked against the
    engine's own rendering in a test. The family is recognised by the marks in the GGUF's template; any other template
    is refused by name, since a wrong one gives a model that seems to work and answers badly.

Rules
* The beginning-of-sequence token is not rendered: the engine's tokenizer adds it where the model wants one.
* Text of the conversation can never become a control token: what would, is replaced by a blank.
* Unlike SmolLM2's template, no system message is made up where there is none; but tools are told in one.
* No family has a role for the results of calls: they are messages of the user, in the form of `call_format`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stages.contracts import Message, Tool
from stages.engines.local.call_format import answered, described, written
from stages.engines.local.gguf import GgufHeader

FORM_REVISION = 1  # of the prompts that are written here; a change of any makes it another


class TemplateUnsupportedError(ValueError):
    """The model's chat template is of no known family: another model must be configured."""


@dataclass(frozen=True, slots=True)
class _Family:
    """`header` has a place for the role; `assistant` is what that role is called."""

    name: str
    mark: str
    header: str
    close: str
    assistant: str = "assistant"
    strips: bool = False  # white space around a message is dropped
    has_system: bool = True  # else the system message leads the first user message


_FAMILIES = (
    _Family("chatml", "<|im_start|>", "<|im_start|>{role}\n", "<|im_end|>\n"),
    _Family(
        "llama3",
        "<|start_header_id|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n",
        "<|eot_id|>",
        strips=True,
    ),
    _Family(
        "gemma",
        "<start_of_turn>",
        "<start_of_turn>{role}\n",
        "<end_of_turn>\n",
        assistant="model",
        strips=True,
        has_system=False,
    ),
)


class ChatTemplate:
    """Renders conversations for one model."""

    def __init__(self, header: GgufHeader) -> None:
        """Raises `TemplateUnsupportedError` where the model's template is of no known family."""
        family = next((family for family in _FAMILIES if family.mark in header.chat_template), None)
        if family is None:
            start = header.chat_template[:60] or "none"
            raise TemplateUnsupportedError(f"the chat template of {header.name!r} is not supported: {start!r}")
        self._family = family
        marks = {family.mark, family.close.strip(), *header.control_tokens}
        self._control = re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))

    @property
    def family(self) -> str:
        return self._family.name

    @property
    def revision(self) -> str:
        """Of the form of its prompts."""
        return f"{self._family.name}-{FORM_REVISION}"

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which a reply ends, should the model write them out instead of ending it."""
        return (self.end, self._family.mark)

    @property
    def end(self) -> str:
        """The token with which a reply ends."""
        return self._family.close.strip()

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The prompt to be answered: all messages, and the header of the answer. `tools` are told in it."""
        return self._closed(self._turns(messages, tools)) + self._header("assistant")

    def render_open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """What is settled of a prompt whose last user message still grows: that message is left open, without its
        last word, which more speech may change."""
        turns = self._turns(messages, tools)
        if not turns or turns[-1][0] != "user" or (messages and messages[-1].role == "tool"):
            return self._closed(turns)
        role, content = turns[-1]
        settled = content.rsplit(maxsplit=1)
        return self._closed(turns[:-1]) + self._header(role) + (settled[0] if len(settled) > 1 else "")

    def _closed(self, turns: Iterable[tuple[str, str]]) -> str:
        return "".join(self._header(role) + content + self._family.close for role, content in turns)

    def _header(self, role: str) -> str:
        return self._family.header.format(role=self._family.assistant if role == "assistant" else role)

    def _turns(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[str, str]]:
        turns = [self._turn(message) for message in messages]
        if tools:
            is_led = bool(turns) and turns[0][0] == "system"
            told = self._clean(described(tools))
            turns[: int(is_led)] = [("system", f"{turns[0][1]}\n\n{told}" if is_led else told)]
        if self._family.has_system or not turns or turns[0][0] != "system":
            return turns
        (_, system), *rest = turns
        if rest and rest[0][0] == "user":
            return [("user", f"{system}\n\n{rest[0][1]}"), *rest[1:]]
        return [("user", system), *rest]

    def _turn(self, message: Message) -> tuple[str, str]:
        if message.role == "tool":
            return "user", self._clean(answered(message.content))
        return message.role, self._clean(written(message.content, message.calls))

    def _clean(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        while self._control.search(text):
            text = self._control.sub(" ", text)
        return text.strip() if self._family.strips else text
