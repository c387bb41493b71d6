"""What tags say of each other."""

from __future__ import annotations

import pytest

from stages.contracts import OUT_OF_BAND, Tag


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        (Tag("s", 4, 1, "r"), True),
        (Tag("s", 5, 1, "r"), False),
        (Tag("s", 4, 1), False),
        (Tag("s", OUT_OF_BAND, 1, "r"), False),
    ],
)
def test_output_of_an_epoch_that_has_ended(tag: Tag, expected: bool) -> None:
    assert tag.is_output_before(5) is expected
