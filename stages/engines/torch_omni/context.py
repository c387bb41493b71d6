"""What the Thinker keeps for a session: the KV of what it has read, and the sounds that it has heard.

Theory of operation
    A context is a line of positions, each with its key (see `prompt`), its KV, and the vector that the Talker would be
    given for it: of text the layer-0 embedding, of sound the hidden state of the layer that the Talker accepts. To
    read a prompt, what differs from it is cut off, and the rest is evaluated piece by piece.

Rules
* Contexts change on the one engine thread of the Thinker alone.
* The last position of a prompt is always evaluated anew, since its output is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from stages.engines.torch_omni.prompt import Sound, common_length, sound_place


class Context:
    """The evaluated positions of one session."""

    def __init__(self) -> None:
        self._cache: Any = DynamicCache()
        self._keys: list[int] = []
        self._rows: list[Any] = []

    def __len__(self) -> int:
        return len(self._keys)

    def agrees(self, keys: Sequence[int]) -> bool:
        """Whether all of a prompt of `keys` has been read, whatever stands behind it."""
        return self._keys[: len(keys)] == list(keys)

    def cut(self, length: int) -> None:
        """Forget the positions from `length` on."""
        if length < len(self._keys):
            self._cache.crop(length - len(self._keys))
            del self._keys[length:]
            del self._rows[length:]

    def keep_common(self, keys: Sequence[int]) -> int:
        """Forget what differs from a prompt of `keys`. Gives how many of its positions are here."""
        self.cut(min(common_length(self._keys, keys), len(keys) - 1))
        return len(self._keys)

    def rows(self, positions: Sequence[int]) -> Any:
        """The Talker's vectors of `positions`, float (position, channel)."""
        return torch.stack([self._rows[position] for position in positions])

    def read(self, thinker: ThinkerNet, inputs: Any, keys: Sequence[int]) -> Any:
        """Evaluate `inputs`, float (position, channel), whose keys are `keys`. Gives the last position's output."""
        last, accepted = thinker.evaluate(inputs, self._cache)
        is_sound = torch.tensor([key < 0 for key in keys], device=inputs.device)
        self._rows += torch.where(is_sound[:, None], accepted, inputs).unbind(0)
        self._keys += keys
        return last


class ThinkerNet:
    """The Thinker's layers, of a whole model."""

    def __init__(self, model: Any) -> None:
        self._layers = model.thinker.model.language_model
        self._head = model.thinker.lm_head
        self._accepted_layer = model.config.talker_config.accept_hidden_layer
        self.dim: int = model.config.thinker_config.text_config.hidden_size
        self.device = str(model.device)

    def embed(self, tokens: Sequence[int]) -> Any:
        """The layer-0 embeddings of `tokens`, float (position, channel)."""
        return self._layers.get_input_embeddings()(torch.tensor(tokens, dtype=torch.long, device=self.device))

    def inputs(self, keys: Sequence[int], sounds: Mapping[int, Sound]) -> Any:
        """The inputs of positions with `keys`. `sounds` by number."""
        rows = self.embed([max(key, 0) for key in keys])
        for at, key in enumerate(keys):
            if key < 0:
                number, index = sound_place(key)
                rows[at] = sounds[number].rows[index]
        return rows

    def evaluate(self, inputs: Any, cache: Any) -> tuple[Any, Any]:
        """The output of the last position, float (channel,), and the accepted hidden states of all."""
        out = self._layers(inputs_embeds=inputs[None], cache=cache, use_cache=True, output_hidden_states=True)
        return out.last_hidden_state[0, -1], out.hidden_states[self._accepted_layer][0]

    def logits(self, output: Any) -> Any:
        """Scores of all tokens, float32 (1, token), after a position with `output`."""
        return self._head(output[None]).float()
