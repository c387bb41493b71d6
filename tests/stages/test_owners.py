"""Whose each session is at a stage, and when its model forgets it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engine_boundary import EngineFault
from stages.owners import Owners
from stages.stream import StageFailure
from tests.stages.puppet import PuppetModel

ONE, OTHER = 1, 2


def owners() -> tuple[Owners, PuppetModel]:
    model = PuppetModel()
    return Owners(model), model


def test_a_session_is_of_who_opened_it_last() -> None:
    known, model = owners()
    assert known.open(ONE, "s", 5) is None
    assert known.open(OTHER, "s", 5) is None
    assert (known.owns(ONE, "s"), known.owns(OTHER, "s"), known.owns(OTHER, "t")) == (False, True, False)
    assert (known.is_owned("s"), known.is_owned("t")) == (True, False)
    assert (known.sessions_of(ONE), known.sessions_of(OTHER), len(known)) == ([], ["s"], 1)
    assert model.calls == ["open s"], "the model is asked once"


def test_who_has_no_say_is_told_why() -> None:
    known, _ = owners()
    known.open(ONE, "s", 5)
    assert known.refusal(ONE, "s") is None
    assert known.refusal(OTHER, "s") == ("not_owner", "another gateway has opened the session")
    assert known.refusal(ONE, "t") == ("unknown_session", "the session is not open at this stage")


def test_an_earlier_epoch_takes_nothing_over() -> None:
    known, _ = owners()
    known.open(ONE, "s", 5)
    failure = known.open(OTHER, "s", 4)
    assert failure is not None
    assert (failure.code, str(failure)) == ("stale_epoch", "epoch 4 ended, the session is at 5")
    assert known.owns(ONE, "s")


def test_epochs_only_rise() -> None:
    known, _ = owners()
    known.open(ONE, "s", 5)
    epochs = []
    for epoch in (7, 6):
        known.raise_epoch("s", epoch)
        epochs.append(known.epoch_of("s"))
    assert epochs == [7, 7]


def test_a_model_without_room_keeps_nothing() -> None:
    known, model = owners()
    model.session_fails = StageFailure("capacity", "full")
    assert known.open(ONE, "s", 5) is model.session_fails
    model.session_fails = ValueError("a bug")
    assert isinstance(known.open(ONE, "s", 5), EngineFault)
    assert len(known) == 0


def test_an_owner_is_told_once_and_the_next_one_too() -> None:
    known, _ = owners()
    assert known.to_tell("s") is None
    told = []
    for link in (ONE, OTHER):
        known.open(link, "s", 5)
        told.append(known.to_tell("s"))
        known.told("s")
        told.append(known.to_tell("s"))
    assert told == [ONE, None, OTHER, None]


def test_a_closed_session_is_forgotten_when_it_is_released() -> None:
    known, model = owners()
    known.open(ONE, "s", 5)
    known.close("s")
    assert (len(known), known.is_closing("s"), model.sessions) == (0, True, {"s"})
    known.release("s")
    assert (known.is_closing("s"), model.sessions) == (False, set())


def test_a_session_that_is_opened_again_meanwhile_is_kept() -> None:
    known, model = owners()
    known.open(ONE, "s", 5)
    known.close("s")
    known.open(ONE, "s", 3)
    assert (known.is_closing("s"), known.epoch_of("s"), model.sessions) == (False, 3, {"s"})


def test_what_a_model_throws_over_a_session_keeps_nobody_from_opening_it_again() -> None:
    known, model = owners()
    known.open(ONE, "s", 5)
    known.close("s")
    model.close_fails = RuntimeError("broken")
    failure = known.release("s")
    assert isinstance(failure, EngineFault)
    assert failure.error is model.close_fails
    assert not known.is_closing("s")
    assert known.open(ONE, "s", 6) is None


STEPS = st.tuples(
    st.sampled_from(("open", "raise", "close", "release")), st.sampled_from((ONE, OTHER)), st.integers(0, 6)
)


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=40))
def test_a_session_has_one_owner_and_its_epoch_only_rises(steps: list[tuple[str, int, int]]) -> None:
    known, _ = owners()
    owner, before = None, 0
    for step, link, epoch in steps:
        match step:
            case "open":
                failure = known.open(link, "s", epoch)
                assert (failure is not None) == (owner is not None and epoch < before)
                owner, before = (owner, before) if failure else (link, epoch)
            case "raise" if known.owns(link, "s"):
                known.raise_epoch("s", epoch)
                before = max(before, epoch)
            case "close" if known.owns(link, "s"):
                known.close("s")
                owner = None
            case "release" if known.is_closing("s"):
                known.release("s")
        assert [known.owns(one, "s") for one in (ONE, OTHER)] == [owner == ONE, owner == OTHER]
        assert (known.refusal(ONE, "s") is None) == (owner == ONE)
        assert owner is None or known.epoch_of("s") == before
        assert not (known.is_owned("s") and known.is_closing("s"))
