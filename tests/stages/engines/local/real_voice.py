"""The real voice's two models, loaded once for all tests that hear them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from stages.engines.local.acoustics import Acoustics, load_acoustics
from stages.engines.local.vocoder import Decoder, load_decoder
from stages.weights import locate

SAMPLE_RATE = 22_050


def voice_path() -> Path:
    return locate("piper-en-us-joe")


@cache
def _cache_dir() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="voice-cache-")


@cache
def real_acoustics() -> Acoustics:
    return load_acoustics(voice_path(), Path(_cache_dir().name))


@cache
def real_decoder() -> Decoder:
    return load_decoder(voice_path(), Path(_cache_dir().name))
