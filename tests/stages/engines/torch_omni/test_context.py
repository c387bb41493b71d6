"""A session's context: what is kept, what is cut, and that pieces make no difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from stages.engines.torch_omni.context import Context, ThinkerNet
from stages.engines.torch_omni.prompt import Sound

SOUND = Sound(2, list(torch.randn(8, 64, generator=torch.Generator().manual_seed(1))), complete=True)
SOUNDS = {2: SOUND}
KEYS = [1, 7, 42, 13, *(SOUND.key(index) for index in range(8)), 14, 900, 901, 902, 2, 42]


@pytest.fixture(scope="module")
def net(tiny: Any) -> ThinkerNet:
    return ThinkerNet(tiny)


def read(net: ThinkerNet, context: Context, keys: list[int], piece: int = 32) -> Any:
    with torch.inference_mode():
        start = context.keep_common(keys)
        while start < len(keys):
            part = keys[start : start + piece]
            last = context.read(net, net.inputs(part, SOUNDS), part)
            start = len(context)
    return last


@pytest.mark.parametrize("piece", [1, 3, 7])
def test_pieces_make_no_difference(net: ThinkerNet, piece: int) -> None:
    whole, parts = Context(), Context()
    torch.testing.assert_close(read(net, whole, KEYS), read(net, parts, KEYS, piece), atol=1e-5, rtol=1e-5)
    everywhere = range(len(KEYS))
    torch.testing.assert_close(whole.rows(everywhere), parts.rows(everywhere), atol=1e-5, rtol=1e-5)


def test_the_talker_gets_embeddings_of_text_and_hidden_states_of_sound(net: ThinkerNet) -> None:
    context = Context()
    read(net, context, KEYS)
    inputs = net.inputs(KEYS, SOUNDS)
    _, accepted = net.evaluate(inputs, DynamicCache())
    for position, key in enumerate(KEYS):
        expected = accepted if key < 0 else inputs
        torch.testing.assert_close(context.rows([position])[0], expected[position])


def test_what_agrees_is_kept_and_what_follows_is_read_anew(net: ThinkerNet) -> None:
    context, fresh = Context(), Context()
    read(net, context, KEYS)
    other = [*KEYS[:9], 800, 801]
    assert context.keep_common(other) == 9
    assert not context.agrees(other)
    torch.testing.assert_close(read(net, context, other), read(net, fresh, other), atol=1e-5, rtol=1e-5)
    assert len(context) == len(other)
    assert context.agrees(other[:4])


def test_the_last_position_is_always_evaluated(net: ThinkerNet) -> None:
    context = Context()
    last = read(net, context, KEYS)
    assert context.keep_common(KEYS) == len(KEYS) - 1
    torch.testing.assert_close(read(net, context, KEYS), last, atol=1e-5, rtol=1e-5)
