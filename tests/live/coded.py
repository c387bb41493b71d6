"""What a caller hears of a voice that speaks coded tones: which words of which response, sample by sample."""

from __future__ import annotations

from media.coded_tones import Decoder, Heard, response_number, word_samples
from media.pcm import pcm16_to_float
from tests.live.caller import RATE, Message, audio_of

WORD = word_samples(RATE)


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
