"""What a caller has said lately comes again from where it is wanted, as far as it is kept."""

from __future__ import annotations

import pytest

from loadtest.sent_sound import PIECE_MS, SECONDS_MAX, Piece, SentSound
from media.audio_format import FormatName


@pytest.mark.parametrize(("format_name", "rate", "width"), [("audio/pcm", 24_000, 2), ("audio/pcmu", 8_000, 1)])
def test_it_comes_in_pieces_that_name_their_place(format_name: FormatName, rate: int, width: int) -> None:
    sent = SentSound(format_name)
    sound = bytes(range(250)) * (rate * width // 250)
    sent.add(sound)
    assert sent.end == rate
    half = PIECE_MS * rate // 1_000
    assert sent.since(10) == Piece(10, 10 + half, sound[10 * width : (10 + half) * width])
    assert sent.since(rate - 1) == Piece(rate - 1, rate, sound[-width:])
    assert sent.since(rate) is None
    assert sent.since(rate + 5) is None, "a service that has heard more than was said wants nothing"


def test_only_the_newest_is_kept() -> None:
    sent = SentSound("audio/pcmu")
    for second in range(SECONDS_MAX + 3):
        sent.add(bytes([second]) * 8_000)
    oldest = sent.since(0)
    assert oldest is not None
    assert (oldest.start, oldest.coded[:1]) == (3 * 8_000, b"\x03")


def test_it_goes_on_behind_what_others_have_said() -> None:
    sent = SentSound("audio/pcmu")
    sent.begin_at(16_000)
    sent.add(b"ab")
    assert sent.since(0) == Piece(16_000, 16_002, b"ab")
