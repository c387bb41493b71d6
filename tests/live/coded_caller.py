"""A caller who knows which words reached its ear: what the synthetic engine said is played as it would be, and decoded.

Theory of operation
    `CodedCaller` is the caller of these tests with a loudspeaker. Each message takes as much longer than it took as the
    `Network` says, in both directions, and none overtakes another. What has come is queued for the loudspeaker, which
    plays in real time; `speech_started`, a cancelled response and the caller's own `flush` throw away what has not been
    played. What was played is told with `playback.ack`, or with `conversation.item.truncate` at a flush, or not at all.
    Over WebRTC the track itself is what is heard.

Rules
* Only what `next` and `listen_for` read is played: a test that does neither is a client that does not read.
* `words` and `hang_up` end the playing. What has not been played by then was not heard.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from websockets.exceptions import ConnectionClosed

from loadtest.coded_ear import WordHeard, words_heard
from loadtest.line import Line
from loadtest.playout_model import AudioFrame, PlayoutModel
from loadtest.recording import Recording
from media.audio_format import FORMATS, FormatName
from sessions.log import replay
from sessions.records import ItemRecord, decode_entry, token_digest
from sessions.redis_store import RedisSessionStore
from tests.live.caller import Caller, Message, calling, silence, tone
from tests.live.service import EVENT_S_MAX, Service

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
ACK_NS = 100 * NS_PER_MS
RECORDING_S_MAX = 120
LEASE_MS = 1_000
SLICE_MS = 100
SPEAK_MS_MAX = 1_500
SILENCE_MS = 800

Delay = Callable[[], int]
Reports = Literal["acks", "truncates", "none"]


def at_once() -> int:
    """A network without delay."""
    return 0


@dataclass(frozen=True, slots=True)
class Network:
    """By how many ms each message comes, and goes, later than it would; asked for each. `buffer_ms`: for how long the
    loudspeaker waits with the first sound, so that later ones need not come in time."""

    down_ms: Delay = at_once
    up_ms: Delay = at_once
    buffer_ms: int = 0


class CodedCaller(Caller):
    """The session speaks our extensions. `reports`: how the caller tells what it has played. `format_name`: of sound,
    both ways, which the session is asked for."""

    def __init__(
        self, caller: Caller, network: Network, reports: Reports = "acks", format_name: FormatName = "audio/pcm"
    ) -> None:
        super().__init__(caller.socket)
        self.events = caller.events
        self._format, self._line = FORMATS[format_name], Line(format_name)
        self.rate = self._format.sample_rate
        self._network = network
        self._reports = reports
        self._coming: deque[tuple[int, Message]] = deque()
        self._leaving: deque[tuple[int, str]] = deque()
        self._loudspeaker = PlayoutModel(self.rate, network.buffer_ms * NS_PER_MS)
        self._recording = Recording(self.rate, RECORDING_S_MAX, time.monotonic_ns())
        self._items: dict[str, str] = {}
        self._acked: dict[str, int] = {}
        self._next_ack_ns = 0
        self._dismissed: set[str] = set()
        self._over: set[str] = set()
        self._stale: Counter[str] = Counter()
        if format_name != "audio/pcm":
            sound = {"format": {"type": format_name}}
            self.settle(audio={"input": sound, "output": sound})

    def hear(self, pcm: bytes) -> None:
        """Send `pcm`, 24 kHz, over the line."""
        coded = self._line.said(pcm).audio
        self.send("input_audio_buffer.append", audio=base64.b64encode(coded).decode())

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

    def hear_until(self, wanted: Callable[[], bool], ms_max: int) -> bool:
        """Read on until it is so, for `ms_max` at most; whether it was."""
        until_ns = time.monotonic_ns() + ms_max * NS_PER_MS
        while not wanted():
            if self._arrived(until_ns) is None:
                return wanted()
        return True

    def words(self) -> list[WordHeard]:
        """Everything heard in this call."""
        return words_heard(self.played(), self.rate)

    def played(self) -> bytes:
        """The sound of this call, PCM16 at its rate, which ends now."""
        for piece in self._loudspeaker.cut(time.monotonic_ns()):
            self._recording.add(piece)
        assert not self._recording.truncated
        return self._recording.pcm

    def hang_up(self) -> bytes:
        """Play no more, and see to it that what was sent before has arrived; the sound of this call."""
        played = self.played()
        self._reports = "none"
        while self._leaving:
            self.listen_for(max(1, (self._leaving[0][0] - time.monotonic_ns()) // NS_PER_MS))
        return played

    def hear_the_rest(self) -> list[WordHeard]:
        """The connection is lost: all that has come is played to its end. Everything heard in this call."""
        self.play_the_rest()
        return words_heard(self._recording.pcm, self.rate)

    def play_the_rest(self) -> None:
        """As `hear_the_rest`, and nobody listens."""
        with suppress(ConnectionClosed):
            while True:
                self.next()
        self._play_to(self._loudspeaker.queue_end_ns)

    def samples_heard(self, response: str) -> int:
        """How much of `response` was played."""
        return self._loudspeaker.heard_to_sample(response, time.monotonic_ns())

    def speak(self, until: Callable[[], bool]) -> None:
        """Speak in real time until it is so; then be silent for long enough to end a turn."""
        for _ in range(SPEAK_MS_MAX // SLICE_MS):
            self.hear(tone(SLICE_MS))
            self.listen_for(SLICE_MS)
            if until():
                break
        self.hear(silence(SILENCE_MS))

    def flush(self) -> None:
        """Throw away, of the caller's own accord, what has not been played, and what of it is still to come."""
        dismissed = self._items.keys() - self._over
        self._dismissed |= dismissed
        self._flush(time.monotonic_ns(), None, dismissed)

    @property
    def unplayed_ms(self) -> int:
        """How much has come that has not been played."""
        return max(0, self._loudspeaker.queue_end_ns - time.monotonic_ns()) // NS_PER_MS

    def stale_samples(self, response: str) -> int:
        """How much of `response` came after the caller had been told that it was over."""
        return self._stale[response]

    def item_of(self, response: str) -> str:
        """The id of the assistant's item of which this response's sound is."""
        return self._items[response]

    # ---- the network -------------------------------------------------------------------------------

    def _arrived(self, until_ns: int) -> Message | None:
        """The next message whose time has come; None where none does until then."""
        while True:
            now_ns = time.monotonic_ns()
            self._acknowledge(now_ns)
            self._post(now_ns)
            if self._coming and self._coming[0][0] <= now_ns:
                message = self._coming.popleft()[1]
                self.events.append(message)
                self._take(message, now_ns)
                return message
            if now_ns >= until_ns:
                return None
            waits_ns = [due_ns for due_ns, _ in (*list(self._coming)[:1], *list(self._leaving)[:1])]
            self._read(min(until_ns, self._next_ack_ns, *waits_ns) - now_ns)

    def _read(self, wait_ns: int) -> None:
        try:
            message: Message = json.loads(self.socket.recv(timeout=max(0, wait_ns) / NS_PER_S))
        except TimeoutError:
            return
        self._coming.append((_due_ns(self._coming, self._network.down_ms), message))

    def send(self, kind: str, **fields: Any) -> None:
        self._leaving.append((_due_ns(self._leaving, self._network.up_ms), json.dumps({"type": kind, **fields})))
        self._post(time.monotonic_ns())

    def _post(self, now_ns: int) -> None:
        while self._leaving and self._leaving[0][0] <= now_ns:
            self.socket.send(self._leaving.popleft()[1])

    # ---- the loudspeaker ---------------------------------------------------------------------------

    def _take(self, message: Message, now_ns: int) -> None:
        self._play_to(now_ns)
        match message["type"]:
            case "response.output_item.added":
                self._items[message["response_id"]] = message["item"]["id"]
            case "response.output_audio.delta":
                self._hear(message, now_ns)
            case "input_audio_buffer.speech_started":
                self._over |= self._items.keys()
                self._flush(now_ns, None)
            case "response.done":
                self._over.add(message["response"]["id"])
                if message["response"]["status"] == "cancelled":
                    self._flush(now_ns, message["response"]["id"])

    def _hear(self, delta: Message, now_ns: int) -> None:
        response, pcm = delta["response_id"], self._format.decode(base64.b64decode(delta["delta"]))
        if response in self._over:
            self._stale[response] += len(pcm) // 2
        if response not in self._dismissed:
            self._loudspeaker.receive(AudioFrame(response, pcm, start_sample=delta["start_sample"]), now_ns)

    def _flush(self, now_ns: int, response: str | None, dismissed: Set[str] = frozenset()) -> None:
        cut_before = self._cut()
        for piece in self._loudspeaker.cut(now_ns, response):
            self._recording.add(piece)
        self._next_ack_ns = now_ns
        self._acknowledge(now_ns)
        for name in dismissed | self._cut() - cut_before if self._reports == "truncates" else ():
            played_ms = self._loudspeaker.heard_to_sample(name, now_ns) * 1_000 // self.rate
            self.send("conversation.item.truncate", item_id=self._items[name], content_index=0, audio_end_ms=played_ms)

    def _cut(self) -> set[str]:
        return {name for name, reply in self._loudspeaker.replies.items() if reply.cut}

    def _play_to(self, now_ns: int) -> None:
        for piece in self._loudspeaker.advance(now_ns):
            self._recording.add(piece)

    def _acknowledge(self, now_ns: int) -> None:
        if now_ns < self._next_ack_ns:
            return
        self._next_ack_ns = now_ns + ACK_NS
        self._play_to(now_ns)
        for response in self._items if self._reports == "acks" else ():
            position = self._loudspeaker.heard_to_sample(response, now_ns)
            if position != self._acked.get(response):
                self._acked[response] = position
                self.send("playback.ack", response_id=response, played_samples=position)


