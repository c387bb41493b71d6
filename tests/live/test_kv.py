"""KV is a cache in the real service: what is lost to others, or with its process, is made again.

Nobody hears of it, but by a few words where that takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.live.caller import Caller, Message, calling
from tests.live.coded import heard_of, numbers, transcript, whole
from tests.live.coded_caller import stored_items
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 4
FILLER = ["One", "moment,", "please."]
LONG = "x" * 1_200  # 300 tokens, which the slow Thinker reads in 1.5 s
THINKER = 'replica="thinker",stage="thinker"'
PROFILE = """
[thinker]
prefill_ms_per_token = {ms}
word_ms = 1
reply_words = {words}
"""
QUESTIONS = ("What is the capital of France?", "How many days are in a week?")


def serving_slots(tmp_path_factory: pytest.TempPathFactory, ms_per_token: float, **settings: str) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("kv")
    profile = folder / "profile.toml"
    profile.write_text(PROFILE.format(ms=ms_per_token, words=WORDS))
    with serving(folder / "data", {"synthetic_profile": str(profile), **settings}, engine="synthetic") as running:
        yield running


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from serving_slots(tmp_path_factory, 0.1, kv_slots="1")


@pytest.fixture(scope="module")
def two_thinkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from serving_slots(tmp_path_factory, 0.1, replicas_thinker="2")


@pytest.fixture(scope="module")
def slow_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from serving_slots(tmp_path_factory, 5)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"kv_slots": "1", "calls_max": "2", "filler": ""}
    with serving(tmp_path_factory.mktemp("local"), settings, engine="local") as running:
        yield running


def answered(caller: Caller, text: str = "Tell me everything.") -> Message:
    """The `response.done` of an answer to `text`."""
    caller.type_text(text)
    caller.send("response.create")
    response: Message = caller.until("response.done")["response"]
    assert response["status"] == "completed", response
    return response


def cached(response: Message) -> int:
    tokens: int = response["usage"]["input_token_details"]["cached_tokens"]
    return tokens


def lose_thinker(service: Service) -> None:
    since = len(service.lines)
    service.kill("thinker")
    service.wait_for_event("stage_up", since=since, stage="thinker")


def said(response: Message) -> list[str]:
    return transcript({"response": response})


def test_more_calls_than_places_each_get_their_own_answers(one_slot: Service) -> None:
    with calling(one_slot) as one, calling(one_slot) as other:
        for caller in (one, other):  # by then nothing reads the opening of its prompt ahead any more, which may be late
            answered(caller)
        for _ in range(2):
            for caller in (one, other):
                response = answered(caller)
                assert cached(response) == 0, "the other call has had the place meanwhile"
                assert heard_of(caller.events, response["id"]) == whole(response["id"], WORDS)
                assert numbers(said(response)) == list(range(WORDS))
        figures = one_slot.metrics()
    assert figures[f"duplex_kv_places{{{THINKER}}}"] == 1
    assert figures[f'duplex_kv_misses{{cause="evicted",{THINKER}}}'] >= 2
    assert figures[f'duplex_kv_evictions{{cause="pressure",{THINKER}}}'] >= 3
    assert figures[f"duplex_kv_rebuilt_tokens{{{THINKER}}}"] > 0
    one_slot.wait_for_calls(0)
    one_slot.wait_for_metrics(lambda figures: figures[f"duplex_kv_places_used{{{THINKER}}}"] == 0)


def test_what_was_lost_with_its_process_is_read_again_and_then_kept(one_slot: Service) -> None:
    with calling(one_slot) as caller:
        first = answered(caller)
        lose_thinker(one_slot)
        lost, kept = answered(caller), answered(caller)
    assert [numbers(said(response)) for response in (first, lost, kept)] == [list(range(WORDS))] * 3
    assert cached(lost) == 0
    assert cached(kept) >= lost["usage"]["input_tokens"], "the prompt before, and its answer"


def test_a_session_that_has_moved_is_read_again_at_its_new_home(two_thinkers: Service) -> None:
    with calling(two_thinkers) as caller:  # the only one: at the first replica
        first = answered(caller)
        two_thinkers.kill("thinker-1")
        moved, kept = answered(caller), answered(caller)
        misses = two_thinkers.metric('duplex_kv_misses{cause="new",replica="thinker-2",stage="thinker"}')
    assert [numbers(said(response)) for response in (first, moved, kept)] == [list(range(WORDS))] * 3
    assert cached(moved) == 0
    assert cached(kept) >= moved["usage"]["input_tokens"]
    assert misses == 1


def test_a_long_wait_for_a_lost_kv_is_bridged_once_and_that_is_part_of_the_reply(slow_reader: Service) -> None:
    before = slow_reader.metric("duplex_fillers_total")
    with calling(slow_reader) as caller:
        first = answered(caller, LONG)
        lose_thinker(slow_reader)
        lost, kept = answered(caller), answered(caller)
        created, items = caller.events[0], [response["output"][0]["id"] for response in (first, lost, kept)]
    assert numbers(said(first)) == numbers(said(kept)) == list(range(WORDS)), "nothing was lost there"
    assert said(lost)[: len(FILLER)] == FILLER
    assert numbers(said(lost)[len(FILLER) :]) == list(range(WORDS))
    assert heard_of(caller.events, lost["id"]) == whole(lost["id"], len(FILLER) + WORDS)
    assert cached(kept) >= lost["usage"]["input_tokens"], "the prompt leaves the filler out, as the KV does"
    stored = stored_items(slow_reader, created)
    assert [stored[item].filler for item in items] == ["", " ".join(FILLER), ""]
    assert slow_reader.metric("duplex_fillers_total") == before + 1


def test_a_filler_ends_with_its_response(slow_reader: Service) -> None:
    with calling(slow_reader) as caller:
        answered(caller, LONG)
        lose_thinker(slow_reader)
        caller.type_text("And then?")
        caller.send("response.create")
        caller.until("response.output_audio.delta")
        caller.send("response.cancel")
        done = caller.until("response.done")["response"]
        ended = len(caller.events)
        caller.until("response.drained")
        caller.settle()
    assert done["status"] == "cancelled"
    assert said(done) == FILLER[: len(said(done))]
    assert "response.output_audio.delta" not in caller.types(since=ended)


@pytest.mark.models
def test_a_model_says_the_same_whether_its_kv_was_kept_or_lost(local: Service) -> None:
    kept = conversation(local)
    local.wait_for_calls(0)
    with calling(local) as other:
        disturbed = conversation(local, between=lambda: answered(other, "Hello."))
    local.wait_for_calls(0)
    with_deaths = conversation(local, between=lambda: lose_thinker(local))
    assert kept[0][0] == "The capital of France is Paris."
    assert [text for text, _ in disturbed] == [text for text, _ in with_deaths] == [text for text, _ in kept]
    assert kept[1][1] > 100
    assert disturbed[1][1] == with_deaths[1][1] == 0


def conversation(service: Service, between: Callable[[], object] = lambda: None) -> Sequence[tuple[str, int]]:
    """What was answered to each question, and how many tokens of the prompt were found in the KV."""
    answers = []
    with calling(service) as caller:
        for question in QUESTIONS:
            response = answered(caller, question)
            answers.append((" ".join(said(response)), cached(response)))
            between()
    return answers
