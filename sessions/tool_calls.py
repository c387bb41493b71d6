"""The calls of tools: as a reply writes them, as the client is told of them, and where they stand in the history.

Theory of operation
    A reply says its words and then makes its calls. Each is an item of its own: it begins, grows, and is *whole* when
    its stage says so. From then on it is the client's, which may act on it at once: it is history, and stays so
    whatever becomes of the words before it, which may still be being said. A call in which its reply ended is
    *incomplete*: told as such, kept as such, shown to no model and answered by nobody.

    The output of a call comes when the client has it, minutes later if need be. It starts no response.

Rules
* A client is told of nothing that it was told already: `news` is what has come since the last time.
* An output belongs to a whole call that has none yet. It stands behind that call, and behind others that follow it
  directly, as those of one reply do; whatever was said meanwhile comes after it.
* Ids follow from those of the response and of its item, which are never used again. As a client knows these before the
  call is made, the ids of all calls that may still come are taken from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sessions.events import CallArguments, CallFinished, CallStarted, CommandRefused
from sessions.items import Item, ItemError, ItemStatus
from sessions.settings import ResponseSpec
from stages.contracts import CALL_CHARACTERS_MAX, CALLS_MAX, CallDelta, CallDone

CALL_NOT_FOUND = "invalid_tool_call_id"
CALL_INCOMPLETE = "tool_call_incomplete"
CALL_ANSWERED = "tool_call_already_answered"
CALL_EXISTS = "tool_call_id_exists"
CALL_SERVED = "tool_call_of_service"


class CallError(ValueError):
    """What a stage tells of a reply's calls contradicts itself, or knows no bounds."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call that has ended. `spec`: of the response that has made it. Of one that the service carries out
    (`item.by_service`), its client knows nothing yet."""

    item: Item
    spec: ResponseSpec = field(default_factory=ResponseSpec)


@dataclass(frozen=True, slots=True)
class BegunCall:
    """What is written down before the service carries out call `id`, the item `item`. `digest`: SHA-256 of its
    arguments; `safe`: to repeat it does no harm."""

    id: str
    item: str
    name: str
    digest: bytes
    safe: bool


@dataclass(slots=True)
class _Call:
    item: Item
    told: int = 0  # characters of its arguments
    is_announced: bool = False
    is_closed: bool = False


class Calls:
    """Those of the reply that is the item `reply` of `response`."""

    def __init__(self, response: str, reply: str) -> None:
        self._response = response
        self._reply = reply
        self._calls: list[_Call] = []

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(call.item for call in self._calls)

    def add(self, event: CallDelta | CallDone) -> None:
        """Take what the stage has written. Raises `CallError`, and changes nothing then."""
        if isinstance(event, CallDelta) and event.index == len(self._calls) and not self._is_writing:
            self._begin(event.index, event.name)
        call = self._calls[-1] if self._calls else None
        if call is None or event.index != len(self._calls) - 1 or call.item.status != "in_progress":
            raise CallError(f"call {event.index} is not the one that is being written")
        if isinstance(event, CallDone):
            call.item = replace(call.item, text=event.arguments, status="completed")
            return
        arguments = call.item.text + event.arguments
        if len(arguments) > CALL_CHARACTERS_MAX:
            raise CallError(f"a call of more than {CALL_CHARACTERS_MAX} characters")
        call.item = replace(call.item, text=arguments)

    @property
    def _is_writing(self) -> bool:
        return bool(self._calls) and self._calls[-1].item.status == "in_progress"

    def _begin(self, index: int, name: str) -> None:
        if index >= CALLS_MAX:
            raise CallError(f"more than {CALLS_MAX} calls")
        item_id, call_id = self._ids_of(index)
        self._calls.append(_Call(call_item(item_id, call_id, name, "", "in_progress")))

    def _ids_of(self, index: int) -> tuple[str, str]:
        """Of the item, and of the call itself."""
        return f"{self._reply}_call_{index}", f"call_{index}_{self._response}"

    def take(self, name: str) -> bool:
        """`name` is that of a call, or of its item, that there is or may yet be."""
        return any(name in self._ids_of(index) for index in range(CALLS_MAX))

    def abandon(self) -> None:
        """The reply is over: a call that is not whole was never made."""
        for call in self._calls:
            if call.item.status == "in_progress":
                call.item = replace(call.item, status="incomplete")

    def news(self) -> list[CallStarted | CallArguments | CallFinished]:
        """What the client has yet to be told, but for where the calls stand."""
        events: list[CallStarted | CallArguments | CallFinished] = []
        for call in self._calls:
            item = call.item
            if not call.is_announced:
                call.is_announced = True
                events.append(CallStarted(self._response, replace(item, text="", status="in_progress"), None))
            if more := item.text[call.told :]:
                call.told = len(item.text)
                events.append(CallArguments(self._response, item.id, item.call_id, more))
            if item.status != "in_progress" and not call.is_closed:
                call.is_closed = True
                events.append(CallFinished(self._response, item, None))
        return events

    def before(self, item: Item) -> list[str]:
        """What `item`, one of these, stands behind: the reply's words, and its calls before that."""
        names = [call.item.id for call in self._calls]
        return [self._reply, *names[: names.index(item.id)]]


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: ItemStatus = "completed") -> Item:
    return Item(
        item_id, "assistant", arguments, spoken=False, status=status, kind="function_call", call_id=call_id, name=name
    )


