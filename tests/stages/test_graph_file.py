"""A graph as a file: what it says, and what is said of it where it is wrong."""

from __future__ import annotations

import pytest

from stages.graph import GraphError, Schedule, graph_from_toml
from tests.stages.test_graph import AUDIO, CLAUSES, LATENTS, changed, line

TOML = """
output_rate = 24000

[[stages]]
name = "hear"
kind = "encoder"
engine = "scripted"

[[stages]]
name = "think"
kind = "thinker"
engine = "scripted"
options = { sessions_max = 2 }

[[stages]]
name = "speak"
kind = "talker"
engine = "scripted"

[[stages]]
name = "sound"
kind = "vocoder"
engine = "scripted"
chunk_ms_max = 160

[[edges]]
source = "think"
target = "speak"
payload = "clauses"
window = 320

[[edges]]
source = "speak"
target = "sound"
payload = "latents"
axes = ["frame", "channel"]
schedule = { first = 8, then = 16 }
window = 48

[[edges]]
source = "sound"
target = "gateway"
payload = "audio"
window = 9600
"""


def test_a_graph_comes_from_toml() -> None:
    latents = changed(LATENTS, axes=("frame", "channel"), schedule=Schedule(first=8, then=16))
    assert graph_from_toml(TOML) == line(edges=(CLAUSES, latents, AUDIO))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[[edges]]", "[[edges", "the graph is no TOML: "),
        (
            "window = 320",
            "window = 0",
            "edge think → speak: window: input should be greater than or equal to 1: set it so",
        ),
        (
            'kind = "encoder"',
            'kind = "composite"',
            "stage 'hear': kind: input should be 'encoder', 'thinker', 'talker', ",
        ),
        (
            "first = 8",
            "first = 0",
            "edge speak → sound: schedule.first: input should be greater than or equal to 1: set",
        ),
        ("chunk_ms_max = 160", "chunk_ms = 160", "stage 'sound': chunk_ms: extra inputs are not permitted: remove it"),
        ('engine = "scripted"', "", "stage 'hear': engine: field required: add it; stage 'think': engine: "),
        ('name = "hear"', "", "stage number 1: name: field required: add it"),
        ('source = "think"', "", "edge number 1: source: field required: add it"),
        (
            "output_rate = 24000",
            "output_rate = -1",
            "output_rate: input should be greater than or equal to 8000: set it so",
        ),
        (
            "output_rate = 24000",
            "events_max = 1e11",
            "events_max: input should be less than or equal to 262144: set it so",
        ),
        ("output_rate = 24000", "tenant_weights = {paid = 0}", "tenant_weights.paid: input should be greater than or "),
        ("output_rate = 24000", "arena_blocks = 100000000", "arena_blocks: input should be less than or equal to 4096"),
        (
            "output_rate = 24000",
            "session_blocks_max = 5000",
            "session_blocks_max: input should be less than or equal to",
        ),
        (
            "window = 320",
            "window = 99999999999999999999999",
            "edge think → speak: window: input should be less than or ",
        ),
        ("window = 320", "window = 319", "edge think → speak: one hand-over of 'think' is up to 160 units, "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_the_stage_or_edge_and_the_mend(old: str, new: str, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_toml(TOML.replace(old, new))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(("what", "said"), [("stages = [7]\nedges = []", "stage number 1"), ("stages = 7", "stages")])
def test_what_has_no_name_is_counted(what: str, said: str) -> None:
    with pytest.raises(GraphError, match=f"{said}: input should be"):
        graph_from_toml(what)
