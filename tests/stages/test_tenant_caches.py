"""What tenants have in common of what is kept: nothing. Identical input of two of them finds nothing of the other's."""

from __future__ import annotations

import pytest

from stages.contracts import Message, Tag, TextDone, ThinkerOptions
from stages.engines.local.kv_slot import ThinkerSettings
from stages.engines.local.llama import LlamaSettings
from stages.engines.local.llama_fake import FakeLlama
from stages.engines.local.thinker import ThinkerModel
from stages.engines.synthetic.build import thinker
from stages.identity import Access
from stages.stream import StageModel
from tests.stages.engines.local.thinker_bench import TEMPLATE
from tests.stages.engines.synthetic import bench as synthetic
from tests.stages.reply_bench import done_of, run_all

PROMPT = (Message("system", "Be kind and brief. " * 10), Message("user", "Hello, can you hear me?"))
MINE, THEIRS = "sess_of_acme", "sess_of_other"


def local_done(model: StageModel, session: str, turn: int) -> TextDone:
    stream = model.open(Tag(session, 1, turn, f"resp_{session}_{turn}"), ThinkerOptions(PROMPT, 5))
    done = done_of(run_all(stream))
    stream.close()
    return done


def synthetic_done(model: StageModel, session: str, turn: int) -> TextDone:
    stream = model.open(Tag(session, 1, turn, f"resp_{session}_{turn}"), ThinkerOptions(PROMPT, 5))
    events = synthetic.events(synthetic.run(stream))
    stream.close()
    return next(event for event in events if isinstance(event, TextDone))


def test_the_local_thinker_reads_the_same_prompt_of_another_from_its_beginning() -> None:
    settings = ThinkerSettings(slots=2, context_tokens=1_024, output_tokens_max=256, sentences_max=2)
    model: StageModel = ThinkerModel(FakeLlama(LlamaSettings(3, 1_024), lambda _: "Yes."), TEMPLATE, settings, "fake")
    for session in (MINE, THEIRS):
        model.open_session(session)
    assert [local_done(model, session, 1).cached_tokens for session in (MINE, THEIRS)] == [0, 0]
    assert local_done(model, MINE, 2).cached_tokens > 0, "what is one's own is found, or this would show nothing"


def test_a_slot_that_goes_over_has_nothing_of_who_had_it() -> None:
    settings = ThinkerSettings(slots=1, context_tokens=1_024, output_tokens_max=256, sentences_max=2)
    model: StageModel = ThinkerModel(FakeLlama(LlamaSettings(2, 1_024), lambda _: "Yes."), TEMPLATE, settings, "fake")
    model.open_session(MINE)
    local_done(model, MINE, 1)
    model.close_session(MINE)
    model.open_session(THEIRS)
    assert local_done(model, THEIRS, 1).cached_tokens == 0


def test_the_synthetic_thinker_shares_nothing_either() -> None:
    model = thinker({"sessions_max": 2, "reply_words": 3})
    for session in (MINE, THEIRS):
        model.open_session(session)
    assert [synthetic_done(model, session, 1).cached_tokens for session in (MINE, THEIRS)] == [0, 0]
    assert synthetic_done(model, MINE, 2).cached_tokens > 0


@pytest.mark.parametrize(("tenant", "scope"), [("", "s"), ("t", "")])
def test_what_derives_from_a_caller_has_an_owner_in_its_identity(tenant: str, scope: str) -> None:
    with pytest.raises(ValueError, match="belongs to a tenant"):
        Access(tenant, scope)
