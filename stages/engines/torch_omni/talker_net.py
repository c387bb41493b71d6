"""The Talker's layers, and the state of one speech.

Theory of operation
    Each position of the Talker is the sum of a text side, projected from the Thinker's width, and a codec side, the
    embeddings of all codes of the frame before. The layout of the opening (padding and marks beside the first token)
    is that of `Qwen3OmniMoeForConditionalGeneration.generate` in transformers 5.24.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from stages.engines.torch_omni.sampling import CodePicker

# The library forbids the last ids of the Talker's vocabulary, but for the end of speech.
MARKS = 1_024


class TalkerNet:
    """The Talker of a whole model, and the three marks that it borrows from the Thinker's embeddings."""

    def __init__(self, model: Any) -> None:
        config = model.config.talker_config
        self._talker = model.talker
        self.config = config
        self.device = str(model.device)
        self.thinker_dim: int = config.thinker_hidden_size
        self.speakers: dict[str, int] = dict(config.speaker_id)
        self.end_of_speech: int = config.codec_eos_token_id
        tokens = config.text_config.vocab_size
        self.forbidden = [code for code in range(tokens - MARKS, tokens) if code != self.end_of_speech]
        marks = [model.config.tts_bos_token_id, model.config.tts_eos_token_id, model.config.tts_pad_token_id]
        with torch.inference_mode():
            rows = model.thinker.get_input_embeddings()(torch.tensor(marks, device=self.device))
            self.text_begin, self.text_end, self.padding = self.text(rows).split(1)

    def text(self, rows: Any) -> Any:
        """The text side of layer-0 embeddings, float (position, channel)."""
        return self._talker.text_projection(rows.to(self._talker.dtype))

    def sound(self, rows: Any) -> Any:
        """The text side of hidden states of sound."""
        return self._talker.hidden_projection(rows.to(self._talker.dtype))

    def codec(self, codes: list[int]) -> Any:
        """The codec side of first codes and marks."""
        return self._talker.get_input_embeddings()(torch.tensor(codes, device=self.device))

    def evaluate(self, inputs: Any, cache: Any) -> Any:
        """The output of the last of `inputs`, float (position, channel), as float (1, 1, channel)."""
        out = self._talker.model(inputs_embeds=inputs[None], cache=cache, use_cache=True)
        return out.last_hidden_state[:, -1:]

    def first_scores(self, output: Any) -> Any:
        """Scores of the next frame's first code, float32 (1, id)."""
        return self._talker.codec_head(output)[:, -1].float()

    def frame(self, output: Any, first: Any, picker: CodePicker) -> tuple[tuple[int, ...], Any]:
        """All codes of the frame that follows `output` and begins with `first`; and their codec side."""
        predictor = self._talker.code_predictor
        cache = DynamicCache()
        row = self._talker.get_input_embeddings()(first)
        inputs = torch.cat((output, row), dim=1)
        codes, rows = [first], [row]
        for head, table in zip(predictor.lm_head, predictor.model.codec_embedding, strict=True):
            hidden = predictor.model(inputs_embeds=inputs, cache=cache, use_cache=True).last_hidden_state
            code = picker.residual_code(head(hidden[:, -1]).float())
            inputs = table(code)
            codes.append(code)
            rows.append(inputs)
        side = torch.cat(rows, dim=1).sum(dim=1)
        return tuple(torch.cat(codes, dim=1)[0].tolist()), side


class Voice:
    """One speech: KV, the code that comes next, and what is left to be marked."""

    def __init__(self, net: TalkerNet, speaker: str, temperature: float, seed: int) -> None:
        self._net = net
        self._speaker = net.speakers[speaker or next(iter(net.speakers))]
        self._picker = CodePicker(net.forbidden, temperature, seed, net.device)
        self._cache: Any = DynamicCache()
        self._output: Any = None
        self._code: Any = None
        self._is_text_marked = False

    @property
    def has_begun(self) -> bool:
        return self._code is not None

    @property
    def has_ended(self) -> bool:
        """The Talker has picked its end of speech."""
        return self._code is not None and int(self._code) == self._net.end_of_speech

    @property
    def positions(self) -> int:
        """Positions of KV held."""
        return int(self._cache.get_seq_length())

    def read(self, rows: Any, *, sound: bool) -> None:
        """Take in a piece of the prompt."""
        self._net.evaluate(self._net.sound(rows) if sound else self._net.text(rows), self._cache)

    def open(self, token: Any) -> None:
        """Take in the reply's first token, float (channel,), and the marks around it."""
        net, config = self._net, self._net.config
        text = torch.cat((net.padding.expand(4, -1), net.text_begin, net.text(token[None])))
        thinking = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        codec = net.codec([*thinking, self._speaker, config.codec_pad_id, config.codec_bos_id])
        self._advance(text + codec)

    def frame(self, token: Any | None) -> tuple[int, ...]:
        """The codes of the next frame; then take in the reply's next token, or None where it has none any more."""
        codes, side = self._net.frame(self._output, self._code, self._picker)
        self._advance(side + self._text_of(token))
        return codes

    def _text_of(self, token: Any | None) -> Any:
        if token is not None:
            return self._net.text(token[None])
        if self._is_text_marked:
            return self._net.padding
        self._is_text_marked = True
        return self._net.text_end

    def _advance(self, inputs: Any) -> None:
        self._output = self._net.evaluate(inputs, self._cache)
        self._code = self._picker.first_code(self._net.first_scores(self._output))

    def forget(self) -> None:
        """Give the KV back."""
        self._cache = DynamicCache()
