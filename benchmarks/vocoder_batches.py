"""Does the local vocoder gain from chunks of several calls at once? One thread of ONNX Runtime, as in its worker."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.figures import percentile
from stages.engines.local.piper_split import LATENTS
from stages.engines.local.vocoder import CONTEXT_FRAMES, STEADY_CHUNK_FRAMES, load_decoder
from stages.weights import locate

Say = Callable[[str], None]

SIZES = (1, 2, 4, 8)
TIMES = 25


async def vocoder_batches(say: Say) -> bool:
    """CPU time for each chunk of 16 frames and its context, computed alone and in batches; the floor is alone."""
    with tempfile.TemporaryDirectory() as cache_dir:
        decoder = load_decoder(locate("piper-en-us-joe"), Path(cache_dir))
    shape = (max(SIZES), decoder.channels, STEADY_CHUNK_FRAMES + 2 * CONTEXT_FRAMES)
    latents = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    each_ms: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(TIMES):
        for size in SIZES:
            began_ns = time.thread_time_ns()
            decoder.session.run(None, {LATENTS: latents[:size]})
            each_ms[size].append((time.thread_time_ns() - began_ns) / size / 1e6)
    floor_ms = percentile(each_ms[1], 0.5)
    for size in SIZES:
        median_ms = percentile(each_ms[size], 0.5)
        say(f"batches of {size}: {median_ms:5.1f} ms of CPU for each chunk (median); ratio {median_ms / floor_ms:.2f}")
    return True
