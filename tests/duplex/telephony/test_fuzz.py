"""Some rounds of `python -m tests.fuzz.telephony`, and that it finds what it looks for."""

from __future__ import annotations

import pytest

from duplex.telephony import media_streams
from duplex.telephony.marks import Marks
from tests.fuzz import telephony


@pytest.mark.parametrize("codec", sorted(telephony.CODECS))
def test_no_mangled_message_does_harm(codec: str) -> None:
    refused = [telephony.play(codec, seed) for seed in range(40)]
    assert 0 < sum(refused) < 40 * telephony.MESSAGES


def test_one_round_is_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert telephony.main(["--seed", "7", "--codec", "twilio"]) == 0
    assert capsys.readouterr().out.startswith("1 rounds of twilio")


def test_a_fault_is_found_and_its_round_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(media_streams, "base64_bytes", bytes.fromhex)
    monkeypatch.setattr(Marks, "came_back", lambda *_: 1 / 0)
    with pytest.raises((ValueError, ZeroDivisionError)):
        telephony.main(["--seconds", "5"])
    assert "--seed" in capsys.readouterr().err
