"""The model behind the stages: a tiny one with random weights, or a checkpoint's.

Theory of operation
    The tiny model has every part of Qwen3-Omni at a size that a CPU runs faster than real time: 8 million parameters,
    most of them in tables of embeddings. They are drawn from a seed, so workers that are given the same seed have the
    same weights. Each worker builds all of the model and keeps the part that its stage needs.

Rules
* Nothing is downloaded: a checkpoint is a folder that `save_pretrained` wrote.
* On the CPU a stage computes on one thread. What it hands over is float32, whatever the model computes in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from transformers.utils import logging

from stages.engines.registry import EngineUnknownError
from stages.engines.torch_omni.options import ModelOptions
from stages.engines.torch_omni.prompt import Vocabulary

# Ids of the tiny vocabulary: special tokens, then the 256 bytes, then numbers without a meaning.
TOKENS = 2_048
FIRST_BYTE = 32
_SPECIAL = {
    "im_start_token_id": 1,
    "im_end_token_id": 2,
    "tts_pad_token_id": 3,
    "tts_bos_token_id": 4,
    "tts_eos_token_id": 5,
    "system_token_id": 6,
    "user_token_id": 7,
    "assistant_token_id": 8,
}
_MEDIA = {
    "audio_token_id": 10,
    "image_token_id": 11,
    "video_token_id": 12,
    "audio_start_token_id": 13,
    "vision_start_token_id": 15,
}

CODEBOOKS = 16
CODES = 2_048
# The library forbids the last 1,024 ids of the Talker's vocabulary, but for the end of speech: marks live there.
TALKER_TOKENS = CODES + 1_024

# Weights have the scale that keeps the variance of what passes through a layer (LeCun et al. 1998, "Efficient
# BackProp"). At 0.8 of it Code2Wav neither clips nor falls silent, and with this gamma it reacts to its past, so that
# an error in its state can be heard.
_CODE2WAV_GAIN = 0.8
_CODE2WAV_GAMMA = 0.3


def load(options: ModelOptions) -> tuple[Any, str]:
    """The whole model, ready to evaluate, and its revision.

    Raises `OSError` for a folder without one, and `EngineUnknownError` for a device that is not there.
    """
    _check_device(options.device)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.checkpoint:
        model, revision = _load_checkpoint(Path(options.checkpoint))
    else:
        model, revision = _make_tiny(options.seed), f"tiny-{options.seed}"
    return model.eval().requires_grad_(False).to(options.device), revision


def _check_device(name: str) -> None:
    """Before anything is loaded. Any tensor will do: whichever part of torch lacks the device fails in its own way."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise EngineUnknownError(f"engine 'torch' finds no device {name!r} here; use one that there is") from error


def _load_checkpoint(folder: Path) -> tuple[Any, str]:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, local_files_only=True)
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return model, digest.hexdigest()


def _make_tiny(seed: int) -> Any:
    model = Qwen3OmniMoeForConditionalGeneration(tiny_config())
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            gain = _CODE2WAV_GAIN if name.startswith("code2wav.") else 1.0
            torch.nn.init.normal_(parameter, std=gain * _inputs_of(name, parameter) ** -0.5, generator=generator)
        elif name.endswith(".gamma"):
            torch.nn.init.constant_(parameter, _CODE2WAV_GAMMA)
    return model


def _inputs_of(name: str, parameter: Any) -> int:
    """How many values a weight sums up. Experts of one layer are stacked in one parameter."""
    inputs: int = parameter.shape[-1] if ".experts." in name else parameter[0].numel()
    return inputs


def tiny_config() -> Any:
    """The configuration of the tiny model: every part there, none wider than 128."""
    return Qwen3OmniMoeConfig(
        thinker_config=_tiny_thinker(), talker_config=_tiny_talker(), code2wav_config=_tiny_code2wav(), **_SPECIAL
    )


def _tiny_decoder(tokens: int, layers: int) -> dict[str, object]:
    return {
        "vocab_size": tokens,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4_096,
    }


def _tiny_experts(tokens: int, layers: int) -> dict[str, object]:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    # The sections of a multimodal rotary embedding add up to half of the head.
    rope = {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [4, 2, 2]}
    return _tiny_decoder(tokens, layers) | experts | {"rope_parameters": rope}


def _tiny_thinker() -> dict[str, object]:
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "d_model": 64,
        "output_dim": 64,
        "downsample_hidden_size": 32,
        "n_window": 50,
        "n_window_infer": 200,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    return {
        "text_config": _tiny_experts(TOKENS, 3),
        "audio_config": audio,
        "vision_config": vision,
        "user_token_id": _SPECIAL["user_token_id"],
        **_MEDIA,
    }


def _tiny_talker() -> dict[str, object]:
    return {
        "text_config": _tiny_experts(TALKER_TOKENS, 2) | {"shared_expert_intermediate_size": 32},
        "code_predictor_config": _tiny_decoder(CODES, 2) | {"num_code_groups": CODEBOOKS},
        "num_code_groups": CODEBOOKS,
        "thinker_hidden_size": 64,
        "accept_hidden_layer": 2,
        "spatial_merge_size": 2,
        "codec_pad_id": CODES + 100,
        "codec_bos_id": CODES + 101,
        "codec_eos_token_id": CODES + 102,
        "codec_nothink_id": CODES + 107,
        "codec_think_bos_id": CODES + 108,
        "codec_think_eos_id": CODES + 109,
        "speaker_id": {"ethan": CODES + 252, "chelsie": CODES + 253},
        **_MEDIA,
    }


def _tiny_code2wav() -> dict[str, object]:
    return {
        "codebook_size": CODES,
        "num_quantizers": CODEBOOKS,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "decoder_dim": 48,
        "sliding_window": 72,
        "layer_scale_initial_scale": 0.3,
    }


def vocabulary_of(config: Any) -> Vocabulary:
    """The tokens that prompts are made of."""
    return Vocabulary(
        size=config.thinker_config.text_config.vocab_size,
        first_byte=FIRST_BYTE,
        im_start=config.im_start_token_id,
        im_end=config.im_end_token_id,
        audio_start=config.thinker_config.audio_start_token_id,
        roles={
            "system": config.system_token_id,
            "user": config.user_token_id,
            "assistant": config.assistant_token_id,
        },
    )
