"""The engine as it is: pieces, halts, reuse, refusals, and what a request's outcome is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stages.contracts import Message
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.gguf import read_header
from stages.engines.local.llama import (
    PIECE_TOKENS,
    Completed,
    Completion,
    LlamaContextError,
    LlamaError,
    LlamaServer,
    LlamaSettings,
    _Observer,
)
from stages.weights import WeightsError, locate

WORDS = " ".join(f"word {n}" for n in range(20))


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        return locate("smollm2-135m-instruct")
    except WeightsError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def llama(weights: Path) -> Iterator[LlamaServer]:
    server = LlamaServer(weights, LlamaSettings(slots=2, context_tokens=512))
    yield server
    server.close()


def never(_: str) -> bool:
    return False


def ask(llama: LlamaServer, request: Completion, watch: Callable[[str], bool] = never) -> tuple[Completed, str]:
    seen: list[str] = []

    def listen(text: str) -> bool:
        seen.append(text)
        return watch(text)

    return llama.complete(request, listen), "".join(seen)


@pytest.mark.parametrize(("slots", "context", "threads"), [(0, 512, 1), (17, 512, 1), (1, 100, 1), (1, 512, 0)])
def test_senseless_settings_are_refused(slots: int, context: int, threads: int) -> None:
    with pytest.raises(ValueError, match="slot"):
        LlamaSettings(slots, context, threads)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(LlamaError, match=r"cannot load empty\.gguf"):
        LlamaServer(path, LlamaSettings(slots=1))


def observe(*chunks: object, tokens: bool = True) -> tuple[Completed, list[str], list[bool]]:
    seen: list[str] = []

    def watch(text: str) -> bool:
        seen.append(text)
        return text == "halt"

    observer = _Observer(watch, generates=tokens)
    answers = [observer(chunk) for chunk in chunks]
    return observer.outcome(), seen, answers


def chunk(text: str = "", reason: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"text": text, "finish_reason": reason}], **more}


TIMINGS = {"cache_n": 3, "prompt_n": 4, "predicted_n": 2}
PROGRESS = {"total": 7, "cache": 1, "processed": 7}


def test_an_outcome_reports_the_newest_counts() -> None:
    outcome = observe(chunk(prompt_progress=PROGRESS), chunk("a", timings=TIMINGS), chunk("b", "stop"))
    assert outcome == (Completed("stop", 7, 3, 2), ["", "a", "b"], [False, False, False])


def test_an_evaluation_hides_its_token() -> None:
    outcome = observe(chunk(prompt_progress=PROGRESS), chunk("a"), chunk("", "length", timings=TIMINGS), tokens=False)
    assert outcome == (Completed("length", 7, 3, 0), ["", ""], [False, False, False])


def test_a_halt_is_answered_until_the_engine_stops() -> None:
    assert observe(chunk("halt"))[::2] == (Completed("halted", 0, 0, 0), [True])
    assert observe(chunk("halt", "stop"))[0].reason == "stop"


@pytest.mark.parametrize(
    ("chunks", "failure"),
    [
        ([], LlamaError),
        ([chunk("a")], LlamaError),
        ([{"error": {"code": 500, "message": "bad"}}], LlamaError),
        ([{"error": {"message": "long", "n_prompt_tokens": 9, "n_ctx": 8}}], LlamaContextError),
        (["text"], msgspec.ValidationError),
    ],
)
def test_what_the_engine_reports_or_leaves_out_is_raised(chunks: list[object], failure: type[Exception]) -> None:
    with pytest.raises(failure):
        observe(*chunks)


@pytest.mark.models
@pytest.mark.slow
def test_a_prompt_is_evaluated_in_pieces_reported_one_by_one(llama: LlamaServer) -> None:
    calls: list[str] = []

    def note(text: str) -> bool:
        calls.append(text)
        return False

    assert llama.settings.slots == 2
    done = llama.complete(Completion(0, WORDS, reuse=False), note)
    pieces = -(-done.prompt_tokens // PIECE_TOKENS)
    assert (done.reason, done.cached_tokens, done.output_tokens) == ("length", 0, 0)
    assert calls[: pieces + 1] == [""] * (pieces + 1)
    assert set(calls) == {""}


@pytest.mark.models
@pytest.mark.slow
def test_a_halted_prompt_keeps_its_kv_and_reuse_can_be_declined(llama: LlamaServer) -> None:
    calls: list[str] = []

    def halt_at_second(text: str) -> bool:
        calls.append(text)
        return len(calls) == 2

    assert llama.complete(Completion(0, WORDS, reuse=False), halt_at_second).reason == "halted"
    assert ask(llama, Completion(0, WORDS))[0].cached_tokens >= PIECE_TOKENS
    assert ask(llama, Completion(0, WORDS, reuse=False))[0].cached_tokens == 0


@pytest.mark.models
@pytest.mark.slow
def test_a_reply_stops_at_the_token_where_it_is_told_to(llama: LlamaServer) -> None:
    tokens: list[str] = []

    def halt_at_third(text: str) -> bool:
        tokens.extend([text] if text else [])
        return len(tokens) == 3

    done = llama.complete(Completion(1, "One two three", tokens_max=50, reuse=False), halt_at_third)
    assert (done.reason, done.output_tokens, len(tokens)) == ("halted", 3, 3)


@pytest.mark.models
@pytest.mark.slow
def test_our_rendering_is_the_engines_own(llama: LlamaServer, weights: Path) -> None:
    messages = [Message("system", "Be kind."), Message("user", "It's $3.50 — ok?"), Message("assistant", "Yes.")]
    messages.append(Message("user", "What is 12 plus 30?"))
    done, _ = ask(llama, Completion(0, ChatTemplate(read_header(weights)).render(messages), reuse=False))
    chunks: list[dict[str, object]] = []
    request = {
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "max_tokens": 1,
        "id_slot": 0,
        "stream": True,
        "timings_per_token": True,
    }
    llama._server.handle_chat_completions(request, chunks.append)
    timings = msgspec.convert(chunks[-1]["timings"], dict[str, float])
    assert (timings["cache_n"], timings["prompt_n"]) == (done.prompt_tokens - 1, 1)


@pytest.mark.models
@pytest.mark.slow
def test_a_prompt_beyond_the_context_is_refused_with_its_count(llama: LlamaServer) -> None:
    with pytest.raises(LlamaContextError) as refusal:
        ask(llama, Completion(0, "word " * 600))
    assert refusal.value.context_tokens == 512
    assert 600 <= refusal.value.prompt_tokens <= 602


@pytest.mark.models
@pytest.mark.slow
def test_failures_come_out(llama: LlamaServer) -> None:
    def fail(_: str) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llama.complete(Completion(0, "Hello"), fail)
    with pytest.raises(LlamaError):
        ask(llama, Completion(0, "lone \ud83d surrogate"))


@pytest.mark.models
@pytest.mark.slow
def test_it_leaves_no_door_open(llama: LlamaServer) -> None:
    address = str(llama._server.listening_address)
    assert address.startswith("unix://")
    assert not Path(address.removeprefix("unix://")).exists()
