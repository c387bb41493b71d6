"""One conversation that comes back as often as its connection breaks, and keeps what it was told and heard.

Theory of operation
    A conversation runs in a thread of its own: turn after turn, until it is told to stop. A turn is typed; it may be
    cut by voice or by command. Whoever loses the connection plays what has come, and comes back at once with
    `session.resume`, the responses that have not ended and the greatest epoch seen. What was typed and is in no history
    then is typed again, as another item: should the first one turn up after all, it is there twice.

Rules
* What belongs to a connection before, and comes on a later one, is stale; so is what is of an epoch before the return.
* A return that breaks again before the next sample of speech has no time of that.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.session_kills.judge import CallTold, Kept, ReplyHeard
from benchmarks.session_kills.report import Return
from loadtest.coded_ear import CodedEar
from tests.live.caller import Caller, Message, calling
from tests.live.coded_caller import CodedCaller, Network
from tests.live.service import Service

PLAYER = Network(buffer_ms=40)  # the least that players have
ANSWER_MS_MAX = 15_000  # a Thinker that is started again, a tool that is waited for
BACK_S_MAX = 30
CUT_SHARE, SPEAK_SHARE = 0.2, 0.15
CUT_MS_MAX = 1_000
TURN_MS_MAX = 4_000  # what was said may have been no turn, and is not answered then
REPORT_MS = 300  # until the last report of what was played has been sent
AUDIO = "response.output_audio.delta"
LOST = (OSError, EOFError, ConnectionClosed, InvalidStatus)


class GivenUpError(Exception):
    """A conversation that nobody would take up again in time."""


class _Connection(CodedCaller):
    """One of a conversation's connections."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, PLAYER)
        self.speech_ns: int | None = None
        self.interrupted_at = 0  # how many events had come by then

    def _take(self, message: Message, now_ns: int) -> None:
        if message["type"] == AUDIO and self.speech_ns is None:
            self.speech_ns = now_ns
        super()._take(message, now_ns)

    def number_of(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.events)

    def answers(self) -> int:
        """To requests for a reply: those that began, and refusals."""
        return self.number_of("response.created") + self.number_of("error")

    def is_quiet(self) -> bool:
        """No response is open, none is owed to what came of a call, and all that came has been played."""
        kinds = [_kind_of(event) for event in self.events]
        calls = kinds.count("function_call") > kinds.count("function_call_output")
        return not (self.open_responses() or calls or self._is_owed(kinds) or self.unplayed_ms)

    def _is_owed(self, kinds: list[str]) -> bool:
        """A response to what came of a call; whoever has interrupted since it was made is owed none."""
        if "function_call_output" not in kinds or "function_call" not in kinds[self.interrupted_at :]:
            return False
        return "response.created" not in kinds[_last(kinds, "function_call_output") :]

    def open_responses(self) -> set[str]:
        ids = {
            kind: {e["response"]["id"] for e in self.of_type(kind)} for kind in ("response.created", "response.done")
        }
        return ids["response.created"] - ids["response.done"]


def _kind_of(event: Message) -> str:
    """Its type; of a call's item that of the item."""
    if event["type"] == "conversation.item.added" and event["item"]["type"] != "message":
        return str(event["item"]["type"])
    return str(event["type"])


def _last(kinds: list[str], kind: str) -> int:
    return len(kinds) - 1 - kinds[::-1].index(kind)


