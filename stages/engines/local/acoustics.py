"""The acoustic half of a Piper voice with all that it takes to feed it: text in, latent frames and durations out.

Rules
* `plan` and `say` are each one bounded piece of work, and both together are at most one step.
* The same phrase, speed and seed give the same latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stages.engines.local.onnx_session import OnnxSession, open_session
from stages.engines.local.phonemes import Phonemizer
from stages.engines.local.piper_split import DURATION_NOISE, LATENT_NOISE, split_voice
from stages.engines.local.text_normal import SpokenWord, spoken_words
from stages.engines.local.voice import PhonemeWord, Phrase, VoiceConfig, load_voice

# A run costs about 0.4 ms per id at natural speed (0.6 on a busy core), half of it for the ids and half for the frames
# that they stretch to: 160 ids are at most 100 ms.
IDS_PER_STEP_MAX = 160

# Values of noise per run; a run that needs more reads them again from the start. 65,536 cover 341 frames of 192
# channels, more than a run of `IDS_PER_STEP_MAX` has at natural speed.
NOISE_VALUES = 65_536


class Speaker(Protocol):
    """What turns spoken words into phonemes: `phonemes.Phonemizer`, or a fake."""

    def phonemes(self, words: Sequence[SpokenWord]) -> tuple[PhonemeWord, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A clause written out. `unknown` counts symbols that the voice does not have."""

    words: tuple[SpokenWord, ...]
    phrases: tuple[Phrase, ...]
    unknown: int


@dataclass(frozen=True, slots=True)
class Speech:
    """A phrase as the model said it: float32 latents (frame, channel), and int64 durations in frames, one per id."""

    latents: npt.NDArray[np.float32]
    durations: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Acoustics:
    """One voice's acoustic half and all that it takes to feed it.

    `hop` is the samples of a frame at `config.audio.sample_rate`, `digest` the SHA-256 of the voice file.
    """

    config: VoiceConfig
    speaker: Speaker
    session: OnnxSession
    channels: int
    hop: int
    digest: str

    def plan(self, text: str, speed: float) -> Plan | None:
        """What is said for `text`; None: come again (see `Phonemizer`)."""
        words = spoken_words(text)
        phonemes = self.speaker.phonemes(words)
        if phonemes is None:
            return None
        # Half of the cost of an id lies in its frames, which slow speech multiplies.
        ids_max = int(2 * IDS_PER_STEP_MAX / (1 + max(1.0, 1 / speed)))
        phrases, unknown = self.config.phrases(phonemes, ids_max)
        return Plan(words, phrases, unknown)

    def say(self, phrase: Phrase, speed: float, seed: Sequence[int]) -> Speech:
        """Run the model; a phrase without ids is no frames."""
        if not phrase.ids:
            return Speech(np.zeros((0, self.channels), dtype=np.float32), np.zeros(0, dtype=np.int64))
        noise = np.random.default_rng(seed).standard_normal(NOISE_VALUES, dtype=np.float32)
        inference = self.config.inference
        scales = (inference.noise_scale, inference.length_scale / speed, inference.noise_w)
        latents, durations = self.session.run(
            None,
            {
                "input": np.array([phrase.ids], dtype=np.int64),
                "input_lengths": np.array([len(phrase.ids)], dtype=np.int64),
                "scales": np.array(scales, dtype=np.float32),
                DURATION_NOISE: noise[: 2 * len(phrase.ids)],
                LATENT_NOISE: noise[2 * len(phrase.ids) :],
            },
        )
        return Speech(np.ascontiguousarray(latents[0].T), durations.reshape(-1).astype(np.int64))

    def frames(self, milliseconds: int) -> int:
        """Whole frames in `milliseconds`, rounded down."""
        return milliseconds * self.config.audio.sample_rate // (1000 * self.hop)


def load_acoustics(voice: Path, cache_dir: Path) -> Acoustics:
    """Load the voice in file `voice`, configured by the file of that name plus `.json`; halves lie in `cache_dir`.

    Ready to speak without delay. Raises `UnsupportedVoiceError` and `OSError`.
    """
    config = load_voice(voice.with_name(f"{voice.name}.json"))
    halves = split_voice(voice, cache_dir)
    speaker = Phonemizer()
    acoustics = Acoustics(config, speaker, open_session(halves.acoustic), halves.channels, halves.hop, halves.digest)
    speaker.warm_up()
    plan = acoustics.plan("Hello.", 1.0)
    assert plan is not None, "a greeting needs no guesses"
    acoustics.say(plan.phrases[0], 1.0, (0,))
    return acoustics
