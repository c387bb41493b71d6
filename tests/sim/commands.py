"""What clients command. `pick`, from 0 to 1, chooses among what is there when it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessions.items import Item
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import output_item
from tests.sim.call import Call
from tests.sim.tools import SHOW

COMMIT_SAMPLES_MAX = 32_000

SETTINGS = (
    SessionSettings(),
    SessionSettings(output_format="audio/pcmu"),
    SessionSettings(turn_detection=TurnDetection(interrupt_response=False)),
    SessionSettings(turn_detection=TurnDetection(create_response=False)),
    SessionSettings(turn_detection=None),
    SessionSettings(modalities=("text",)),
    SessionSettings(max_output_tokens=3),
    SessionSettings(tools=(SHOW,)),
)
OUTSIDE = (
    ResponseSpec(in_conversation=False),
    ResponseSpec(in_conversation=False, modalities=("text",)),
    ResponseSpec(in_conversation=False, messages=(("user", "classify this"),)),
)

Command = Callable[[Call, int, float], None]


def _one_of(pick: float, choices: Sequence[str | None]) -> str | None:
    return choices[int(pick * len(choices))]


def _some_item(call: Call, pick: float) -> str:
    return _one_of(pick, ("nowhere", *[known.id for known in call.core.items])) or ""


def cancel(call: Call, now_ns: int, pick: float) -> None:
    speaking = call.core.speaking
    wanted = _one_of(pick, (None, "resp_nowhere", *[view.id for view in speaking.running]))
    if speaking.active is not None and wanted in (None, speaking.active.id):
        call.watch.nothing_owed()
    call.carry_out(call.core.cancel_response(wanted, now_ns))


def create_response(call: Call, now_ns: int, pick: float) -> None:
    call.carry_out(call.core.create_response(ResponseSpec(), now_ns))


def create_outside(call: Call, now_ns: int, pick: float) -> None:
    call.carry_out(call.core.create_response(OUTSIDE[int(pick * len(OUTSIDE))], now_ns))


def commit_and_ask(call: Call, now_ns: int, pick: float) -> None:
    start, end = call.uncommitted_from, call.newest
    call.watch.nothing_owed()
    call.carry_out(call.core.commit_input(max(start, end - COMMIT_SAMPLES_MAX), end, now_ns))
    create_response(call, now_ns, pick)


def clear(call: Call, now_ns: int, pick: float) -> None:
    call.watch.nothing_owed()
    call.carry_out(call.core.clear_input(now_ns))


def type_text(call: Call, now_ns: int, pick: float) -> None:
    item = Item(f"typed_{now_ns}", "user", f"typed {now_ns}", spoken=False)
    previous = _one_of(pick, (None, "root", "nowhere", *[known.id for known in call.core.items]))
    call.carry_out(call.core.create_item(item, previous))


def delete(call: Call, now_ns: int, pick: float) -> None:
    call.carry_out(call.core.delete_item(_some_item(call, pick)))


def truncate(call: Call, now_ns: int, pick: float) -> None:
    item, says = _some_item(call, pick), (0, 300, 100_000)[int(pick * 997) % 3]
    if not call.client.stop_playing(item):
        # Who tells the truth has played nothing of what has not come.
        call.carry_out(call.core.truncate_item(item, says if call.client.lies else 0, now_ns))


def update(call: Call, now_ns: int, pick: float) -> None:
    settings = SETTINGS[int(pick * len(SETTINGS))]
    call.update(settings)
    if settings.turn_detection is None:
        call.client.reset_gate()


def answer_call(call: Call, call_id: str, now_ns: int) -> None:
    """As clients do: what came of it, and then a response is asked for."""
    call.carry_out(call.core.answer_call(output_item(f"shown_{call_id}", call_id, "shown"), now_ns))
    create_response(call, now_ns, 0)


def report_heard(call: Call, now_ns: int, pick: float) -> None:
    if not call.client.report():
        for view in call.core.speaking.running:
            call.carry_out(call.core.heard(view.id, int(pick * 48_000), now_ns))


COMMANDS: dict[str, Command] = {
    "cancel": cancel,
    "create response": create_response,
    "create outside": create_outside,
    "commit and ask": commit_and_ask,
    "clear": clear,
    "type": type_text,
    "delete": delete,
    "truncate": truncate,
    "update": update,
    "report heard": report_heard,
}
