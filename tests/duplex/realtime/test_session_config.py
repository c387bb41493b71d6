"""What a client may set, within which limits, and how a session is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.listening import detector_settings
from duplex.realtime.client_events import ClientEventError, ItemBody, ResponseBody, SessionPatch
from duplex.realtime.session_config import apply_patch, check_line, check_medium, item_of, response_spec, session_dict
from media.audio_format import FormatName
from sessions.items import Item
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection

DEFAULT = SessionSettings()
INPUT, OUTPUT = "session.audio.input", "session.audio.output"
DETECTION = f"{INPUT}.turn_detection"


def patched(settings: SessionSettings = DEFAULT, /, **patch: Any) -> SessionSettings:
    return apply_patch(settings, msgspec.convert(patch, SessionPatch))


def patched_input(settings: SessionSettings = DEFAULT, /, **patch: Any) -> SessionSettings:
    return patched(settings, audio={"input": patch})


def patched_output(settings: SessionSettings = DEFAULT, /, **patch: Any) -> SessionSettings:
    return patched(settings, audio={"output": patch})


def spec(**body: Any) -> ResponseSpec:
    return response_spec(msgspec.convert(body, ResponseBody), DEFAULT)


def item(**body: Any) -> Item:
    return item_of(msgspec.convert(body, ItemBody), "item_new")


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}


def test_an_empty_patch_changes_nothing() -> None:
    settings = SessionSettings("m", "i", "v", 1.2, ("text",), None, False, 7, 0.5)
    assert patched(settings) == settings
    assert patched(settings, audio={}) == settings
    assert patched(settings, audio={"input": {}, "output": {}}) == settings


def test_each_field_is_set_alone() -> None:
    assert patched(model="m").model == "m"
    assert patched(instructions="Be brief.").instructions == "Be brief."
    assert patched(output_modalities=["text"]).modalities == ("text",)
    assert patched(max_output_tokens=7).max_output_tokens == 7
    assert patched(temperature=0.5).temperature == 0.5
    assert patched_output(voice="marin").voice == "marin"
    assert patched_output(speed=0.5).speed == 0.5
    assert not patched_input(transcription=None).transcription
    for changed in (patched(model="m"), patched_output(speed=0.5)):
        assert changed.turn_detection == DEFAULT.turn_detection


def test_no_limit_is_the_services_own() -> None:
    limited = patched(max_output_tokens=7)
    assert patched(limited, max_output_tokens="inf").max_output_tokens is None


def test_absent_detection_stays_and_null_switches_it_off() -> None:
    changed = patched_input(turn_detection={"type": "server_vad", "silence_duration_ms": 700})
    assert changed.turn_detection == TurnDetection(silence_duration_ms=700)
    assert patched_input(changed, transcription={"model": "any"}).turn_detection == changed.turn_detection
    off = patched_input(changed, turn_detection=None)
    assert off.turn_detection is None
    assert patched_input(off).turn_detection is None
    assert patched_input(off, turn_detection={}).turn_detection == TurnDetection()


def test_the_idle_timeout_is_set_kept_and_switched_off() -> None:
    waits = patched_input(turn_detection={"type": "server_vad", "idle_timeout_ms": 5_000})
    assert waits.turn_detection == TurnDetection(idle_timeout_ms=5_000)
    assert session_dict("s", waits)["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 5_000
    kept = patched_input(waits, turn_detection={"type": "server_vad", "threshold": 0.7})
    assert kept.turn_detection == TurnDetection(threshold=0.7, idle_timeout_ms=5_000)
    off = {"type": "server_vad", "idle_timeout_ms": None}
    assert patched_input(waits, turn_detection=off).turn_detection == TurnDetection()
    semantic = {"type": "semantic_vad", "idle_timeout_ms": None, "threshold": None}
    assert patched_input(waits, turn_detection=semantic).turn_detection == TurnDetection(kind="semantic_vad")


def test_detection_keeps_what_was_set_for_its_kind() -> None:
    first = patched_input(turn_detection={"type": "server_vad", "threshold": 0.7, "create_response": False})
    again = patched_input(first, turn_detection={"type": "server_vad", "silence_duration_ms": 300})
    assert again.turn_detection == TurnDetection(threshold=0.7, create_response=False, silence_duration_ms=300)
    other = patched_input(again, turn_detection={"type": "semantic_vad", "eagerness": "high"})
    assert other.turn_detection == TurnDetection(kind="semantic_vad", eagerness="high")


@pytest.mark.parametrize(
    ("patch", "code", "param"),
    [
        ({"instructions": "x" * 16_385}, "string_above_max_length", "session.instructions"),
        ({"model": "x" * 129}, "string_above_max_length", "session.model"),
        ({"output_modalities": []}, "invalid_value", "session.output_modalities"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": 4_097}, "invalid_value", "session.max_output_tokens"),
        ({"temperature": -0.1}, "invalid_value", "session.temperature"),
        ({"temperature": 2.1}, "invalid_value", "session.temperature"),
        *(
            ({"audio": {way: {"format": wrong}}}, "unsupported_format", f"session.audio.{way}.format")
            for way in ("input", "output")
            for wrong in (
                {"type": "audio/pcm", "rate": 16_000},
                {"type": "audio/pcmu", "rate": 24_000},
                {"type": "audio/pcma", "rate": 16_000},
                {"type": "g711_ulaw"},
            )
        ),
        ({"audio": {"output": {"speed": 0.24}}}, "invalid_value", f"{OUTPUT}.speed"),
        ({"audio": {"output": {"speed": 1.51}}}, "invalid_value", f"{OUTPUT}.speed"),
        ({"audio": {"output": {"voice": "x" * 129}}}, "string_above_max_length", f"{OUTPUT}.voice"),
        ({"audio": {"output": {"voice": {"id": "v"}}}}, "unsupported_voice", f"{OUTPUT}.voice"),
        ({"audio": {"input": {"turn_detection": {"threshold": 1.1}}}}, "invalid_value", f"{DETECTION}.threshold"),
        ({"audio": {"input": {"turn_detection": {"threshold": -1}}}}, "invalid_value", f"{DETECTION}.threshold"),
        (
            {"audio": {"input": {"turn_detection": {"prefix_padding_ms": 2_001}}}},
            "invalid_value",
            f"{DETECTION}.prefix_padding_ms",
        ),
        (
            {"audio": {"input": {"turn_detection": {"silence_duration_ms": 99}}}},
            "invalid_value",
            f"{DETECTION}.silence_duration_ms",
        ),
        *(
            ({"audio": {"input": {"turn_detection": detection}}}, "invalid_value", f"{DETECTION}.idle_timeout_ms")
            for detection in ({"idle_timeout_ms": 4_999}, {"idle_timeout_ms": 30_001})
        ),
        *(
            (
                {"audio": {"input": {"turn_detection": {"type": kind, name: value}}}},
                "invalid_value",
                f"{DETECTION}.{name}",
            )
            for kind, name, value in (
                ("semantic_vad", "threshold", 0.5),
                ("semantic_vad", "prefix_padding_ms", 300),
                ("semantic_vad", "silence_duration_ms", 500),
                ("semantic_vad", "idle_timeout_ms", 6_000),
                ("server_vad", "eagerness", "high"),
            )
        ),
    ],
)
def test_what_cannot_be_set_is_named(patch: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ClientEventError) as raised:
        patched(**patch)
    assert (raised.value.code, raised.value.param) == (code, param)


def test_the_usual_format_may_be_named() -> None:
    for audio_format in ({"type": "audio/pcm"}, {"type": "audio/pcm", "rate": 24_000}, {}):
        assert patched(audio={"input": {"format": audio_format}, "output": {"format": audio_format}}) == DEFAULT


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
@pytest.mark.parametrize("rate", [{}, {"rate": 8_000}])
def test_each_way_has_its_own_format(name: FormatName, rate: dict[str, int]) -> None:
    heard = patched_input(format={"type": name, **rate})
    assert heard == SessionSettings(input_format=name)
    assert session_dict("sess", heard)["audio"]["input"]["format"] == {"type": name}
    assert session_dict("sess", heard)["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    both = patched_output(heard, format={"type": name, **rate})
    assert both == SessionSettings(input_format=name, output_format=name)
    assert session_dict("sess", both)["audio"]["output"]["format"] == {"type": name}
    assert both.output_rate == 8_000
    assert patched_input(both, format={}) == SessionSettings(output_format=name)


def test_sound_on_a_track_has_no_other_format() -> None:
    check_medium(DEFAULT)
    for settings, way in (
        (SessionSettings(input_format="audio/pcmu"), "input"),
        (SessionSettings(output_format="audio/pcma"), "output"),
    ):
        with pytest.raises(ClientEventError, match="Opus") as raised:
            check_medium(settings)
        assert (raised.value.code, raised.value.param) == ("unsupported_format", f"session.audio.{way}.format")


def test_the_formats_of_a_line_cannot_be_changed() -> None:
    line = SessionSettings(output_format="audio/pcmu")
    check_line(line, line)
    for wanted, way in ((DEFAULT, "output"), (SessionSettings("x", input_format="audio/pcma"), "input")):
        with pytest.raises(ClientEventError, match="line") as raised:
            check_line(line, wanted)
        assert (raised.value.code, raised.value.param) == ("unsupported_format", f"session.audio.{way}.format")


@given(st.floats(0, 1), st.integers(100, 10_000))
def test_whatever_is_allowed_makes_a_detector(threshold: float, silence_ms: int) -> None:
    detection = patched_input(turn_detection={"threshold": threshold, "silence_duration_ms": silence_ms}).turn_detection
    assert detection is not None
    detector_settings(detection)


def test_a_response_is_as_the_session_says_where_it_says_nothing() -> None:
    assert spec() == ResponseSpec()
    assert spec(output_modalities=[]) == ResponseSpec()


def test_a_response_in_full() -> None:
    asked = spec(
        instructions="Be brief.",
        output_modalities=["text"],
        conversation="none",
        input=[message("One."), message("Two.", role="assistant")],
        max_output_tokens=7,
        temperature=0.0,
        metadata={"a": "b"},
    )
    assert asked == ResponseSpec(
        "Be brief.", ("text",), 7, 0.0, False, (("user", "One."), ("assistant", "Two.")), (("a", "b"),)
    )


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"instructions": "x" * 16_385}, "string_above_max_length", "response.instructions"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "response.output_modalities"),
        ({"max_output_tokens": -1}, "invalid_value", "response.max_output_tokens"),
        ({"temperature": 3}, "invalid_value", "response.temperature"),
        ({"metadata": {str(number): "" for number in range(17)}}, "invalid_value", "response.metadata"),
        ({"metadata": {"k" * 65: ""}}, "string_above_max_length", "response.metadata"),
        ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "response.metadata"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "unsupported_item", "response.input.type"),
        ({"input": [message("x" * 16_000)] * 3}, "string_above_max_length", "response.input"),
    ],
)
def test_what_a_response_cannot_be_is_named(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ClientEventError) as raised:
        spec(**body)
    assert (raised.value.code, raised.value.param) == (code, param)


def test_an_empty_input_is_no_history() -> None:
    assert spec(input=[]).messages == ()


def test_an_item_keeps_its_id_or_gets_ours() -> None:
    assert item(**message("Hello.", id="mine")) == Item("mine", "user", "Hello.", spoken=False)
    assert item(**message("Hello.")).id == item(**message("Hello.", id="")).id == "item_new"


def test_parts_are_joined_and_transcripts_count_as_text() -> None:
    content = [{"type": "input_text", "text": " One."}, {"type": "input_audio", "transcript": "Two. "}]
    assert item(type="message", role="user", content=content).text == "One.\nTwo."


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"type": "item_reference", "id": "i"}, "unsupported_item", "item.type"),
        ({"type": "message", "content": []}, "unsupported_item", "item.type"),
        ({"type": "message", "role": "user"}, "invalid_value", "item.content"),
        (message("  "), "invalid_value", "item.content"),
        (message("x" * 16_385), "string_above_max_length", "item.content"),
        (message("Hello.", id="x" * 129), "string_above_max_length", "item.id"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AAA="}]},
            "unsupported_content",
            "item.content",
        ),
    ],
)
def test_what_an_item_cannot_be_is_named(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ClientEventError) as raised:
        item(**body)
    assert (raised.value.code, raised.value.param) == (code, param)


def test_a_session_as_it_is_shown() -> None:
    pcm = {"type": "audio/pcm", "rate": 24_000}
    assert session_dict("sess_1", DEFAULT) == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_1",
        "model": "",
        "instructions": "",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": pcm,
                "transcription": {"model": "default"},
                "noise_reduction": None,
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 500,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {"format": pcm, "voice": "default", "speed": 1.0},
        },
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
    }


def test_other_settings_as_they_are_shown() -> None:
    semantic = patched_input(turn_detection={"type": "semantic_vad", "eagerness": "low"}, transcription=None)
    shown = session_dict("s", patched_output(semantic, voice="marin"))["audio"]
    assert shown["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "low",
        "create_response": True,
        "interrupt_response": True,
    }
    assert shown["input"]["transcription"] is None
    assert shown["output"]["voice"] == "marin"
    manual = session_dict("s", patched_input(turn_detection=None))
    assert manual["audio"]["input"]["turn_detection"] is None
    assert session_dict("s", patched(max_output_tokens=7))["max_output_tokens"] == 7


def test_what_is_shown_can_be_sent_back() -> None:
    settings = patched_input(patched(max_output_tokens=7), turn_detection={"threshold": 0.25})
    shown = session_dict("s", settings)
    assert patched(settings, **shown) == settings
