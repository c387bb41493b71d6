"""A slot knows what it holds, and is filled in pieces that fit."""

from __future__ import annotations

from itertools import count
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
from stages.stream import StageFailure

TEMPLATE = ChatTemplate(GgufHeader("fake", "<|im_start|>", ()))
SETTINGS = ThinkerSettings(slots=1, context_tokens=512, output_tokens_max=128)


def make_engine() -> tuple[Engine, FakeLlama]:
    """By whose clock every evaluation takes 10 ms."""
    llama, moments = FakeLlama(LlamaSettings(slots=2, context_tokens=512), lambda _: ""), count(0, 10_000_000)
    return Engine(llama, TEMPLATE, SETTINGS, lambda: next(moments)), llama


@pytest.mark.parametrize(
    "changes",
    [{"slots": 0}, {"idle_s_max": 0}, {"sentences_max": 0}, {"output_tokens_max": 0}, {"output_tokens_max": 1_025}],
)
def test_senseless_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        ThinkerSettings(**changes)


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
    left = slot.text
    engine.evaluate(slot, "one two", lambda: False)
    engine.evaluate(slot, "one two three", lambda: False)
    assert left is None
    assert [request.reuse for request in llama.requests] == [False, False, True]
    assert slot.text == "one two three"
    assert (slot.tokens, slot.take_read(), slot.take_read()) == (3, 3, 0)


def test_what_is_evaluated_tells_how_fast_that_is() -> None:
    engine, _ = make_engine()
    slot = Slot(0)
    engine.evaluate(slot, "one two", lambda: True)
    assert engine.speed.predicted_ns(1) == 0, "it was halted"
    engine.evaluate(slot, "one two", lambda: False)
    assert engine.speed.predicted_ns(1) == 5_000_000
    engine.evaluate(slot, "one two", lambda: False)
    assert engine.speed.predicted_ns(1) > 0, "one token is always evaluated"


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
