"""Figures by name, apart from those of another gateway in the same process."""

from __future__ import annotations

from duplex.metrics import Metrics

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
    "stage_up",
    "events_recorded",
    "events_overwritten",
    "pacer_lateness_seconds",
    "store_errors",
}


def families(text: str) -> set[str]:
    types = (line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    return {name.removeprefix("duplex_").removesuffix("_total") for name in types if not name.endswith("_created")}


def test_every_figure_is_offered() -> None:
    assert families(Metrics().render().decode()) >= FAMILIES


def test_two_gateways_do_not_share_figures() -> None:
    one, other = Metrics(), Metrics()
    one.calls.set(3)
    one.errors.labels("client", "invalid_json").inc()
    assert "duplex_calls 3.0" in one.render().decode()
    assert 'duplex_errors_total{code="invalid_json",owner="client"} 1.0' in one.render().decode()
    assert "duplex_calls 0.0" in other.render().decode()
    assert "invalid_json" not in other.render().decode()
