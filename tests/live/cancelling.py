"""Callers that cancel replies, many at once, over the public WebSocket, with the moments at which they are answered.

A caller is one task, which reads whenever it waits. Sound is counted and not decoded, so that fifty callers cost less
than the service that they call.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

ANSWER_S_MAX = 20.0
AUDIO_MARK = '"response.output_audio.delta"'
HEAD_CHARACTERS = 80

Message = dict[str, Any]


@dataclass(slots=True)
class Told:
    """What was told of one response, each with the moment (monotonic ns) at which it came."""

    words: int = 0
    done: Message = field(default_factory=dict)
    done_ns: int = 0
    drained: Message = field(default_factory=dict)
    drained_ns: int = 0

    @property
    def status(self) -> str:
        status: str = self.done["response"]["status"]
        return status


class CancellingCaller:
    """`frames` counts the messages of sound that have come, `sound_bytes` their bytes; `responses` tells what is known
    of each."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._created: list[str] = []
        self.frames = 0
        self.sound_bytes = 0
        self.responses: dict[str, Told] = {}

    # ---- what it says --------------------------------------------------------------------------------------

    async def send(self, kind: str, **fields: object) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def ask(self, words: int) -> None:
        """Ask for a reply of so many words."""
        content = [{"type": "input_text", "text": "Go on."}]
        await self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        await self.send("response.create", response={"max_output_tokens": words})

    async def cancel(self) -> int:
        """End what is being said; the moment, in monotonic ns."""
        sent_ns = time.monotonic_ns()
        await self.send("response.cancel")
        return sent_ns

    async def echo_ns(self) -> int:
        """A bare round trip over the same WebSocket: a ping that its protocol answers."""
        sent_ns = time.monotonic_ns()
        async with asyncio.timeout(ANSWER_S_MAX):
            await (await self._socket.ping())
        return time.monotonic_ns() - sent_ns

    def vanish(self) -> None:
        """Be gone without a word."""
        self._socket.transport.abort()

    # ---- what it waits for -----------------------------------------------------------------------------------

    async def listen(self, seconds: float) -> None:
        """Read for so long, or until a response has drained that nobody had cancelled."""
        try:
            async with asyncio.timeout(seconds):
                while not self.responses or not all(told.drained for told in self.responses.values()):
                    await self._read()
        except TimeoutError:
            return

    async def started(self) -> str:
        """The next response that was accepted."""
        await self.until(lambda: bool(self._created))
        return self._created.pop(0)

    async def drained(self, response: str) -> Told:
        """All that was told of `response`, once it has drained."""
        await self.until(lambda: response in self.responses and bool(self.responses[response].drained))
        return self.responses.pop(response)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(ANSWER_S_MAX):
            while not is_so():
                await self._read()

    async def _read(self) -> None:
        text = await self._socket.recv()
        assert isinstance(text, str), "events are text"
        if AUDIO_MARK in text[:HEAD_CHARACTERS]:
            self.frames += 1
            self.sound_bytes += len(text)
            return
        message: Message = json.loads(text)
        kind = message["type"]
        if kind == "response.created":
            name: str = message["response"]["id"]
            self._created.append(name)
            self.responses[name] = Told()
        elif kind == "response.output_audio_transcript.delta":
            self.responses[message["response_id"]].words += 1
        elif kind == "response.done":
            told = self.responses[message["response"]["id"]]
            told.done, told.done_ns = message, time.monotonic_ns()
        elif kind == "response.drained":
            told = self.responses[message["response_id"]]
            told.drained, told.drained_ns = message, time.monotonic_ns()


@asynccontextmanager
async def cancelling(address: str) -> AsyncIterator[CancellingCaller]:
    """A caller, until it hangs up. `address`: `host:port`."""
    async with connect(
        f"ws://{address}/v1/realtime?extensions=1",
        compression=None,
        proxy=None,
        max_size=None,
        max_queue=None,
        ping_interval=None,
        open_timeout=ANSWER_S_MAX,
    ) as socket:
        yield CancellingCaller(socket)
