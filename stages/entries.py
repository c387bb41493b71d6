"""What a stage knows of one stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stages.contracts import Item, Payload, Tag, is_final, payload_of
from stages.effects import StepFlags
from stages.event_log import Trail
from stages.gathering import Gathering
from stages.messages import Outcome
from stages.outbox import Outbox
from stages.scheduler import NEVER_NS
from stages.stream import StageStream, Step


@dataclass(slots=True)
class Entry:
    """One stream at this stage. `deadline_ns`: when nobody wants more of it."""

    tag: Tag
    trail: Trail
    model: StageStream
    control: int
    tenant: str
    outbox: Outbox
    replicas: dict[str, str]  # of each next stage, the one that it hands to
    gatherings: dict[Payload, Gathering]
    deadline_ns: int = NEVER_NS
    # Who fed the stream last, in all (None) and of each payload.
    sources: dict[Payload | None, int] = field(default_factory=dict)
    ended_inputs: set[Payload] = field(default_factory=set)
    flags: StepFlags = field(default_factory=StepFlags)
    step: Step | None = None
    leaving: tuple[Outcome, str, str] | None = None
    paused: bool = False  # what it sent last waits for room on its link

    def fed_by(self, link: int, item: Item) -> Gathering | None:
        """`item` comes over `link`; gives what gathers it, where its consumer needs more than chunks."""
        payload = payload_of(item)
        self.sources[None] = self.sources[payload] = link
        if payload and is_final(item):
            self.ended_inputs.add(payload)
        return self.gatherings.get(payload) if payload else None

    def may_lack_input(self, link: int, inputs: Iterable[Payload]) -> bool:
        """Something of `inputs` may have been lost with `link`, which nobody would hand over again."""
        awaited = [payload for payload in inputs if payload not in self.ended_inputs] if self.tag.response else ()
        return any(self.sources.get(payload, link) == link for payload in awaited)

    def close(self) -> dict[str, int]:
        """Give everything back; what that was, by kind."""
        held = self.model.held() | {f"gathered_{payload}": one.units for payload, one in self.gatherings.items()}
        self.model.close()
        self.outbox.close()
        return {kind: count for kind, count in held.items() if count}
