"""Telephone sound over the WebSocket, both ways, through real processes: its offsets, its cuts, its words."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.coded_ear import wholly_heard
from loadtest.line import Line
from media.audio_format import FormatName
from media.coded_tones import word_samples
from media.wav import read_wav
from tests.live.caller import RATE, Message, calling, interruption, silence
from tests.live.coded import ask, numbers, serving_words, transcript
from tests.live.coded_caller import coded_calling, stored_items
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 12
AUDIO = "response.output_audio.delta"
WORD_TOLD = "response.audio_timestamp.delta"
LINE_RATE = 8_000
FRAME = LINE_RATE // 50
MADE_AHEAD = 4 * LINE_RATE // 10  # the generation lead
SPEECH = Path(__file__).parents[1] / "data" / "speech"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("telephone"), WORDS) as running:
        yield running


def sounding(events: list[Message], response: str) -> list[Message]:
    return [event for event in events if event["type"] == AUDIO and event["response_id"] == response]


@pytest.mark.parametrize("format_name", ["audio/pcmu", "audio/pcma"])
def test_a_reply_is_heard_word_by_word_and_counted_in_the_lines_samples(
    service: Service, format_name: FormatName
) -> None:
    with coded_calling(service, format_name=format_name) as caller:
        response = ask(caller)
        caller.hear_out(response)
        heard = wholly_heard(caller.words(), response)
        deltas = sounding(caller.events, response)
        spoken = caller.of_type(WORD_TOLD)
        reports = caller.of_type("playback.acknowledged")
    assert heard == list(range(WORDS))
    sizes = [len(base64.b64decode(delta["delta"])) for delta in deltas]
    assert [delta["samples"] for delta in deltas] == sizes, "a byte is a sample"
    assert {delta["sample_rate"] for delta in deltas} == {LINE_RATE}
    assert [delta["start_sample"] for delta in deltas] == [sum(sizes[:place]) for place in range(len(sizes))]
    assert all(delta["watermark"] == delta["start_sample"] + delta["samples"] for delta in deltas)
    assert set(sizes[:-1]) == {FRAME}
    assert [(word["samples"], word["sample_rate"]) for word in spoken] == [(word_samples(LINE_RATE), LINE_RATE)] * WORDS
    assert {report["sample_rate"] for report in reports} == {LINE_RATE}
    assert max(report["played_samples"] for report in reports) == sum(sizes)


def test_an_interruption_cuts_history_to_the_word_that_was_heard(service: Service) -> None:
    with coded_calling(service, format_name="audio/pcmu") as caller:
        old = ask(caller)
        caller.until(AUDIO)
        caller.listen_for(900)
        caller.speak(lambda: any(event["type"] == "input_audio_buffer.speech_started" for event in caller.events))
        done = caller.find(lambda event: event["type"] == "response.done" and event["response"]["id"] == old)
        again = caller.find(lambda event: event["type"] == "response.created" and event["response"]["id"] != old)
        caller.hear_out(again["response"]["id"])
        heard = wholly_heard(caller.words(), old)
        created = caller.events[0]
    item = stored_items(service, created)[caller.item_of(old)]
    assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert 3 <= len(heard) < WORDS
    assert numbers(transcript(done)) == heard == list(range(len(heard)))
    (output,) = done["response"]["output"]
    assert output["heard_basis"] == "acked"
    assert output["cut_word"].strip("w,.") == str(len(heard))
    assert item.truncated
    assert [int(word.strip("w,.")) for word in item.content.split()] == heard
    assert caller.stale_samples(old) == 0


def test_no_more_time_is_made_ahead_than_at_any_other_rate(service: Service) -> None:
    with coded_calling(service, format_name="audio/pcmu") as caller:
        response = ask(caller)
        caller.until(AUDIO)
        caller.listen_for(700)  # there is time to make all that may be made
        caller.send("response.cancel")
        caller.until(lambda event: event["type"] == "response.done" and event["response"]["id"] == response)
        drained = caller.until(lambda event: event["type"] == "response.drained" and event["response_id"] == response)
    assert 0 < drained["released"]["playout.samples"] <= MADE_AHEAD


def test_each_way_has_its_own_format_and_the_next_response_takes_the_new_one(service: Service) -> None:
    with calling(service) as caller:
        session = caller.settle(audio={"output": {"format": {"type": "audio/pcma"}}})["session"]["audio"]
        assert session["input"]["format"] == {"type": "audio/pcm", "rate": RATE}
        assert session["output"]["format"] == {"type": "audio/pcma"}
        caller.hear(silence(300) + interruption())
        first = caller.until("response.created")["response"]["id"]
        caller.until(AUDIO)
        caller.settle(audio={"output": {"format": {"type": "audio/pcm"}}})
        caller.until(lambda event: event["type"] == "response.drained" and event["response_id"] == first)
        caller.send("response.create")
        second = caller.until("response.created")["response"]["id"]
        caller.until(lambda event: event["type"] == "response.done" and event["response"]["id"] == second)
    assert {delta["sample_rate"] for delta in sounding(caller.events, first)} == {LINE_RATE}
    assert {delta["sample_rate"] for delta in sounding(caller.events, second)} == {RATE}


@pytest.mark.models
def test_a_question_over_a_telephone_is_understood_and_answered(tmp_path: Path) -> None:
    line, question = Line("audio/pcmu"), read_wav(SPEECH / "capital.wav", RATE)
    with serving(tmp_path / "data", {}, engine="local") as service, calling(service) as caller:
        caller.settle(audio={way: {"format": {"type": "audio/pcmu"}} for way in ("input", "output")})
        coded = line.said(silence(500) + question + silence(1_500)).audio
        caller.send("input_audio_buffer.append", audio=base64.b64encode(coded).decode())
        heard = caller.until("conversation.item.input_audio_transcription.completed")
        response = caller.find(lambda event: event["type"] == "response.done")["response"]
    assert heard["transcript"] == "What is the capital of France?"
    assert "Paris" in response["output"][0]["content"][0]["transcript"]
    samples = sum(delta["samples"] for delta in sounding(caller.events, response["id"]))
    assert samples > LINE_RATE // 2
