"""What operators are shown: figures of everything, words of nobody unless they may read them."""

from __future__ import annotations

import msgspec
import pytest

from duplex.checkpoints import encode_settings
from duplex.gateway import new_id
from duplex.session_views import LocalCall, contents, session_view
from sessions.records import (
    CorruptLog,
    EpochAdvanced,
    ItemAppended,
    ItemDeleted,
    ItemRecord,
    ReplyHeard,
    ReplySpeaking,
    SessionRecord,
    TurnRecord,
    WordRecord,
    encode_entry,
)
from sessions.settings import SessionSettings
from sessions.store import LogLimits, Snapshot, StoredSession

SETTINGS = SessionSettings(model="m", instructions="Keep the secret herons.", voice="joe", turn_detection=None)
RECORD = SessionRecord("sess_1", "acme", 1_000, encode_settings(SETTINGS), b"digest-of-a-token", fence=3)
ITEMS = ("item_" + "0a" * 12, "item_" + "0b" * 12, "item_" + "0b" * 12 + "_call_0")
ASKED = ItemRecord(ITEMS[0], "user", content="Where are the herons?", name="spoken")
CUT = ItemRecord(
    ITEMS[1],
    "assistant",
    content="By the lake.",
    status="incomplete",
    name="spoken",
    audio_ms_total=900,
    audio_ms_cut=400,
    truncated=True,
    cut_word="lake",
    previous=ITEMS[0],
)
CALLED = ItemRecord(ITEMS[2], "assistant", "function_call", '{"of":"herons"}', name="find_herons", previous=ITEMS[1])
LOG: tuple[TurnRecord, ...] = (ItemAppended(ASKED), ItemAppended(CUT), ItemAppended(CALLED), EpochAdvanced(4 << 20))
SECRETS = ("heron", "lake", "digest", "Keep")
RUNNING = LocalCall(2, 1, None)


def stored(lease_ms: int = 0) -> StoredSession:
    return StoredSession("sess_1", "acme", "gw_1", 3, 1_000, 2_000, lease_ms, 4, 70, 30)


def snapshot(*entries: TurnRecord) -> Snapshot:
    return Snapshot(RECORD, tuple(encode_entry(entry) for entry in entries))


@pytest.mark.parametrize(
    ("lease_ms", "call", "state", "owner", "here"),
    [
        (0, None, "stored", None, False),
        (500, None, "running", "gw_1", False),
        (500, RUNNING, "running", "gw_1", True),
        (0, RUNNING, "running", "gw_1", True),
        (500, LocalCall(0, 0, "idle"), "ending", "gw_1", True),
    ],
)
def test_how_a_session_stands(lease_ms: int, call: LocalCall | None, state: str, owner: str | None, here: bool) -> None:
    view = session_view(stored(lease_ms), call)
    assert (view.state, view.owner, view.here) == (state, owner, here)


def test_a_session_without_its_contents() -> None:
    assert msgspec.json.decode(msgspec.json.encode(session_view(stored(), None))) == {
        "id": "sess_1",
        "tenant": "acme",
        "state": "stored",
        "owner": None,
        "here": False,
        "created_ms": 1_000,
        "active_ms": 2_000,
        "bytes": 100,
        "object": "session",
    }


def test_contents_are_figures() -> None:
    shown = contents(stored(), snapshot(*LOG), RUNNING, LogLimits(), with_words=False)
    assert (shown.fence, shown.epoch, shown.turns, shown.call) == (3, 4 << 20, 1, RUNNING)
    assert [(item.id, item.role, item.kind, item.status, item.characters) for item in shown.items] == [
        (ITEMS[0], "user", "message", "completed", 21),
        (ITEMS[1], "assistant", "message", "incomplete", 12),
        (ITEMS[2], "assistant", "function_call", "completed", 15),
    ]
    assert [(item.audio_ms, item.heard_ms) for item in shown.items] == [(0, None), (900, 400), (0, None)]
    budgets, limits = shown.budgets, LogLimits()
    assert (budgets.log_entries, budgets.log_entries_max) == (4, limits.entries_max)
    assert (budgets.log_bytes, budgets.log_bytes_max, budgets.characters) == (70, limits.bytes_max, 48)
    assert (shown.settings.voice, shown.settings.turn_detection, shown.settings.instructions_characters) == (
        "joe",
        None,
        23,
    )


def test_no_words_tokens_or_instructions_are_shown() -> None:
    shown = msgspec.json.encode(contents(stored(), snapshot(*LOG), None, LogLimits(), with_words=False)).decode()
    assert [secret for secret in SECRETS if secret in shown] == []


@pytest.mark.parametrize(
    "chosen",
    ["My_SSN_078_05_1120", "item_herons", f"{ITEMS[0]}_herons", f"herons_{ITEMS[0]}", f"{ITEMS[0]}\n", "item_"],
)
def test_an_id_that_a_client_has_chosen_may_be_words(chosen: str) -> None:
    log = snapshot(ItemAppended(ItemRecord(chosen, "user", content="x")))
    hidden, shown = (contents(stored(), log, None, LogLimits(), with_words=allowed) for allowed in (False, True))
    assert ([item.id for item in hidden.items], [item.id for item in shown.items]) == ([None], [chosen])


def test_ids_of_the_services_own_are_shown() -> None:
    names = [new_id("item"), *(f"{ITEMS[2]}{end}" for end in ("", "_output"))]
    log = [ItemAppended(ItemRecord(name, "user", content="x")) for name in names]
    shown = contents(stored(), snapshot(*log), None, LogLimits(), with_words=False)
    assert sorted(item.id or "" for item in shown.items) == sorted(names)


def test_who_may_read_words_is_shown_those_of_items_alone() -> None:
    shown = contents(stored(), snapshot(*LOG), None, LogLimits(), with_words=True)
    assert [item.text for item in shown.items] == [ASKED.content, CUT.content, CALLED.content]
    text = msgspec.json.encode(shown).decode()
    assert [secret for secret in ("digest", "Keep") if secret in text] == []


def test_a_detector_is_named() -> None:
    usual = msgspec.structs.replace(RECORD, config=encode_settings(SessionSettings()))
    shown = contents(stored(), Snapshot(usual, ()), None, LogLimits(), with_words=False)
    assert shown.settings.turn_detection == "server_vad"


def test_a_log_that_contradicts_itself_is_not_shown() -> None:
    with pytest.raises(CorruptLog):
        contents(stored(), snapshot(ItemDeleted(ITEMS[0])), None, LogLimits(), with_words=False)


def test_a_reply_that_is_being_said_is_shown_as_the_next_owner_would_find_it() -> None:
    words = (WordRecord("Herons", 0, 4_800), WordRecord("fly.", 4_800, 9_600))
    said = ReplySpeaking("item_9", "resp_1", 1 << 20, ITEMS[0], 24_000, 1, 0, words)
    log = (ItemAppended(ASKED), said, ReplyHeard("item_9", 4_800, "acked", 0))
    shown = contents(stored(), snapshot(*log), RUNNING, LogLimits(), with_words=False).items[1]
    assert (shown.status, shown.characters, shown.possibly_heard_characters) == ("incomplete", 6, 4)
    assert (shown.audio_ms, shown.heard_ms) == (400, 200)
    assert "erons" not in msgspec.json.encode(shown).decode()
    shown = contents(stored(), snapshot(*log), RUNNING, LogLimits(), with_words=True).items[1]
    assert (shown.text, shown.possibly_heard) == ("Herons", "fly.")
