"""Callers who do not read what they are sent: how much waits for them, and that it is their own affair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.caller import RATE, Caller, Message, calling, slow_reader
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

AUDIO = "response.output_audio.delta"
WORDS = 60  # 12 s of speech
# What he finds waiting when he reads again: two frames of ours, and what the kernel and his library took before.
BACKLOG_SAMPLES_MAX = RATE // 2
GENERATED_AHEAD_SAMPLES_MAX = RATE // 2  # the generation lead, 400 ms, and the chunk that a frame was cut from


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_replies": " ".join(f"word{number}" for number in range(WORDS)), "max_output_tokens": "60"}
    with serving(tmp_path_factory.mktemp("slow"), settings) as running:
        yield running


def begin_reply(caller: Caller, **response: object) -> str:
    """Ask, and read on to the first sound."""
    caller.type_text("Tell me everything.")
    caller.send("response.create", response=response)
    caller.until(AUDIO)
    name: str = caller.of_type("response.created")[-1]["response"]["id"]
    return name


def samples_of(caller: Caller, response: str) -> int:
    return sum(event["samples"] for event in caller.of_type(AUDIO) if event["response_id"] == response)


def done_of(caller: Caller, response: str) -> Message:
    done: Message = caller.find(lambda e: e["type"] == "response.done" and e["response"]["id"] == response)["response"]
    return done


def test_rvoip_163_a_caller_who_does_not_read_holds_up_nobody_and_what_waits_for_him_is_bounded(
    service: Service,
) -> None:
    with calling(service, max_queue=1, sock=slow_reader(service)) as slow, calling(service) as other:
        stopped = begin_reply(slow)
        read = samples_of(slow, stopped)
        for _ in range(2):  # two seconds of sound, at the pace of the ear
            begin_reply(other, max_output_tokens=5)
            assert other.until("response.done")["response"]["status"] == "incomplete"
        assert 0 < service.metric("duplex_credit_in_use_samples") <= GENERATED_AHEAD_SAMPLES_MAX
        slow.send("response.cancel")
        cut = done_of(slow, stopped)
        backlog = samples_of(slow, stopped) - read
        following = begin_reply(slow, max_output_tokens=2)
        assert done_of(slow, following)["status"] == "incomplete"
    assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert backlog <= BACKLOG_SAMPLES_MAX
    ended = next(n for n, event in enumerate(slow.events) if event["type"] == "response.done")
    assert [event for event in slow.events[ended:] if event["type"] == AUDIO and event["response_id"] == stopped] == []
