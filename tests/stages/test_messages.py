"""Frames on the wire: each kind there and back, and what is refused."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import (
    AudioIn,
    AudioOut,
    CallDelta,
    CallDone,
    Clause,
    CodecFrames,
    DataRef,
    Embeddings,
    EncoderOptions,
    EndOfTurn,
    Filler,
    Latents,
    Message,
    ObserverOptions,
    Pause,
    PrefillOptions,
    Prompt,
    Reading,
    SpeechResumed,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Tool,
    ToolCall,
    ToolChoice,
    Transcript,
    VocoderOptions,
    Word,
    WordTimes,
)
from stages.event_log import EventLogStatistics, Excerpt, LoggedEvent
from stages.messages import (
    LINK_VERSION,
    ArenaOffer,
    ArenaSnapshot,
    Audit,
    Audited,
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EdgeSnapshot,
    EndEpoch,
    EventPage,
    Feed,
    Frame,
    FrameError,
    Grant,
    Greeting,
    Hello,
    Inspect,
    InwardChanged,
    KindSnapshot,
    KvSnapshot,
    LinkRefused,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Ping,
    Pong,
    Published,
    ReadEvents,
    Refused,
    Release,
    ReplicaReport,
    Retire,
    Retiring,
    SchedulerSnapshot,
    SessionOpened,
    SessionRefused,
    StepDone,
    Taken,
    Welcome,
    WorkerSnapshot,
    decode,
    encode,
    greeting_of,
    payload_of,
    with_payload,
)

TAG = Tag("sess_1", 5 * 2**20 + 3, 7, "resp_1")
REF = DataRef("talker", 3, 7, 2**40, 4)
OFFER = ArenaOffer("talker", 3, 9, bytes(16), 64, 2**20)
LOGGED = LoggedEvent(2**62, "closed", "sess_1", "resp_1", "acme", 5, "vocoder", "clauses", "step_failed")
OPTIONS = (
    EncoderOptions(partials=False),
    PrefillOptions(),
    ThinkerOptions(
        (Message("user", "hi"), Message("assistant", "ho"), Message("user", "", audio_turn=7)), 64, 0.5, spare=True
    ),
    ThinkerOptions(
        (
            Message("assistant", "Let me see.", calls=(ToolCall("call_1", "look", "{}"),)),
            Message("tool", "nothing", call_id="call_1"),
        ),
        64,
        tools=(Tool("look", "Look.", '{"type":"object"}'),),
        tool_choice=ToolChoice("required", "look"),
    ),
    TalkerOptions("joe", 1.25, 3),
    VocoderOptions(8_000),
    ObserverOptions(),
)
ITEMS = (
    AudioIn(160, b"\x00\xff"),
    Pause(320),
    SpeechResumed(),
    EndOfTurn(480),
    Prompt((Message("system", "be brief"),), complete=True),
    Prompt((Message("system", "be brief"),), tools=(Tool("look"),)),
    Filler("One moment, please."),
    Clause(3, "Grüße, 世界.", final=True),
    Embeddings(24, 1, 2, bytes(8), "hidden"),
    CodecFrames(4, 1, bytes(128), final=True),
    Latents(16, 1, b"\x00" * 4, clause_end=True, final=True),
)
EVENTS = (
    Transcript("hi", 480, settled=True, final=True),
    Reading(400, 2**62),
    TextDelta(" there"),
    TextDelta("One moment, please. ", filler=True),
    CallDelta(1, "look", '{"at":'),
    CallDone(1, '{"at":1}'),
    TextDone("hi there", "max_output_tokens", 12, 8, 2),
    WordTimes(1, 22_050, (Word("hi", 0, 100), Word("there", 120, 400))),
    AudioOut(2, 24_000, 4_800, b"\x01\x00", final=True),
)
FRAMES: tuple[Frame, ...] = (
    Hello(LINK_VERSION, "media", "gw_1"),
    Welcome(LINK_VERSION, "talker", 3, "sha256:0", ("vocoder-1", "vocoder-2"), ("thinker",), OFFER),
    LinkRefused(LINK_VERSION, "too old"),
    Taken(2**20),
    Release(REF),
    OnwardChanged("vocoder-1", up=True),
    InwardChanged("thinker-1", up=False),
    OpenSession("sess_1", 1),
    SessionOpened("sess_1"),
    SessionRefused("sess_1", "capacity", "all slots are taken"),
    CloseSession("sess_1"),
    *(Open(TAG, options, ("vocoder", "aligner")) for options in OPTIONS),
    Open(TAG, TalkerOptions(), ("vocoder",), "acme", lasts_ns_max=2**62),
    Opened(Tag("sess_1", -1, 7)),
    Refused(TAG, "busy", "a stream of that name is still leaving"),
    *(Feed(TAG, item, 5) for item in ITEMS),
    Feed(TAG, Latents(16, 1, b""), 1, body=REF),
    Feed(TAG, Embeddings(24, 1, 2, b"", "audio"), 1, body=REF),
    Feed(TAG, CodecFrames(4, 1, b""), 1, body=REF),
    Grant(TAG, 5),
    Cancel(TAG),
    Cut(TAG, 2_400),
    EndEpoch("sess_1", 6),
    *(Published(TAG, event) for event in EVENTS),
    Published(TAG, AudioOut(2, 24_000, 4_800, b""), body=REF),
    Closed(TAG, "failed", {"frames": 3}, "engine", "it broke"),
    StepDone(TAG, "decode", 10**9, 2**62),
    Ping(7),
    Pong(7, 2**62),
    Retire(),
    Retiring(),
    ReadEvents(7, None, "sess_1", "resp_1", 400),
    EventPage(7, Excerpt((LOGGED,), 12, more=True), EventLogStatistics(2**62, 3)),
    Audit("sess_1", "resp_1"),
    Audited("talker-2", "sess_1", "resp_1", {"streams": 1}, {"credit": -3}),
    Inspect(),
    WorkerSnapshot(
        "talker-2",
        3,
        2,
        1,
        5 * 10**9,
        SchedulerSnapshot(4, 9, 10**6, 1, 2, (KindSnapshot("clause", 12, 30, 29, 3),)),
        ArenaSnapshot(64, 3, 8, 1, 2**62),
        (EdgeSnapshot("vocoder", 3, 96, 144, 7, 40_000, 80_000),),
        KvSnapshot(4, 3, 1, 2, 500, 23_040, 9, {"new": 2}, {"idle": 1}, 1, 300, 40),
    ),
    ReplicaReport("talker", "talker-2", "quarantined", 7, 6, 1),
)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame)) == frame
    assert decode(memoryview(encode(frame))) == frame


def test_every_kind_of_frame_is_tried() -> None:
    assert {type(frame) for frame in FRAMES} == set(get_args(Frame))


def test_frames_are_values() -> None:
    with pytest.raises(AttributeError):
        Grant(TAG, 5).units = 6  # type: ignore[misc]


def packed(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


WIRE_TAG = ["s", 1, 1, "r"]
WIRE_ARENA = {**msgspec.structs.asdict(OFFER), "type": "ArenaOffer"}
WIRE_MESSAGE = {"role": "user", "content": "hi"}
WIRE_WORD = {"text": "hi", "start": 0, "end": 1, "loud": True}
WIRE_WORDS = {"type": "WordTimes", "clause": 0, "sample_rate": 8_000, "words": [WIRE_WORD]}


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"", "truncated"),
        (encode(FRAMES[0])[:-1], "truncated"),
        (encode(FRAMES[0]) + b"\x00", "trailing"),
        (b"\xc1", "malformed"),
        (b"hello", "object"),
        (packed(units=1), "type"),
        (packed(type="Reboot"), "^a frame of the unknown type 'Reboot': "),
        (packed(type="EndEpoch", session="s", epoch=1, extra=1), "^EndEpoch: Object contains unknown field `extra`"),
        (packed(type="Cancel"), "^Cancel: "),
        (packed(kind="Cancel"), "^a frame that cannot be read: "),
        (packed(type=7), "^a frame that cannot be read: "),
        (packed(type="Hello", version="1", role="data", name="x"), "^Hello: .*version"),
        (packed(type="TextDelta", text="an event is no frame"), "TextDelta"),
        (packed(type="EndEpoch", session="s", epoch=1, force=True), "force"),
        (packed(type="EndEpoch", session="s"), "epoch"),
        (packed(type="EndEpoch", session="s", epoch="1"), "epoch"),
        (packed(type="EndEpoch", session="s", epoch=1.5), "epoch"),
        (packed(type="Hello", version=1, role="spy", name="x"), "spy"),
        (packed(type="Hello", version=1, role="data", name="x/" + "9" * 5_000), "name"),
        (packed(type="Hello", version=1, role="data", name="x/1", arena=WIRE_ARENA | {"blocks": -1}), "blocks"),
        (packed(type="Hello", version=1, role="data", name="x/1", arena=WIRE_ARENA | {"blocks": 1 << 62}), "blocks"),
        (
            packed(type="Hello", version=1, role="data", name="x/1", arena=WIRE_ARENA | {"block_bytes": 0}),
            "block_bytes",
        ),
        (packed(type="Hello", version=1, role="data", name="x/1", arena=WIRE_ARENA | {"fd": -1}), "fd"),
        (packed(type="Closed", tag=WIRE_TAG, outcome="lost", released={}), "lost"),
        (packed(type="Cancel", tag=["s", 1]), "tag"),
        (packed(type="Cancel", tag=["s", "1", 1]), "tag"),
        (packed(type="Feed", tag=WIRE_TAG, item={"type": "TextDone"}), "TextDone"),
        (packed(type="Cancel", tag=[*WIRE_TAG, "extra"]), "tag"),
        (packed(type="Release", ref=["talker", 3, 7, 1, 4, "extra"]), "ref"),
        (packed(type="Feed", tag=WIRE_TAG, item={"type": "Prompt", "messages": [WIRE_MESSAGE | {"mood": 1}]}), "mood"),
        (packed(type="Published", tag=WIRE_TAG, event=WIRE_WORDS), "loud"),
        (packed(type="Feed", tag=WIRE_TAG, item={"type": "Pause", "sample": 1, "extra": 1}), "extra"),
        (packed(type="Open", tag=WIRE_TAG, options={"type": "VocoderOptions", "sample_rate": "24000"}), "sample_rate"),
    ],
)
def test_what_is_no_frame_is_refused_and_says_why(payload: bytes, named: str) -> None:
    with pytest.raises(FrameError, match=named):
        decode(payload)


@given(st.binary(max_size=64))
def test_noise_is_a_frame_error_or_a_frame(payload: bytes) -> None:
    try:
        frame = decode(payload)
    except FrameError:
        return
    assert isinstance(frame, get_args(Frame))


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_a_frame_error_or_another_frame(frame: Frame, data: st.DataObject) -> None:
    payload = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(payload))
    except FrameError:
        return
    assert isinstance(found, get_args(Frame))


@pytest.mark.parametrize("opening", [b"", b"\x82\xa4type\xa6Cancel\xa3tag"], ids=["frame", "tag"])
def test_nesting_without_end_is_a_frame_error(opening: bytes) -> None:
    with pytest.raises(FrameError):
        decode(opening + b"\x91" * 200_000)


# ---- greetings of other versions ----------------------------------------------------------------------------


@pytest.mark.parametrize("frame", FRAMES[:3], ids=lambda frame: type(frame).__name__)
def test_a_greeting_names_its_version(frame: Frame) -> None:
    assert greeting_of(encode(frame)) == Greeting(type(frame).__name__, LINK_VERSION)


def test_the_version_of_a_greeting_is_understood_whatever_else_is_in_it() -> None:
    later = packed(type="Hello", version=9, role="spy", mood={"good": True})
    with pytest.raises(FrameError):
        decode(later)
    assert greeting_of(memoryview(later)) == Greeting("Hello", 9)


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode(Cancel(TAG)), packed(type="Hello", version="2")])
def test_what_is_no_greeting_has_no_version(payload: bytes) -> None:
    assert greeting_of(payload) is None


# ---- payloads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "payload"),
    [
        (Feed(TAG, AudioIn(160, b"\x00\xff"), 1), b"\x00\xff"),
        (Feed(TAG, Latents(16, 1, b"abcd", final=True), 1), b"abcd"),
        (Published(TAG, AudioOut(2, 24_000, 4_800, b"\x01\x00")), b"\x01\x00"),
    ],
    ids=["AudioIn", "Latents", "AudioOut"],
)
def test_a_payload_is_taken_out_and_put_back(frame: Feed | Published, payload: bytes) -> None:
    assert payload_of(frame) == payload
    without = with_payload(frame, b"", REF)
    assert (payload_of(without), without.body) == (b"", REF)
    assert with_payload(without, payload, None) == frame


@pytest.mark.parametrize("frame", [Feed(TAG, Pause(1)), Published(TAG, TextDelta("hi"))], ids=["item", "event"])
def test_what_carries_no_payload_has_none_elsewhere(frame: Feed | Published) -> None:
    assert payload_of(frame) == b""
    with pytest.raises(FrameError, match=r"a (Pause|TextDelta) has no payload"):
        with_payload(frame, b"x", None)
