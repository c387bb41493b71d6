"""What an operator is shown of a session: its figures, and its words only where they may read them.

Rules
* Never a token, nor instructions. Of what was said, its length; its words only with the right to them. An id that a
  client has chosen may be words as well.
* Contents are as the store has them: what a gateway that comes next would begin with.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from duplex.checkpoints import decode_settings, item_of
from sessions.items import CHARACTERS_MAX, ITEMS_MAX
from sessions.log import replay
from sessions.records import ItemRecord, decode_entry
from sessions.settings import SessionSettings
from sessions.store import LogLimits, Snapshot, StoredSession

State = Literal["running", "ending", "stored"]

# As the service names items: at random, and calls and their outputs after those. No word fits.
_OWN_ID = re.compile(r"item_[0-9a-f]{24}(_call_\d{1,2})?(_output)?")


class LocalCall(msgspec.Struct, frozen=True):
    """The call of a session at this gateway. `unwritten` checkpoints are not in the store yet, which has failed
    `store_errors` times; `end_reason` None: it runs."""

    unwritten: int
    store_errors: int
    end_reason: str | None


class ItemView(msgspec.Struct, frozen=True):
    """`heard_ms` None: it was not cut. `text`, the words behind it that may have been heard, and ids that a client has
    chosen (else None), are for who may read them."""

    id: str | None
    role: str
    kind: str
    status: str
    characters: int
    audio_ms: int
    heard_ms: int | None
    possibly_heard_characters: int = 0
    text: str | UnsetType = UNSET
    possibly_heard: str | UnsetType = UNSET


class SettingsView(msgspec.Struct, frozen=True):
    """None: the service's default, or no turn detection."""

    model: str
    voice: str
    modalities: tuple[str, ...]
    turn_detection: str | None
    max_output_tokens: int | None
    temperature: float | None
    instructions_characters: int


class Budgets(msgspec.Struct, frozen=True):
    """How much of what it may have a session takes: of its log, which is then compacted, and of its history, of which
    the oldest items then leave."""

    log_entries: int
    log_entries_max: int
    log_bytes: int
    log_bytes_max: int
    items_max: int
    characters: int
    characters_max: int


class Contents(msgspec.Struct, frozen=True):
    """`turns` counts what the caller has said or typed. `call` None: there is none here."""

    fence: int
    epoch: int
    turns: int
    items: tuple[ItemView, ...]
    settings: SettingsView
    budgets: Budgets
    call: LocalCall | None


class SessionView(msgspec.Struct, frozen=True):
    """`owner` is the gateway that holds the session, None where it only lies in the store; `here`: it is this one.
    `bytes` are those in the store. Times are Unix time in ms."""

    id: str
    tenant: str
    state: State
    owner: str | None
    here: bool
    created_ms: int
    active_ms: int
    bytes: int
    contents: Contents | UnsetType = UNSET
    object: Literal["session"] = "session"


def session_view(stored: StoredSession, call: LocalCall | None) -> SessionView:
    """A session without its contents."""
    is_owned = call is not None or stored.lease_ms > 0
    return SessionView(
        stored.session,
        stored.tenant,
        _state(is_owned, call),
        stored.owner if is_owned else None,
        call is not None,
        stored.created_ms,
        stored.active_ms,
        stored.record_bytes + stored.log_bytes,
    )


def _state(is_owned: bool, call: LocalCall | None) -> State:
    if call is not None and call.end_reason is not None:
        return "ending"
    return "running" if is_owned else "stored"


def contents(
    stored: StoredSession, snapshot: Snapshot, call: LocalCall | None, limits: LogLimits, *, with_words: bool
) -> Contents:
    """Raises `StoredDataError` or `msgspec.DecodeError` where what is stored cannot be used."""
    conversation = replay(snapshot.record, [decode_entry(entry) for entry in snapshot.entries])
    items = conversation.items
    return Contents(
        stored.fence,
        conversation.epoch,
        sum(item.role == "user" and item.kind == "message" for item in items),
        tuple(_item_view(item, with_words=with_words) for item in items),
        _settings_view(decode_settings(conversation.config)),
        Budgets(
            stored.entries,
            limits.entries_max,
            stored.log_bytes,
            limits.bytes_max,
            ITEMS_MAX,
            sum(len(item.content) for item in items),
            CHARACTERS_MAX,
        ),
        call,
    )


def _item_view(item: ItemRecord, *, with_words: bool) -> ItemView:
    unsure = item_of(item).possibly_heard
    return ItemView(
        item.id if with_words or _OWN_ID.fullmatch(item.id) else None,
        item.role,
        item.kind,
        item.status,
        len(item.content),
        item.audio_ms_total,
        item.audio_ms_cut if item.truncated else None,
        len(unsure),
        item.content if with_words else UNSET,
        unsure if with_words and unsure else UNSET,
    )


def _settings_view(settings: SessionSettings) -> SettingsView:
    detection = settings.turn_detection
    return SettingsView(
        settings.model,
        settings.voice,
        settings.modalities,
        None if detection is None else detection.kind,
        settings.max_output_tokens,
        settings.temperature,
        len(settings.instructions),
    )
