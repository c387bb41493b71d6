"""Some rounds of `python -m tests.fuzz.telephony`, and that it finds what it looks for."""

from __future__ import annotations

import pytest

from duplex.telephony import media_streams
from duplex.telephony.marks import Marks
from loadtest.playout_model import PlayoutModel
from tests.fuzz import telephony


@pytest.mark.parametrize("target", sorted(telephony.TARGETS))
def test_no_mangled_message_does_harm(target: str) -> None:
    refused = [telephony.play(target, seed) for seed in range(40)]
    assert 0 < sum(refused) < 40 * telephony.MESSAGES


def test_one_round_is_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert telephony.main(["--seed", "7", "--target", "twilio"]) == 0
    assert capsys.readouterr().out.startswith("twilio: 40 messages in 1 rounds")


def test_it_ends_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert telephony.main(["--seconds-max", "0", "--target", "asterisk"]) == 0
    assert "in 1 rounds" in capsys.readouterr().out


def test_a_fault_is_found_and_its_round_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(media_streams, "base64_bytes", bytes.fromhex)
    monkeypatch.setattr(Marks, "came_back", lambda *_: 1 / 0)
    with pytest.raises((ValueError, ZeroDivisionError)):
        telephony.main(["--messages", "10000", "--target", "twilio"])
    assert "twilio, --seed" in capsys.readouterr().err


def test_sound_that_an_emulated_carrier_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayoutModel, "cut", lambda *_: [])
    with pytest.raises(AssertionError):
        telephony.main(["--messages", "10000", "--target", "emulated-twilio"])
