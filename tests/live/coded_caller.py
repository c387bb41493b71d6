"""A caller who knows which words reached its ear: what the synthetic engine said is played as it would be, and decoded.

Theory of operation
    `CodedCaller` is the caller of these tests with a loudspeaker. Each message takes `delay_ms` more than it took to
    come, and none overtakes another, as on a slow or uneven network. Then its sound is queued for the loudspeaker,
    which plays in real time; `speech_started` and a cancelled response flush it. What was played is reported with
    `playback.ack`. Over WebRTC the track itself is what is heard.

Rules
* Only what `next` and `listen_for` read is played: a test that does neither is a client that does not read.
* `words` ends the playing. What has not been played by then was not heard.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtest.coded_ear import WordHeard, words_heard
from loadtest.playout_model import AudioFrame, PlayoutModel
from loadtest.recording import Recording
from sessions.records import ItemRecord, decode_entry, replay, token_digest
from sessions.redis_store import RedisSessionStore
from tests.live.caller import RATE, Caller, Message, calling
from tests.live.service import EVENT_S_MAX, Service

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
ACK_NS = 100 * NS_PER_MS
RECORDING_S_MAX = 120
LEASE_MS = 1_000

Delay = Callable[[], int]


class CodedCaller(Caller):
    """`delay_ms` is asked for each message; the session speaks our extensions."""

    def __init__(self, caller: Caller, delay_ms: Delay) -> None:
        super().__init__(caller.socket)
        self.events = caller.events
        self._delay_ms = delay_ms
        self._coming: deque[tuple[int, Message]] = deque()
        self._loudspeaker = PlayoutModel(RATE)
        self._recording = Recording(RATE, RECORDING_S_MAX, time.monotonic_ns())
        self._items: dict[str, str] = {}
        self._acked: dict[str, int] = {}
        self._next_ack_ns = 0

    def next(self) -> Message:
        message = self._arrived(time.monotonic_ns() + int(EVENT_S_MAX * NS_PER_S))
        assert message is not None, "nothing came"
        return message

    def listen_for(self, ms: int) -> None:
        """Go on reading and playing for so long."""
        until_ns = time.monotonic_ns() + ms * NS_PER_MS
        while self._arrived(until_ns) is not None:
            pass

    def hear_out(self, response: str) -> None:
        """Read on until all that came of a response has been played."""
        self.find(lambda event: event["type"] == "response.done" and event["response"]["id"] == response)
        remaining_ns = self._loudspeaker.queue_end_ns - time.monotonic_ns()
        self.listen_for(max(0, remaining_ns // NS_PER_MS) + 2 * ACK_NS // NS_PER_MS)

    def words(self) -> list[WordHeard]:
        """Everything heard in this call."""
        self._play_to(time.monotonic_ns())
        for piece in self._loudspeaker.cut(time.monotonic_ns()):
            self._recording.add(piece)
        assert not self._recording.truncated
        return words_heard(self._recording.pcm, RATE)

    def item_of(self, response: str) -> str:
        """The id of the assistant's item of which this response's sound is."""
        return self._items[response]

    # ---- the network -------------------------------------------------------------------------------

    def _arrived(self, until_ns: int) -> Message | None:
        """The next message whose time has come; None where none does until then."""
        while True:
            now_ns = time.monotonic_ns()
            self._acknowledge(now_ns)
            if self._coming and self._coming[0][0] <= now_ns:
                message = self._coming.popleft()[1]
                self.events.append(message)
                self._take(message, now_ns)
                return message
            if now_ns >= until_ns:
                return None
            self._read(min(until_ns, self._next_ack_ns, *(due_ns for due_ns, _ in self._coming)) - now_ns)

    def _read(self, wait_ns: int) -> None:
        try:
            message: Message = json.loads(self.socket.recv(timeout=max(0, wait_ns) / NS_PER_S))
        except TimeoutError:
            return
        due_ns = time.monotonic_ns() + self._delay_ms() * NS_PER_MS
        self._coming.append((max(due_ns, self._coming[-1][0]) if self._coming else due_ns, message))

    # ---- the loudspeaker ---------------------------------------------------------------------------

    def _take(self, message: Message, now_ns: int) -> None:
        self._play_to(now_ns)
        match message["type"]:
            case "response.output_audio.delta":
                self._items[message["response_id"]] = message["item_id"]
                pcm, start = base64.b64decode(message["delta"]), message["start_sample"]
                self._loudspeaker.receive(AudioFrame(message["response_id"], pcm, start_sample=start), now_ns)
            case "input_audio_buffer.speech_started":
                self._flush(now_ns, None)
            case "response.done" if message["response"]["status"] == "cancelled":
                self._flush(now_ns, message["response"]["id"])

    def _flush(self, now_ns: int, response: str | None) -> None:
        for piece in self._loudspeaker.cut(now_ns, response):
            self._recording.add(piece)
        self._next_ack_ns = now_ns
        self._acknowledge(now_ns)

    def _play_to(self, now_ns: int) -> None:
        for piece in self._loudspeaker.advance(now_ns):
            self._recording.add(piece)

    def _acknowledge(self, now_ns: int) -> None:
        if now_ns < self._next_ack_ns:
            return
        self._next_ack_ns = now_ns + ACK_NS
        for response in self._items:
            position = self._loudspeaker.heard_to_sample(response, now_ns)
            if position != self._acked.get(response, 0):
                self._acked[response] = position
                self.send("playback.ack", response_id=response, played_samples=position)


def at_once() -> int:
    """A network without delay."""
    return 0


@contextmanager
def coded_calling(service: Service, *, delay_ms: Delay = at_once) -> Iterator[CodedCaller]:
    """A call, from `session.created` to the caller's hanging up."""
    with calling(service) as caller:
        yield CodedCaller(caller, delay_ms)


def stored_items(service: Service, created: Message) -> dict[str, ItemRecord]:
    """What the store holds of a session that is over, by item; `created` is its `session.created`."""
    session, _, secret = created["session"]["resume_token"].partition(".")
    service.wait_for_calls(0)

    async def read() -> dict[str, ItemRecord]:
        store = RedisSessionStore(f"unix://{service.data_dir / 'store' / 'valkey.sock'}")
        try:
            _, snapshot = await store.acquire(session, "reader", token_digest(secret), LEASE_MS)
        finally:
            await store.close()
        conversation = replay(snapshot.record, map(decode_entry, snapshot.entries))
        return {item.id: item for item in conversation.items}

    return asyncio.run(read())
