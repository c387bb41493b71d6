"""Whole turns through the real service: what is said, in which order, and that nothing of it is lost or mixed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from duplex.probes import ThisMachine
from tests.live.caller import RATE, Caller, Message, audio_of, calling, interruption, silence, tone, utterance
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

HEARD, REPLY = "good morning", "Yes indeed."
SAMPLES_PER_WORD = 4_800  # the scripted Talker's 20 frames of 10 ms
WORD = "response.audio_timestamp.delta"
DELTAS = {"response.output_audio_transcript.delta", "response.output_audio.delta", WORD}
AUDIO_FAMILY = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "deltas",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "response.drained",
]
TEXT_FAMILY = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "response.drained",
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("turns"), {"scripted_heard": HEARD, "scripted_replies": REPLY}) as running:
        yield running


def runs(types: list[str]) -> list[str]:
    """Without repetitions in a row. Text and sound of a reply come from two stages, in no common order."""
    kinds = ("deltas" if kind in DELTAS else kind for kind in types)
    return [kind for kind, _ in itertools.groupby(kinds)]


def hum(samples: int) -> bytes:
    """What the scripted vocoder makes: one tone, in phase from the response's first sample."""
    clock = np.arange(samples) / RATE
    pcm: bytes = (np.sin(2 * np.pi * 440 * clock) * 0.2 * 32767).astype("<i2").tobytes()
    return pcm


def ask(caller: Caller, text: str = "Are you there?", **response: object) -> list[Message]:
    """A typed turn, to its drained; the events from the response on."""
    caller.type_text(text)
    caller.send("response.create", response=response)
    caller.until("response.created")
    begun = len(caller.events) - 1
    caller.until("response.drained")
    return caller.events[begun:]


def test_a_typed_turn_is_answered_with_speech(service: Service) -> None:
    with calling(service) as caller:
        events = ask(caller)
    assert runs([event["type"] for event in events]) == AUDIO_FAMILY
    done = events[-2]["response"]
    assert (done["status"], done["status_details"]) == ("completed", None)
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": REPLY}]
    assert done["usage"]["output_tokens"] == 2
    assert events[-1] == events[-1] | {"response_id": done["id"], "status": "complete"}
    assert events[-1]["lag_ms"] >= 0
    words = [(event["text"], event["start_sample"]) for event in events if event["type"] == WORD]
    assert words == [(word, at * SAMPLES_PER_WORD) for at, word in enumerate(REPLY.split())]


def test_a_stock_client_sees_nothing_but_what_it_knows(service: Service) -> None:
    with calling(service, query="") as caller:
        caller.type_text("Are you there?")
        caller.send("response.create")
        response = caller.until("response.created")["response"]["id"]
        caller.until("response.output_audio.delta")
        caller.send("playback.ack", response_id=response, played_samples=480)
        caller.until("response.done")
        types = caller.types()
    family = runs(types[types.index("response.created") :])
    assert family == AUDIO_FAMILY[: AUDIO_FAMILY.index("response.done") + 1]
    assert WORD not in types


def test_every_sample_of_a_reply_arrives_once_and_in_place(service: Service) -> None:
    with calling(service) as caller:
        events = ask(caller)
    deltas = [event for event in events if event["type"] == "response.output_audio.delta"]
    starts = [delta["start_sample"] for delta in deltas]
    ends = [delta["start_sample"] + delta["samples"] for delta in deltas]
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == 2 * SAMPLES_PER_WORD
    assert [delta["watermark"] for delta in deltas] == ends
    assert {delta["sample_rate"] for delta in deltas} == {RATE}
    assert audio_of(events, deltas[0]["response_id"]) == hum(2 * SAMPLES_PER_WORD)


def test_every_message_is_numbered(service: Service) -> None:
    with calling(service) as caller:
        ask(caller)
    assert [event["server_event_seq"] for event in caller.events] == list(range(1, len(caller.events) + 1))
    assert len({event["event_id"] for event in caller.events}) == len(caller.events)


def test_a_typed_turn_is_answered_with_text_alone_where_that_was_asked_for(service: Service) -> None:
    with calling(service) as caller:
        events = ask(caller, output_modalities=["text"], metadata={"topic": "greeting"})
    assert runs([event["type"] for event in events]) == TEXT_FAMILY
    done = events[-2]["response"]
    assert done["output"][0]["content"] == [{"type": "output_text", "text": REPLY}]
    assert done["metadata"] == {"topic": "greeting"}


def test_a_reply_that_reached_its_limit_is_incomplete(service: Service) -> None:
    with calling(service) as caller:
        done = ask(caller, max_output_tokens=1)[-2]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert done["output"][0]["content"][0]["transcript"] == "Yes"