class Conversing:
    """Conversation number `number` with a service, drawn from `seed`. `run` until `stop`."""

    def __init__(self, service: Service, number: int, seed: int) -> None:
        self.token = ""
        self.session = ""
        self.returns: list[Return] = []
        self.ends: Counter[str] = Counter()
        self.durability: Counter[str] = Counter()
        self.in_vain = 0
        self.started = threading.Event()
        self.stop = threading.Event()
        self._service = service
        self._number = number
        self._dice = random.Random(f"{seed}/{number}")
        self._turns = self._items = 0
        self._epoch = 0
        self._marked: set[str] = set()
        self._open: set[str] = set()
        self._before: set[str] = set()
        self._typed: dict[str, str] = {}
        self._told: list[str] = []
        self._recordings: list[tuple[_Connection, frozenset[str]]] = []
        self._broke_ns = 0

    def run(self) -> None:
        """Converse. Raises `GivenUpError`."""
        while True:
            line: _Connection | None = None
            try:
                with calling(self._service) as caller:
                    line = _Connection(caller)
                    self._begin(line)
                    while not self.stop.is_set():
                        self._turn(line)
                    line.listen_for(REPORT_MS)
                    line.hang_up()
                    self._keep(line)
                    return
            except LOST:
                self._lost(line)

    def told(self, checkpoints: frozenset[str]) -> CallTold:
        """All of it, once `run` is over; its history is that of one more return."""
        with calling(self._service) as caller:
            caller.send("session.resume", token=self.token)
            items = caller.until("session.resumed")["items"]
        replies = [reply for line, before in self._recordings for reply in _heard_on(line, before)]
        return CallTold(tuple(self._told), checkpoints, tuple(replies), tuple(map(kept, items)))

    # ---- connections -------------------------------------------------------------------------------

    def _begin(self, line: _Connection) -> None:
        if not self.token:
            self.token, self.session = line.events[0]["session"]["resume_token"], line.session
            self.started.set()
            return
        line.send("session.resume", token=self.token, responses=sorted(self._open)[:16], epoch=self._epoch)
        self._until(line, lambda: line.number_of("session.resumed") > 0)
        resumed_ns = time.monotonic_ns()
        resumed = line.of_type("session.resumed")
        if not resumed:
            raise EOFError  # as one that breaks again: the client comes back
        self._retype(line, resumed[0]["items"])
        began_ns, self._broke_ns = self._broke_ns, 0
        back = Return((resumed_ns - began_ns) / 1e6, None, self._newly_marked(resumed[0]["items"]))
        self.returns.append(back)
        begun = self._ask(line)
        self._until(line, lambda: line.speech_ns is not None or (line.answers() > begun and line.is_quiet()))
        if line.speech_ns is not None:
            self.returns[-1] = replace(back, speech_ms=(line.speech_ns - began_ns) / 1e6)
        self._until(line, line.is_quiet)

    def _retype(self, line: _Connection, items: list[Message]) -> None:
        """What was typed and is in no history."""
        there = {item["id"] for item in items}
        for item in [item for item in self._typed if item not in there]:
            self._type(line, self._typed.pop(item))

    def _newly_marked(self, items: list[Message]) -> int:
        """How many words are marked that were not at the return before."""
        marked = {item["id"]: len(item["possibly_heard"].split()) for item in items if "possibly_heard" in item}
        words = sum(count for item, count in marked.items() if item not in self._marked)
        self._marked |= marked.keys()
        return words

    def _lost(self, line: _Connection | None) -> None:
        now_ns = time.monotonic_ns()
        if line is not None:
            with suppress(*LOST):
                line.play_the_rest()
            self._keep(line)
        self._broke_ns = self._broke_ns or now_ns
        if now_ns - self._broke_ns > BACK_S_MAX * 1_000_000_000:
            raise GivenUpError(f"conversation {self._number} is not taken up again")

    def _keep(self, line: _Connection) -> None:
        """What was told and heard on a connection that is over."""
        items = (event["item"] for event in line.of_type("conversation.item.done"))
        self._told += [item["id"] for item in items if item.get("role") == "user" and item["id"] not in self._told]
        self.durability.update(kind for kind in line.types() if kind.startswith("session.durability."))
        for done in line.of_type("response.done"):
            self.ends[_end_of(done["response"])] += 1
        sounds = line.of_type(AUDIO)
        self._epoch = max([self._epoch, *(event["epoch"] for event in sounds)])
        self._recordings.append((line, frozenset(self._before)))
        self._before |= {event["response"]["id"] for event in line.of_type("response.created")}
        ended = {event["response"]["id"] for event in line.of_type("response.done")}
        self._open = (self._open | line.open_responses()) - ended

    # ---- turns -------------------------------------------------------------------------------------

    def _turn(self, line: _Connection) -> None:
        begun = self._ask(line)
        self._until(line, lambda: line.answers() > begun)
        draw = self._dice.random()
        if draw < CUT_SHARE + SPEAK_SHARE:
            self._until(line, lambda: line.number_of(AUDIO) > 0 or not line.open_responses())
            line.listen_for(self._dice.randrange(CUT_MS_MAX))
            self._cut(line, speaks=draw < SPEAK_SHARE)
        self._until(line, line.is_quiet)

    def _ask(self, line: _Connection) -> int:
        """For a reply; how many of answers and refusals there were before."""
        begun = line.answers()
        self._turns += 1
        self._type(line, f"Turn {self._turns} of caller {self._number}.")
        line.send("response.create")
        return begun

    def _type(self, line: _Connection, text: str) -> None:
        self._items += 1
        item = f"item_{self._number}_{self._items}"
        self._typed[item] = text
        line.type_text(text, id=item)

    def _cut(self, line: _Connection, *, speaks: bool) -> None:
        line.interrupted_at = len(line.events)
        if speaks:
            onsets, begun = line.number_of("input_audio_buffer.speech_started"), line.number_of("response.created")
            line.speak(lambda: line.number_of("input_audio_buffer.speech_started") > onsets)
            line.hear_until(lambda: line.number_of("response.created") > begun, TURN_MS_MAX)
        else:
            line.flush()
            line.send("response.cancel")

    def _until(self, line: _Connection, wanted: Callable[[], bool]) -> None:
        """What does not come in time is counted, and the call goes on without it."""
        self.in_vain += not line.hear_until(wanted, ANSWER_MS_MAX)


