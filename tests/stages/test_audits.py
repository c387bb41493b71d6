"""What a stage is found to hold of what has ended: nothing, or what was kept back on purpose here."""

from __future__ import annotations

import pytest

from stages.audits import LATE_STREAMS_MAX
from stages.contracts import Tag
from stages.messages import Cancel, CloseSession, Grant, Hello, OpenSession
from stages.outbox import Outbox
from stages.stage import Stage
from tests.stages.puppet import PuppetStep
from tests.stages.stage_bench import CONTROL, OTHER_CONTROL, SESSION, TAG, Puppets, sound

KEY = TAG.key
NOTHING = {"streams": 0, "steps": 0, "late_outputs": 0}
NO_STRAYS = {"steps": 0, "credit": 0}
NO_SESSION = {"streams": 0, "sessions": 0, "model_memory": 0}


def speaking() -> Puppets:
    """`TAG` has made four samples, which its gateway has, and runs a step."""
    bench = Puppets(PuppetStep((sound(4),)), PuppetStep(), publish_window=8)
    bench.finish()
    bench.stream.steps.popleft()
    bench.wake()
    assert bench.running
    return bench


def test_what_is_there_is_counted() -> None:
    bench = speaking()
    audits = bench.stage.audits
    assert audits.of_stream(KEY) == {"streams": 1, "steps": 1, "late_outputs": 0}
    assert audits.of_session(SESSION, CONTROL) == {"streams": 1, "sessions": 1}
    assert audits.strays() == NO_STRAYS, "it belongs to the stream"


def test_a_stream_that_leaves_is_there_until_its_step_is_back() -> None:
    bench = speaking()
    bench.frame(Cancel(TAG))
    assert bench.stage.audits.of_stream(KEY) == {"streams": 1, "steps": 1, "late_outputs": 0}
    bench.finish()
    assert bench.stage.audits.of_stream(KEY) == NOTHING
    assert bench.stage.audits.strays() == NO_STRAYS


def test_a_step_that_waits_is_there() -> None:
    bench = speaking()
    other = Tag(SESSION, 5, 1, "resp_2")
    bench.another(other, PuppetStep())
    assert bench.stage.audits.of_stream(other.key) == {"streams": 1, "steps": 1, "late_outputs": 0}


def test_what_was_never_here_is_not_found() -> None:
    bench = speaking()
    assert bench.stage.audits.of_stream("resp_9") == NOTHING
    assert bench.stage.audits.of_session("another", CONTROL) == NO_SESSION


def test_a_session_that_was_closed_is_there_until_its_last_step_is_back() -> None:
    bench = speaking()
    bench.frame(CloseSession(SESSION))
    assert bench.stage.audits.of_session(SESSION, CONTROL) == {"streams": 1, "sessions": 0}
    bench.finish()
    assert bench.stage.audits.of_session(SESSION, CONTROL) == NO_SESSION


def test_another_gateways_session_is_no_leak_of_the_first() -> None:
    bench = speaking()
    bench.stage.link_up(OTHER_CONTROL, Hello(1, "control", "gw_2"))
    bench.frame(OpenSession(SESSION, 5), OTHER_CONTROL)
    bench.finish()
    assert bench.stage.audits.of_session(SESSION, CONTROL) == {"streams": 0, "sessions": 0}
    assert bench.stage.audits.of_session(SESSION, OTHER_CONTROL) == {"streams": 0, "sessions": 1}


def test_outputs_after_the_end_are_told_once() -> None:
    bench = speaking()
    bench.frame(Cancel(TAG))
    bench.stage.progress(KEY, (sound(4), sound(4)))
    assert bench.stage.audits.of_stream(KEY)["late_outputs"] == 0, "its stop was not confirmed yet"
    bench.finish()
    bench.stage.progress(KEY, (sound(4), sound(4)))
    bench.stage.progress(KEY, (sound(4),))
    assert bench.stage.audits.of_stream(KEY) == NOTHING | {"late_outputs": 3}
    assert bench.stage.audits.of_stream(KEY) == NOTHING


def test_late_outputs_are_remembered_of_the_latest_streams() -> None:
    stage = speaking().stage
    for number in range(LATE_STREAMS_MAX + 1):
        stage.progress(f"gone_{number}", (sound(4),))
    stage.progress(f"gone_{LATE_STREAMS_MAX}", (sound(4),))
    assert stage.audits.of_stream("gone_0")["late_outputs"] == 0
    assert stage.audits.of_stream("gone_1")["late_outputs"] == 1
    assert stage.audits.of_stream(f"gone_{LATE_STREAMS_MAX}")["late_outputs"] == 2


def test_what_a_model_throws_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def throw(session: str) -> dict[str, int]:
        raise RuntimeError(session)

    bench = Puppets()
    bench.frame(CloseSession(SESSION))
    monkeypatch.setattr(bench.model, "kept_for", throw)
    assert bench.stage.audits.of_session(SESSION, CONTROL) == {"streams": 0, "sessions": 0, "model_unknown": 1}


# ---- leaks ----------------------------------------------------------------------------------------------------


def test_credit_that_outlives_its_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = speaking()
    monkeypatch.setattr(Outbox, "close", lambda outbox: None)
    bench.frame(Cancel(TAG))
    bench.finish()
    assert bench.stage.audits.strays() == {"steps": 0, "credit": 4}
    assert bench.frame(Grant(TAG, 4)) == []
    assert bench.stage.audits.strays() == {"steps": 0, "credit": 4}


def test_a_session_that_a_model_does_not_forget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Puppets()
    monkeypatch.setattr(bench.model, "close_session", lambda session: None)
    bench.frame(CloseSession(SESSION))
    assert bench.stage.audits.of_session(SESSION, CONTROL) == NO_SESSION | {"model_memory": 1}


def test_a_session_that_the_stage_does_not_forget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Puppets()
    monkeypatch.setattr(Stage, "_release_session", lambda stage, session: [])
    bench.frame(CloseSession(SESSION))
    assert bench.stage.audits.of_session(SESSION, CONTROL) == {"streams": 0, "sessions": 1, "model_memory": 1}


def test_a_step_of_a_stream_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = speaking()
    other = Tag(SESSION, 5, 1, "resp_2")
    bench.another(other, PuppetStep())
    monkeypatch.setattr(bench.stage._scheduler, "drop", lambda key: None)
    bench.frame(Cancel(other))
    assert bench.stage.audits.of_stream(other.key) == NOTHING | {"steps": 1}
    assert bench.stage.audits.strays() == {"steps": 1, "credit": 0}
