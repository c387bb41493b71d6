"""The moments of a call at which a part of the service is hit, each reached by what is seen and never by waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum

from tests.chaos.house import SPEECH, STAGES, figure_of
from tests.live.caller import Caller, Message, silence, tone
from tests.live.service import Service

AUDIO = "response.output_audio.delta"
FRAMES = 12  # 240 ms: the first word is whole, and ten are yet to be written
LONG = "Tell me everything that there is to be told, and leave nothing out, however long that may take you to say."


class Phase(Enum):
    """A call that is silent; one in which the caller speaks; a reply that was accepted and of which nothing was said;
    one in the middle of a sentence; one that is done, while its last samples are being played; one that was cancelled
    and has not drained."""

    IDLE = "idle"
    SPEAKING = "speaking"
    ACCEPTED = "accepted"
    SOUNDING = "mid-sentence"
    DONE = "done"
    CANCELLED = "cancelled"


@contextmanager
def reached(phase: Phase, service: Service, caller: Caller, part: str) -> Iterator[str]:
    """`caller` is in `phase`; gives the response that this is about, or an empty name.

    After a cancel, `part` itself (or the vocoder, where `part` is no stage of the reply) stands still until it is hit,
    so that the response cannot drain before.
    """
    match phase:
        case Phase.IDLE:
            caller.settle(max_output_tokens=2)
            _wait_until_open(service, "stage_sessions", STAGES)
            yield ""
        case Phase.SPEAKING:
            caller.settle(max_output_tokens=2)
            caller.hear(silence(300) + tone(500))
            caller.until("input_audio_buffer.speech_started")
            _wait_until_open(service, "stage_streams", ("encoder",))
            yield ""
        case Phase.ACCEPTED:
            name = ask(caller, LONG, max_output_tokens=4)
            # Twice: before that, the Thinker may hold what it has read ahead, and let go of it.
            for _ in range(2):
                _wait_until_open(service, "stage_streams", SPEECH)
            yield name
        case Phase.SOUNDING:
            yield sounding(caller)
        case Phase.DONE:
            name = ask(caller, "Tell me.", max_output_tokens=4)
            caller.until("response.done")
            yield name
        case Phase.CANCELLED:
            name = sounding(caller)
            with service.stopped("vocoder") if part not in SPEECH else _stopped_for_good(service, part):
                caller.send("response.cancel")
                caller.until("response.done")
                yield name


def _wait_until_open(service: Service, what: str, stages: tuple[str, ...]) -> None:
    service.wait_for_metrics(lambda found: all(found.get(figure_of(what, stage)) for stage in stages))


def _stopped_for_good(service: Service, part: str) -> AbstractContextManager[None]:
    os.kill(service.pid_of(part), signal.SIGSTOP)
    return nullcontext()


def ask(caller: Caller, text: str, **response: object) -> str:
    """Have it answer; gives the response as soon as that was accepted."""
    caller.type_text(text)
    caller.send("response.create", response=response)
    name: str = caller.until("response.created")["response"]["id"]
    return name


def sounding(caller: Caller) -> str:
    """Have it talk at length, and hear the beginning."""
    name = ask(caller, "Tell me everything.")
    for _ in range(FRAMES):
        caller.until(lambda event: is_sound(event, name))
    return name


def is_sound(event: Message, response: str) -> bool:
    return bool(event["type"] == AUDIO and event["response_id"] == response)
