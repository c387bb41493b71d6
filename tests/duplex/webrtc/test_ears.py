"""From packets to the listener, with losses counted."""

from __future__ import annotations

import asyncio

import numpy as np

from duplex.tasks import stop_task
from duplex.webrtc.ears import WAITING_PACKETS_MAX, Ears
from duplex.webrtc.opus import FRAME_BYTES, OpusEncoder
from duplex.webrtc.rtp import PACKET_NS, PACKET_TICKS, ReceivedPacket

BEGAN_NS = 5_000_000_000
PACKET_BYTES = PACKET_TICKS * 2


class Listener:
    def __init__(self, wanted_bytes: int) -> None:
        self.pcm = b""
        self.enough = asyncio.Event()
        self._wanted_bytes = wanted_bytes

    async def hear(self, pcm: bytes) -> None:
        self.pcm += pcm
        if len(self.pcm) >= self._wanted_bytes:
            self.enough.set()


class Log:
    def __init__(self) -> None:
        self.began: list[int] = []
        self.lost: dict[str, int] = {}

    def make(self) -> Ears:
        return Ears(self.began.append, self.lost.__setitem__)


def packet(number: int, payload: bytes, *, after: int = 0) -> ReceivedPacket:
    """`after`: packets' time that nothing was sent before this one."""
    tick = (number + after) * PACKET_TICKS
    return ReceivedPacket(number, tick, payload, BEGAN_NS + (number + after) * PACKET_NS)


def speech(count: int) -> list[bytes]:
    encoder = OpusEncoder()
    sound = (np.sin(np.arange(FRAME_BYTES // 2) / 9) * 9_000).astype("<i2").tobytes()
    return [encoder.encode(sound) for _ in range(count)]


def heard(ears: Ears, packets: list[ReceivedPacket], wanted: int) -> bytes:
    """The sound of `wanted` packets' time."""
    return asyncio.run(listen(ears, packets, wanted))


async def listen(ears: Ears, packets: list[ReceivedPacket], wanted: int) -> bytes:
    listener = Listener(wanted * PACKET_BYTES)
    running = asyncio.create_task(ears.run(listener))
    await asyncio.sleep(0)
    for one in packets:
        ears.put(one)
    async with asyncio.timeout(5):
        await listener.enough.wait()
    await stop_task(running)
    return listener.pcm


def loudness(pcm: bytes) -> list[float]:
    """Of each packet's time."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float64).reshape(-1, PACKET_TICKS)
    return [float(rms) for rms in np.sqrt(np.mean(samples**2, axis=1))]


def test_speech_is_handed_on_and_its_beginning_is_told_once() -> None:
    log = Log()
    ears = log.make()
    assert not ears.last_packet_ns
    pcm = heard(ears, [packet(number, payload) for number, payload in enumerate(speech(5))], 5)
    assert len(pcm) == 5 * PACKET_BYTES
    assert min(loudness(pcm)[1:]) > 3_000
    assert log.began == [BEGAN_NS]
    assert ears.last_packet_ns == BEGAN_NS + 4 * PACKET_NS
    ears.report()
    assert log.lost == {}


def test_a_pause_of_the_sender_is_silence_of_the_same_length() -> None:
    log = Log()
    before, after = speech(2)
    pcm = heard(log.make(), [packet(0, before), packet(1, after, after=3)], 5)
    assert len(pcm) == 5 * PACKET_BYTES
    assert loudness(pcm)[1:4] == [0.0, 0.0, 0.0]


def test_what_cannot_be_decoded_is_silence() -> None:
    log = Log()
    good = speech(2)
    ears = log.make()
    broken = bytes([good[0][0] | 3, 0x41, 0xFF])  # one frame and its padding, which is not there
    pcm = heard(ears, [packet(0, good[0]), packet(1, broken), packet(2, good[1])], 3)
    assert loudness(pcm)[1] == 0.0
    ears.report()
    assert log.lost == {"malformed": 1}


def test_who_is_not_listened_to_leaves_a_second_at_most() -> None:
    log = Log()
    ears = log.make()
    packets = [packet(number, payload) for number, payload in enumerate(speech(WAITING_PACKETS_MAX + 7))]
    for one in packets:
        ears.put(one)
    pcm = heard(ears, [], WAITING_PACKETS_MAX)
    assert len(pcm) == WAITING_PACKETS_MAX * PACKET_BYTES
    ears.report()
    assert log.lost == {"overrun": 7}


def test_qwen_audio_agent_406_sound_too_old_is_dropped_and_its_time_kept() -> None:
    """Nobody listens for longer than what may wait: the oldest of it is silence, and nothing after that is late."""
    log = Log()
    ears = log.make()
    overrun = 7
    payloads = speech(3 + overrun + WAITING_PACKETS_MAX)

    async def stall() -> tuple[bytes, bytes]:
        packets = [packet(number, payload) for number, payload in enumerate(payloads)]
        before = await listen(ears, packets[:3], 3)
        for one in packets[3:]:
            ears.put(one)
        return before, await listen(ears, [], overrun + WAITING_PACKETS_MAX)

    before, after = asyncio.run(stall())
    assert len(before) + len(after) == len(payloads) * PACKET_BYTES
    assert loudness(after)[:overrun] == [0.0] * overrun
    assert min(loudness(after)[overrun + 1 :]) > 3_000
    ears.report()
    assert log.lost == {"overrun": overrun, "lost": overrun, "gap": 1}
