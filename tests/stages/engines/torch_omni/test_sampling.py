"""Picking: the likeliest, or draws that a seed determines."""

from __future__ import annotations

import torch

from stages.engines.torch_omni.sampling import CodePicker, pick

SCORES = torch.tensor([[0.0, 4.0, 3.9, 1.0, 9.0]])


def drawn(seed: int, count: int = 40) -> list[int]:
    picker = CodePicker([4], 1.0, seed, "cpu")
    return [int(picker.first_code(SCORES)) for _ in range(count)]


def test_without_a_generator_the_likeliest_is_taken() -> None:
    assert pick(SCORES, None).tolist() == [[4]]


def test_forbidden_codes_are_never_first() -> None:
    assert CodePicker([4], 0.0, 0, "cpu").first_code(SCORES).tolist() == [[1]]
    assert CodePicker([4], 0.0, 0, "cpu").residual_code(SCORES).tolist() == [[4]]
    assert 4 not in drawn(1)


def test_what_was_picked_is_less_likely_from_then_on() -> None:
    picker = CodePicker([4], 0.0, 0, "cpu")
    assert [int(picker.first_code(SCORES)) for _ in range(3)] == [1, 2, 1]


def test_a_seed_determines_the_draws() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) > 1


def test_further_codes_are_drawn_from_the_nucleus() -> None:
    picker = CodePicker([], 1.0, 3, "cpu")
    assert {int(picker.residual_code(SCORES)) for _ in range(40)} == {4}
