"""Figures by name, apart from those of another gateway in the same process."""

from __future__ import annotations

from typing import get_args

import pytest

from duplex.metrics import Metrics
from sessions.effects import Figure
from stages.messages import Audited

FAMILIES = {
    "first_audio_seconds",
    "encoder_wait_seconds",
    "stage_service_seconds",
    "stage_queue_seconds",
    "stage_batch_steps",
    "barge_in_stop_seconds",
    "drain_lag_seconds",
    "epochs_ended",
    "stale_dropped",
    "wasted_audio_seconds",
    "underruns",
    "responses",
    "errors",
    "calls_refused",
    "calls",
    "undrained_responses",
    "credit_in_use_samples",
    "replay_bytes",
    "stage_up",
    "events_recorded",
    "events_overwritten",
    "pacer_lateness_seconds",
    "store_errors",
    "audits",
    "audit_found",
}


def families(text: str) -> set[str]:
    types = (line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    return {name.removeprefix("duplex_").removesuffix("_total") for name in types if not name.endswith("_created")}


def test_every_figure_is_offered() -> None:
    assert families(Metrics().render().decode()) >= FAMILIES


@pytest.mark.parametrize("figure", get_args(Figure))
def test_all_that_a_conversation_measures_has_its_place(figure: Figure) -> None:
    metrics = Metrics()
    before = metrics.render()
    labelled = figure in ("drain_lag_seconds", "epochs_ended", "holds", "prepared_replies", "service_calls")
    metrics.measured(figure, 1, "x" if labelled else "")
    assert metrics.render() != before


def test_two_gateways_do_not_share_figures() -> None:
    one, other = Metrics(), Metrics()
    one.calls.set(3)
    one.errors.labels("client", "invalid_json").inc()
    assert "duplex_calls 3.0" in one.render().decode()
    assert 'duplex_errors_total{code="invalid_json",owner="client"} 1.0' in one.render().decode()
    assert "duplex_calls 0.0" in other.render().decode()
    assert "invalid_json" not in other.render().decode()


def test_what_was_looked_for_is_counted_with_what_was_found() -> None:
    metrics = Metrics()
    metrics.audited("talker", Audited("talker-2", "sess_1", "resp_1", {}, {}))
    metrics.audited("talker", Audited("talker-2", "sess_1", "resp_1", {"streams": 1, "blocks": 2}, {"credit": 3}))
    lines = metrics.render().decode().splitlines()
    for outcome in ("clean", "held"):
        assert f'duplex_audits_total{{outcome="{outcome}",stage="talker"}} 1.0' in lines
    for kind, count in (("streams", 1), ("blocks", 2), ("stray_credit", 3)):
        assert f'duplex_audit_found_total{{kind="{kind}",stage="talker"}} {count}.0' in lines
