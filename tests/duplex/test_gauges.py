"""What a call enters in the metrics, and what they say of all calls when they are asked for."""

from __future__ import annotations

from duplex.gauges import read_gauges
from media.chunk import ms_to_samples
from sessions.events import CommandRefused
from stages.messages import StepDone
from tests.duplex.test_call import Bench, play


def test_faults_of_the_client_are_counted() -> None:
    async def scenario(one: Bench) -> None:
        one.call.commit_input()
        one.call.client_failed("invalid_json")
        assert len(one.told(CommandRefused)) == 1
        assert one.metric('duplex_errors_total{code="input_audio_buffer_commit_empty",owner="client"}') == 1
        assert one.metric('duplex_errors_total{code="invalid_json",owner="client"}') == 1

    play(scenario)


def test_figures_of_the_stages() -> None:
    async def scenario(one: Bench) -> None:
        tag = one.start_reply()
        one.call.frame("vocoder", StepDone(tag, "chunk", 1_000_000, 2_000_000, 3))
        assert one.metric('duplex_stage_queue_seconds_sum{kind="chunk",stage="vocoder"}') == 0.001
        assert one.metric('duplex_stage_service_seconds_sum{kind="chunk",stage="vocoder"}') == 0.002
        assert one.metric('duplex_stage_batch_steps_sum{kind="chunk",stage="vocoder"}') == 3

    play(scenario)


def test_gauges_are_of_all_calls() -> None:
    async def scenario(one: Bench) -> None:
        one.client.has_room = False
        one.start_reply()
        read_gauges(one.metrics, [one.call, one.call], {})
        assert one.metric("duplex_undrained_responses") == 2
        assert one.metric("duplex_credit_in_use_samples") == 2 * ms_to_samples(1_000, 24_000)
        read_gauges(one.metrics, [], {})
        assert one.metric("duplex_undrained_responses") == 0
        assert one.metric("duplex_lead_seconds") == 0

    play(scenario)
