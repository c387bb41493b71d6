"""The pages of an evaluation: what is shown, what is hidden, what machines get."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.turn_taking import report
from benchmarks.turn_taking.labels import Kind
from benchmarks.turn_taking.observation import Mark, Observation
from benchmarks.turn_taking.report import Evaluation
from tests.benchmarks.turn_taking.timelines import seen

BARGED_IN = seen(reply=[(-1_500, 250)], answer=[(1_400, 2_600)], notes=[(Mark.YIELDED, 250, "reply")])
TALKED_THROUGH = seen(Kind.BACKCHANNEL, reply=[(-1_500, 3_000)])
COMMITTED_EARLY = seen(Kind.DIGITS, over=False, voiced=[(0, 500), (1_200, 2_000)], notes=[(Mark.COMMITTED, 1_000, "")])


def run(*observations: Observation, lateness_ms: float = 1.0, errors: tuple[str, ...] = ()) -> Evaluation:
    return Evaluation("scripted", 1_000, 2, 61.2, lateness_ms, errors, observations)


def test_ten_events_are_shown_beside_those_of_others() -> None:
    page = report.to_markdown(run(*[BARGED_IN] * 10, *[TALKED_THROUGH] * 9))
    rows = [line for line in page.splitlines() if line.startswith("| **this run**")]
    assert rows[0] == "| **this run** | 0.60 | 1.00 | 0.25 | 1.00 | n/a (0) | n/a (9) | n/a (0) | n/a (0) |"
    assert rows[1] == "| **this run** | n/a (0) | n/a (0) | n/a (0) | 1.00 | 0.60 | 0.25 |"
    assert "| gpt-realtime-1.0 | 1.53 | 0.98 | 0.41 | 1.00 | 0.12 | 0.04 | 0.05 | 0.13 |" in page
    assert "| Moshi | 0.98 / 0.98 | 0.94 | 0.27 | 1.00 | 0.26 | - |" in page
    assert "## What is not comparable" in page


def test_the_page_says_how_sound_travelled() -> None:
    assert "wideband sound both ways" in report.to_markdown(run(BARGED_IN))
    telephone = replace(run(BARGED_IN), line="telephone")
    assert "telephone sound both ways" in report.to_markdown(telephone)
    assert json.loads(report.to_json(telephone))["line"] == "telephone"


def test_our_own_figures_are_shown_with_their_numbers() -> None:
    page = report.to_markdown(run(BARGED_IN, TALKED_THROUGH))
    assert "| hold latency, interruptions | 1 | 250 | 250 |" in page
    assert "| pause inserted per backchannel that was talked through | 1 | 0 | 0 |" in page
    assert "| reply kept after a backchannel | 1 | 1.00 |" in page
    assert "| reply kept after a vocal tic | 0 | - |" in page


def test_each_event_tells_how_it_went() -> None:
    spoilt = seen(Kind.TIC, reply=[(-500, 400)], spoilt="the reply ended meanwhile")
    page = report.to_markdown(run(BARGED_IN, COMMITTED_EARLY, spoilt))
    assert "| interruption | said | reply | given up | 250 | 600 |  |" in page
    assert "| dictated digits | said | silence | ended early |  |  |  |" in page
    assert "| vocal tic | said | reply | the reply ended meanwhile | 400 |  |  |" in page
    assert "Spoilt events: vocal tic 1" in page


def test_a_run_whose_callers_were_late_says_so() -> None:
    assert "NOT VALID" in report.to_markdown(run(BARGED_IN, lateness_ms=5.1))
    assert "NOT VALID" not in report.to_markdown(run(BARGED_IN, lateness_ms=5.0))


def test_a_run_on_a_machine_that_could_not_keep_up_says_so() -> None:
    """100 ms of standing still in 2.4 s of reply are 25 halts a minute."""
    halted = seen(reply=[(-3_000, -2_000), (-1_900, -500), (-450, 3_000)])
    assert "partly those of the machine" in report.to_markdown(run(halted))
    assert "partly those of the machine" not in report.to_markdown(run(TALKED_THROUGH))


def test_equal_complaints_are_told_once() -> None:
    assert "Error from the service, 2 times: no" in report.to_markdown(run(BARGED_IN, errors=("no", "no")))


def test_machines_get_the_figures_and_all_that_was_seen() -> None:
    whole = json.loads(report.to_json(run(BARGED_IN, TALKED_THROUGH)))
    assert (whole["part"], whole["valid"], whole["engine"]) == ("test", True, "scripted")
    assert whole["scores"]["r_y"] == {"events": 1, "value": 1.0}
    assert whole["observations"][0]["sounds"][0]["response"] == "reply"
    assert whole["observations"][1]["kind"] == "backchannel"


def test_a_terminal_gets_the_headline() -> None:
    assert report.short(run(*[BARGED_IN] * 10)).startswith("L_R 0.60 s, L_Y 0.25 s, R_Y 1.00, selectivity n/a (0) /")