def _heard_on(line: _Connection, before: frozenset[str]) -> Iterator[ReplyHeard]:
    """`before`: the responses of earlier connections."""
    sounds, ear = line.of_type(AUDIO), CodedEar(line.played(), line.rate)
    epoch = max([0, *(event["epoch"] for event in line.of_type("session.resumed"))])
    for response in dict.fromkeys(event["response_id"] for event in sounds):
        own = [event for event in sounds if event["response_id"] == response]
        late = [event["samples"] for event in own if response in before or event["epoch"] < epoch]
        stale = line.stale_samples(response) + sum(late)
        ends = [_end_of(e["response"]) for e in line.of_type("response.done") if e["response"]["id"] == response]
        words = tuple(ear.words_of(response))
        yield ReplyHeard(line.item_of(response), words, stale, "".join(ends), gapless=_is_gapless(own))


def _is_gapless(sounds: list[Message]) -> bool:
    ends = [0, *(event["start_sample"] + event["samples"] for event in sounds)]
    return all(event["start_sample"] == end for event, end in zip(sounds, ends, strict=False))


def kept(item: Message) -> Kept:
    """An item as a client gets it."""
    if item["type"] == "function_call":
        return Kept(item["id"], "function_call", call_id=item["call_id"])
    if item["type"] == "function_call_output":
        return Kept(item["id"], "function_call_output", text=item["output"], call_id=item["call_id"])
    content = item["content"][0] if item["content"] else {"type": "", "text": ""}
    text = content.get("text") or content.get("transcript") or ""
    kind = "typed" if content["type"] == "input_text" else "message"
    return Kept(item["id"], kind, item["role"], text, item.get("possibly_heard", ""))


def _end_of(response: Message) -> str:
    details = response.get("status_details") or {}
    code = (details.get("error") or {}).get("code")
    return f"{response['status']} ({code})" if code else str(response["status"])
