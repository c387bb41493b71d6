"""What the library itself makes of a conversation, all at once: the truth that the stages are held to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from stages.contracts import Message
from stages.engines.torch_omni.model import vocabulary_of
from stages.engines.torch_omni.prompt import Sound, render

AUDIO_RATE = 16_000


@dataclass(frozen=True, slots=True)
class Offline:
    """`tokens` of the reply without the mark of its end, `codes` (codebook, frame) and the waveform in ±1."""

    tokens: list[int]
    codes: NDArray[np.int64]
    wave: NDArray[np.float32]


def features_of(model: Any, samples: NDArray[np.float32]) -> Any:
    """The library's log-mel features, float32 (1, band, frame)."""
    extractor = WhisperFeatureExtractor(feature_size=model.config.thinker_config.audio_config.num_mel_bins)
    features = extractor(samples, sampling_rate=AUDIO_RATE, padding=False, truncation=False, return_tensors="pt")
    return features["input_features"]


def audio_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    """The embeddings of a whole sound, float32 (position, channel)."""
    features = features_of(model, samples)
    mask = torch.ones(1, features.shape[2], dtype=torch.long)
    with torch.inference_mode():
        return model.thinker.get_audio_features(features, feature_attention_mask=mask).last_hidden_state


def generate(
    model: Any,
    messages: Sequence[Message],
    *,
    sounds: dict[int, NDArray[np.float32]] | None = None,
    tokens_max: int,
    frames_max: int,
    speaker: str = "ethan",
    **sampling: Any,
) -> Offline:
    """Answer `messages`; `sounds`, 16 kHz in ±1 by turn, stand in the place of messages of those turns."""
    vocabulary = vocabulary_of(model.config)
    heard = {
        turn: Sound(turn, list(audio_rows(model, samples)), complete=True) for turn, samples in (sounds or {}).items()
    }
    keys = render(messages, heard, vocabulary, answer=True).keys
    ids = torch.tensor([[key if key >= 0 else model.config.thinker_config.audio_token_id for key in keys]])
    media = _media(model, list((sounds or {}).values()))
    sampling = {"talker_do_sample": False} | sampling
    with kept_codes(model) as kept, warnings.catch_warnings():
        # The library notes each time that the repetition penalty does not act on the Talker's prompt.
        warnings.simplefilter("ignore", UserWarning)
        sequence, wave = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            speaker=speaker,
            thinker_max_new_tokens=tokens_max,
            thinker_eos_token_id=vocabulary.im_end,
            thinker_do_sample=False,
            talker_max_new_tokens=frames_max + 1,
            **media,
            **sampling,
        )
    reply = sequence[0, ids.shape[1] :].tolist()
    tokens = reply[:-1] if reply[-1] == vocabulary.im_end else reply
    return Offline(tokens, kept[0][0].numpy(), wave[0, 0].numpy())


@contextmanager
def kept_codes(model: Any) -> Iterator[list[Any]]:
    """The codes that are decoded amid the block, long (1, codebook, frame), each time at once and not in windows: those
    lose samples at their borders."""
    kept: list[Any] = []

    def decode(codes: Any, **_: int) -> Any:
        kept.append(codes)
        return model.code2wav(codes)

    model.code2wav.chunked_decode = decode
    try:
        yield kept
    finally:
        del model.code2wav.chunked_decode


def _media(model: Any, sounds: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    if not sounds:
        return {}
    features = [features_of(model, samples)[0] for samples in sounds]
    longest = max(feature.shape[1] for feature in features)
    padded = torch.stack([torch.nn.functional.pad(feature, (0, longest - feature.shape[1])) for feature in features])
    mask = torch.zeros(len(features), longest, dtype=torch.long)
    for row, feature in zip(mask, features, strict=True):
        row[: feature.shape[1]] = 1
    return {"input_features": padded, "feature_attention_mask": mask}