def output_item(item_id: str, call_id: str, output: str) -> Item:
    return Item(item_id, "system", output, spoken=False, kind="function_call_output", call_id=call_id)


def outputs(items: Iterable[Item]) -> dict[str, str]:
    """What came of calls, by their ids."""
    return {item.call_id: item.text for item in items if item.kind == "function_call_output"}


def check_call(call: Item, items: Iterable[Item], *, is_taken: bool) -> None:
    """Raises `ItemError` where there is a call with the id of `call`, which is new. `is_taken`: one that a reply has
    made, or may make, has it."""
    if is_taken or any(item.kind == "function_call" and item.call_id == call.call_id for item in items):
        raise ItemError(CALL_EXISTS, f"there is a call {call.call_id!r}")


def service_answers(call_id: str) -> CommandRefused:
    """Why its client cannot say what came of a call."""
    return CommandRefused(CALL_SERVED, f"the service itself carries out call {call_id!r}", "item.call_id")


def service_has(call_id: str) -> CommandRefused:
    """Why its client cannot bring a call of this id."""
    return CommandRefused(CALL_EXISTS, f"the service itself carries out call {call_id!r}", "item.call_id")


def place_of(output: Item, items: tuple[Item, ...]) -> str:
    """The item behind which `output` is to stand among `items`, some of which are being made. Raises `ItemError` where
    no call waits for it."""
    at = _place_of_call(output.call_id, items)
    if at is None or items[at].status == "in_progress":
        raise ItemError(CALL_NOT_FOUND, f"no call {output.call_id!r} is in the conversation")
    if items[at].status != "completed":
        raise ItemError(CALL_INCOMPLETE, f"call {output.call_id!r} was broken off, and is not to be carried out")
    if output.call_id in outputs(items):
        raise ItemError(CALL_ANSWERED, f"call {output.call_id!r} has its output already")
    return items[_beside(at, items).stop - 1].id


def _beside(at: int, items: tuple[Item, ...]) -> range:
    """The places of the calls that follow each other directly and among which is that at `at`."""
    first, last = at, at
    while first and items[first - 1].kind == "function_call":
        first -= 1
    while last + 1 < len(items) and items[last + 1].kind == "function_call":
        last += 1
    return range(first, last + 1)


def before_calls(call_id: str, items: tuple[Item, ...]) -> str | None:
    """The item behind which words stand that were said while `call_id` was carried out: a reply's words come before its
    calls. None: nothing does, or the call is gone."""
    at = _place_of_call(call_id, items)
    first = 0 if at is None else _beside(at, items).start
    return items[first - 1].id if first else None


def is_alone(call_id: str, items: tuple[Item, ...]) -> bool:
    """The call is there and answered, and so are all beside it."""
    at = _place_of_call(call_id, items)
    answered = outputs(items)
    beside = () if at is None else [items[place] for place in _beside(at, items)]
    return bool(beside) and all(call.call_id in answered or call.status != "completed" for call in beside)


def _place_of_call(call_id: str, items: tuple[Item, ...]) -> int | None:
    calls = (at for at, item in enumerate(items) if item.kind == "function_call" and item.call_id == call_id)
    return next(calls, None)
