"""G.711 against the tables of the recommendation, and against another codec."""

from __future__ import annotations

from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from media.g711 import A_LAW, MU_LAW, Law

CODES = bytes(range(256))
LAWS = {"pcm_mulaw": MU_LAW, "pcm_alaw": A_LAW}
# The decision values at which segments end (ITU-T G.711, tables 1a and 2a), at full scale 4096 and 8159.
A_SEGMENT_ENDS = (0, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096)
MU_SEGMENT_ENDS = (-1, 31, 95, 223, 479, 991, 2_015, 4_063, 8_159)


def steps(ends: tuple[int, ...], scale: int) -> NDArray[np.int64]:
    """The decision values from 0 on: 16 even steps in each segment."""
    pieces = [np.linspace(low, high, 17)[:-1] for low, high in pairwise(ends)]
    return np.maximum(np.concatenate(pieces) * scale, 0).round().astype(np.int64)


DECISIONS = {"pcm_mulaw": steps(MU_SEGMENT_ENDS, 4), "pcm_alaw": steps(A_SEGMENT_ENDS, 8)}
# The code of the smallest positive level, and what it and each larger one differ in from a plain count.
PATTERNS = {"pcm_mulaw": 0xFF, "pcm_alaw": 0xD5}


def samples(pcm: bytes) -> list[int]:
    values: list[int] = np.frombuffer(pcm, "<i2").tolist()
    return values


def pcm(values: NDArray[np.int64] | list[int]) -> bytes:
    data: bytes = np.asarray(values).astype("<i2").tobytes()
    return data


def positive_codes(name: str) -> bytes:
    """Those of the positive levels, the smallest first."""
    return bytes(PATTERNS[name] ^ place for place in range(128))


@pytest.mark.parametrize("name", LAWS)
def test_each_interval_of_the_recommendation_has_its_code(name: str) -> None:
    lowest = DECISIONS[name]
    highest = np.append(lowest[1:], 32_768) - 1
    codes = positive_codes(name)
    assert LAWS[name].encode(pcm(lowest)) == LAWS[name].encode(pcm(highest)) == codes
    negative = bytes(code ^ 0x80 for code in codes)
    assert LAWS[name].encode(pcm(~lowest)) == LAWS[name].encode(pcm(~highest)) == negative


@pytest.mark.parametrize("name", LAWS)
def test_all_codes_are_decoded_as_by_another_codec(name: str) -> None:
    decoder = av.CodecContext.create(name, "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    (frame,) = decoder.decode(av.Packet(CODES))
    assert samples(LAWS[name].decode(CODES)) == frame.to_ndarray().ravel().tolist()


@pytest.mark.parametrize(
    ("law", "known"),
    [
        (MU_LAW, {0x00: -32_124, 0x0F: -16_764, 0x7E: -8, 0x7F: 0, 0x80: 32_124, 0xF0: 120, 0xFE: 8, 0xFF: 0}),
        (A_LAW, {0x2A: -32_256, 0x55: -8, 0x54: -24, 0xAA: 32_256, 0xD4: 24, 0xD5: 8, 0xC5: 264}),
    ],
)
def test_known_levels(law: Law, known: dict[int, int]) -> None:
    assert samples(law.decode(bytes(known))) == list(known.values())


@pytest.mark.parametrize("law", LAWS.values())
def test_all_codes_come_back_but_for_the_second_zero(law: Law) -> None:
    back = law.encode(law.decode(CODES))
    assert law.decode(back) == law.decode(CODES)
    assert [code for code in CODES if back[code] != code] == ([0x7F] if law is MU_LAW else [])


@pytest.mark.parametrize("law", LAWS.values())
def test_no_sample_is_off_by_more_than_half_its_step(law: Law) -> None:
    given_samples = np.arange(-32_768, 32_768)
    decoded = np.asarray(samples(law.decode(law.encode(pcm(given_samples)))))
    assert (np.abs(decoded - given_samples) <= np.abs(given_samples) / 32 + 8).all()
    assert (np.diff(decoded) >= 0).all()


@given(st.binary(max_size=400), st.integers(0, 400))
def test_bytes_may_be_cut_anywhere(coded: bytes, place: int) -> None:
    for law in LAWS.values():
        assert law.decode(coded[:place]) + law.decode(coded[place:]) == law.decode(coded)
        assert law.encode(law.decode(coded[:place])) == law.encode(law.decode(coded))[: len(coded[:place])]


@pytest.mark.filterwarnings("ignore:'audioop' is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", LAWS)
def test_all_samples_are_coded_as_by_another_implementation_or_nearer(name: str) -> None:
    audioop = pytest.importorskip("audioop")
    encode, decode = {
        "pcm_mulaw": (audioop.lin2ulaw, audioop.ulaw2lin),
        "pcm_alaw": (audioop.lin2alaw, audioop.alaw2lin),
    }[name]
    law, given_samples = LAWS[name], np.arange(-32_768, 32_768)
    ours, theirs = law.encode(pcm(given_samples)), encode(pcm(given_samples), 2)
    assert law.decode(CODES) == decode(CODES, 2)
    # Of samples that lie between two levels, negative ones go by their one's complement here alone.
    differ = [value for value, ours_, theirs_ in zip(given_samples, ours, theirs, strict=True) if ours_ != theirs_]
    assert all(value < 0 for value in differ)
    assert len(differ) == {"pcm_mulaw": 508, "pcm_alaw": 0}[name]
    errors = [np.abs(np.asarray(samples(law.decode(coded))) - given_samples) for coded in (ours, theirs)]
    assert (errors[0] <= errors[1]).all()
