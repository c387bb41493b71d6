"""Asterisk's other end by somebody else: galcymedia serves calls of our channel, in real time."""

from __future__ import annotations

import asyncio
import socket

import galcymedia
import numpy as np
import pytest

from loadtest.caller import MonotonicClock
from loadtest.carriers.doors import AsteriskDoor
from loadtest.carriers.phone_call import PhoneCall, PhonePlan
from loadtest.timeline import CallPlan
from media.audio_format import FORMATS
from tests.loadtest.link import utterances

pytestmark = [pytest.mark.live, pytest.mark.slow]

SAID_MS = 400
MARK_FRAME = 20
PHONE = FORMATS["audio/pcmu"]


class Echo:
    """Sends back what it hears, with a mark; a key throws away what is queued."""

    def __init__(self, session: galcymedia.Session) -> None:
        self._session = session
        self.heard: list[bytes] = []
        self.digits = ""
        self.processed_at = 0

    async def start(self) -> None:
        self._session.accept_audio()
        await self._session.answer()
        await self._session.request_status()

    async def send_audio(self, chunk: bytes) -> None:
        self.heard.append(chunk)
        await self._session.send_audio(chunk)
        if len(self.heard) == MARK_FRAME:
            mark = await self._session.mark()
            self._waiting = asyncio.create_task(self._wait_for(mark))

    async def _wait_for(self, mark: asyncio.Event) -> None:
        await mark.wait()
        self.processed_at = len(self.heard)

    async def on_dtmf(self, digit: str) -> None:
        self.digits += digit
        await self._session.flush()

    async def close(self) -> None:
        pass


async def echoed() -> tuple[PhoneCall, Echo]:
    echoes: list[Echo] = []

    def make(session: galcymedia.Session) -> Echo:
        echoes.append(Echo(session))
        return echoes[0]

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with galcymedia.serve(make, port=port, forward_dtmf=True):
        plan = PhonePlan(CallPlan(utterances(SAID_MS), lead_ms=100), "7", 900, hang_up_after_ms=1_300)
        call = PhoneCall(AsteriskDoor(f"ws://127.0.0.1:{port}/voicebot"), plan, MonotonicClock())
        await call.run()
        return call, echoes[0]


def test_galcymedia_hears_what_is_said_and_is_heard_and_stopped() -> None:
    call, echo = asyncio.run(echoed())

    assert loud_samples(PHONE.decode(b"".join(echo.heard))) == pytest.approx(SAID_MS * 8, abs=60)
    assert {len(frame) for frame in echo.heard} == {160}
    assert MARK_FRAME < echo.processed_at <= MARK_FRAME + 10
    assert echo.digits == "7"

    result = call.result()
    assert result.complaints == ()
    assert result.detail == "hung up as planned"
    assert len(call.clears) == 2  # of the key, and of the end
    assert loud_samples(call.recording.pcm) == pytest.approx(SAID_MS * 8, abs=60)


def loud_samples(pcm: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(pcm, "<i2")))
