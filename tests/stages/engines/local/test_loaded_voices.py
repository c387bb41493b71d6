"""Voices by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from stages.engines.local.loaded_voices import LoadedVoices, voice_name
from stages.stream import StageFailure


@dataclass(frozen=True)
class Half:
    digest: str


JOE, AMY = Half("1"), Half("2")


def test_a_voice_is_called_as_its_file() -> None:
    assert voice_name(Path("/models/en_US-joe-medium.onnx")) == "en_US-joe-medium"


def test_they_are_found_by_name_and_the_first_without() -> None:
    voices = LoadedVoices({"joe": JOE, "amy": AMY})
    assert [voices.find(name) for name in ("amy", "joe", "")] == [AMY, JOE, JOE]


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(StageFailure, match="'ann'; this worker has joe, amy") as caught:
        LoadedVoices({"joe": JOE, "amy": AMY}).find("ann")
    assert caught.value.code == "wrong_options"


def test_who_has_the_same_digest_speaks_the_same() -> None:
    both = LoadedVoices({"joe": JOE, "amy": AMY}).digest
    assert LoadedVoices({"joe": JOE, "amy": AMY}).digest == both
    for other in ({"amy": AMY, "joe": JOE}, {"joe": AMY, "amy": JOE}, {"joe": JOE}, {"joe": JOE, "ann": AMY}):
        assert LoadedVoices(other).digest != both
