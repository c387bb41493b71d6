"""The way in from a telephone: its sound, formats that change, and what holds a reply there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from duplex.listening import Listening, ListeningPorts
from duplex.vad_service import Window
from media.audio_format import FORMATS, AudioFormat
from media.g711 import MU_LAW
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.turn_events import Saying
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.settings import INPUT_RATE, OUTPUT_RATE, SessionSettings
from tests.duplex.test_listening import UTTERANCE, Ears, Loudness, at, play, say, silence, tone

TELEPHONE = SessionSettings(input_format="audio/pcmu")


def telephoned(pcm: bytes) -> bytes:
    """`pcm` as it comes over a telephone line."""
    line = StreamResampler(OUTPUT_RATE, 8_000)
    sound = np.concatenate((line.process(pcm16_to_float(pcm)), line.flush()))
    return MU_LAW.encode(float_to_pcm16(sound))


@pytest.mark.parametrize("size", [13, 160, 7_001])
def test_a_turn_on_a_telephone_reaches_the_encoder_as_it_was_said(size: int) -> None:
    coded = telephoned(UTTERANCE)

    async def in_pieces(ears: Ears) -> None:
        for start in range(0, len(coded), size):
            await say(ears, coded[start : start + size])

    ears = play(in_pieces, lambda: Ears(TELEPHONE))
    assert ears.listening.received_samples == len(coded) == 2_300 * 8
    assert at(2_300) - 32 <= ears.listening.newest <= at(2_300), "2 ms wait for what follows"
    first, _ = ears.span()
    got = np.frombuffer(ears.sound(), "<i2").astype(float)[at(1_020) - first : at(1_580) - first]
    said = np.frombuffer(tone(600, INPUT_RATE), "<i2").astype(float)[at(20) : at(580)]
    assert np.corrcoef(got, said)[0, 1] > 0.999


def test_sound_that_comes_after_a_change_of_its_format_is_of_the_new_one_and_none_is_lost() -> None:
    async def scenario(ears: Ears) -> None:
        await say(ears, silence(400) + b"\x01")  # half a sample, whose rest never comes
        ears.update(replace(TELEPHONE, turn_detection=None))
        assert ears.listening.newest < at(400)
        await say(ears, telephoned(silence(100)))
        assert ears.listening.received_samples == (400 + 100) * 8, "in samples of the present format"
        ears.talk.update(SessionSettings(), ears.listening.newest, 0)
        await say(ears, b"")
        assert ears.listening.newest == at(500)

    play(scenario)


def test_sound_beside_the_messages_has_its_own_format_whatever_the_session_says() -> None:
    def at_the_track() -> Ears:
        ears = Ears(TELEPHONE)
        track = AudioFormat("audio/pcm", 48_000)
        ports = ListeningPorts(ears.carry_out, lambda *_: None)
        ears.listening = Listening(ears.talk, ears.vad, ports, client_format=track)
        return ears

    ears = play(lambda one: say(one, bytes(2 * 48 * 200)), at_the_track)
    assert at(200) - 16 <= ears.listening.newest <= at(200)


class Speaking(Conversation):
    """Something is always being said."""

    def saying(self, _now_ns: int) -> Saying:
        return Saying(is_audible=True)


class Hum(Loudness):
    """What is loud is voice, but for what is less so."""

    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        peaks = [float(np.abs(window).max()) for _, window in batch]
        return [0.95 if peak > 0.2 else 0.7 if peak > 0.05 else 0.0 for peak in peaks]


@pytest.mark.parametrize("settings", [SessionSettings(), TELEPHONE, SessionSettings(input_format="audio/pcma")])
def test_what_holds_a_reply_is_the_same_on_a_telephone(settings: SessionSettings) -> None:
    line, form = StreamResampler(24_000, 8_000), FORMATS[settings.input_format]

    def coded(ms: int, gain: float) -> bytes:
        sound = pcm16_to_float(tone(ms)) * np.float32(gain)
        return form.encode(float_to_pcm16(line.process(sound) if form.is_telephone else sound))

    def held(ears: Ears) -> list[str]:
        return [type(effect.event).__name__ for effect in ears.effects if isinstance(effect, do.Tell)]

    async def scenario(ears: Ears) -> None:
        await say(ears, coded(128, 0.4))
        assert held(ears) == []
        await say(ears, coded(96, 1.0))
        assert held(ears)[0] == "TurnHeld"

    play(scenario, lambda: Ears(settings, Speaking, model=Hum))