def test_a_response_out_of_band_leaves_the_conversation_alone(service: Service) -> None:
    with calling(service) as caller:
        events = ask(caller, conversation="none", output_modalities=["text"])
        response = next(event["response"] for event in events if event["type"] == "response.done")
        caller.send("conversation.item.retrieve", item_id=response["output"][0]["id"])
        refused = caller.until("error")
    assert [kind for kind in runs([e["type"] for e in events]) if kind.startswith("conversation.")] == []
    assert response["conversation_id"] is None
    assert refused["error"]["code"] == "item_not_found"


def test_a_spoken_turn_is_heard_and_answered(service: Service) -> None:
    with calling(service) as caller:
        caller.hear(utterance())
        caller.until("response.drained")
    assert runs(caller.types(since=1)) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        *AUDIO_FAMILY,
    ]
    started, stopped, committed, added, _, heard = caller.events[1:7]
    assert len({event["item_id"] for event in (started, stopped, committed, heard)} | {added["item"]["id"]}) == 1
    # The tone runs from 300 to 800 ms of the input; windows are 32 ms long.
    assert abs(started["audio_start_ms"] - 300) <= 32
    assert abs(stopped["audio_end_ms"] - 800) <= 32
    assert heard["transcript"] == HEARD
    timings = caller.of_type("response.done")[0]["timings"]
    assert timings["total"] == pytest.approx(sum(ms for part, ms in timings.items() if part != "total"), abs=0.5)
    assert caller.of_type("response.created")[0]["response"]["status"] == "in_progress"


def test_speech_is_heard_alike_however_it_is_cut(service: Service) -> None:
    with calling(service) as caller:
        pcm = utterance()
        for start in range(0, len(pcm), 777):  # odd: half a sample is carried over
            caller.hear(pcm[start : start + 777])
        caller.until("response.done")
    assert abs(caller.of_type("input_audio_buffer.speech_started")[0]["audio_start_ms"] - 300) <= 32
    assert caller.of_type("response.done")[0]["response"]["status"] == "completed"


def test_without_turn_detection_the_client_commits_and_asks(service: Service) -> None:
    with calling(service) as caller:
        caller.settle(audio={"input": {"turn_detection": None}})
        caller.hear(tone(400) + silence(100))
        caller.send("input_audio_buffer.commit")
        heard = caller.until("conversation.item.input_audio_transcription.completed")
        caller.send("response.create")
        caller.until("response.done")
    assert heard["transcript"] == HEARD
    assert "input_audio_buffer.committed" in caller.types()
    assert "input_audio_buffer.speech_started" not in caller.types()


def test_there_must_be_something_to_commit(service: Service) -> None:
    with calling(service) as caller:
        caller.send("input_audio_buffer.commit", event_id="mine")
        refused = caller.until("error")["error"]
        caller.hear(silence(200))
        caller.send("input_audio_buffer.clear")
        caller.until("input_audio_buffer.cleared")
        caller.send("input_audio_buffer.commit")
        again = caller.until("error")["error"]
    assert (refused["code"], refused["event_id"]) == ("input_audio_buffer_commit_empty", "mine")
    assert again["code"] == "input_audio_buffer_commit_empty"


def test_cleared_speech_is_not_answered(service: Service) -> None:
    with calling(service) as caller:
        caller.hear(silence(300) + tone(500))
        caller.until("input_audio_buffer.speech_started")
        caller.send("input_audio_buffer.clear")
        caller.until("input_audio_buffer.cleared")
        caller.hear(silence(1_500))
        caller.settle()
    assert not {"input_audio_buffer.committed", "response.created"} & set(caller.types())


def test_livekit_agents_6076_sound_that_stops_amid_speech_freezes_nothing(service: Service) -> None:
    with calling(service) as caller:
        caller.hear(silence(300) + tone(500))
        caller.until("input_audio_buffer.speech_started")
        caller.type_text("Are you there?")
        caller.send("response.create")
        caller.until("response.done")
    types = runs(caller.types(since=1))
    told = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"]
    assert [kind for kind in types if kind.startswith("input_audio_buffer.")] == told
    assert abs(caller.of_type("input_audio_buffer.speech_stopped")[0]["audio_end_ms"] - 800) <= 32
    heard = types.index("conversation.item.input_audio_transcription.completed")
    assert types.index("response.created") > heard, "what was said is answered too"


def test_what_waits_for_the_callers_words_can_be_cancelled(service: Service) -> None:
    with calling(service) as caller:
        caller.hear(silence(300) + tone(500))
        caller.until("input_audio_buffer.speech_started")
        caller.send("response.create", response={"metadata": {"topic": "mine"}})
        caller.send("response.cancel")
        drained = caller.until("response.drained")
        created, done = caller.of_type("response.created")[0], caller.of_type("response.done")[0]
        caller.hear(silence(700))
        answered = caller.until(lambda event: event["type"] == "response.done" and event != done)["response"]
    assert created["response"]["id"] == done["response"]["id"] == drained["response_id"]
    assert (done["response"]["status"], done["response"]["metadata"]) == ("cancelled", {"topic": "mine"})
    assert done["response"]["status_details"]["reason"] == "client_cancelled"
    assert (answered["status"], answered["metadata"]) == ("completed", None)


