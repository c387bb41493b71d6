"""What others publish about their turn-taking, for the tables of the report.

Sources
    tau-voice: leaderboard of sierra-research/tau2-bench, mean over domains, ticks of 200 ms, read in August 2026.
    Full-Duplex-Bench v1: the README of its repository and arXiv 2503.04721; pauses: the synthetic and the Candor set.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TauVoice:
    """Seconds and rates, as the leaderboard has them; None where it has none."""

    system: str
    l_r: float
    l_y: float
    r_r: float | None
    r_y: float
    i_a: float
    s_bc: float
    s_vt: float
    s_nd: float


TAU_VOICE = (
    TauVoice("gpt-realtime-1.5", 1.39, 0.42, 0.999, 1.00, 0.14, 0.02, 0.05, 0.10),
    TauVoice("gpt-realtime-1.0", 1.53, 0.41, 0.978, 1.00, 0.12, 0.04, 0.05, 0.13),
    TauVoice("gpt-realtime-2 (minimal)", 1.44, 0.62, 0.998, 1.00, 0.19, 0.02, 0.06, 0.17),
    TauVoice("gemini-live-2.5-flash", 1.43, 0.86, 0.806, 0.56, 0.21, 0.85, 0.34, 0.45),
    TauVoice("gemini-3.1-flash-live (minimal)", 1.64, 0.82, 0.970, 0.52, 0.10, 0.90, 0.51, 0.27),
    TauVoice("grok-voice-fast-1.0", 1.15, 1.15, 0.913, 0.75, 0.84, 0.93, 0.58, 0.21),
    TauVoice("grok-think-fast-2.0", 1.71, 0.94, 1.000, 0.97, 0.11, 0.47, 0.33, 0.28),
    TauVoice("qwen3.5-omni-plus-realtime", 1.70, 0.93, 0.992, 0.90, 0.36, 0.84, 0.36, 0.15),
    TauVoice("LiveKit cascade", 4.24, 0.87, 0.791, 0.99, 0.64, 0.67, 0.49, 0.58),
)


@dataclass(frozen=True, slots=True)
class FullDuplexBench:
    """Take-over rates and latencies in seconds."""

    system: str
    tor_pause: tuple[float, ...]
    tor_question: float
    latency_question: float
    tor_interruption: float
    latency_interruption: float


FULL_DUPLEX_BENCH = (
    FullDuplexBench("dGSLM", (0.934, 0.935), 0.975, 0.352, 0.917, 2.531),
    FullDuplexBench("Moshi", (0.985, 0.980), 0.941, 0.265, 1.000, 0.257),
    FullDuplexBench("Freeze-Omni", (0.642, 0.481), 0.336, 0.953, 0.867, 1.409),
    FullDuplexBench("Gemini Live 2.0", (0.255, 0.310), 0.655, 1.301, 0.891, 1.183),
    FullDuplexBench("GPT-Realtime", (0.010, 0.120), 1.000, 1.470, 0.970, 1.500),
    FullDuplexBench("PersonaPlex", (0.584,), 0.992, 0.070, 1.000, 0.400),
)

NOT_COMPARABLE = """\
The definitions are those of the sources, the material is not. tau-voice plays simulated customers of hosted systems
with 200 ms ticks, so its times are rounded up to ticks and hold network and model time; ours are to the sample, on one
host, over loopback, with a model of 135 million parameters. Full-Duplex-Bench takes speech of people and of a better
synthesiser, recognises words in the answers, and merges gaps; here the caller is a formant synthesiser, labels and
words are known, and no gaps are merged. Its rates of backchannels (the model's own) have no counterpart here. Coughs,
doors and noise are made from chance. A reply's natural pauses are no silence here, since samples are counted and not
loudness. What is comparable is one version of this service with another, at the same seed and number of events."""
