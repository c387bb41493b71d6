"""A caller whose loudspeaker is heard by its microphone: what the service sends comes back to it, softer and later.

Theory of operation
    The microphone sends 20 ms every 20 ms. In it is what the loudspeaker plays, which plays what arrives, in order and
    without a break, `delay_ms` after it could, and what the caller says meanwhile. `speech_started` and the end of a
    cancelled response throw away what has not been played, as clients do.

Rules
* The microphone goes on while `next` or `listen_for` waits, and only then.
"""

from __future__ import annotations

import base64
import json
import time

import numpy as np

from media.audio_format import FORMATS, FormatName
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from tests.live.caller import RATE, Caller, Message
from tests.live.service import EVENT_S_MAX

FRAME_MS = 20
FRAME_NS = FRAME_MS * 1_000_000


class EchoingCaller(Caller):
    """`gain` and `delay_ms`: of the echo. `format_name`: of sound, both ways, which the session is asked for."""

    def __init__(self, caller: Caller, gain: float, delay_ms: int, format_name: FormatName = "audio/pcm") -> None:
        super().__init__(caller.socket)
        self.events = caller.events
        self._format = FORMATS[format_name]
        self.rate = self._format.sample_rate
        self._gain = gain
        self._delay = delay_ms * self.rate // 1_000
        self._coming = np.zeros(0, dtype=np.float32)  # what the microphone will hear of the loudspeaker, from now on
        self._voice = np.zeros(0, dtype=np.float32)
        sound = {"format": {"type": format_name, **({"rate": RATE} if format_name == "audio/pcm" else {})}}
        caller.settle(audio={"input": sound, "output": sound})
        self._due_ns = time.monotonic_ns()

    def say(self, pcm: bytes) -> None:
        """Speak `pcm`, of 24 kHz, from now on."""
        resampler = StreamResampler(RATE, self.rate)
        spoken = pcm16_to_float(pcm)
        self._voice = np.concatenate((self._voice, resampler.process(spoken), resampler.flush()))

    def next(self) -> Message:
        until_ns = time.monotonic_ns() + int(EVENT_S_MAX * 1e9)
        while time.monotonic_ns() < until_ns:
            message = self._heard_by_now()
            if message is not None:
                return message
        raise TimeoutError

    def listen_for(self, ms: int) -> None:
        until_ns = time.monotonic_ns() + ms * 1_000_000
        while time.monotonic_ns() < until_ns:
            self._heard_by_now()

    def _heard_by_now(self) -> Message | None:
        """What comes before the microphone's next frame."""
        remaining_ns = self._due_ns - time.monotonic_ns()
        if remaining_ns <= 0:
            self._due_ns += FRAME_NS
            self._send_frame()
            return None
        try:
            return self._received(self.socket.recv(timeout=remaining_ns / 1e9))
        except TimeoutError:
            return None

    def _send_frame(self) -> None:
        size = FRAME_MS * self.rate // 1_000
        frame = np.zeros(size, dtype=np.float32)
        for heard in (self._coming[:size], self._voice[:size]):
            frame[: len(heard)] += heard
        self._coming, self._voice = self._coming[size:], self._voice[size:]
        coded = self._format.encode(float_to_pcm16(frame))
        self.send("input_audio_buffer.append", audio=base64.b64encode(coded).decode())

    def _received(self, text: str | bytes) -> Message:
        message: Message = json.loads(text)
        self.events.append(message)
        kind = message["type"]
        if kind == "response.output_audio.delta":
            self._play(pcm16_to_float(self._format.decode(base64.b64decode(message["delta"]))))
        elif kind == "input_audio_buffer.speech_started" or (
            kind == "response.done" and message["response"]["status"] == "cancelled"
        ):
            self._coming = self._coming[: self._delay]
        return message

    def _play(self, sound: FloatSamples) -> None:
        """Behind what is playing, or now; heard after the delay."""
        silence = np.zeros(max(0, self._delay - len(self._coming)), dtype=np.float32)
        self._coming = np.concatenate((self._coming, silence, np.float32(self._gain) * sound))
