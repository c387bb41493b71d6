"""Prompts are what the model was trained on, grow at their end, and cannot be forged from inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import Message, Tool, ToolCall
from stages.engines.local.chat_template import ChatTemplate, TemplateUnsupportedError
from stages.engines.local.gguf import GgufHeader

CHATML = ChatTemplate(GgufHeader("m", "{{'<|im_start|>' + role}}", ("<|im_end|>", "<|endoftext|>")))
LLAMA3 = ChatTemplate(GgufHeader("m", "<|start_header_id|>{{ role }}", ()))
GEMMA = ChatTemplate(GgufHeader("m", "<start_of_turn>{{ role }}", ("<unk>",)))

TALK = (Message("system", "Be kind."), Message("user", " Hi there"), Message("assistant", "Hello."))


def test_chatml() -> None:
    assert CHATML.family == "chatml"
    assert CHATML.stops == ("<|im_end|>", "<|im_start|>")
    assert CHATML.render(TALK) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi there<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama3() -> None:
    assert LLAMA3.render(TALK[:2]) == (
        "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_gemma_has_no_system_role() -> None:
    assert GEMMA.render(TALK) == (
        "<start_of_turn>user\nBe kind.\n\nHi there<end_of_turn>\n"
        "<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>model\n"
    )
    assert GEMMA.render(TALK[::2]).startswith("<start_of_turn>user\nBe kind.<end_of_turn>\n<start_of_turn>model\nHello")
    assert GEMMA.render(TALK[1:2]).startswith("<start_of_turn>user\nHi there<end_of_turn>")


@pytest.mark.parametrize("template", ["", "[INST] {{ content }} [/INST]"])
def test_another_template_is_refused_by_name(template: str) -> None:
    with pytest.raises(TemplateUnsupportedError, match="'Mistral'"):
        ChatTemplate(GgufHeader("Mistral", template, ()))


def test_a_growing_question_stays_open_without_its_last_word() -> None:
    settled = "<|im_start|>user\nwhat is"
    assert CHATML.render_open([Message("user", "what is the")]) == settled
    assert CHATML.render_open([Message("user", "what")]) == "<|im_start|>user\n"
    assert CHATML.render([Message("user", "what is the time")]).startswith(settled)


def test_a_prompt_that_ends_otherwise_is_closed() -> None:
    assert CHATML.render_open(TALK).endswith("Hello.<|im_end|>\n")
    assert CHATML.render_open([]) == ""


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a<|im_end|>b", "a b"),
        ("<|im_<|im_end|>end|>", "<|im_ end|>"),
        ("<|endoftext|>", " "),
        ("1 < 2 |> 3", "1 < 2 |> 3"),
        ("\ud83d!", "?!"),
    ],
)
def test_text_never_becomes_a_control_token(text: str, cleaned: str) -> None:
    assert CHATML.render([Message("user", text)]) == (f"<|im_start|>user\n{cleaned}<|im_end|>\n<|im_start|>assistant\n")


FRAGMENTS = st.lists(st.sampled_from(["<|im_", "start|>", "end|>", "<|im_end|>", " ", "x", "<|endof", "text|>"])).map(
    "".join
)


@given(FRAGMENTS)
def test_each_message_adds_its_two_marks_and_no_more(text: str) -> None:
    prompt = CHATML.render([Message("user", text)])
    assert (prompt.count("<|im_start|>"), prompt.count("<|im_end|>"), prompt.count("<|endoftext|>")) == (2, 1, 0)


TOOL = Tool("look", "Look <|im_end|>up.")
CALLED = (
    *TALK[:2],
    Message("assistant", "Let me see.", calls=(ToolCall("call_1", "look", "{}"),)),
    Message("tool", "It is <|im_start|>fine.", call_id="call_1"),
)


def test_tools_are_told_in_the_system_message() -> None:
    told = CHATML.render(TALK, [TOOL])
    head, _, rest = told.partition("<|im_end|>")
    assert head.startswith("<|im_start|>system\nBe kind.\n\nYou may call")
    assert '"description": "Look  up."' in head
    assert rest == CHATML.render(TALK).partition("<|im_end|>")[2]


def test_where_there_is_no_system_message_tools_are_one() -> None:
    told = CHATML.render(TALK[1:], [TOOL])
    assert told.startswith("<|im_start|>system\nYou may call")
    assert told.endswith(CHATML.render(TALK[1:]))
    assert GEMMA.render(TALK[1:2], [TOOL]).startswith("<start_of_turn>user\nYou may call")


def test_calls_and_results_are_turns() -> None:
    assert CHATML.render(CALLED).endswith(
        "<|im_start|>assistant\nLet me see.\n"
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nIt is  fine.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_result_does_not_grow() -> None:
    assert CHATML.render_open(CALLED).endswith("</tool_response><|im_end|>\n")
    assert CHATML.render(CALLED).startswith(CHATML.render_open(CALLED))


@pytest.mark.parametrize(
    ("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (GEMMA, "<end_of_turn>")]
)
def test_a_reply_ends_with_its_familys_token(template: ChatTemplate, end: str) -> None:
    assert template.end == end
