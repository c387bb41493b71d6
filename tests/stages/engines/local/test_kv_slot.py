"""A slot has one user at a time, forgets when it changes hands, and is filled in pieces that fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import Message
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.gguf import GgufHeader
from stages.engines.local.kv_slot import PIECE_CHARS, Engine, Prompter, Slot, ThinkerSettings, next_piece
from stages.engines.local.llama import Completion, LlamaContextError, LlamaSettings
from stages.engines.local.llama_fake import FakeLlama
from stages.engines.openai import _Prefill
from stages.stream import StageFailure

TEMPLATE = ChatTemplate(GgufHeader("fake", "<|im_start|>", ()))
SETTINGS = ThinkerSettings(sessions=1, context_tokens=512, output_tokens_max=128)


def make_engine() -> tuple[Engine, FakeLlama]:
    llama = FakeLlama(LlamaSettings(slots=2, context_tokens=512), lambda _: "")
    return Engine(llama, TEMPLATE, SETTINGS), llama


@pytest.mark.parametrize(
    "changes", [{"sessions": 0}, {"sentences_max": 0}, {"output_tokens_max": 0}, {"output_tokens_max": 1_025}]
)
def test_senseless_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        ThinkerSettings(**changes)


def test_a_slot_has_one_user_at_a_time() -> None:
    slot, one, other = Slot(0), _Prefill(), _Prefill()
    assert slot.take(one)
    assert slot.take(one)
    assert not slot.take(other)
    slot.release(other)
    assert slot.holder is one
    slot.release(one)
    assert slot.take(other)


def test_a_shared_slot_forgets_when_another_stream_takes_it() -> None:
    slot, one, other = Slot(0, is_shared=True), _Prefill(), _Prefill()
    slot.take(one)
    slot.text = "mine"
    slot.release(one)
    slot.take(one)
    assert slot.begin("mine and more")
    slot.release(one)
    slot.take(other)
    assert not slot.begin("mine and more")


def test_a_slot_knows_what_a_request_leaves_of_its_text() -> None:
    slot = Slot(0)
    assert not slot.begin("one")
    slot.text = "one two"
    assert slot.begin("one three")
    assert slot.text == "one t"
    assert slot.begin("one t and more")
    assert slot.text == "one t"


def test_the_first_evaluation_reuses_nothing_and_a_halted_one_settles_nothing() -> None:
    engine, llama = make_engine()
    slot = Slot(0)
    engine.evaluate(slot, "one two", lambda: True)
    assert slot.text is None
    engine.evaluate(slot, "one two", lambda: False)
    engine.evaluate(slot, "one two three", lambda: False)
    assert [request.reuse for request in llama.requests] == [False, False, True]
    assert slot.text == "one two three"


def test_failures_of_the_engine_are_the_streams() -> None:
    engine, llama = make_engine()
    llama.fails_on = "bad"
    with pytest.raises(StageFailure) as failure:
        engine.complete(Completion(0, "bad"), lambda _: False)
    assert failure.value.code == "engine"
    with pytest.raises(LlamaContextError):
        engine.complete(Completion(0, "w " * 600), lambda _: False)


def test_pieces_end_before_white_space() -> None:
    text = " ".join(["word"] * 50)
    piece = next_piece(None, text)
    assert piece == " ".join(["word"] * 18)
    assert next_piece(piece, text) == " ".join(["word"] * 36)
    assert next_piece(text[:170], text) is None
    assert next_piece("other", "short") is None


def test_a_long_word_is_one_piece() -> None:
    assert next_piece("", "x" * 300) is None
    assert next_piece("", "x" * 300 + " more" * 20) == "x" * 300


@given(st.lists(st.sampled_from(["word", " ", "\n", "x" * 40]), max_size=60).map("".join), st.integers(0, 300))
def test_pieces_lead_to_the_whole_text(text: str, known_chars: int) -> None:
    known = text[:known_chars]
    while piece := next_piece(known, text):
        assert text.startswith(piece)
        assert len(piece) > len(known)
        assert piece[-1:].strip()
        assert text[len(piece)].isspace()
        known = piece
    assert len(text) - len(known) <= PIECE_CHARS or not any(char.isspace() for char in text[len(known) + 1 :].lstrip())


def test_a_prompter_fits_more_tightly_after_a_refusal() -> None:
    prompter = Prompter(make_engine()[0])
    exchange = [Message("user", "a b c d " * 4), Message("assistant", "e f g h " * 4)]
    talk = [Message("system", "Be kind."), *exchange * 7, Message("user", "And now?")]
    before = prompter.render(talk, answer=True)
    prompter.tighten(LlamaContextError(600, 512))
    after = prompter.render(talk, answer=True)
    assert len(after) < len(before)
    assert after.endswith("And now?<|im_end|>\n<|im_start|>assistant\n")


def test_a_prompt_without_room_is_a_failure() -> None:
    prompter = Prompter(make_engine()[0])
    with pytest.raises(StageFailure) as failure:
        prompter.render([Message("system", "long " * 500), Message("user", "Hi")], answer=False)
    assert failure.value.code == "prompt_too_long"
