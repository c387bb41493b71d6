"""A gateway is killed in the middle of a sentence: every word that its caller's ear had is in history, or marked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.coded_ear import wholly_heard
from media.coded_tones import response_number
from tests.live.caller import calling
from tests.live.coded import WORD, ask, numbers, serving_words
from tests.live.coded_caller import CodedCaller, Reports, coded_calling, stored_items
from tests.live.service import Service

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 30


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("broken"), WORDS) as running:
        yield running


def begun(caller: CodedCaller, response: str) -> list[int]:
    """The words of which anything was heard."""
    number = response_number(response)
    return [word.word for word in caller.hear_the_rest() if word.response == number]


# Who dies six times in a minute is left alone.
@pytest.mark.parametrize(("after_ms", "reports"), [(60, "acks"), (900, "none"), (2_300, "acks"), (2_300, "none")])
def test_what_the_ear_had_when_the_gateway_was_killed_is_history_or_marked(
    service: Service, after_ms: int, reports: Reports
) -> None:
    since = len(service.lines)
    with coded_calling(service, reports=reports) as caller:
        response = ask(caller)
        caller.until("response.output_audio.delta")
        caller.listen_for(after_ms)
        service.kill("gateway")
        heard, whole = begun(caller, response), wholly_heard(caller.words(), response)
        created, item_id = caller.events[0], caller.item_of(response)
        played = caller.samples_heard(response)
    service.wait_for_event("child_restarted", since=since, child="gateway")
    item = stored_items(service, created)[item_id]
    certain = numbers(item.content.split())
    assert item.unsure is not None
    unsure = numbers([word.text for word in item.unsure.words if word.end > item.unsure.heard])
    assert whole
    assert certain + unsure == list(range(len(certain) + len(unsure)))
    assert heard == list(range(len(heard)))
    assert set(heard) <= {*certain, *unsure}
    assert set(certain) <= set(whole), "and nothing is certain that was not heard"
    assert len(certain) + len(unsure) < WORDS, "nor is marked what was far from being said"
    with calling(service) as again:
        again.send("session.resume", token=created["session"]["resume_token"])
        (shown,) = [each for each in again.until("session.resumed")["items"] if each["id"] == item_id]
        assert (shown["status"], shown["cut"]) == ("incomplete", True)
        assert numbers(shown["possibly_heard"].split()) == unsure
        again.send("playback.ack", response_id=response, played_samples=played)
        settled = again.until("conversation.item.truncated")
    assert "possibly_heard" not in settled
    assert numbers(settled["transcript"].split()) == list(range(len(whole)))
    assert settled["heard_basis"] == "acked"
    final = stored_items(service, created)[item_id]
    assert (numbers(final.content.split()), final.unsure, final.status) == (whole, None, "incomplete")
    assert played // WORD <= len(heard)
