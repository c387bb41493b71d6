"""The formats of the Realtime API: names, rates, bytes."""

from __future__ import annotations

import pytest

from media.audio_format import FORMATS, FormatName

PCM = b"\x00\x00\x08\x00\xf8\xff"


@pytest.mark.parametrize(
    ("name", "rate", "coded"),
    [("audio/pcm", 24_000, PCM), ("audio/pcmu", 8_000, b"\xff\xfe\x7e"), ("audio/pcma", 8_000, b"\xd5\xd5\x55")],
)
def test_each_has_a_rate_and_its_bytes(name: FormatName, rate: int, coded: bytes) -> None:
    known = FORMATS[name]
    assert (known.name, known.sample_rate, known.encode(PCM)) == (name, rate, coded)
    assert known.encode(known.decode(coded)) == coded
    assert known.is_telephone == (rate == 8_000)


def test_samples_are_cut_by_who_joins_them() -> None:
    assert FORMATS["audio/pcm"].decode(b"\x01\x02\x03") == b"\x01\x02\x03"
