from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadtest.report import Spread, spread, to_json, to_text
from loadtest.timeline import CallPlan
from loadtest.turns import Lateness
from tests.loadtest.fake_realtime_server import ReplyScript, Script
from tests.loadtest.link import play, utterances

EVERYTHING = Script(
    (ReplyScript(chunks=50, stale_chunks=1), ReplyScript(error_code="engine_down"), ReplyScript(mute=True))
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Spread(0, None, None)),
        ([7.0], Spread(1, 7.0, 7.0)),
        ([3.0, 1.0, 2.0], Spread(3, 2.0, 3.0)),
        ([4.0, 1.0, 2.0, 3.0], Spread(4, 2.0, 4.0)),
        ([float(value) for value in range(1, 101)], Spread(100, 50.0, 95.0)),
    ],
)
def test_percentiles_are_measured_values(values: list[float], expected: Spread) -> None:
    assert spread(values) == expected


def test_json_has_every_turn_and_a_summary() -> None:
    result = play(CallPlan(utterances(300, 300)))
    report = json.loads(to_json(result))

    assert report["outcome"] == "completed"
    assert report["went_well"] is True
    assert report["valid"] is True
    assert [turn["ttfa_ms"] for turn in report["turns"]] == [160.0, 160.0]
    assert report["turns"][0]["timings"] == {"thinker": 12.5}
    assert report["turns"][0]["released"] == {"kv": 3}
    assert report["summary"]["outcomes"] == {"answered": 2}
    assert report["summary"]["ttfa_ms"] == {"n": 2, "median": 160.0, "p95": 160.0}
    assert report["summary"]["barge_in_stop_ms"] == {"n": 0, "median": None, "p95": None}
    assert report["summary"]["faults"]["stale_samples"] == 0
    assert "r-token" not in to_json(result)


def test_a_turn_without_answer_makes_the_figures_worse() -> None:
    plan = CallPlan(utterances(300, 300, 300), turn_timeout_ms=1_000)
    summary = json.loads(to_json(play(plan, Script((ReplyScript(), ReplyScript(), ReplyScript(mute=True))))))["summary"]

    assert summary["ttfa_censored"] == 1
    assert summary["ttfa_ms"] == {"n": 3, "median": 160.0, "p95": 1_020.0}


def test_the_table_says_what_happened() -> None:
    plan = CallPlan(utterances(300, 300, 300), barge_in_after_ms=200, turn_timeout_ms=1_000)
    text = to_text(play(plan, EVERYTHING))

    assert "turn 1  clip 300: interrupted" in text
    assert "first sound 160 ms" in text
    assert "stopped after 80 ms" in text
    assert "drained after 0 ms" in text
    assert "stages  thinker 12 ms" in text
    assert "FAULTS  stale_samples 960" in text
    assert "ERROR   engine_down: no" in text
    assert "first sound > 1020 ms" in text
    assert "call completed, " in text
    assert "NOT VALID" not in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_what_makes_the_figures_doubtful_is_said() -> None:
    result = replace(
        play(CallPlan(utterances(300))), event_seq_faults=2, detail="why", lateness=Lateness(100, 1.0, 5.1, 90.0)
    )

    assert json.loads(to_json(result))["valid"] is False
    assert "call completed: why" in to_text(result)
    assert "FAULTS  2 events out of sequence" in to_text(result)
    assert "NOT VALID: the caller itself was late (p99 5.1 ms, max 90.0 ms)" in to_text(result)
    assert not result.went_well


def test_what_a_carrier_complains_of_is_said() -> None:
    result = replace(play(CallPlan(utterances(300))), complaints=("31950 a binary message",))

    assert json.loads(to_json(result))["complaints"] == ["31950 a binary message"]
    assert "FAULTS  the carrier complains: 31950 a binary message" in to_text(result)
    assert not result.went_well


def test_a_telephone_tells_no_words() -> None:
    result = play(CallPlan(utterances(300)))
    wordless = replace(result, turns=tuple(replace(turn, caller_text="", reply_text="") for turn in result.turns))

    assert "    caller  question 1\n" in to_text(result)
    assert "caller" not in to_text(wordless)
    assert "    reply   (400 of 400 ms heard)\n" in to_text(wordless)


def test_long_texts_are_cut_in_the_table_alone() -> None:
    result = play(CallPlan(utterances(300)), Script((ReplyScript(chunks=50),)))

    assert "…" in to_text(result)
    assert "49" in json.loads(to_json(result))["turns"][0]["reply_text"]
