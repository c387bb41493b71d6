"""The Thinker stage against the library's own greedy replies, and what it keeps between them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from stages.contracts import (
    Clause,
    Embeddings,
    EncoderOptions,
    Message,
    PrefillOptions,
    Prompt,
    Tag,
    TextDone,
    ThinkerOptions,
    Tool,
)
from stages.engines.torch_omni.model import vocabulary_of
from stages.engines.torch_omni.options import ThinkerSettings
from stages.engines.torch_omni.rows import emit_in_pieces, pack
from stages.engines.torch_omni.thinker import ThinkerModel
from stages.stream import Emit, StageFailure
from tests.stages.engines.torch_omni.chain import Free, Place, pump, text_of
from tests.stages.engines.torch_omni.offline import generate

SYSTEM = Message("system", "Be kind.")
TYPED = (SYSTEM, Message("user", "What is the weather like in the mountains today?"))
ALOUD = (SYSTEM, Message("user", "", audio_turn=1))
TOKENS_MAX = 8
INPUT = Tag("s", 1, 1)
SOUND = torch.randn(60, 64, generator=torch.Generator().manual_seed(5))


def thinker(model: Any, **settings: int) -> ThinkerModel:
    made = ThinkerModel(model, "tiny", vocabulary_of(model.config), ThinkerSettings(**settings))
    made.open_session("s")
    return made


def answer(model: ThinkerModel, messages: tuple[Message, ...], number: int = 1, **options: Any) -> Place:
    wanted = ThinkerOptions(messages, **({"max_output_tokens": TOKENS_MAX} | options))
    return Place(model.open(Tag("s", 1, 1, f"r{number}"), wanted))


def replied(place: Place) -> tuple[list[int], TextDone]:
    pump([place])
    assert place.stream.finished
    text, done = text_of(place)
    assert done is not None
    assert text == done.text
    return [int(token) for token in text.strip("<>").split("><") if token], done


def greedy(model: Any, messages: tuple[Message, ...]) -> list[int]:
    """The library's reply to typed `messages`."""
    return generate(model, messages, tokens_max=TOKENS_MAX, frames_max=1).tokens


def hear(model: ThinkerModel, prompt: tuple[Message, ...] | None, turn: int = 1, rows: Any = SOUND) -> Place:
    """A prefill that has got its prompt, and the sound of its turn but for the end."""
    place = Place(model.open(Tag("s", 1, turn), PrefillOptions()))
    if prompt is not None:
        place.feed(Prompt(prompt))
    for emit in emit_in_pieces(0, rows, "audio"):
        place.feed(emit.item, emit.units)
    return place


def end_sound(place: Place, rows: Any = SOUND) -> None:
    place.feed(pack(len(rows), rows[:0], "audio", final=True))
    pump([place])


def test_a_reply_is_the_librarys_token_for_token(tiny: Any) -> None:
    tokens, done = replied(answer(thinker(tiny), TYPED))
    assert tokens == greedy(tiny, TYPED)
    assert (done.reason, done.output_tokens, done.cached_tokens) == ("max_output_tokens", TOKENS_MAX, 0)


