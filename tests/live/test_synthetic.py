"""The synthetic engine in the real service: what a caller hears names itself, sample by sample."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from media.coded_tones import EDGE_SAMPLES, response_number
from tests.live.caller import RATE, Caller, audio_of, calling, interruption, silence, tone
from tests.live.coded import WORD, heard_of, numbers, transcript, whole
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

LEAD = 160 * RATE // 1_000 + 2 * RATE // 50  # the transport's lead, and two frames on their way
WORDS = 60  # 12 s of speech: no test waits for its end
AUDIO = "response.output_audio.delta"
PROFILE = """
[encoder]
final_ms = 5
settle_ms = {{kind = "uniform", low = 2, high = 8}}
heard_word_ms = 300
[thinker]
prefill_ms_per_token = 0.1
word_ms = {{kind = "trace", file = "{trace}"}}
reply_words = {words}
[talker]
word_ms = {{kind = "exponential", mean = 2}}
[vocoder]
chunk_ms = {{kind = "lognormal", median = 10, sigma = 0.5}}
cpu_share = 0.5
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("synthetic")
    trace, profile = folder / "words.txt", folder / "profile.toml"
    trace.write_text("1\n0.5\n4\n")
    profile.write_text(PROFILE.format(trace=trace, words=WORDS))
    settings = {"synthetic_profile": str(profile), "max_output_tokens": str(WORDS)}
    with serving(folder / "data", settings, engine="synthetic") as running:
        yield running


@pytest.fixture(scope="module")
def one_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in which each call has the places of the one before."""
    with serving(tmp_path_factory.mktemp("one-line"), {"calls_max": "1"}, engine="synthetic") as running:
        yield running


def start_reply(caller: Caller, *, frames: int = 0, **response: object) -> str:
    """Have it talk; gives the response once so much of its sound is here."""
    caller.type_text("Tell me everything.")
    caller.send("response.create", response=response)
    name: str = caller.until("response.created")["response"]["id"]
    for _ in range(frames):
        caller.until(lambda event: event["type"] == AUDIO and event["response_id"] == name)
    return name


def test_every_word_of_a_reply_is_heard_once_and_in_place(service: Service) -> None:
    with calling(service) as caller:
        response = start_reply(caller, max_output_tokens=14)
        done = caller.until("response.done")
    assert heard_of(caller.events, response) == whole(response, 14)
    assert numbers(transcript(done)) == list(range(14))
    assert done["response"]["usage"]["output_tokens"] == 14


@pytest.mark.parametrize("frames", [12, 25, 38])
def test_what_is_heard_before_a_cancel_is_what_the_item_says(service: Service, frames: int) -> None:
    with calling(service) as caller:
        response = start_reply(caller, frames=frames)
        caller.send("response.cancel")
        done = caller.until("response.done")
        caller.until("response.drained")
    heard, said = heard_of(caller.events, response), numbers(transcript(done))
    samples = len(audio_of(caller.events, response)) // 2
    words, rest = divmod(samples, WORD)
    assert heard[:words] == whole(response, words)
    for cut in heard[words:]:
        assert (cut.word, cut.start_sample, cut.skipped) == (words, words * WORD, 0)
        assert abs(cut.samples_heard - rest) <= 2 * EDGE_SAMPLES
    assert said == list(range(len(said)))
    # A client that tells nothing has not played what was sent ahead.
    assert (samples - LEAD) // WORD <= len(said) <= words


def test_speech_over_a_reply_is_answered_by_words_of_another(service: Service) -> None:
    with calling(service) as caller:
        old = start_reply(caller, frames=15)
        caller.hear(interruption())
        cut = caller.until(lambda event: event["type"] == "response.done" and event["response"]["id"] == old)
        new = caller.find(lambda e: e["type"] == "response.created" and e["response"]["id"] != old)["response"]["id"]
        for _ in range(25):
            caller.until(lambda event: event["type"] == AUDIO and event["response_id"] == new)
        caller.send("response.cancel")
        caller.until("response.drained")
    transcripts = caller.of_type("conversation.item.input_audio_transcription.completed")
    assert [event["transcript"].split()[:2] for event in transcripts] == [["heard0", "heard1"]]
    assert numbers(transcript(cut)) == list(range(len(transcript(cut))))
    words = [piece for piece in heard_of(caller.events, old) if piece.whole]
    assert words == whole(old, len(words))
    assert len(words) - 1 <= len(transcript(cut)) <= len(words)
    assert heard_of(caller.events, new)[:2] == whole(new, 2)
    assert response_number(old) != response_number(new)


def test_what_was_read_before_costs_nothing_again(service: Service) -> None:
    with calling(service) as caller:
        usages = []
        for _ in range(2):
            start_reply(caller, max_output_tokens=1)
            usages.append(caller.until("response.done")["response"]["usage"])
    first, second = (usage["input_token_details"]["cached_tokens"] for usage in usages)
    # The opening of the prompt may have been read before anything was asked.
    assert first < usages[0]["input_tokens"] < second


def asks_once(service: Service) -> int:
    """A call that gets one short reply, of which it hears every word and no other; gives its prompt's length."""
    with calling(service) as caller:
        response = start_reply(caller, max_output_tokens=2)
        done = caller.until("response.done")["response"]
        assert heard_of(caller.events, response) == whole(response, 2)
        assert {event["response_id"] for event in caller.events if event["type"] == AUDIO} == {response}
    service.wait_for_calls(0)
    prompt: int = done["usage"]["input_tokens"]
    return prompt


def test_speech_to_speech_226_nothing_of_one_caller_reaches_the_next_in_the_same_places(one_line: Service) -> None:
    fresh = asks_once(one_line)
    for frames in (0, 1, 12):
        with calling(one_line) as gone:
            gone.type_text("canary " * 40)
            start_reply(gone, frames=frames)
            gone.hear(silence(300) + tone(99)[:-1])  # amid a turn, and amid a sample
            gone.settle()
            gone.socket.socket.shutdown(socket.SHUT_RDWR)
        one_line.wait_for_calls(0)
        assert asks_once(one_line) == fresh


def test_of_a_long_push_to_talk_every_word_is_heard(service: Service) -> None:
    seconds = 31
    with calling(service) as caller:
        caller.settle(audio={"input": {"turn_detection": None}})
        for _ in range(seconds):
            caller.hear(tone(1_000))
        caller.send("input_audio_buffer.commit")
        heard = caller.until("conversation.item.input_audio_transcription.completed")
        caller.send("input_audio_buffer.commit")
        refused = caller.until("error")["error"]
    assert heard["transcript"].split() == [f"heard{number}" for number in range(seconds * 1_000 // 300)]
    assert refused["code"] == "input_audio_buffer_commit_empty"


def test_a_turn_of_which_speech_is_detected_no_more_waits_for_its_commit(service: Service) -> None:
    detection = {"type": "server_vad"}
    with calling(service) as caller:
        caller.hear(silence(300) + tone(600))
        item = caller.until("input_audio_buffer.speech_started")["item_id"]
        caller.settle(audio={"input": {"turn_detection": None}})
        caller.send("response.create", response={"output_modalities": ["text"], "max_output_tokens": 1})
        caller.until("response.done")
        assert "input_audio_buffer.committed" not in caller.types()
        caller.settle(audio={"input": {"turn_detection": detection}})
        stopped, committed = (caller.of_type(f"input_audio_buffer.{kind}") for kind in ("speech_stopped", "committed"))
        heard = caller.until("conversation.item.input_audio_transcription.completed")
        caller.until("response.created")
    assert [event["item_id"] for event in (*stopped, *committed, heard)] == [item] * 3
