"""A listener's "mm-hm" over a reply: held at once, and on it goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.caller import Message, calling, silence, tone
from tests.live.service import Service, serving
from tests.live.test_barge_in import AUDIO, REPLY, WORD, WORDS, done_of, start_reply

pytestmark = [pytest.mark.live, pytest.mark.slow]

FADE = 240


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "Mm-hm.", "scripted_replies": REPLY, "max_output_tokens": str(2 * WORDS)}
    with serving(tmp_path_factory.mktemp("holds"), settings) as running:
        yield running


def assert_whole(frames: list[Message]) -> None:
    """Of ten words nothing was lost, and nothing came twice."""
    assert [event["start_sample"] for event in frames[1:]] == [e["start_sample"] + e["samples"] for e in frames[:-1]]
    assert frames[-1]["start_sample"] + frames[-1]["samples"] == 10 * WORD


def test_livekit_4039_a_backchannel_holds_a_reply_and_lets_it_go_on_where_it_stopped(service: Service) -> None:
    holds = service.metric("duplex_hold_seconds_count")
    with calling(service) as caller:
        name = start_reply(caller, max_output_tokens=10)
        caller.hear(silence(200) + tone(250) + silence(300))
        done = done_of(caller, name)
    types = caller.types()
    assert types.index("turn.held") < types.index("turn.resumed")
    assert caller.of_type("turn.resumed")[0]["reason"] in ("short", "backchannel")
    assert done["status"] == "incomplete", "its limit ended it, and nobody else"
    assert "input_audio_buffer.speech_started" not in types, "it never was a turn"
    frames = [event for event in caller.of_type(AUDIO) if event["response_id"] == name]
    assert_whole(frames)
    # It fades out once, and what that leaves is the end; sound that came faster than it is heard may be over before.
    assert sum(event["samples"] == FADE for event in frames) in (0, 2)
    assert service.metric("duplex_hold_seconds_count") == holds + 1
    assert service.metric('duplex_epochs_ended_total{reason="turn_detected"}') == 0


def test_a_client_holds_a_reply_by_what_it_hears_itself_until_nobody_confirms_it(service: Service) -> None:
    with calling(service) as caller:
        name = start_reply(caller, max_output_tokens=10)
        caller.send("turn.hold")
        resumed = caller.until("turn.resumed")
        done_of(caller, name)
    types = caller.types()
    assert types.index("turn.held") < types.index("turn.resumed")
    assert resumed["reason"] == "unconfirmed"
    assert "input_audio_buffer.speech_started" not in types
    assert_whole([event for event in caller.of_type(AUDIO) if event["response_id"] == name])
