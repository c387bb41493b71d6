"""Stops in the middle of a reply: by the caller's voice and by command, and what follows them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.live.caller import Caller, Message, calling, interruption, silence, tone, utterance
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 120  # 24 s of speech: no test waits for its end
REPLY = " ".join(f"word{number}" for number in range(WORDS))
AUDIO = "response.output_audio.delta"
WORD_TOLD = "response.audio_timestamp.delta"
WORD = 4_800
LEAD = 160 * 24 + 2 * 480  # the transport's lead, and two frames on their way
LATENCY = 150 * 24  # what a client of which nothing is known may take to play a sample, and the way to it


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "wait a moment", "scripted_replies": REPLY, "max_output_tokens": str(2 * WORDS)}
    with serving(tmp_path_factory.mktemp("barge"), settings) as running:
        yield running


def start_reply(caller: Caller, *, frames: int = 3, **response: object) -> str:
    """Have it talk; gives the response once some of its sound is here."""
    caller.type_text("Tell me everything.")
    caller.send("response.create", response=response)
    name: str = caller.until("response.created")["response"]["id"]
    for _ in range(frames):
        caller.until(lambda event: event["type"] == AUDIO and event["response_id"] == name)
    return name


def done_of(caller: Caller, response: str) -> Message:
    body: Message = caller.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == response)["response"]
    return body


def place_of_done(caller: Caller, response: str) -> int:
    events = enumerate(caller.events)
    return next(at for at, e in events if e["type"] == "response.done" and e["response"]["id"] == response)


def test_speech_over_a_reply_ends_it_and_is_answered(service: Service) -> None:
    with calling(service) as caller:
        old = start_reply(caller)
        before = len(caller.events)
        caller.hear(interruption())
        cut = done_of(caller, old)
        drained = caller.find(lambda event: event["type"] == "response.drained", since=before)
        created = caller.find(lambda event: event["type"] == "response.created", since=before)["response"]
        caller.find(lambda event: event["type"] == AUDIO and event["response_id"] == created["id"], since=before)
    assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert (drained["response_id"], drained["status"]) == (old, "complete")
    assert drained["lag_ms"] >= 0
    assert drained["released"]
    assert created["epoch"] > cut["epoch"]
    ended = place_of_done(caller, old)
    later = [event["type"] for event in caller.events[ended + 1 :] if event.get("response_id") == old]
    assert later == ["response.drained"]
    # Clients flush on it: no sound of the old reply may follow.
    flushed = caller.types().index("input_audio_buffer.speech_started")
    assert not [e for e in caller.events[flushed:] if e["type"] == AUDIO and e["response_id"] == old]


def test_what_was_cut_off_is_remembered_as_far_as_it_was_heard(service: Service) -> None:
    with calling(service) as caller:
        old = start_reply(caller, frames=50)  # a second: five words
        caller.send("response.cancel", event_id="stop")
        cut = done_of(caller, old)
        caller.send("conversation.item.retrieve", item_id=cut["output"][0]["id"])
        item = caller.until("conversation.item.retrieved")["item"]
    said = cut["output"][0]["content"][0]["transcript"].split()
    assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert said == REPLY.split()[: len(said)]
    samples = max(event["start_sample"] + event["samples"] for event in caller.of_type(AUDIO))
    # A client that tells nothing has not played what was sent ahead; the stop may have taken a frame back.
    assert (samples - LEAD - LATENCY) // WORD <= len(said) <= samples // WORD
    assert 100 <= item["heard_error_ms"] <= 150
    assert item["content"][0]["transcript"].split() == said
    assert (item["cut"], item["heard_basis"], item["heard_ms"] * 24 // WORD) == (True, "estimated", len(said))
    assert item["cut_word"] in ("", REPLY.split()[len(said)])


def test_what_the_client_says_it_played_is_what_is_remembered(service: Service) -> None:
    with calling(service) as caller:
        old = start_reply(caller, frames=25)
        caller.send("playback.ack", response_id=old, played_samples=10_000)
        caller.send("response.cancel")
        cut = done_of(caller, old)
        item_id = cut["output"][0]["id"]
        caller.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=250.7)
        truncated = caller.until("conversation.item.truncated")
        caller.send("conversation.item.retrieve", item_id=item_id)
        item = caller.until("conversation.item.retrieved")["item"]
    assert cut["output"][0]["content"][0]["transcript"].split() == REPLY.split()[:2], "10,000 samples are two words"
    assert truncated["audio_end_ms"] == 250
    assert item["content"][0]["transcript"].split() == REPLY.split()[:1]
    assert (item["cut_word"], item["heard_ms"], item["heard_basis"]) == ("word1", 250, "acked")


def test_a_cancel_leaves_the_call_ready_for_the_next_response(service: Service) -> None:
    with calling(service) as caller:
        old = start_reply(caller)
        caller.send("response.cancel", response_id=old)
        done_of(caller, old)
        new = start_reply(caller, max_output_tokens=1)
        assert done_of(caller, new)["status"] == "incomplete"


def test_there_must_be_something_to_cancel(service: Service) -> None:
    with calling(service) as caller:
        caller.send("response.cancel", event_id="nothing")
        nothing = caller.until("error")["error"]
        name = start_reply(caller)
        caller.send("response.cancel", response_id="resp_other")
        other = caller.until("error")["error"]
        caller.send("response.cancel")
        done_of(caller, name)
    assert (nothing["code"], nothing["event_id"]) == ("response_cancel_not_active", "nothing")
    assert other["code"] == "response_cancel_not_active"


def test_a_second_response_is_refused_while_one_is_active(service: Service) -> None:
    with calling(service) as caller:
        name = start_reply(caller)
        caller.send("response.create", event_id="second")
        refused = caller.until("error")["error"]
        caller.until(lambda event: event["type"] == AUDIO and event["response_id"] == name)
        caller.send("response.cancel")
        done_of(caller, name)
    assert refused["code"] == "conversation_already_has_active_response"
    assert refused["event_id"] == "second"
    assert refused["type"] == "invalid_request_error"


def test_a_click_that_sounds_like_a_voice_holds_a_reply_for_a_moment_and_ends_nothing(service: Service) -> None:
    with calling(service) as caller:
        name = start_reply(caller)
        before = len(caller.events)
        caller.hear(silence(200) + tone(15) + silence(300))
        for _ in range(10):
            caller.until(lambda event: event["type"] == AUDIO and event["response_id"] == name)
        held = ["turn.held", "turn.resumed"]
        assert [kind for kind in caller.types(since=before) if kind in held] == held
        assert set(caller.types(since=before)) <= {AUDIO, "response.output_audio_transcript.delta", WORD_TOLD, *held}
        caller.send("response.cancel")
        done_of(caller, name)


def test_speech_does_not_stop_a_reply_where_it_must_not(service: Service) -> None:
    with calling(service) as caller:
        detection = {"type": "server_vad", "interrupt_response": False}
        caller.settle(audio={"input": {"turn_detection": detection}})
        name = start_reply(caller, max_output_tokens=6)
        caller.hear(utterance())
        first = done_of(caller, name)
        owed = caller.until("response.created")["response"]["id"]
        caller.send("response.cancel")
        done_of(caller, owed)
    assert first["status"] == "incomplete"
    assert first["status_details"]["reason"] == "max_output_tokens"


def test_barge_ins_are_counted(service: Service) -> None:
    epochs = 'duplex_epochs_ended_total{reason="turn_detected"}'
    names = (epochs, "duplex_barge_in_stop_seconds_count", 'duplex_responses_total{status="cancelled"}')
    before = {name: service.metric(name) for name in names}
    with calling(service) as caller:
        name = start_reply(caller)
        caller.hear(silence(100) + tone(1_000))
        done_of(caller, name)
        after = {name: service.metric(name) for name in names}
    assert {name: after[name] - before[name] for name in names} == dict.fromkeys(names, 1.0)


def test_many_stops_in_a_row_leave_nothing_behind(service: Service) -> None:
    with calling(service) as caller:
        for frames in (1, 2, 5, 1, 3, 8, 1, 1):
            name = start_reply(caller, frames=frames)
            caller.send("response.cancel")
            done_of(caller, name)
            caller.until("response.drained")
        assert [event["status"] for event in caller.of_type("response.drained")] == ["complete"] * 8
        assert service.metric("duplex_undrained_responses") == 0
        assert service.metric("duplex_credit_in_use_samples") == 0


def test_a_caller_who_hangs_up_in_the_middle_gives_the_place_back(service: Service) -> None:
    for _ in range(3):  # twelve calls over four places, each with a reply under way
        with calling(service) as one, calling(service) as two, calling(service) as three, calling(service) as four:
            for caller in (one, two, three, four):
                start_reply(caller, frames=1)
            assert service.get("/readyz").json["calls"] == 4
            for caller in (one, two, three, four):
                caller.socket.socket.shutdown(socket.SHUT_RDWR)  # the network is gone: no close frame
        service.wait_for_calls(0)
    with calling(service):
        assert service.get("/readyz").json["calls"] == 1
        assert service.metric("duplex_undrained_responses") == 0


def test_a_clear_stops_what_is_over_and_not_played_yet(service: Service) -> None:
    with calling(service) as caller:
        name = start_reply(caller, frames=1, max_output_tokens=2)
        caller.send("playback.ack", response_id=name, played_samples=0)
        whole = done_of(caller, name)
        item_id = whole["output"][0]["id"]
        caller.send("output_audio_buffer.clear")
        truncated = caller.until("conversation.item.truncated")
        caller.send("conversation.item.retrieve", item_id=item_id)
        item = caller.until("conversation.item.retrieved")["item"]
        caller.send("output_audio_buffer.clear")
        caller.settle()
        newer = start_reply(caller)
        created = caller.find(lambda e: e["type"] == "response.created" and e["response"]["id"] == newer)["response"]
        caller.send("response.cancel")
        done_of(caller, newer)
    assert whole["status"] == "incomplete", "its limit ended it"
    assert (truncated["item_id"], item["cut"]) == (item_id, True)
    assert truncated["audio_end_ms"] * 24 < 2 * WORD
    assert created["epoch"] == whole["epoch"] + 1, "the second clear found nothing to stop"
    assert len([e for e in caller.of_type("response.done") if e["response"]["id"] == name]) == 1
