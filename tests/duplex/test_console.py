"""What is said to a person goes to standard error."""

from __future__ import annotations

import pytest

from duplex import console


def test_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("ready …")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "ready …\n")
