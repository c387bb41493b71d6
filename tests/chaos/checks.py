"""What must be true of a call whatever happened to the service: how responses end, and what was heard of them."""

from __future__ import annotations

import base64

from tests.chaos.phases import AUDIO
from tests.live.caller import RATE, Caller, Message
from tests.live.coded import WORD, heard_of, numbers, transcript, whole

FRAME = RATE // 50
LEAD = 160 * RATE // 1_000 + 2 * FRAME  # the transport's lead, and two frames on their way
SUCCESS = ("completed", "incomplete")


def terminal_of(events: list[Message], response: str) -> str:
    """The status in the one `response.done`. All that follows is the one `response.drained`."""
    about = [event for event in events if _response_of(event) == response]
    kinds = [event["type"] for event in about]
    assert kinds.count("response.created") == kinds.count("response.done") == 1
    assert kinds[-2:] == ["response.done", "response.drained"], kinds[-5:]
    assert about[-1]["status"] == "complete"
    status: str = about[-2]["response"]["status"]
    return status


def check_ends(events: list[Message]) -> None:
    """Every response that began has ended, and nothing of it came after that."""
    for created in [event for event in events if event["type"] == "response.created"]:
        terminal_of(events, created["response"]["id"])


def check_sound(events: list[Message], response: str, *, words: int | None, reads: bool = True) -> None:
    """Offsets are gapless, every sample is that of its place, and said once. `words`: all of it; None: a beginning.

    What the item says was said are the words that were heard, and at most the one that was cut. Of a client that has
    not read (`reads`) nothing shows what it heard of what lay in its socket.
    """
    frames = [event for event in events if event["type"] == AUDIO and event["response_id"] == response]
    ends = [frame["start_sample"] + frame["samples"] for frame in frames]
    assert [frame["start_sample"] for frame in frames] == [0, *ends[:-1]][: len(frames)]
    assert [len(base64.b64decode(frame["delta"])) for frame in frames] == [2 * frame["samples"] for frame in frames]
    heard = heard_of(events, response)
    complete = [piece for piece in heard if piece.whole]
    if words is not None:
        assert heard == whole(response, words)
    assert complete == whole(response, len(complete))
    for cut in heard[len(complete) :]:
        assert (cut.response, cut.word) == (whole(response, 1)[0].response, len(complete))
        assert (cut.start_sample, cut.skipped) == (len(complete) * WORD, 0)
    for done in (event for event in events if event["type"] == "response.done" and _response_of(event) == response):
        if not done["response"]["output"]:
            continue  # its words went with the gateway
        said = numbers(transcript(done))
        assert said == list(range(len(said)))
        samples = sum(frame["samples"] for frame in frames)
        # Who cancels has not played what was sent ahead; of a reply that fails all is played.
        least = (samples - LEAD) // WORD if done["response"]["status"] == "cancelled" else len(complete)
        least = least if reads else 0
        assert least <= len(said) <= (samples + FRAME) // WORD


def check_order(caller: Caller) -> None:
    """The events of one connection are numbered without a gap, and no epoch returns."""
    numbered = [event["server_event_seq"] for event in caller.events]
    assert numbered == list(range(numbered[0], numbered[0] + len(numbered)))
    epochs = [event["epoch"] for event in caller.of_type(AUDIO)]
    assert epochs == sorted(epochs)


def _response_of(event: Message) -> str | None:
    body = event.get("response")
    return body["id"] if body else event.get("response_id")
