"""Which findings break a promise of telephones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.heard_error.judge import Finding
from benchmarks.heard_error.plan import Deed
from benchmarks.phone_heard_error import broken_promises, report, stops
from tests.benchmarks.heard_error.spoken import MS, WORD_MS, item, judged, speech


def heard(ms: int, *, history_ms: int, deed: Deed = "cancel", stop_ms: float = 10) -> Finding:
    """A reply of which so much left the queue."""
    sound = speech(*range(8))[: ms * MS]
    return judged(sound, item(history_ms // WORD_MS, history_ms), deed=deed, stop=(stop_ms, len(sound)))


def test_history_that_ends_where_the_queue_did_keeps_them() -> None:
    found = [heard(700, history_ms=700), heard(910, history_ms=900)]
    assert broken_promises("twilio", found) == broken_promises("asterisk", found) == []
    told: list[str] = []
    assert report(told.append, "twilio", found)
    assert any("an explicit cancel" in line and "n=2" in line for line in told)


def test_what_did_not_leave_the_queue_was_not_heard() -> None:
    (told,) = broken_promises("twilio", [heard(700, history_ms=720)])
    assert told.startswith("20 ms were not heard")


def test_an_error_is_larger_than_promised() -> None:
    low = heard(700, history_ms=590)
    (told,) = broken_promises("twilio", [low])
    assert "an error of 110 ms where 100" in told
    assert "an error of 30 ms where 20" in broken_promises("asterisk", [heard(700, history_ms=670)])[0]
    assert broken_promises("twilio", [low, *[heard(700, history_ms=700)] * 30]) == [], "at p95"
    assert broken_promises("asterisk", [heard(700, history_ms=590, deed="hang_up")]) == [], (
        "no report can come any more"
    )


def test_what_is_asked_to_stop_stops_soon() -> None:
    late = heard(700, history_ms=700, stop_ms=100)
    assert broken_promises("twilio", [late]) == []
    assert "silent after 100 ms where 80" in broken_promises("asterisk", [late])[0]
    assert broken_promises("asterisk", [heard(700, history_ms=700, deed="speak", stop_ms=100)]) == []


def test_a_reply_that_was_heard_to_its_end_had_nothing_to_stop() -> None:
    assert stops([heard(1_600, history_ms=1_600)], ["cancel"]) == []
    assert stops([heard(700, history_ms=700)], ["cancel"]) == [10]


def test_a_fault_of_the_words_is_one() -> None:
    found = replace(judged(np.zeros(0, dtype=np.float32), None), faults=("heard twice",))
    assert broken_promises("twilio", [found])[0].startswith("heard twice")
