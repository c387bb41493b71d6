"""Settings: their defaults are the API's, and the silence that ends a turn follows the kind of detection."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Literal

import pytest

from sessions.settings import EAGERNESS_SILENCE_MS, ResponseSpec, SessionSettings, TurnDetection


def test_server_vad_waits_for_the_silence_that_was_asked_for() -> None:
    assert TurnDetection(silence_duration_ms=730, eagerness="high").silence_ms == 730


@pytest.mark.parametrize(("eagerness", "silence_ms"), [("low", 1_000), ("medium", 600), ("auto", 600), ("high", 400)])
def test_semantic_vad_waits_by_its_eagerness(
    eagerness: Literal["low", "medium", "high", "auto"], silence_ms: int
) -> None:
    detection = TurnDetection("semantic_vad", silence_duration_ms=1, eagerness=eagerness)
    assert detection.silence_ms == silence_ms
    assert EAGERNESS_SILENCE_MS[eagerness] == silence_ms


def test_the_defaults_are_those_of_the_api() -> None:
    detection = SessionSettings().turn_detection
    assert detection == TurnDetection("server_vad", 0.5, 300, 500, create_response=True, interrupt_response=True)
    assert SessionSettings().modalities == ("audio",)
    assert SessionSettings().max_output_tokens is None


def test_a_response_is_as_the_session_says_unless_it_says_otherwise() -> None:
    spec = ResponseSpec()
    assert spec.in_conversation
    unset = {field.name for field in fields(spec) if getattr(spec, field.name) is None}
    assert unset == {"instructions", "modalities", "max_output_tokens", "temperature", "messages"}


def test_settings_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        SessionSettings().voice = "other"  # type: ignore[misc]
    assert SessionSettings() == SessionSettings()
