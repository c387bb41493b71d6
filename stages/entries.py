"""What a stage knows of one stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stages.contracts import Item, Payload, Tag, is_final, payload_of
from stages.effects import Effect, StepFlags, reports_of
from stages.engine_boundary import asked
from stages.event_log import Trail
from stages.gathering import Gathering
from stages.messages import Outcome
from stages.outbox import Outbox
from stages.scheduler import NEVER_NS
from stages.stream import StageFailure, StageStream, Step


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

    def close(self) -> tuple[dict[str, int], list[Effect]]:
        """Give everything back; what that was, by kind, and what is to be reported of what the engine threw over it."""
        held, closed = asked(self.model.held), asked(self.model.close)
        self.outbox.close()
        counts = {f"gathered_{payload}": one.units for payload, one in self.gatherings.items()}
        counts |= {} if isinstance(held, StageFailure) else held
        faults = [answer for answer in (held, closed) if isinstance(answer, StageFailure)]
        reports: list[Effect] = [report for fault in faults for report in reports_of(self.tag.key, fault)]
        return {kind: count for kind, count in counts.items() if count}, reports