def _due_ns(queue: deque[tuple[int, Any]], delay_ms: Delay) -> int:
    """When what is put into `queue` now will have got through."""
    due_ns = time.monotonic_ns() + delay_ms() * NS_PER_MS
    return max(due_ns, queue[-1][0]) if queue else due_ns


@contextmanager
def coded_calling(
    service: Service,
    *,
    delay_ms: Delay = at_once,
    up_ms: Delay = at_once,
    reports: Reports = "acks",
    format_name: FormatName = "audio/pcm",
) -> Iterator[CodedCaller]:
    """A call, from `session.created` to the caller's hanging up."""
    with calling(service) as caller:
        yield CodedCaller(caller, Network(delay_ms, up_ms), reports, format_name)


def stored_items(service: Service, created: Message) -> dict[str, ItemRecord]:
    """What the store holds of a session that is over, by item; `created` is its `session.created`."""
    service.wait_for_calls(0)
    return asyncio.run(read_items(service, created["session"]["resume_token"]))


async def read_items(service: Service, resume_token: str) -> dict[str, ItemRecord]:
    """What the store holds of a session, by item: it is taken over, so its call must be over. Who has no token names
    the session."""
    session, _, secret = resume_token.partition(".")
    store = RedisSessionStore(f"unix://{service.data_dir / 'store' / 'valkey.sock'}")
    try:
        _, snapshot = await store.acquire(session, "reader", token_digest(secret) if secret else None, LEASE_MS)
    finally:
        await store.close()
    conversation = replay(snapshot.record, map(decode_entry, snapshot.entries))
    return {item.id: item for item in conversation.items}