@pytest.mark.parametrize("piece", [1, 5, 32, 500])
def test_how_the_prompt_is_cut_makes_no_difference(tiny: Any, piece: int) -> None:
    model = thinker(tiny, piece_tokens_max=piece)
    place = answer(model, TYPED)
    tokens, done = replied(place)
    assert tokens == greedy(tiny, TYPED)
    assert place.steps == -(-done.prompt_tokens // piece) + TOKENS_MAX - 1


def test_a_reply_ends_where_the_model_ends_it(tiny: Any) -> None:
    model = copy.deepcopy(tiny)
    fourth = greedy(tiny, TYPED)[3]
    with torch.no_grad():
        model.thinker.lm_head.weight[2] = model.thinker.lm_head.weight[fourth] * 1.1
    tokens, done = replied(answer(thinker(model), TYPED))
    assert tokens == greedy(model, TYPED)
    assert len(tokens) < TOKENS_MAX
    assert (done.reason, done.output_tokens) == ("stop", len(tokens) + 1)


def test_the_talker_gets_what_it_speaks_from_and_each_token_that_goes_on(tiny: Any) -> None:
    place = answer(thinker(tiny), TYPED)
    tokens, _ = replied(place)
    items = [item for item in place.emitted if isinstance(item, Embeddings)]
    starts = [item.start for item in items]
    assert starts == [sum(item.count for item in items[:at]) for at in range(len(items))]
    # The user's message and the header of the answer; the token at which the reply is cut off is not spoken.
    spoken = 3 + len(TYPED[1].content) + 2 + 3
    assert sum(item.count for item in items if item.role == "prefill") == spoken
    steps = [item for item in items if item.role == "step"]
    assert [(item.count, item.final) for item in steps] == [(1, False)] * (TOKENS_MAX - 1) + [(0, True)]
    assert steps[0].data == tiny.thinker.get_input_embeddings().weight[tokens[0]].detach().numpy().tobytes()


def test_the_next_turn_finds_what_was_said(tiny: Any) -> None:
    model = thinker(tiny)
    _, first = replied(answer(model, TYPED))
    more = (*TYPED, Message("assistant", first.text), Message("user", "And now?"))
    tokens, done = replied(answer(model, more, 2))
    # All of the reply but its last token, which was picked and not read.
    assert done.cached_tokens == first.prompt_tokens + TOKENS_MAX - 1
    assert tokens == greedy(tiny, more)


def test_two_replies_of_a_session_may_take_turns(tiny: Any) -> None:
    model = thinker(tiny)
    one, other = answer(model, TYPED), answer(model, (SYSTEM, Message("user", "Hm?")), 2)
    pump([one, other])
    assert replied(one)[0] == greedy(tiny, TYPED)
    assert replied(other)[0] == greedy(tiny, (SYSTEM, Message("user", "Hm?")))


def test_temperature_draws(tiny: Any) -> None:
    drawn = {tuple(replied(answer(thinker(tiny), TYPED, temperature=2.0))[0]) for _ in range(3)}
    assert len(drawn) > 1


# ---- prefill and sound ----------------------------------------------------------------------------


def test_a_prompt_is_read_while_the_caller_speaks(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = Place(model.open(INPUT, PrefillOptions()))
    prefill.feed(Prompt((SYSTEM, Message("user", "What is the weather"))))
    assert pump([prefill]) > 1
    prefill.feed(Prompt(TYPED, complete=True))
    pump([prefill])
    assert not prefill.stream.finished
    tokens, done = replied(answer(model, TYPED))
    assert done.cached_tokens == done.prompt_tokens - 1
    assert tokens == greedy(tiny, TYPED)


def test_a_prompt_that_is_known_costs_no_reading(tiny: Any) -> None:
    model = thinker(tiny)
    replied(answer(model, TYPED))
    prefill = Place(model.open(INPUT, PrefillOptions()))
    prefill.feed(Prompt(TYPED))
    assert pump([prefill]) == 1
    assert replied(answer(model, TYPED, 2))[1].cached_tokens > 0


def test_sound_is_read_as_it_comes_in(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = hear(model, ALOUD)
    assert prefill.returned_units == prefill.fed_units == 60
    assert pump([prefill]) == 3
    assert prefill.stream.held() == {"vectors": 60}
    end_sound(prefill)
    assert prefill.stream.finished
    assert prefill.stream.held() == {"vectors": 0}
    place = answer(model, ALOUD)
    _, done = replied(place)
    assert done.cached_tokens == done.prompt_tokens - 5  # the end of the message, and the header
    roles = [item.role for item in place.emitted if isinstance(item, Embeddings)]
    assert roles == ["prefill", *["hidden"] * 3, "prefill", *["step"] * TOKENS_MAX]


def test_sound_without_a_prompt_is_kept(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = hear(model, None)
    assert pump([prefill]) == 0
    end_sound(prefill)
    assert prefill.stream.finished
    early = replied(answer(model, ALOUD))
    prefilled = thinker(tiny)
    end_sound(hear(prefilled, ALOUD))
    assert early[0] == replied(answer(prefilled, ALOUD))[0]


def test_a_reply_waits_for_a_sound_that_is_coming_in(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = hear(model, ALOUD)
    place = answer(model, ALOUD)
    # Nothing is prefilled either: the reply will read it all.
    assert pump([prefill, place]) == 0
    end_sound(prefill)
    assert prefill.stream.finished
    assert replied(place)[0]


def test_a_reply_waits_for_a_sound_of_which_nothing_has_come(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = Place(model.open(INPUT, PrefillOptions()))
    place = answer(model, ALOUD)
    assert pump([place]) == 0
    for emit in emit_in_pieces(0, SOUND, "audio"):
        prefill.feed(emit.item, emit.units)
    end_sound(prefill)
    assert replied(place)[0]


def test_a_sound_that_never_ends_is_forgotten(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = hear(model, ALOUD)
    pump([prefill])
    place = answer(model, ALOUD)
    prefill.stream.close()
    assert prefill.stream.held() == {"vectors": 0}
    with pytest.raises(StageFailure) as failed:
        place.stream.next_step()
    assert failed.value.code == "audio_unknown"


def test_a_complete_prompt_with_a_growing_sound_stays_open(tiny: Any) -> None:
    model = thinker(tiny)
    prefill = hear(model, None)
    prefill.feed(Prompt(ALOUD, complete=True))
    pump([prefill])
    end_sound(prefill)
    assert replied(answer(model, ALOUD))[1].cached_tokens > 60


def test_a_turn_that_is_heard_again_is_read_again(tiny: Any) -> None:
    model = thinker(tiny)
    end_sound(hear(model, ALOUD))
    first, _ = replied(answer(model, ALOUD))
    other = SOUND.flip(0)
    end_sound(hear(model, ALOUD, rows=other), other)
    again, done = replied(answer(model, ALOUD, 2))
    fresh = thinker(tiny)
    end_sound(hear(fresh, ALOUD, rows=other), other)
    assert again == replied(answer(fresh, ALOUD))[0]
    assert again != first
    assert done.cached_tokens > 60


# ---- limits and refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_a_cancelled_reply_gives_back_what_it_holds(tiny: Any, steps: int) -> None:
    model = thinker(tiny)
    place = answer(model, TYPED)
    pump([place], steps)
    place.stream.close()
    assert place.stream.held() == {"tokens": 0}
    assert pump([place]) == 0
    prefill = Place(model.open(INPUT, PrefillOptions()))
    prefill.feed(Prompt(TYPED))
    assert pump([prefill]) >= 1
    assert replied(answer(model, TYPED, 2))[0] == greedy(tiny, TYPED)


def test_replies_outside_the_conversation_have_a_context_of_their_own_in_turn(tiny: Any) -> None:
    model = thinker(tiny)
    replied(answer(model, TYPED))
    one, other, third = (answer(model, TYPED, number, spare=True) for number in (2, 3, 5))
    assert one.step()
    third.stream.close()
    assert not other.step()
    assert replied(one)[1].cached_tokens == replied(other)[1].cached_tokens == 0
    assert replied(answer(model, TYPED, 4))[1].cached_tokens > 0


def test_a_session_that_is_closed_leaves_nothing(tiny: Any) -> None:
    model = thinker(tiny)
    replied(answer(model, TYPED))
    assert model.kept_for("s") == {"contexts": 1, "hearings": 1}
    model.close_session("s")
    model.close_session("s")
    assert model.kept_for("s") == {"contexts": 0, "hearings": 0}
    with pytest.raises(StageFailure) as failed:
        model.open(INPUT, PrefillOptions())
    assert failed.value.code == "unknown_session"


def test_more_sessions_than_contexts_read_again_what_was_lost(tiny: Any) -> None:
    model = thinker(tiny, sessions=1)
    model.open_session("t")
    tokens, _ = replied(answer(model, TYPED))
    other = Place(model.open(Tag("t", 1, 1, "rt"), ThinkerOptions(TYPED, TOKENS_MAX)))
    replied(other)
    assert model.kept_for("s")["contexts"] == 0
    again, done = replied(answer(model, TYPED, 2))
    assert (again, done.cached_tokens) == (tokens, 0)
    seen = model.kv.statistics()
    assert (seen.misses, seen.evictions) == ({"new": 2, "evicted": 1}, {"pressure": 2})
    assert seen.rebuilt_tokens >= done.prompt_tokens


def test_a_reply_waits_for_a_context(tiny: Any) -> None:
    model = thinker(tiny, sessions=1)
    model.open_session("t")
    first = answer(model, TYPED)
    assert first.stream.next_step() is not None
    second = model.open(Tag("t", 1, 1, "rt"), ThinkerOptions(TYPED, TOKENS_MAX))
    ahead = model.open(Tag("t", 1, 2), PrefillOptions())
    ahead.feed(Prompt(TYPED))
    assert second.next_step() is None
    assert ahead.next_step() is None
    first.stream.close()
    assert second.next_step() is not None


def test_a_prompt_that_leaves_no_room_is_refused(tiny: Any) -> None:
    model = thinker(tiny, context_tokens=64, output_tokens_max=16)
    with pytest.raises(StageFailure) as failed:
        answer(model, TYPED).step()
    assert failed.value.code == "prompt_too_long"


def test_more_tokens_than_there_is_room_for_are_not_written(tiny: Any) -> None:
    _, done = replied(answer(thinker(tiny, output_tokens_max=3), TYPED, max_output_tokens=100))
    assert (done.reason, done.output_tokens) == ("max_output_tokens", 3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (EncoderOptions(), "wrong_options"),
        (ThinkerOptions(TYPED, 0), "wrong_options"),
        (ThinkerOptions(TYPED, 1, 2.1), "wrong_options"),
        (ThinkerOptions(TYPED, 1, tools=(Tool("look"),)), "wrong_options"),
        (ThinkerOptions((), 1), "bad_prompt"),
        (ThinkerOptions((Message("owner", "x"),), 1), "bad_prompt"),
    ],
)
def test_what_makes_no_sense_is_refused(tiny: Any, options: Any, code: str) -> None:
    with pytest.raises(StageFailure) as failed:
        thinker(tiny).open(Tag("s", 1, 1, "r"), options)
    assert failed.value.code == code


def test_items_of_other_stages_are_refused(tiny: Any) -> None:
    model = thinker(tiny)
    for place in (answer(model, TYPED), Place(model.open(INPUT, PrefillOptions()))):
        with pytest.raises(StageFailure) as failed:
            place.feed(Clause(0, "text"))
        assert failed.value.code == "wrong_item"


def test_the_price_of_an_item_is_its_vectors(tiny: Any) -> None:
    step = answer(thinker(tiny), TYPED)
    outputs: list[Emit] = []
    while planned := step.stream.next_step():
        outputs += [out for out in step.stream.finish_step(planned.run(Free())) if isinstance(out, Emit)]
    assert [out.units for out in outputs] == [out.item.count for out in outputs if isinstance(out.item, Embeddings)]