def test_two_calls_do_not_mix(service: Service) -> None:
    with calling(service) as one, calling(service) as other:
        for caller in (one, other):
            caller.type_text("Are you there?")
            caller.send("response.create")
        for caller in (one, other):
            caller.until("response.drained")
    answered = [caller.of_type("response.created")[0]["response"]["id"] for caller in (one, other)]
    assert answered[0] != answered[1]
    for caller, response in zip((one, other), answered, strict=True):
        assert {event["response_id"] for event in caller.events if "response_id" in event} == {response}
        assert audio_of(caller.events, response) == hum(2 * SAMPLES_PER_WORD)


def test_stock_clients_get_no_events_of_ours(service: Service) -> None:
    with calling(service, query="?model=any") as caller:
        caller.type_text("Are you there?")
        caller.send("response.create")
        caller.until("response.done")
        caller.settle()
        created = caller.events[0]["session"]
        assert "response.drained" not in caller.types()
        assert "resume_token" not in created
        assert created["model"] == "any"


def test_items_can_be_read_and_taken_back(service: Service) -> None:
    with calling(service) as caller:
        caller.type_text("One.", id="item_one")
        caller.type_text("Two.", id="item_two")
        caller.send("conversation.item.retrieve", item_id="item_one")
        item = caller.until("conversation.item.retrieved")["item"]
        caller.send("conversation.item.delete", item_id="item_one")
        caller.until("conversation.item.deleted")
        caller.send("conversation.item.retrieve", item_id="item_one", event_id="again")
        gone = caller.until("error")["error"]
        caller.type_text("Three.", id="item_two")
        twice = caller.until("error")["error"]
    assert item["content"] == [{"type": "input_text", "text": "One."}]
    assert (gone["code"], gone["event_id"]) == ("item_not_found", "again")
    assert twice["code"] == "item_exists"


def test_a_spoken_reply_can_be_truncated_to_what_was_played(service: Service) -> None:
    with calling(service) as caller:
        item = ask(caller)[-2]["response"]["output"][0]["id"]
        caller.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=100)
        cut = caller.until("conversation.item.truncated")
    assert (cut["item_id"], cut["audio_end_ms"]) == (item, 100)


def test_who_says_goodbye_is_closed_as_asked(service: Service) -> None:
    with calling(service) as caller:
        ask(caller)
        caller.send("bye")
        assert caller.until_closed() == (1000, "client_closed")


def test_the_operator_can_ask_how_it_is(service: Service) -> None:
    assert service.get("/healthz").json == {"status": "alive"}
    host, _, port = service.address.partition(":")
    assert ThisMachine().serves(host, int(port)), "as `duplex doctor` asks"
    with calling(service):
        ready = {"status": "ready", "calls": 1, "calls_max": 4, "gateway": "gateway"}
        assert service.get("/readyz").json == ready
        metrics = service.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = metrics.body.decode()
    assert "duplex_calls 1.0" in text
    for stage in ("encoder", "thinker", "talker", "vocoder"):
        assert f'duplex_stage_up{{replica="{stage}",stage="{stage}"}} 1.0' in text
    assert service.get("/nothing").status == 404


def test_figures_follow_a_turn(service: Service) -> None:
    completed = 'duplex_responses_total{status="completed"}'
    before = {name: service.metric(name) for name in (completed, "duplex_first_audio_seconds_count")}
    with calling(service) as caller:
        caller.hear(utterance())
        caller.until("response.drained")
        assert service.metric("duplex_undrained_responses") == 0
        assert service.metric("duplex_credit_in_use_samples") == 0
    assert {name: service.metric(name) - value for name, value in before.items()} == dict.fromkeys(before, 1.0)
    assert service.metric('duplex_stage_service_seconds_count{kind="chunk",stage="vocoder"}') > 0
    assert service.metric('duplex_drain_lag_seconds_count{status="complete"}') > 0
    assert service.metric("duplex_encoder_wait_seconds_count") > 0


def test_nothing_that_was_said_stands_in_the_logs(service: Service) -> None:
    with calling(service) as caller:
        caller.settle(instructions="Speak of herons.")
        ask(caller, "Do you know of herons?")
        caller.hear(interruption())  # the end of the reply is still on its way to the ear
        caller.until("response.done")
        session = caller.events[0]["session"]
    service.wait_for_event("call_ended", session=session["id"])
    logged = "\n".join(service.lines)
    assert session["id"] in logged
    for secret in ("herons", HEARD, REPLY, "indeed", session["resume_token"].partition(".")[2]):
        assert secret not in logged
