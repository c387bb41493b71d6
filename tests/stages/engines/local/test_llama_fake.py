"""The fake engine keeps KV, pieces and refusals as the real one does (`test_llama.py`)."""

from __future__ import annotations

import pytest

from stages.engines.local.llama import PIECE_TOKENS, Completed, Completion, LlamaContextError, LlamaError, LlamaSettings
from stages.engines.local.llama_fake import FakeLlama, tokens_of

HEADER = "<|im_start|>assistant\n"
SETTINGS = LlamaSettings(slots=2, context_tokens=256)


def make(reply: str = "Yes, I can. More.") -> FakeLlama:
    return FakeLlama(SETTINGS, lambda _: reply)


def run(llama: FakeLlama, request: Completion, halt_after: int | None = None) -> tuple[Completed, list[str]]:
    seen: list[str] = []

    def watch(piece: str) -> bool:
        seen.append(piece)
        return len(seen) == halt_after

    return llama.complete(request, watch), seen


def test_tokens_are_control_marks_and_words() -> None:
    assert tokens_of("<|im_end|>\nHi there, < you") == ["<|im_end|>", "\n", "Hi", " there,", " ", "<", " you"]
    assert "".join(tokens_of("a  b<c\n\n d")) == "a  b<c\n\n d"


def test_a_prompt_advances_in_pieces_and_is_reused() -> None:
    llama = make()
    words = " ".join(["w"] * 40)
    assert run(llama, Completion(0, words)) == (Completed("length", 40, 0, 0), [""] * 4)
    assert run(llama, Completion(0, words))[0].cached_tokens == 39
    assert run(llama, Completion(0, words + " more"))[0].cached_tokens == 40
    assert run(llama, Completion(0, "w w x"))[0].cached_tokens == 2
    assert run(llama, Completion(1, "w w x"))[0].cached_tokens == 0
    assert run(llama, Completion(0, "w w x", reuse=False))[0].cached_tokens == 0
    assert llama.evaluated == [40, 1, 1, 1, 3, 3]


def test_a_halted_prompt_keeps_what_was_evaluated() -> None:
    llama = make()
    words = " ".join(["w"] * 40)
    assert run(llama, Completion(0, words), halt_after=1)[0] == Completed("halted", 40, 0, 0)
    assert llama.kv[0] == []
    run(llama, Completion(0, words), halt_after=2)
    assert len(llama.kv[0]) == PIECE_TOKENS


def test_a_reply_goes_on_after_what_the_prompt_holds() -> None:
    llama = make()
    done, seen = run(llama, Completion(0, "q" + HEADER, tokens_max=9))
    assert (done.reason, done.output_tokens, "".join(seen)) == ("stop", 4, "Yes, I can. More.")
    done, seen = run(llama, Completion(0, "q" + HEADER + "Yes, I", tokens_max=1))
    assert (done, "".join(seen)) == (Completed("length", 6, 5, 1), " can.")


def test_a_reply_can_be_halted_at_a_token() -> None:
    done, seen = run(make(), Completion(0, "q" + HEADER, tokens_max=9), halt_after=3)
    assert (done.reason, done.output_tokens, seen) == ("halted", 1, ["", "", "Yes,"])


def test_it_refuses_as_the_engine_does() -> None:
    llama = make()
    with pytest.raises(LlamaContextError) as refusal:
        run(llama, Completion(0, " ".join(["w"] * 300)))
    assert (refusal.value.prompt_tokens, refusal.value.context_tokens) == (300, 256)
    llama.fails_on = "bad"
    with pytest.raises(LlamaError, match="scripted"):
        run(llama, Completion(0, "a bad one"))
    assert not llama.busy
    llama.close()
    assert llama.closed
