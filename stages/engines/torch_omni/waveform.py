"""Code2Wav as a stream: what was decoded in pieces is, sample by sample, what would have been decoded at once.

Theory of operation
    Code2Wav is a transformer with a sliding window over frames, followed by convolutions that look back only. The
    transformer keeps its window in a cache. A convolution looks back over a fixed number of its own inputs, so each
    keeps exactly those and takes them in before the next ones: zeros at the start, as the model pads. A transposed
    convolution of stride s and kernel 2 s drops its first and its last s outputs, which belong to half-known inputs;
    with its last input kept it gives, from the second piece on, exactly s outputs for each new input.

    So nothing is computed twice but one input of each transposed convolution, and the sound lags by what these drop:
    each drops s of its own outputs, in all 555 samples with strides 8, 5, 4 and 3.

Rules
* The walk over the model follows the `forward` methods of `Code2Wav`'s parts in transformers 5.24; a part of unknown
  kind is refused when the model is loaded, not met amid a response.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as parts

_Convolution = parts.Qwen3OmniMoeCausalConvNet
_Transposed = parts.Qwen3OmniMoeCausalTransConvNet
_ConvNeXt = parts.Qwen3OmniMoeConvNeXtBlock
_Residual = parts.Qwen3OmniMoeCode2WavDecoderResidualUnit
_DecoderBlock = parts.Qwen3OmniMoeCode2WavDecoderBlock
_Snake = parts.Qwen3OmniMoeSnakeBeta


class WaveformNet:
    """Code2Wav of a whole model. Raises `ValueError` for one whose convolutions cannot be streamed."""

    def __init__(self, model: Any) -> None:
        self.code2wav = model.code2wav
        self.device = str(model.device)
        self.codebooks: int = model.config.code2wav_config.num_quantizers
        self.codes: int = model.config.code2wav_config.codebook_size
        self.window: int = model.config.code2wav_config.sliding_window
        self.layers = [layer for blocks in self.code2wav.upsample for layer in blocks] + list(self.code2wav.decoder)
        self.samples_per_frame = 1
        self.lag = 0
        for layer in self.layers:
            _check(layer)
            for part in layer.modules():
                if isinstance(part, _Transposed):
                    stride = part.conv.stride[0]
                    self.samples_per_frame *= stride
                    self.lag = self.lag * stride + part.right_pad

    def samples_after(self, frames: int) -> int:
        """Samples that are out once `frames` have been decoded."""
        return max(0, frames * self.samples_per_frame - self.lag)

    def hidden(self, codes: Any, cache: Any) -> Any:
        """What the convolutions take: float (1, channel, frame) of long (1, codebook, frame)."""
        embedded = self.code2wav.code_embedding(codes + self.code2wav.code_offset).mean(1)
        out = self.code2wav.pre_transformer(inputs_embeds=embedded, cache=cache, use_cache=True)
        return out.last_hidden_state.transpose(1, 2)


def _check(layer: Any) -> None:
    match layer:
        case _Convolution() if layer.stride == 1:
            return
        case _Transposed() if layer.conv.kernel_size[0] in (layer.conv.stride[0], 2 * layer.conv.stride[0]):
            return
        case _ConvNeXt():
            _check(layer.dwconv)
        case _Residual():
            _check(layer.conv1)
            _check(layer.conv2)
        case _DecoderBlock():
            for part in layer.block:
                _check(part)
        case _Snake():
            return
        case _:
            raise ValueError(f"Code2Wav has a {layer}, which cannot be streamed")


class StreamingDecoder:
    """The state of one response."""

    def __init__(self, net: WaveformNet) -> None:
        self._net = net
        self._cache: Any = DynamicCache(config=net.code2wav.pre_transformer.config)
        self._pasts: dict[Any, Any] = {}

    @property
    def positions(self) -> int:
        """Positions of KV held: those that the next frame can see."""
        return min(int(self._cache.get_seq_length()), self._net.window - 1)

    def decode(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """The samples, float32 within ±1, that the next frames bring out: `codes` is (codebook, frame)."""
        frames = torch.tensor(codes, device=self._net.device)[None]
        signal = self._net.hidden(frames, self._cache)
        for layer in self._net.layers:
            signal = self._pass(layer, signal)
        samples: NDArray[np.float32] = signal[0, 0].clamp(min=-1, max=1).to("cpu", torch.float32).numpy()
        return samples

    def _pass(self, layer: Any, signal: Any) -> Any:
        """`signal`, float (1, channel, time), through one part."""
        match layer:
            case _Convolution():
                return layer.conv(self._with_past(layer, signal, layer.padding, padded=True))
            case _Transposed():
                kept = layer.conv.kernel_size[0] // layer.conv.stride[0] - 1
                return layer(self._with_past(layer, signal, kept, padded=False))
            case _ConvNeXt():
                mixed = self._pass(layer.dwconv, signal).transpose(1, 2)
                mixed = layer.gamma * layer.pwconv2(layer.act(layer.pwconv1(layer.norm(mixed))))
                return signal + mixed.transpose(1, 2)
            case _Residual():
                changed = self._pass(layer.conv1, layer.act1(signal))
                return signal + self._pass(layer.conv2, layer.act2(changed))
            case _DecoderBlock():
                for part in layer.block:
                    signal = self._pass(part, signal)
                return signal
            case _:
                return layer(signal)

    def _with_past(self, layer: Any, signal: Any, kept: int, *, padded: bool) -> Any:
        """`signal` behind the last `kept` inputs of `layer`. The first time these are zeros, or none."""
        if not kept:
            return signal
        past = self._pasts.get(layer)
        if past is None:
            past = signal.new_zeros((*signal.shape[:2], kept if padded else 0))
        joined = torch.cat((past, signal), dim=2)
        self._pasts[layer] = joined[..., -kept:].clone()
        return joined
