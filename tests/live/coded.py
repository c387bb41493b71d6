"""What a caller hears of a voice that speaks coded tones: which words of which response, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from media.coded_tones import Decoder, Heard, response_number, word_samples
from media.pcm import pcm16_to_float
from tests.live.caller import RATE, Caller, Message, audio_of
from tests.live.service import Service, serving

WORD = word_samples(RATE)


@contextmanager
def serving_words(folder: Path, words: int) -> Iterator[Service]:
    """A service whose every reply has so many words."""
    profile = folder / "profile.toml"
    profile.write_text(f"[thinker]\nreply_words = {words}\n")
    settings = {"synthetic_profile": str(profile), "max_output_tokens": str(words)}
    with serving(folder / "data", settings, engine="synthetic") as running:
        yield running


def ask(caller: Caller) -> str:
    """Have a reply begin; gives its id."""
    caller.type_text("Tell me everything.")
    caller.send("response.create")
    response: str = caller.until("response.created")["response"]["id"]
    return response


def heard_of(events: list[Message], response: str) -> list[Heard]:
    """The words in the sound of one response, in the order of its arrival."""
    ear = Decoder(RATE)
    return [*ear.feed(pcm16_to_float(audio_of(events, response))), *ear.finish()]


def whole(response: str, words: int) -> list[Heard]:
    """The first `words` of `response`, without a gap."""
    number = response_number(response)
    return [Heard(number, word, word * WORD, WORD, 0, whole=True) for word in range(words)]


def transcript(done: Message) -> list[str]:
    """The words of a reply, as its `response.done` tells."""
    words: list[str] = done["response"]["output"][0]["content"][0]["transcript"].split()
    return words


def numbers(words: list[str]) -> list[int]:
    """ "w3," is word 3."""
    return [int(word.strip("w,.")) for word in words]
