"""Settings: their defaults are the API's."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from sessions.settings import ResponseSpec, SessionSettings, TurnDetection


def test_the_defaults_are_those_of_the_api() -> None:
    detection = SessionSettings().turn_detection
    assert detection == TurnDetection("server_vad", 0.5, 300, 500, create_response=True, interrupt_response=True)
    assert SessionSettings().modalities == ("audio",)
    assert SessionSettings().max_output_tokens is None


def test_a_response_is_as_the_session_says_unless_it_says_otherwise() -> None:
    spec = ResponseSpec()
    assert spec.in_conversation
    unset = {field.name for field in fields(spec) if getattr(spec, field.name) is None}
    own = {"instructions", "modalities", "max_output_tokens", "temperature", "messages", "tools", "tool_choice"}
    assert unset == own | {"idle"}, "nobody asks for what is said to silence"


def test_settings_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        SessionSettings().voice = "other"  # type: ignore[misc]
    assert SessionSettings() == SessionSettings()
