"""A client that puts each item of the conversation behind the one that its `previous_item_id` names."""

from __future__ import annotations

from dataclasses import dataclass, field

from duplex.realtime.dialect import Message


@dataclass(slots=True)
class ClientOrder:
    """`items`: by their ids, those in progress among them."""

    items: list[str] = field(default_factory=list)
    _in_progress: set[str] = field(default_factory=set)

    @property
    def history(self) -> list[str]:
        """Those that are over."""
        return [item for item in self.items if item not in self._in_progress]

    def take(self, message: Message) -> None:
        match message:
            case {"type": "input_audio_buffer.committed", "previous_item_id": previous}:
                assert previous == (self.items[-1] if self.items else None), "what is said comes last"
            case {"type": "conversation.item.added", "item": item, "previous_item_id": previous}:
                assert item["id"] not in self.items, "an item is added once"
                self.items.insert(self._behind(previous), item["id"])
                self._in_progress.add(item["id"])
            case {"type": "conversation.item.done", "item": item, "previous_item_id": previous}:
                assert self.items.index(item["id"]) == self._behind(previous), "it stands where it was put"
                self._in_progress.remove(item["id"])
            case {"type": "conversation.item.deleted", "item_id": item}:
                self.items.remove(item)
            case {"type": "conversation.trimmed", "item_ids": left}:
                self.items = [item for item in self.items if item not in left]
            case _:
                pass

    def _behind(self, previous: str | None) -> int:
        return 0 if previous is None else self.items.index(previous) + 1
